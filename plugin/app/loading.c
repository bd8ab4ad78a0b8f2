/* Decides which images are loaded and how their time is taken. It must not know what the times mean
 * (loading_report.c).
 *
 * Of single images only this thread's time on a core counts, so other programs on the machine
 * change nothing, and a slow disk is not seen. Of a batch the clock does. */
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

/* The ways to load an image, of which AlexeyAB's rules have the first. */
enum { OURS, DARKNETS, WAYS };

/* The seconds of one image in one round. */
struct times {
    double parts[AMP_LOAD_PARTS];
    double since; /* when the part that is running began */
};

/* Seconds that this thread has had a core. */
static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- both ways, in turns ---- */

static void end_part(enum amp_load_part done, void *times)
{
    struct times *t = times;
    double now = thread_seconds();
    t->parts[done] += now - t->since;
    t->since = now;
}

/* UNDECODABLE: no time counts; training draws another image. DIFFERENT: the ways drew other
 * numbers, and their times cannot be compared. */
enum outcome { LOADED, UNDECODABLE, DIFFERENT };

/* *next: the number that is drawn next. False: it cannot be decoded, and nothing is loaded. */
static bool load(const network *net, int way, load_args a, unsigned seed, data *loaded,
                 struct times *t, int *next)
{
    a.d = loaded;
    srand(seed);
    *t = (struct times){.since = thread_seconds()};
    bool decoded = amp_load_image(net, way == OURS, &a, end_part, t);
    *next = rand();
    return decoded;
}

/* The same seed for all ways: they draw the same numbers and do the same work. */
static enum outcome load_all_ways(const network *net, int ways, const load_args *a, unsigned seed,
                                  struct times *times[WAYS])
{
    data loaded[WAYS];
    int n = 0, next[WAYS];
    while (n < ways && load(net, n, *a, seed, &loaded[n], times[n], &next[n]))
        n++;
    bool same = n < WAYS || (next[OURS] == next[DARKNETS] &&
                             !memcmp(loaded[OURS].y.vals[0], loaded[DARKNETS].y.vals[0],
                                     (size_t)loaded[OURS].y.cols * sizeof(float)));
    for (int way = 0; way < n; way++)
        free_data(loaded[way]);
    return n < ways ? UNDECODABLE : same ? LOADED : DIFFERENT;
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

static double sum(const struct times *t)
{
    double all = 0;
    for (int i = 0; i < AMP_LOAD_PARTS; i++)
        all += t->parts[i];
    return all;
}

/* The round whose time is the median. */
static const struct times *median(const struct times rounds[AMP_LOAD_ROUNDS])
{
    const struct times *sorted[AMP_LOAD_ROUNDS];
    for (int i = 0; i < AMP_LOAD_ROUNDS; i++) {
        int k = i;
        for (; k > 0 && sum(sorted[k - 1]) > sum(&rounds[i]); k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = &rounds[i];
    }
    return sorted[AMP_LOAD_ROUNDS / 2];
}

/* Adds one image's times. */
static enum outcome load_image_rounds(struct amp_loading *l, const network *net, const load_args *a,
                                      unsigned seed)
{
    struct times rounds[WAYS][AMP_LOAD_ROUNDS];
    for (int i = 0; i < AMP_LOAD_ROUNDS; i++) {
        struct times *of_round[WAYS] = {&rounds[OURS][i], &rounds[DARKNETS][i]};
        enum outcome o = load_all_ways(net, l->by_fork ? 1 : WAYS, a, seed, of_round);
        if (o != LOADED) return o;
    }
    const struct times *ours = median(rounds[OURS]);
    if (ours->parts[AMP_LOAD_DARKNET] > 0) l->left[kind_of(a->paths[0])]++;
    l->darknet += l->by_fork ? NAN : sum(median(rounds[DARKNETS]));
    for (int i = 0; i < AMP_LOAD_PARTS; i++)
        l->stages[i] += ours->parts[i];
    l->images++;
    return LOADED;
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

/* As training loads one. files (may be NULL): get its images' places. */
static double time_batch(load_args a, char **files)
{
    data loaded;
    a.d = &loaded;
    double start = amp_clock_seconds();
    pthread_join(load_data(a), NULL);
    double seconds = amp_clock_seconds() - start;
    for (int k = 0; files && k < a.n; k++)
        files[k] = (char *)amp_loaded_image(k);
    free_data(loaded);
    return seconds;
}

/* The fastest counts, since other work only adds time. With a cache one more batch fills it first,
 * and those that are timed draw from its images, as a later epoch does from those of the first. */
static int time_batches(struct amp_loading *l, load_args a)
{
    char **files = NULL;
    a.n = l->step_images;
    a.threads = l->threads;
    if (l->cache) {
        files = calloc((size_t)a.n, sizeof *files);
        if (!files) return -1;
        time_batch(a, files);
        a.paths = files;
        for (a.m = 0; a.m < a.n && files[a.m];) /* of several processes each loads a part */
            a.m++;
    }
    l->batch = INFINITY;
    for (int k = 0; k < AMP_LOAD_ROUNDS; k++)
        l->batch = fmin(l->batch, time_batch(a, NULL));
    free(files);
    return 0;
}

/* Turns sums over the images into means. */
static void divide(struct amp_loading *l)
{
    l->darknet /= l->images;
    for (int i = 0; i < AMP_LOAD_PARTS; i++)
        l->stages[i] /= l->images;
}

int amp_loading_measure(struct amp_loading *l, const network *net, const load_args *args,
                        FILE *progress, char *err, size_t err_size)
{
    int n = args->m < MOST_IMAGES ? args->m : MOST_IMAGES, stride = stride_of(n);
    double start = amp_clock_seconds();
    struct amp_progress line;
    const size_t loads = (l->by_fork ? 1 : WAYS) * AMP_LOAD_ROUNDS; /* of an image */
    load_args a = *args;
    a.n = a.m = 1;
    l->listed = args->m;
    amp_progress_start(&line, progress, "loading", (size_t)n * loads);
    line.unit = "loads";
    for (int k = 0; k < n && (!l->images || amp_clock_seconds() - start < enough_seconds); k++) {
        long place = (long)k * stride % n;
        a.paths = &args->paths[place * l->listed / n];
        if (load_image_rounds(l, net, &a, (unsigned)k) == DIFFERENT) {
            snprintf(err, err_size,
                     "image \"%s\": Darknet and darknet-amp load it with other random numbers or "
                     "labels, so their times cannot be compared; this is a fault of darknet-amp",
                     a.paths[0]);
            return -1;
        }
        amp_progress_update(&line, ((size_t)k + 1) * loads);
    }
    /* If none could be decoded, this ends the program as training would. */
    if (time_batches(l, *args)) {
        snprintf(err, err_size, "out of memory");
        return -1;
    }
    divide(l);
    return 0;
}
