/* Decides whether a batch is staged: if there is page-locked memory, if every value fits the
 * format, and if the program trains on batches as they were loaded. It must not know how a batch
 * gets to the device (upload.c) or when it is trained.
 *
 * Why: a GPU copies from page-locked memory at the speed of the bus, and FP16 images are half the
 * bytes. The conversion, to NHWC as the first layers read it, runs on the loader threads, which
 * wait for the disk anyway. */

#include "staging.h"

#include "plugin/attach/fail.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLES = 1024,  /* compared numbers of an image */
    MOST_UNUSED = 4, /* batches in a row that nobody used: then staging stops */
};

/* FP32 bits of the smallest magnitude that rounds to inf in this type. */
static uint32_t limit_of(enum ampk_dtype dtype)
{
    switch (dtype) {
    case AMPK_FP16:
        return AMPK_FP16_OVERFLOW_BITS;
    case AMPK_BF16:
        return 0x7f7f8000;
    default:
        return AMPK_INF_BITS;
    }
}

/* An image as it was loaded: its address and some of its numbers. A program may change an image
 * between loading and training; comparing them all would cost as much as the copy that staging
 * saves. */
struct loaded {
    const float *row;
    float samples[SAMPLES];
};

struct amp_staging {
    struct amp_staging *next;
    uint64_t batch;     /* 0: free */
    float *const *rows; /* NULL: still loading */
    int images;
    struct amp_image_shape shape;
    size_t inputs; /* numbers of an image */
    enum ampk_dtype dtype;
    atomic_int filled;
    char *memory;
    size_t room;
    struct loaded *loaded; /* per image */
    bool used;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct amp_staging *stagings; /* Darknet's trainers have two batches in hand */
static uint64_t batches;
static int unused; /* batches in a row that were freed without being used */
static bool tidy;  /* nothing was opened since amp_staging_tidy */

static size_t image_bytes(const struct amp_staging *s)
{
    return s->inputs * ampk_dtype_bytes(s->dtype);
}

/* The first number, the last, and others evenly between. */
static void sample(const struct amp_staging *s, const float *row, float samples[SAMPLES])
{
    for (size_t i = 0; i < SAMPLES; i++)
        samples[i] = row[i * (s->inputs - 1) / (SAMPLES - 1)];
}

/* ---- memory ---- */

/* Page-locking takes long, so memory is used again. Prefers a free one with enough room; else any
 * free one, whose memory is then replaced. */
static struct amp_staging *find_free(size_t bytes)
{
    struct amp_staging *found = NULL;
    for (struct amp_staging *s = stagings; s; s = s->next)
        if (!s->batch && (!found || s->room >= bytes)) found = s;
    if (found) return found;
    found = calloc(1, sizeof *found);
    if (!found) return NULL;
    found->next = stagings;
    return stagings = found;
}

static bool make_room(struct amp_staging *s, size_t bytes)
{
    static size_t refused = SIZE_MAX; /* so many bytes could not be had */
    if (s->room >= bytes) return true;
    if (bytes >= refused) return false;
    if (s->memory) cudaFreeHost(s->memory); /* waits for copies out of it */
    void *memory = NULL;
    cudaError_t status = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    s->memory = memory;
    s->room = memory ? bytes : 0;
    if (memory) return true;
    cudaGetLastError(); /* Darknet takes a pending error for one of its own */
    fprintf(stderr,
            "darknet-amp: no %.1f MiB of page-locked memory for a batch (%s): images go to the GPU "
            "when their pass begins, which takes longer; more memory or a smaller batch helps\n",
            (double)bytes / (1 << 20), cudaGetErrorString(status));
    refused = bytes;
    return false;
}

static bool make_list(struct amp_staging *s, int images)
{
    free(s->loaded);
    s->loaded = malloc((size_t)images * sizeof *s->loaded);
    return s->loaded != NULL;
}

/* True if this program never trains on what it loaded (it may build batches of its own). Converting
 * is then a waste. */
static bool is_in_vain(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (unused < MOST_UNUSED) return false;
    if (!atomic_flag_test_and_set(&told))
        fprintf(stderr, "darknet-amp: this program does not train on its batches as they were "
                        "loaded: images go to the GPU when their pass begins\n");
    return true;
}

static void free_memory(void)
{
    for (struct amp_staging **p = &stagings; *p;) {
        struct amp_staging *s = *p;
        if (s->batch) {
            p = &s->next;
            continue;
        }
        *p = s->next;
        if (s->memory) cudaFreeHost(s->memory);
        free(s->loaded);
        free(s);
    }
}

void amp_staging_tidy(void)
{
    pthread_mutex_lock(&lock);
    free_memory();
    tidy = true;
    pthread_mutex_unlock(&lock);
}

/* ---- filling ---- */

/* The CPU backend converts: its rounding is the one that the device would have. One thread, since
 * the callers are many threads already. */
static struct ampk_context *cpu;

static void make_cpu(void)
{
    char err[200];
    cpu = ampk_cpu.context_create(1, err, sizeof err);
    if (!cpu) amp_fail(err);
}

void amp_staging_start(void)
{
    pthread_mutex_lock(&lock);
    unused = 0;
    pthread_mutex_unlock(&lock);
}

struct amp_staging *amp_staging_open(int images, struct amp_image_shape shape,
                                     enum ampk_dtype dtype)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_t inputs = (size_t)shape.c * (size_t)shape.h * (size_t)shape.w;
    size_t bytes = (size_t)images * inputs * ampk_dtype_bytes(dtype);
    pthread_once(&once, make_cpu);
    pthread_mutex_lock(&lock);
    /* make_room prints and allocates under the lock: only training threads come here, once for each
     * batch. */
    struct amp_staging *s = is_in_vain() ? NULL : find_free(bytes);
    if (s && !(make_room(s, bytes) && make_list(s, images))) s = NULL;
    if (s) {
        tidy = false;
        s->batch = ++batches;
        s->rows = NULL;
        s->images = images;
        s->shape = shape;
        s->inputs = inputs;
        s->dtype = dtype;
        s->used = false;
        atomic_store(&s->filled, 0);
    }
    pthread_mutex_unlock(&lock);
    return s;
}

void amp_staging_fill(struct amp_staging *s, int k, const float *row, size_t n)
{
    uint32_t amax = 0;
    /* An image of another size leaves `filled` short, so close gives the batch up. */
    if (n != s->inputs) return;
    s->loaded[k].row = row;
    sample(s, row, s->loaded[k].samples);
    struct ampk_tensor from = {.data = (float *)row,
                               .dtype = AMPK_FP32,
                               .layout = AMPK_NCHW,
                               .n = 1,
                               .c = s->shape.c,
                               .h = s->shape.h,
                               .w = s->shape.w,
                               .image_stride = n};
    struct ampk_tensor to = from;
    to.data = s->memory + (size_t)k * image_bytes(s);
    to.dtype = s->dtype;
    to.layout = AMPK_NHWC;
    ampk_cpu.convert(cpu, &from, &to, false, &amax); /* made for one thread, it is only read */
    if (amax < limit_of(s->dtype)) atomic_fetch_add(&s->filled, 1);
}

/* rows makes the batch visible to amp_staging_find; batch 0 frees it. */
void amp_staging_close(struct amp_staging *s, float *const *rows)
{
    pthread_mutex_lock(&lock);
    if (atomic_load(&s->filled) == s->images)
        s->rows = rows;
    else
        s->batch = 0;
    if (tidy) free_memory();
    pthread_mutex_unlock(&lock);
}

/* ---- finding ---- */

/* rows may point to any image of the batch: a pass takes a part of it (get_data_part,
 * subdivisions). */
static struct amp_staging *staging_of(float *const *rows)
{
    struct amp_staging *s = stagings;
    while (s && !(s->batch && s->rows && rows >= s->rows && rows < s->rows + s->images))
        s = s->next;
    return s;
}

static bool describe(const struct amp_staging *s, int first, int images, struct amp_staged *d)
{
    if (!s || images < 1 || first + images > s->images) return false;
    *d = (struct amp_staged){.batch = s->batch,
                             .first = first,
                             .images = images,
                             .dtype = s->dtype,
                             .bytes = (size_t)images * image_bytes(s),
                             .memory = s->memory + (size_t)first * image_bytes(s),
                             .rows = s->rows + first};
    return true;
}

/* A changed pointer (rows were swapped or shuffled) counts as a change, too. */
static bool is_unchanged(const struct amp_staging *s, int k)
{
    float now[SAMPLES];
    if (s->rows[k] != s->loaded[k].row) return false;
    sample(s, s->rows[k], now);
    return !memcmp(now, s->loaded[k].samples, sizeof now);
}

void amp_staging_drop(float *const *rows)
{
    pthread_mutex_lock(&lock);
    struct amp_staging *s = staging_of(rows);
    if (s) {
        unused = s->used ? 0 : unused + 1;
        s->batch = 0;
        if (tidy) free_memory();
    }
    pthread_mutex_unlock(&lock);
}

bool amp_staging_find(float *const *rows, int images, struct amp_staged *d)
{
    pthread_mutex_lock(&lock);
    struct amp_staging *s = staging_of(rows);
    bool found = describe(s, s ? (int)(rows - s->rows) : 0, images, d);
    for (int k = 0; found && k < images; k++)
        found = is_unchanged(s, d->first + k);
    if (found) s->used = true;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Darknet trains on batches in the order in which they are asked for, so the next one in number is
 * the next one in use. */
bool amp_staging_foresee(uint64_t after, int first, int images, struct amp_staged *next)
{
    pthread_mutex_lock(&lock);
    const struct amp_staging *found = NULL;
    for (const struct amp_staging *s = stagings; s; s = s->next)
        if (s->batch > after && s->rows && (!found || s->batch < found->batch)) found = s;
    bool loaded = describe(found, first, images, next);
    pthread_mutex_unlock(&lock);
    return loaded;
}
