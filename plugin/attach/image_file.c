#include "attach/image_file.h"

#include "attach/symbols.h"

#include "darknet.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define SAFE_NAME_BYTES 200 // fits Darknet's buffer with the command around it

static atomic_bool refuse;
static _Thread_local const char *reading; // the file that Darknet has been asked to decode

// A file under a name that is short enough for Darknet.
struct short_name {
    char *name;
    char link[32];
    int fd;
};

static void shorten(struct short_name *s, char *name)
{
    s->name = name;
    s->fd = -1;
    if (strlen(name) <= SAFE_NAME_BYTES) return;
    s->fd = open(name, O_RDONLY | O_CLOEXEC);
    snprintf(s->link, sizeof s->link, "/proc/self/fd/%d", s->fd);
    s->name = s->link;
}

static void end_of_short_name(const struct short_name *s)
{
    if (s->fd >= 0) close(s->fd);
}

AMP_INTERPOSE(image, load_image, (char *filename, int w, int h, int c))
{
    struct short_name file;
    const char *outer = reading; // load_image_color's, which calls this
    if (!outer) reading = filename;
    shorten(&file, filename);
    image im = AMP_REAL(load_image)(file.name, w, h, c);
    end_of_short_name(&file);
    reading = outer;
    return im;
}

AMP_INTERPOSE(image, load_image_color, (char *filename, int w, int h))
{
    struct short_name file;
    const char *outer = reading;
    if (!outer) reading = filename;
    shorten(&file, filename);
    image im = AMP_REAL(load_image_color)(file.name, w, h);
    end_of_short_name(&file);
    reading = outer;
    return im;
}

// Several loader threads may get here; the first ends the program. _exit, because exit would run
// OpenCV's destructors while the others decode.
static _Noreturn void refuse_image(const char *name)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    fflush(stdout);
    fprintf(
        stderr,
        "darknet-amp: image \"%s\" cannot be read or decoded: it must be an image file, such as "
        "JPEG or PNG (training stops; Darknet alone would go on with a black image of 10x10)\n",
        name);
    fflush(NULL);
    _exit(1);
}

// Without OpenCV Darknet itself ends the program, with status 0.
static void refuse_at_exit(void)
{
    if (refuse && reading) refuse_image(reading);
}

static void watch_exit(void)
{
    atexit(refuse_at_exit);
}

void amp_image_file_refuse(bool on)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (on) pthread_once(&once, watch_exit);
    refuse = on;
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

// The only shell command that Darknet runs while it decodes an image is the one for bad.list.
AMP_INTERPOSE(int, system, (const char *command))
{
    if (!reading) return AMP_REAL(system)(command);
    if (refuse) refuse_image(reading);
    return note_bad_image(reading);
}
