#include "image_file.h"

#include "amp.h"

#include "ending.h"
#include "exceptions.h"
#include "fail.h"
#include "symbols.h"

#include "darknet.h"
#include "utils.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

image load_image_cv(char *filename, int channels); /* declared for OPENCV only */
#ifdef AMP_WRAP
#pragma weak __real_load_image_cv
#endif

#define SAFE_NAME_BYTES 200 /* fits Darknet's buffer with the command around it */

static atomic_int followed;   /* amp_image_file_refuse: how many ask for it */
static atomic_int asked = -1; /* amp_refuse_bad_images; -1: not called */

static bool refuses(void)
{
    return asked >= 0 ? asked : followed > 0;
}

/* One call of Darknet's decoder, by a name that is short enough for it. */
struct read_call {
    bool nested; /* load_image_color calls load_image */
    char *name;
    char link[32];
    int fd;
};

static _Thread_local const char *reading; /* the file that Darknet has been asked to decode */
static _Thread_local bool loading;        /* images of a batch, with their labels */

/* ---- reading a file ---- */

static void begin_read(struct read_call *r, char *name)
{
    *r = (struct read_call){.nested = reading != NULL, .name = name, .fd = -1};
    if (r->nested) return;
    amp_ending_enter();
    reading = name;
    if (strlen(name) <= SAFE_NAME_BYTES) return;
    r->fd = open(name, O_RDONLY | O_CLOEXEC);
    snprintf(r->link, sizeof r->link, "/proc/self/fd/%d", r->fd);
    r->name = r->link;
}

static void end_read(const struct read_call *r)
{
    if (r->nested) return;
    amp_ending_watch(AMP_ENDING_AFTER_IMAGE);
    if (r->fd >= 0) close(r->fd);
    reading = NULL;
    amp_ending_leave();
}

AMP_INTERPOSE(image, load_image, (char *filename, int w, int h, int c))
{
    struct read_call r;
    begin_read(&r, filename);
    image im = AMP_REAL(load_image)(r.name, w, h, c);
    end_read(&r);
    return im;
}

AMP_INTERPOSE(image, load_image_color, (char *filename, int w, int h))
{
    struct read_call r;
    begin_read(&r, filename);
    image im = AMP_REAL(load_image_color)(r.name, w, h);
    end_read(&r);
    return im;
}

/* ---- a file that cannot be decoded ---- */

#define NO_IMAGE                                                                                   \
    "it must be an image file, such as JPEG or PNG (Darknet alone would go on with a black image " \
    "of 10x10)"

/* Several loader threads may get here; the first ends the program. _exit, because exit would run
 * OpenCV's destructors while the others decode. */
static _Noreturn void end_program(const char *name, const char *why)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    fflush(stdout);
    fprintf(stderr, "darknet-amp: image \"%s\" cannot be read or decoded: %s\n", name, why);
    fflush(NULL);
    _exit(1);
}

/* Without OpenCV Darknet itself ends the program, with status 0. */
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

void amp_image_file_refuse(bool on)
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

/* The only shell command that Darknet runs while it decodes an image is the one for bad.list. */
AMP_INTERPOSE(int, system, (const char *command))
{
    if (!reading) return AMP_REAL(system)(command);
    if (!refuses()) return note_bad_image(reading);
    end_program(reading, NO_IMAGE);
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

/* OpenCV throws where a file's header asks for too much, or memory ends: Darknet alone would abort,
 * in any command. */
AMP_INTERPOSE(image, load_image_cv, (char *filename, int channels))
{
    struct decoding d = {filename, channels, {0}};
    char why[500];
    if (amp_catch_exception(decode, &d, why, sizeof why))
        end_program(reading ? reading : filename, why);
    return d.decoded;
}

/* ---- labels that have gone ---- */

void amp_image_loading(bool on)
{
    loading = on;
}

/* Darknet's own ends the program too, with status 0. */
AMP_INTERPOSE(void, file_error, (char *name))
{
    char why[PATH_MAX + 100];
    snprintf(why, sizeof why,
             "%s: cannot be opened: %s; labels must stay where they are while it trains", name,
             strerror(errno));
    if (loading) amp_fail(why);
    AMP_REAL(file_error)(name);
}
