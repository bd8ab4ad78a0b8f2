/* Decides which images are loaded and how their time is taken. Darknet's way is its own code; ours
 * is put together here from plugin/images/ so that each part can be timed, as attach/detection.c
 * puts it together for training. It must not know what the times mean (loading_report.c).
 *
 * Only this thread's time on a core counts, so other programs on the machine change nothing, and a
 * slow disk is not seen. */
#define _GNU_SOURCE
#include "loading.h"

#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "darknet.h"
#include "utils.h"

#include "plugin/core/text.h"
#include "plugin/images/place.h"

/* Of src/data.c; no header of Darknet's declares it. */
void fill_truth_detection(char *path, int num_boxes, float *truth, int classes, int flip, float dx,
                          float dy, float sx, float sy);

enum { MOST_IMAGES = 300 };
static const double enough_seconds = 20;

/* Both ways of loading, and what is used again for every image. */
struct bench {
    load_args args; /* for a list of one image */
    uint8_t *file;  /* our way's */
    size_t capacity, bytes;
    struct amp_jpeg_memory jpeg;
    float *labels;
    bool no_memory; /* it ended */
};

/* The seconds of one image in one round. */
struct times {
    double darknet, stages[AMP_LOAD_STAGES];
};

/* Seconds that this thread has had a core. */
static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Adds the time since *since to a stage, and sets *since to now. */
static void end_stage(double *stage, double *since)
{
    double now = thread_seconds();
    *stage += now - *since;
    *since = now;
}

/* ---- our way, by its parts ---- */

static bool read_whole(const char *path, struct bench *b)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    b->bytes = 0;
    bool fits = fd >= 0 && !fstat(fd, &info) && S_ISREG(info.st_mode);
    if (fits && (size_t)info.st_size > b->capacity) {
        free(b->file);
        b->file = malloc((size_t)info.st_size);
        b->capacity = b->file ? (size_t)info.st_size : 0;
    }
    fits = fits && (size_t)info.st_size <= b->capacity;
    for (ssize_t n = 1; fits && n > 0 && b->bytes < (size_t)info.st_size; b->bytes += (size_t)n) {
        n = read(fd, b->file + b->bytes, (size_t)info.st_size - b->bytes);
        if (n < 0) n = 0;
    }
    if (fd >= 0) close(fd);
    return fits && b->bytes == (size_t)info.st_size;
}

/* Where an image lies, in Darknet's numbers, and the rest of what is drawn. */
struct drawn {
    float w, h, left, top;
    struct amp_placement placement;
};

/* Every statement draws once, in the order of Darknet's load_data_detection. */
static void draw(const load_args *a, const struct amp_pixels *image, struct drawn *d)
{
    float dw = a->jitter * image->w, dh = a->jitter * image->h;
    (void)rand(); /* which image of a list of one */
    float w = image->w + rand_uniform(-dw, dw);
    float aspect = w / (image->h + rand_uniform(-dh, dh));
    d->w = aspect < 1 ? a->h * aspect : a->w;
    d->h = aspect < 1 ? a->h : a->w / aspect;
    d->left = rand_uniform(0, a->w - d->w);
    d->top = rand_uniform(0, a->h - d->h);
    d->placement = (struct amp_placement){.canvas_w = a->w,
                                          .canvas_h = a->h,
                                          .w = (int)d->w,
                                          .h = (int)d->h,
                                          .left = (int)d->left,
                                          .top = (int)d->top};
    d->placement.hue = rand_uniform(-a->hue, a->hue);
    d->placement.saturation = rand_scale(a->saturation == 0 ? 1 : a->saturation);
    d->placement.exposure = rand_scale(a->exposure == 0 ? 1 : a->exposure);
    d->placement.flip = rand() % 2;
}

/* False: the image is left to Darknet, and nothing is drawn. */
static bool load_parts(struct bench *b, double stages[AMP_LOAD_STAGES], double *since)
{
    struct drawn d;
    load_args *a = &b->args;
    bool read = read_whole(a->paths[0], b);
    end_stage(&stages[AMP_LOAD_READ], since);
    const struct amp_pixels *pixels = read ? amp_jpeg_decode(b->file, b->bytes, &b->jpeg) : NULL;
    end_stage(&stages[AMP_LOAD_DECODE], since);
    if (!pixels) return false;
    draw(a, pixels, &d);
    image canvas = make_image(a->w, a->h, 3);
    b->no_memory = !amp_place(pixels, &d.placement, canvas.data);
    end_stage(&stages[AMP_LOAD_PLACE], since);
    float x = 1.0f / a->w, y = 1.0f / a->h; /* as attach/detection.c, which says why */
    memset(b->labels, 0, (size_t)a->num_boxes * 5 * sizeof(float));
    fill_truth_detection(a->paths[0], a->num_boxes, b->labels, a->classes, d.placement.flip,
                         -d.left * x, -d.top * y, d.w * x, d.h * y);
    end_stage(&stages[AMP_LOAD_LABELS], since);
    free_image(canvas);
    return true;
}

/* ---- both ways, in turns ---- */

static int kind_of(const struct bench *b)
{
    static const char *const begins[] = {
        [AMP_KIND_JPEG] = "\xff\xd8\xff", [AMP_KIND_PNG] = "\x89PNG", [AMP_KIND_BMP] = "BM"};
    int kind = 0;
    while (kind < AMP_KIND_OTHER &&
           (b->bytes < strlen(begins[kind]) || memcmp(b->file, begins[kind], strlen(begins[kind]))))
        kind++;
    return kind;
}

/* The same seed for both: they draw the same numbers and do the same work. Returns whether the
 * image was left to Darknet, 1 or 0; -1: the ways differ, and their times cannot be compared, or
 * memory ended. */
static int load_both(struct bench *b, unsigned seed, struct times *t)
{
    data darknets, left;
    load_args a = b->args;
    *t = (struct times){0};
    srand(seed);
    a.d = &darknets;
    double since = thread_seconds();
    load_data_blocking(a);
    end_stage(&t->darknet, &since);
    int next = rand();

    srand(seed);
    a.d = &left;
    since = thread_seconds();
    bool ours = load_parts(b, t->stages, &since);
    if (!ours) load_data_blocking(a);
    if (!ours) end_stage(&t->stages[AMP_LOAD_DARKNET], &since);
    bool same = next == rand() && (!ours || !memcmp(b->labels, darknets.y.vals[0],
                                                    (size_t)a.num_boxes * 5 * sizeof(float)));
    free_data(darknets);
    if (!ours) free_data(left);
    return same && !b->no_memory ? !ours : -1;
}

static double sum(const double stages[AMP_LOAD_STAGES])
{
    double all = 0;
    for (int i = 0; i < AMP_LOAD_STAGES; i++)
        all += stages[i];
    return all;
}

static double darknets(const struct times *t)
{
    return t->darknet;
}

static double ours(const struct times *t)
{
    return sum(t->stages);
}

/* The round whose time is the median. */
static const struct times *median(const struct times *rounds,
                                  double (*seconds)(const struct times *))
{
    const struct times *sorted[AMP_LOAD_ROUNDS];
    for (int i = 0; i < AMP_LOAD_ROUNDS; i++) {
        int k = i;
        for (; k > 0 && seconds(sorted[k - 1]) > seconds(&rounds[i]); k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = &rounds[i];
    }
    return sorted[AMP_LOAD_ROUNDS / 2];
}

/* Adds one image's times. */
static int load_image_rounds(struct amp_loading *l, struct bench *b, unsigned seed)
{
    struct times rounds[AMP_LOAD_ROUNDS];
    int left = 0;
    for (int i = 0; i < AMP_LOAD_ROUNDS && left >= 0; i++)
        left = load_both(b, seed, &rounds[i]);
    if (left < 0) return -1;
    if (left) l->left[kind_of(b)]++;
    l->darknet += median(rounds, darknets)->darknet;
    for (int i = 0; i < AMP_LOAD_STAGES; i++)
        l->stages[i] += median(rounds, ours)->stages[i];
    l->images++;
    return 0;
}

/* ---- the sample ---- */

static int common_divisor(int a, int b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* A stride that visits each of n once, so that the first few are spread evenly, too: if time ends,
 * they are all there is. */
static int stride_of(int n)
{
    int stride = (int)(.618 * n) + 1;
    while (common_divisor(stride, n) > 1)
        stride++;
    return stride;
}

/* Turns sums over the images into means. */
static void divide(struct amp_loading *l)
{
    l->darknet /= l->images;
    for (int i = 0; i < AMP_LOAD_STAGES; i++)
        l->stages[i] /= l->images;
}

static int load_sample(struct amp_loading *l, struct bench *b, char **paths, FILE *progress)
{
    int n = l->listed < MOST_IMAGES ? l->listed : MOST_IMAGES, stride = stride_of(n);
    double start = amp_clock_seconds();
    struct amp_progress line;
    const size_t loads = 2 * AMP_LOAD_ROUNDS; /* of an image */
    amp_progress_start(&line, progress, "loading", (size_t)n * loads);
    line.unit = "loads";
    for (int k = 0; k < n && (!k || amp_clock_seconds() - start < enough_seconds); k++) {
        long place = (long)k * stride % n;
        b->args.paths = &paths[place * l->listed / n];
        if (load_image_rounds(l, b, (unsigned)k)) return -1;
        amp_progress_update(&line, ((size_t)k + 1) * loads);
    }
    divide(l);
    return 0;
}

int amp_loading_measure(struct amp_loading *l, const load_args *a, FILE *progress, char *err,
                        size_t err_size)
{
    struct bench b = {.args = *a, .labels = calloc((size_t)a->num_boxes * 5, sizeof(float))};
    b.args.n = b.args.m = 1;
    l->listed = a->m;
    int failed = b.labels ? load_sample(l, &b, a->paths, progress) : -1;
    if (!b.labels || b.no_memory)
        snprintf(err, err_size, "out of memory");
    else if (failed)
        snprintf(err, err_size,
                 "image \"%s\": Darknet and darknet-amp load it with other random numbers or "
                 "labels, so their times cannot be compared; this is a fault of darknet-amp",
                 b.args.paths[0]);
    amp_jpeg_free(&b.jpeg);
    free(b.file);
    free(b.labels);
    return failed;
}
