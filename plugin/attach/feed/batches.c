/* Decides which images a batch has, which iteration it is for, and that row k is image k whatever
 * the number of threads. It must not know how an image is decoded or augmented (loader.c, else
 * Darknet), nor how a batch gets to a device (staging.c, upload.c).
 *
 * Darknet splits a batch among its threads, and every thread draws paths and augmentation from one
 * shared rand: a batch then depends on how threads are scheduled, and nobody knows which image a
 * row came from. So each image is loaded as a batch of one, and the rows are joined. */

#include "batches.h"

#include "amp.h"
#include "amp_observe.h"
#include "images.h"
#include "iterations.h"
#include "plugin/attach/ending.h"
#include "plugin/attach/interposed.h"
#include "loader.h"
#include "plugin/core/host.h"
#include "rows.h"
#include "seed.h"
#include "sizes.h"
#include "plugin/attach/session.h"
#include "staging.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

/* One batch, from the call that loads it until it is freed. Two owners: the training thread's list
 * and the loading job. Whichever ends later frees it, because the thread may follow another network
 * while a batch still loads. */
struct batch {
    struct batch *next;
    size_t iteration;
    int n;
    char **names;         /* the images' file names; strings of the caller */
    double loaded;        /* when it was */
    float **_Atomic rows; /* tells which batch is freed; NULL until it is loaded */
    atomic_int owners;
};

struct job {
    load_args args;
    bool seeded;
    uint64_t seed;
    int first; /* of the step's images, the first in this batch: others load those before it */
    struct amp_row_loader loader;
    struct batch *batch;
    struct amp_staging *staging; /* NULL: the batch is not staged */
    data *images;                /* one batch of one row for each image */
    float **rows[2];             /* of the batch: X and y */
    pthread_t *threads;          /* beside the one of load_batch, which loads too */
    int extra;                   /* of them */
    atomic_int next;
};

/* The network that the calling thread trains. Per thread, because each thread trains at most one
 * network, and programs may train several at once. */
static _Thread_local struct {
    const network *net;
    bool seeded;
    uint64_t seed;
    struct batch *held; /* oldest first */
    double waits_since; /* when the thread had done all but wait for images; 0: not yet */
    bool dropped;       /* the last batch was freed untrained */
} feed;

/* NULL too if the network is only seeded: then it has no session. */
struct amp_session *amp_batches_session(void)
{
    return feed.net ? amp_session_of(feed.net->layers) : NULL;
}

static void *allocate(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) amp_fail("out of memory while loading a batch: lower batch");
    return p;
}

/* ---- the batches in hand ---- */

static void drop(struct batch *b)
{
    if (atomic_fetch_sub(&b->owners, 1) > 1) return;
    free(b->names);
    free(b);
}

/* For the iteration after the newest batch in hand; else for the current one (batches.h). */
static struct batch *hold_new_batch(int n)
{
    struct batch *b = allocate(1, sizeof *b), **end = &feed.held;
    b->iteration = amp_iterations_in(feed.net, *feed.net->seen);
    for (; *end; end = &(*end)->next)
        b->iteration = (*end)->iteration + 1;
    b->n = n;
    b->names = allocate((size_t)n, sizeof *b->names);
    atomic_init(&b->owners, 2);
    *end = b;
    return b;
}

/* Returns whether these rows were a batch of ours. If so, it leaves the list. */
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

const char *amp_batches_image(int index)
{
    const struct batch *b = feed.held;
    return b && b->rows && index >= 0 && index < b->n ? b->names[index] : NULL;
}

const char *amp_loaded_image(int k)
{
    return amp_batches_image(k);
}

void amp_batches_follow(const network *net, const uint64_t *seed)
{
    while (feed.held) {
        struct batch *b = feed.held;
        feed.held = b->next;
        drop(b);
    }
    /* Counted once per thread that trains, so that several threads do not cancel each other. */
    if ((net != NULL) != (feed.net != NULL)) amp_images_refuse(net != NULL);
    feed.net = net;
    feed.waits_since = 0;
    amp_staging_start();
    feed.seeded = net && seed;
    feed.seed = feed.seeded ? *seed : 0;
    if (feed.seeded)
        amp_seed_follow(net, feed.seed);
    else
        amp_seed_unfollow();
}

bool amp_batches_in_hand(void)
{
    return feed.held != NULL;
}

void amp_batches_forget(const network *net)
{
    if (feed.net == net) amp_batches_follow(NULL, NULL);
    amp_rows_free();
    amp_seed_forget(net);
}

/* ---- loading one ---- */

/* False: it cannot be decoded, and nothing is loaded. */
static bool load_drawn(struct job *job, int k)
{
    load_args one = job->args;
    one.d = &job->images[k];
    return amp_loader_load(&job->loader, &one, &job->batch->names[k]);
}

/* The stream is this thread's from here to the end of the image: Darknet's rand, for the path and
 * for the augmentation inside load_data_blocking, then draws from it (seed.c). */
static void load_one(struct job *job, int k)
{
    struct amp_stream stream;
    if (job->seeded) {
        amp_stream_open(&stream, job->seed, AMP_STREAM_IMAGE, job->batch->iteration,
                        (uint32_t)(job->first + k));
        amp_seed_use(&stream);
    }
    while (!load_drawn(job, k))
        ;
    amp_seed_use(NULL);
    if (!job->staging) return;
    amp_ending_enter(); /* exit frees page-locked memory; not under us */
    amp_staging_fill(job->staging, k, job->images[k].X.vals[0], (size_t)job->images[k].X.cols);
    amp_ending_leave();
}

/* Threads take the next image that nobody has, so a slow one delays nobody. */
static void *work(void *p)
{
    struct job *job = p;
    int k;
    while ((k = atomic_fetch_add(&job->next, 1)) < job->args.n)
        load_one(job, k);
    return NULL;
}

/* Moves row 0 of every image into one matrix. offset: of X or y in a `data`. The rows themselves
 * stay where they are; only the arrays of row pointers go. */
static matrix join_rows(struct job *job, float **rows, size_t offset)
{
    matrix all = {.rows = job->args.n, .vals = rows};
    for (int k = 0; k < all.rows; k++) {
        const matrix *one = (const matrix *)((const char *)&job->images[k] + offset);
        if (one->rows != 1 || (all.cols && one->cols != all.cols))
            amp_fail("the images of a batch were not loaded as one row each");
        all.cols = one->cols;
        all.vals[k] = one->vals[0];
        free(one->vals);
    }
    return all;
}

/* Writes the batch to where Darknet's load_data would. Staging closes before rows is set: once a
 * batch can be found by its rows, it is either complete or given up. */
static void deliver(struct job *job)
{
    *job->args.d = (data){.w = job->images[0].w,
                          .h = job->images[0].h,
                          .X = join_rows(job, job->rows[0], offsetof(data, X)),
                          .y = join_rows(job, job->rows[1], offsetof(data, y))};
    if (job->staging) amp_staging_close(job->staging, job->args.d->X.vals);
    job->batch->loaded = amp_clock_seconds();
    job->batch->rows = job->args.d->X.vals;
}

/* Loads on their way, of the whole program. */
static atomic_int loads;

static void *load_batch(void *p)
{
    struct job *job = p;
    int extra = job->extra, started = 0;
    /* If no more threads can be started (ulimit -u), fewer of them load the same batch. */
    while (started < extra && !pthread_create(&job->threads[started], NULL, work, job))
        started++;
    work(job);
    for (int t = 0; t < started; t++)
        pthread_join(job->threads[t], NULL);
    amp_ending_enter(); /* whoever joins this thread must find the batch complete */
    deliver(job);
    if (job->staging) amp_upload_continue();
    amp_ending_leave();
    drop(job->batch);
    free(job->images);
    free(job->threads);
    free(job);
    loads--;
    return NULL;
}

void amp_batches_wait(void)
{
    while (loads)
        usleep(1000);
}

/* Starts the thread that the caller will join. If that fails Darknet only stops at an assertion;
 * this says what to raise. */
static pthread_t start_loading(void *(*run)(void *), void *argument)
{
    char why[200];
    pthread_t thread;
    loads++;
    int error = pthread_create(&thread, NULL, run, argument);
    if (!error) return thread;
    snprintf(why, sizeof why,
             "cannot start a thread that loads images: %s; raise the limit of memory (ulimit -v) "
             "or of threads (ulimit -u)",
             strerror(error));
    amp_fail(why);
}

/* The shape of one image. With random=1 the trainer asks for another size than the network's: the
 * resize comes after this call. */
static struct amp_image_shape shape_of(const load_args *args)
{
    const network *net = feed.net;
    bool sized = args->w > 0 && args->h > 0;
    int h = sized ? args->h : net->h, w = sized ? args->w : net->w;
    if (sized || net->c * h * w == net->inputs) return (struct amp_image_shape){net->c, h, w};
    return (struct amp_image_shape){net->inputs, 1, 1};
}

/* Stages only for a network on a device whose readers all want one format; else NULL. */
static struct amp_staging *stage(const load_args *args)
{
    const struct amp_session *s = amp_batches_session();
    if (!s || !s->device || s->plan->input_format == AMP_FORMATS) return NULL;
    return amp_staging_open(args->n, shape_of(args), amp_format_dtype(s->plan->input_format));
}

/* Of the n images of a batch, the first one that this process loads; *n becomes how many. */
static int share_batch(const struct amp_session *s, int *n)
{
    char message[300];
    if (!s || !s->step.peers) return 0;
    size_t images = (size_t)s->net->batch * (size_t)s->net->subdivisions;
    if ((size_t)*n != images) {
        snprintf(message, sizeof message,
                 "this program loads %d images for a step of %zu: several processes cannot train "
                 "with it; start one",
                 *n, images);
        amp_fail(message);
    }
    *n = s->spread.share.passes * s->net->batch;
    return s->spread.share.first * s->net->batch;
}

/* Everything is allocated on the training thread, where a failure can still be told properly. */
static pthread_t load_by_image(load_args args)
{
    char err[700];
    struct amp_session *s = amp_batches_session();
    amp_sizes_choose(s, feed.dropped, &args);
    feed.dropped = false;
    int first = share_batch(s, &args.n);
    struct job *job = allocate(1, sizeof *job);
    size_t n = (size_t)args.n;
    job->args = args;
    job->first = first;
    job->seeded = feed.seeded;
    job->seed = feed.seed;
    amp_loader_choose(s, &args, &job->loader);
    if (s) s->log.listed = (size_t)args.m;
    if (job->loader.by_crops && amp_net_check_dialect(s->cfg, s->desc, err, sizeof err))
        amp_fail(err);
    job->staging = stage(&args);
    job->batch = hold_new_batch(args.n);
    job->images = allocate(n, sizeof *job->images);
    for (int i = 0; i < 2; i++)
        job->rows[i] = allocate(n, sizeof *job->rows[i]);
    job->extra = amp_loader_threads(s, &args) - 1;
    job->threads = allocate((size_t)job->extra + 1, sizeof *job->threads);
    /* The stream of the training thread starts anew here (seed.h). */
    amp_seed_between_steps();
    return start_loading(load_batch, job);
}

/* ---- Darknet's functions ---- */

/* A trainer joins the thread that loads a batch, and asks for the next one before it trains. So the
 * newest batch in hand has been waited for. */
static void count_waiting(void)
{
    struct amp_session *s = amp_batches_session();
    const struct batch *newest = feed.held;
    while (newest && newest->next)
        newest = newest->next;
    if (!s || !newest || !newest->rows || !(feed.waits_since > 0)) return;
    if (newest->loaded <= feed.waits_since) return;
    amp_log_waited(&s->log, newest->loaded - feed.waits_since);
    feed.waits_since = newest->loaded;
}

/* True for loads that draw their images at random, one by one. Others have no rows that stand for
 * single images. */
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

/* Two other kinds draw at random too, but not one image per row: pairs of images, and one image out
 * of n. Said once, because a user who sets a seed expects it to hold. */
static void report_what_ignores_the_seed(const load_args *args)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    bool pairs = args->type == COMPARE_DATA, one_of_n = args->type == SWAG_DATA;
    if (!feed.seeded || (!pairs && !one_of_n) || atomic_flag_test_and_set(&told)) return;
    fprintf(stderr,
            "darknet-amp: seed=%llu has no effect on the order and augmentation of the images "
            "here: this program loads them as %s\n",
            (unsigned long long)feed.seed, pairs ? "pairs (COMPARE_DATA)" : "SWAG_DATA");
}

/* Darknet's own load_data, except that the last act, writing the batch to its destination, is
 * guarded: the destination may be a variable of a trainer that has returned (ending.h). */
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
    loads--;
    return NULL;
}

pthread_t amp_batches_load(load_args args)
{
    count_waiting();
    if (feed.net && is_by_image(&args)) return load_by_image(args);
    report_what_ignores_the_seed(&args);
    load_args *own = allocate(1, sizeof *own);
    *own = args;
    return start_loading(load_as_darknet, own);
}

/* The same in a single thread: that is what its caller asked for. Darknet's own load_data also
 * calls this one, on threads that follow no network. */
pthread_t amp_batches_load_in_thread(load_args args)
{
    if (feed.net && is_by_image(&args)) {
        args.threads = 1;
        return load_by_image(args);
    }
    report_what_ignores_the_seed(&args);
    return AMP_REAL(load_data_in_thread)(args);
}

/* Darknet frees NULL in their place. */
static void keep_rows(matrix *m)
{
    for (int i = 0; i < m->rows; i++) {
        amp_row_give(m->vals[i], (size_t)m->cols);
        m->vals[i] = NULL;
    }
}

void amp_batches_drop(data d)
{
    if (let_go(d.X.vals)) {
        amp_seed_between_steps();
        feed.dropped = !amp_iteration_is_trained();
    }
    amp_staging_drop(d.X.vals);
    if (!d.shallow) keep_rows(&d.X);
}

void amp_batches_await(void)
{
    feed.waits_since = amp_clock_seconds();
}
