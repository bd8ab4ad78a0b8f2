#include "attach/loader.h"

#include "attach/ending.h"
#include "attach/image_file.h"
#include "attach/interrupt.h"
#include "attach/iteration.h"
#include "attach/seed.h"
#include "attach/fail.h"
#include "attach/symbols.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

// One batch, from the call that loads it until it is freed. Owned by the training thread's list and
// by the loading job, whichever ends later.
struct batch {
    struct batch *next;
    size_t iteration;
    int n;
    char **names;         // of its images; the caller's strings
    float **_Atomic rows; // identifies the batch when it is freed; NULL until it is loaded
    atomic_int owners;
};

struct job {
    load_args args;
    bool seeded;
    uint64_t seed;
    struct batch *batch;
    data *images; // per image a batch of one row
    atomic_int next;
};

static _Thread_local struct {
    const network *net;
    bool seeded;
    uint64_t seed;
    struct batch *held; // oldest first
} feed;

static void *allocate(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) amp_fail("out of memory while loading a batch");
    return p;
}

// ---- the batches in hand ----

static void drop(struct batch *b)
{
    if (atomic_fetch_sub(&b->owners, 1) > 1) return;
    free(b->names);
    free(b);
}

static struct batch *hold_new_batch(int n)
{
    struct batch *b = allocate(1, sizeof *b), **end = &feed.held;
    b->iteration = *feed.net->seen / ((size_t)feed.net->batch * (size_t)feed.net->subdivisions);
    for (; *end; end = &(*end)->next)
        b->iteration = (*end)->iteration + 1;
    b->n = n;
    b->names = allocate((size_t)n, sizeof *b->names);
    atomic_init(&b->owners, 2);
    *end = b;
    return b;
}

// Whether these rows were a batch of ours; if so it is no longer in hand.
static bool let_go(float **rows)
{
    for (struct batch **p = &feed.held; *p; p = &(*p)->next) {
        struct batch *b = *p;
        if (!rows || b->rows != rows) continue;
        *p = b->next;
        drop(b);
        return true;
    }
    return false;
}

const char *amp_loader_image(int index)
{
    const struct batch *b = feed.held;
    return b && b->rows && index >= 0 && index < b->n ? b->names[index] : NULL;
}

void amp_loader_follow(const network *net, const uint64_t *seed)
{
    while (feed.held) {
        struct batch *b = feed.held;
        feed.held = b->next;
        drop(b);
    }
    if ((net != NULL) != (feed.net != NULL)) amp_image_file_refuse(net != NULL);
    feed.net = net;
    feed.seeded = net && seed;
    feed.seed = feed.seeded ? *seed : 0;
    if (feed.seeded)
        amp_seed_follow(net, feed.seed);
    else
        amp_seed_unfollow();
}

bool amp_loader_is_feeding(void)
{
    return feed.held != NULL;
}

void amp_loader_forget(const network *net)
{
    if (feed.net == net) amp_loader_follow(NULL, NULL);
    amp_seed_forget(net);
}

// ---- loading one ----

static void load_one(struct job *job, int k)
{
    struct amp_stream stream;
    load_args one = job->args;
    if (job->seeded) {
        amp_stream_open(&stream, job->seed, AMP_STREAM_IMAGE, job->batch->iteration, (uint32_t)k);
        amp_seed_use(&stream);
    }
    one.paths = &job->batch->names[k];
    one.paths[0] = job->args.paths[rand() % job->args.m];
    one.m = one.n = 1;
    one.d = &job->images[k];
    AMP_USE(load_data_blocking)(one);
    amp_seed_use(NULL);
}

static void *work(void *p)
{
    struct job *job = p;
    int k;
    while ((k = atomic_fetch_add(&job->next, 1)) < job->args.n)
        load_one(job, k);
    return NULL;
}

static pthread_t start_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    int error = pthread_create(&thread, NULL, run, argument);
    if (error) {
        char message[200];
        snprintf(
            message, sizeof message,
            "cannot start a thread that loads images: %s; raise the limit of memory (ulimit -v) "
            "or of threads (ulimit -u)",
            strerror(error));
        amp_fail(message);
    }
    return thread;
}

// Row 0 of every image's matrix, under one roof.
static matrix join_rows(const data *images, int n, size_t offset)
{
    matrix all = {.rows = n, .vals = allocate((size_t)n, sizeof *all.vals)};
    for (int k = 0; k < n; ++k) {
        const matrix *one = (const matrix *)((const char *)&images[k] + offset);
        if (one->rows != 1 || (k && one->cols != all.cols))
            amp_fail("the images of a batch were not loaded as one row each");
        all.cols = one->cols;
        all.vals[k] = one->vals[0];
        free(one->vals);
    }
    return all;
}

static void deliver(struct job *job)
{
    int n = job->args.n;
    *job->args.d = (data){.w = job->images[0].w,
                          .h = job->images[0].h,
                          .X = join_rows(job->images, n, offsetof(data, X)),
                          .y = join_rows(job->images, n, offsetof(data, y))};
    job->batch->rows = job->args.d->X.vals;
}

static void *load_batch(void *p)
{
    struct job *job = p;
    int n = job->args.n, extra = (job->args.threads < n ? job->args.threads : n) - 1;
    pthread_t *threads = allocate((size_t)(extra > 0 ? extra : 1), sizeof *threads);
    for (int t = 0; t < extra; ++t)
        threads[t] = start_thread(work, job);
    work(job);
    for (int t = 0; t < extra; ++t)
        pthread_join(threads[t], NULL);
    amp_ending_enter(); // whoever waits for the batch must not go on without it
    deliver(job);
    amp_ending_leave();
    drop(job->batch);
    free(job->images);
    free(job);
    free(threads);
    return NULL;
}

static pthread_t load_by_image(load_args args)
{
    struct job *job = allocate(1, sizeof *job);
    job->args = args;
    job->seeded = feed.seeded;
    job->seed = feed.seed;
    job->batch = hold_new_batch(args.n);
    job->images = allocate((size_t)args.n, sizeof *job->images);
    amp_seed_between_steps();
    return start_thread(load_batch, job);
}

// ---- Darknet's functions ----

// Loads that draw images at random and take them one by one.
static bool is_by_image(const load_args *args)
{
    switch (args->type) {
    case OLD_CLASSIFICATION_DATA:
    case CLASSIFICATION_DATA:
    case REGRESSION_DATA:
    case TAG_DATA:
    case SUPER_DATA:
    case WRITING_DATA:
    case SEGMENTATION_DATA:
    case INSTANCE_DATA:
    case ISEG_DATA:
    case REGION_DATA:
    case DETECTION_DATA:
        return args->n > 0 && args->m > 0;
    default:
        return false;
    }
}

// Two other kinds draw too: pairs of images, and one image out of n.
static void tell_what_ignores_the_seed(const load_args *args)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    bool pairs = args->type == COMPARE_DATA, one_of_n = args->type == SWAG_DATA;
    if (!feed.seeded || (!pairs && !one_of_n) || atomic_flag_test_and_set(&told)) return;
    fprintf(stderr,
            "darknet-amp: seed=%llu has no effect on the order and augmentation of the images "
            "here: this program loads them as %s\n",
            (unsigned long long)feed.seed, pairs ? "pairs (COMPARE_DATA)" : "SWAG_DATA");
}

// Trainers ask for the next batch between two steps.
static void obey_a_signal(void)
{
    struct amp_session *s = feed.net ? amp_session_of(feed.net->layers) : NULL;
    if (s) amp_interrupt_obey(s);
}

// Darknet's own load_data, but for its last act: to write the batch to its destination.
static void *load_as_darknet(void *p)
{
    load_args args = *(load_args *)p;
    data loaded, *destination = args.d;
    free(p);
    args.d = &loaded;
    pthread_join(AMP_REAL(load_data)(args), NULL);
    amp_ending_enter();
    *destination = loaded;
    amp_ending_leave();
    return NULL;
}

AMP_INTERPOSE(pthread_t, load_data, (load_args args))
{
    obey_a_signal();
    if (feed.net && is_by_image(&args)) return load_by_image(args);
    tell_what_ignores_the_seed(&args);
    load_args *own = allocate(1, sizeof *own);
    *own = args;
    return start_thread(load_as_darknet, own);
}

AMP_INTERPOSE(pthread_t, load_data_in_thread, (load_args args))
{
    obey_a_signal();
    if (feed.net && is_by_image(&args)) {
        args.threads = 1;
        return load_by_image(args);
    }
    tell_what_ignores_the_seed(&args);
    return AMP_REAL(load_data_in_thread)(args);
}

AMP_INTERPOSE(void, free_data, (data d))
{
    if (let_go(d.X.vals)) amp_seed_between_steps();
    AMP_REAL(free_data)(d);
    amp_iteration_ended();
}
