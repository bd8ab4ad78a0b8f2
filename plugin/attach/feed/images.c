/* Decides what an image or label file that cannot be read means for the run: another image in its
 * place, or an error, while a network trains with the plugin, Darknet's own behaviour otherwise. It
 * must not know batches or sessions; batches.c says which thread loads for a batch.
 *
 * Darknet's functions that read them are replaced only to see names and failures, because Darknet
 * reports neither to its caller. */

#define _GNU_SOURCE
#include "images.h"

#include "amp.h"
#include "amp_observe.h"
#include "plugin/attach/ending.h"
#include "plugin/attach/fail.h"
#include "plugin/attach/no_memory.h"
#include "plugin/attach/exceptions.h"
#include "plugin/attach/interposed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

image load_image_cv(char *filename, int channels); /* declared for OPENCV only */
#ifdef AMP_WRAP
#pragma weak __real_load_image_cv
#endif

#define SAFE_NAME_BYTES 200 /* fits Darknet's buffer with the command around it */

static atomic_int followed;   /* amp_images_refuse: how many ask for it */
static atomic_int asked = -1; /* amp_refuse_bad_images; -1: not called */

/* A program's own wish (amp_refuse_bad_images) comes before the default. */
static bool refuses(void)
{
    return asked >= 0 ? asked : followed > 0;
}

bool amp_images_are_refused(void)
{
    return asked == 1;
}

/* One call of Darknet's decoder. Names too long for Darknet's buffer are given as a short link to
 * the open file. */
struct read_call {
    bool nested; /* load_image_color calls load_image: only the outer call counts */
    char *name;
    char link[32];
    int fd;
};

static _Thread_local const char *reading; /* the file that Darknet has been asked to decode */
static _Thread_local char damage[AMP_JPEG_DAMAGE]; /* of it, as libjpeg puts it */
static _Thread_local bool loading;                 /* images of a batch, with their labels */
static _Thread_local bool bad;                     /* the one being loaded cannot be decoded */

/* ---- a JPEG that is damaged ---- */

static const struct named {
    const struct named *next;
    char name[];
} * told;

/* True for the first caller with this name: an image is loaded again in every epoch. Names are
 * never freed; they are few. */
static bool is_first(const char *name)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    const struct named *n = told;
    while (n && strcmp(n->name, name) != 0)
        n = n->next;
    struct named *first = n ? NULL : malloc(sizeof *first + strlen(name) + 1);
    if (first) {
        first->next = told;
        strcpy(first->name, name);
        told = first;
    }
    pthread_mutex_unlock(&once);
    return !n;
}

/* Decoders fill a missing part with grey and go on. */
void amp_image_tell_damage(const char *name, const char *said)
{
    static const char any[] = "Corrupt JPEG data: "; /* how most of libjpeg's lines begin */
    bool cut = amp_jpeg_ends_early(name);
    if (!strncmp(said, any, sizeof any - 1)) said += sizeof any - 1;
    if ((!cut && !*said) || !is_first(name)) return;
    if (!cut)
        fprintf(stderr,
                "darknet-amp: image \"%s\" is damaged: %s; what can be decoded of it is used, as "
                "in Darknet alone\n",
                name, said);
    else
        fprintf(stderr,
                "darknet-amp: image \"%s\" ends early: it is cut off, and the part that is missing "
                "is grey, as in Darknet alone\n",
                name);
}

/* ---- reading a file ---- */

/* A file that cannot be opened gives the link /proc/self/fd/-1, which Darknet cannot decode
 * either. */
static void begin_read(struct read_call *r, char *name)
{
    *r = (struct read_call){.nested = reading != NULL, .name = name, .fd = -1};
    if (r->nested) return;
    amp_ending_enter();
    reading = name;
    *damage = '\0';
    if (refuses()) amp_jpeg_keep_damage(damage);
    if (strlen(name) <= SAFE_NAME_BYTES) return;
    r->fd = open(name, O_RDONLY | O_CLOEXEC);
    snprintf(r->link, sizeof r->link, "/proc/self/fd/%d", r->fd);
    r->name = r->link;
}

static void end_read(const struct read_call *r, bool decoded)
{
    if (r->nested) return;
    /* OpenCV has registered its destructors by now. */
    amp_ending_watch(AMP_ENDING_AFTER_IMAGE);
    amp_jpeg_keep_damage(NULL);
    if (decoded && refuses()) amp_image_tell_damage(reading, damage);
    if (r->fd >= 0) close(r->fd);
    reading = NULL;
    amp_ending_leave();
}

/* Both entries of the decoder are replaced, so that `reading` has the name the user knows when
 * system or load_image_cv is reached. */
image amp_image_load(char *filename, int w, int h, int c)
{
    struct read_call r;
    begin_read(&r, filename);
    image im = AMP_REAL(load_image)(r.name, w, h, c);
    end_read(&r, true);
    return im;
}

image amp_image_load_color(char *filename, int w, int h)
{
    struct read_call r;
    begin_read(&r, filename);
    image im = AMP_REAL(load_image_color)(r.name, w, h);
    end_read(&r, true);
    return im;
}

const struct amp_pixels *amp_image_decode_jpeg(char *filename, int least,
                                               struct amp_jpeg_memory *memory)
{
    struct read_call r;
    begin_read(&r, filename);
    const struct amp_pixels *pixels =
        amp_jpeg_decode(memory->file, memory->file_bytes, least, memory);
    if (!r.nested) memcpy(damage, memory->damage, sizeof damage);
    end_read(&r, pixels != NULL); /* what it left, Darknet reads or refuses */
    return pixels;
}

/* ---- a file that cannot be decoded ---- */

#define NO_IMAGE                                                                                   \
    "it must be an image file, such as JPEG or PNG (Darknet alone would go on with a black image " \
    "of 10x10)"

/* ---- another image in its place ---- */

static atomic_llong drawn, replaced; /* images of batches */

long long amp_images_replaced(void)
{
    return replaced;
}

bool amp_images_is_bad(void)
{
    return bad;
}

/* A few may be bad in any set; if it is more, the cause is another one: a disk that has gone, a
 * decoder that lacks a format. */
static bool are_many(void)
{
    return replaced >= AMP_BAD_IMAGES_FEW && replaced * AMP_BAD_IMAGES_SHARE >= drawn;
}

/* Whether the run goes on with another image. Darknet is given a black one until the load ends. */
static bool replace(const char *name, const char *why)
{
    if (!loading || are_many()) return false;
    if (!bad) replaced++;
    bad = true;
    if (is_first(name))
        fprintf(stderr,
                "darknet-amp: image \"%s\" cannot be read or decoded%s%s: another one is drawn in "
                "its place, now and whenever it is drawn again\n",
                name, *why ? ": " : "", why);
    return true;
}

/* Several loader threads may get here; the first ends the program. */
static _Noreturn void end_program(const char *name, const char *why)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    char message[PATH_MAX + 1000];
    pthread_mutex_lock(&once);
    snprintf(message, sizeof message, "image \"%s\" cannot be read or decoded: %s", name, why);
    if (loading && are_many()) {
        size_t used = strlen(message);
        snprintf(message + used, sizeof message - used,
                 "; it is one of %lld among %lld images drawn: no more than 1 in %d is replaced by "
                 "another",
                 (long long)replaced + 1, (long long)drawn, AMP_BAD_IMAGES_SHARE);
    }
    amp_fail(message);
}

/* Without OpenCV Darknet ends the program by itself, with exit and status 0. This runs then and
 * makes the status 1. */
static void refuse_at_exit(void)
{
    if (refuses() && reading) end_program(reading, NO_IMAGE);
}

static void watch_exit(void)
{
    atexit(refuse_at_exit);
}

static void watch(bool on)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (on) pthread_once(&once, watch_exit);
}

void amp_images_refuse(bool on)
{
    watch(on);
    followed += on ? 1 : -1;
}

void amp_refuse_bad_images(int on)
{
    watch(on);
    asked = on != 0;
}

static int note_bad_image(const char *name)
{
    FILE *list = fopen("bad.list", "a");
    if (!list) {
        perror("darknet-amp: cannot write bad.list");
        return -1;
    }
    fprintf(list, "%s\n", name);
    fclose(list);
    return 0;
}

/* NULL: the file can be opened. */
static const char *unopened(const char *name)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) close(fd);
    return fd >= 0 ? NULL : strerror(errno);
}

/* That is no fault of the image, and the next one cannot be read either. */
static bool are_files_used_up(void)
{
    return errno == EMFILE || errno == ENFILE;
}

#define USED_UP "too many files are open: raise the limit (ulimit -n)"

/* Darknet runs one shell command while it decodes an image: the one that adds the name to bad.list.
 * No shell is needed for that, and a name with quotes must not reach one. */
bool amp_images_take_command(int *status)
{
    if (!reading) return false;
    const char *why = unopened(reading);
    *status = 0;
    if (refuses() && why && are_files_used_up()) end_program(reading, USED_UP);
    if (refuses() && replace(reading, why ? why : "")) return true;
    if (refuses()) end_program(reading, why ? why : NO_IMAGE);
    *status = note_bad_image(reading);
    return true;
}

struct decoding {
    char *filename;
    int channels;
    image decoded;
};

static void decode(void *p)
{
    struct decoding *d = p;
    d->decoded = AMP_REAL(load_image_cv)(d->filename, d->channels);
}

/* OpenCV throws if a file's header asks for too much or memory ends. Nothing in Darknet's C catches
 * it: the program would abort, in any command. */
image amp_image_decode(char *filename, int channels)
{
    struct decoding d = {filename, channels, {0}};
    char why[500];
    if (!amp_catch_exception(decode, &d, why, sizeof why)) return d.decoded;
    const char *name = reading ? reading : filename;
    bool memory = strstr(why, "nsufficient memory");
    if (!memory && refuses() && replace(name, why)) return amp_image_make(10, 10, 3);
    end_program(name, why);
}

/* ---- labels that have gone, memory that ends ---- */

void amp_images_loading(bool on)
{
    loading = on;
    if (on) bad = false;
    if (on) drawn++;
    amp_memory_set_use(on ? AMP_MEMORY_LOAD : AMP_MEMORY_OTHER);
}

/* Darknet's own ends the program too, but with status 0 and without the reason. Called for any file
 * that it needs: a program that wants no black images wants no such end either. */
void amp_images_miss(const char *file)
{
    char why[PATH_MAX + 100];
    if (!loading && !amp_images_are_refused()) return;
    snprintf(why, sizeof why, "%s: cannot be opened: %s%s", file, strerror(errno),
             loading ? "; labels must stay where they are while it trains" : "");
    amp_fail(why);
}

/* Darknet's own does not look at what calloc returns, and crashes later. */
image amp_image_make(int w, int h, int c)
{
    char why[200];
    enum amp_memory_use before = amp_memory_set_use(AMP_MEMORY_CHECKED);
    image im = AMP_REAL(make_image)(w, h, c);
    amp_memory_set_use(before);
    if (im.data) return im;
    snprintf(why, sizeof why,
             "no memory for an image of %dx%d (%.1f MiB)%s raise the limit of memory (ulimit -v)",
             w, h, (double)w * h * c * sizeof(float) / (1 << 20),
             loading ? " while a batch is loaded: lower batch, or" : ":");
    amp_fail(why);
}
