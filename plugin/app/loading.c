/* Decides which images are loaded and how their time is taken. It must not know what the times mean
 * (loading_report.c).
 *
 * Only this thread's time on a core counts, so other programs on the machine change nothing, and a
 * slow disk is not seen. */
#include "loading.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "darknet.h"

#include "plugin/core/host.h"
#include "plugin/core/read/text.h"

enum { MOST_IMAGES = 300 };
static const double enough_seconds = 20;

/* The seconds of one image in one round. */
struct times {
    double darknet, stages[AMP_LOAD_STAGES];
    double since; /* when the part that is running began */
};

/* Seconds that this thread has had a core. */
static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Adds the time since the last part to *seconds. */
static void count(struct times *t, double *seconds)
{
    double now = thread_seconds();
    *seconds += now - t->since;
    t->since = now;
}

/* ---- both ways, in turns ---- */

static void end_part(enum amp_load_part done, void *times)
{
    struct times *t = times;
    count(t, &t->stages[done]);
}

/* The same seed for both: they draw the same numbers and do the same work. Returns whether the
 * image was left to Darknet, 1 or 0; -1: the ways differ, and their times cannot be compared. */
static int load_both(const load_args *args, int reduces, unsigned seed, struct times *t)
{
    data darknets, ours;
    load_args a = *args;
    *t = (struct times){0};
    srand(seed);
    a.d = &darknets;
    t->since = thread_seconds();
    load_data_blocking(a);
    count(t, &t->darknet);
    int next = rand();

    srand(seed);
    a.d = &ours;
    t->since = thread_seconds();
    int left = !amp_load_image(&a, reduces, end_part, t);
    if (left) load_data_blocking(a);
    if (left) count(t, &t->stages[AMP_LOAD_DARKNET]);
    bool same = next == rand() &&
                !memcmp(ours.y.vals[0], darknets.y.vals[0], (size_t)ours.y.cols * sizeof(float));
    free_data(darknets);
    free_data(ours);
    return same ? left : -1;
}

/* What the file's first bytes say. */
static int kind_of(const char *path)
{
    static const char *const begins[] = {
        [AMP_KIND_JPEG] = "\xff\xd8\xff", [AMP_KIND_PNG] = "\x89PNG", [AMP_KIND_BMP] = "BM"};
    char first[4] = "";
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(first, 1, sizeof first, f) : 0;
    if (f) fclose(f);
    int kind = 0;
    while (kind < AMP_KIND_OTHER &&
           (n < sizeof first || memcmp(first, begins[kind], strlen(begins[kind]))))
        kind++;
    return kind;
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
static int load_image_rounds(struct amp_loading *l, const load_args *a, unsigned seed)
{
    struct times rounds[AMP_LOAD_ROUNDS];
    int left = 0;
    for (int i = 0; i < AMP_LOAD_ROUNDS && left >= 0; i++)
        left = load_both(a, l->reduces, seed, &rounds[i]);
    if (left < 0) return -1;
    if (left) l->left[kind_of(a->paths[0])]++;
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

int amp_loading_measure(struct amp_loading *l, const load_args *args, FILE *progress, char *err,
                        size_t err_size)
{
    int n = args->m < MOST_IMAGES ? args->m : MOST_IMAGES, stride = stride_of(n);
    double start = amp_clock_seconds();
    struct amp_progress line;
    const size_t loads = 2 * AMP_LOAD_ROUNDS; /* of an image */
    load_args a = *args;
    a.n = a.m = 1;
    l->listed = args->m;
    amp_progress_start(&line, progress, "loading", (size_t)n * loads);
    line.unit = "loads";
    for (int k = 0; k < n && (!k || amp_clock_seconds() - start < enough_seconds); k++) {
        long place = (long)k * stride % n;
        a.paths = &args->paths[place * l->listed / n];
        if (load_image_rounds(l, &a, (unsigned)k)) {
            snprintf(err, err_size,
                     "image \"%s\": Darknet and darknet-amp load it with other random numbers or "
                     "labels, so their times cannot be compared; this is a fault of darknet-amp",
                     a.paths[0]);
            return -1;
        }
        amp_progress_update(&line, ((size_t)k + 1) * loads);
    }
    divide(l);
    return 0;
}
