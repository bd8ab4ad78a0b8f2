/* Decides which of Darknet's device arrays wait for memory: large ones, of a size that no weights
 * have, made while a network is parsed or resized; and which of them stay without memory under a
 * plan.
 *
 * An address must be given at once and stay: Darknet stores it in its layers by value, and copies
 * of it travel with every layer that is passed around. */

#include "device_memory.h"

#include "kernels/cuda/runtime/reserve.h"
#ifdef GPU
#include "device.h"
#include "session.h"
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- arrays, whatever they are for ---- */

#define LARGE_BYTES ((size_t)1 << 20) /* a smaller array is not worth a page of its own */

struct array {
    struct array *next;
    const void *owner;
    void *address;
    const float *initial;
    size_t bytes;
    bool committed;
};

/* Guards the list: several threads may parse networks. What follows it is per thread: the parse
 * that this thread is in. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct array *arrays;
static __thread const void *making_for;
static __thread const size_t *needed_sizes;
static __thread int n_needed_sizes = -1; /* -1: not deferring */

void amp_deferred_begin(const void *owner, const size_t *sizes, int n)
{
    making_for = owner;
    needed_sizes = sizes;
    n_needed_sizes = n;
}

void amp_deferred_end(void)
{
    n_needed_sizes = -1;
}

/* cuda_make_array gets a size and no name. Weights are needed for sure, so arrays of their sizes
 * get memory at once; an activation of the same size then does, too, which costs only memory. */
static bool is_deferred_size(size_t n)
{
    if (n * sizeof(float) < LARGE_BYTES) return false;
    for (int i = 0; i < n_needed_sizes; i++)
        if (needed_sizes[i] == n) return false;
    return n_needed_sizes >= 0;
}

static void say_not_deferred(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        fprintf(stderr, "darknet-amp: this GPU, or its driver, gives no memory to addresses later: "
                        "all of Darknet's FP32 arrays take memory (reported once)\n");
}

float *amp_deferred_make(const float *x, size_t n)
{
    if (!is_deferred_size(n)) return NULL;
    struct array *a = malloc(sizeof *a);
    if (!a) return NULL;
    *a = (struct array){.owner = making_for,
                        .address = ampk_reserve(n * sizeof(float)),
                        .initial = x,
                        .bytes = n * sizeof(float)};
    if (!a->address) {
        say_not_deferred();
        free(a);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    a->next = arrays;
    arrays = a;
    pthread_mutex_unlock(&lock);
    return a->address;
}

bool amp_deferred_free(void *array)
{
    pthread_mutex_lock(&lock);
    struct array **p = &arrays;
    while (*p && (*p)->address != array)
        p = &(*p)->next;
    struct array *a = *p;
    if (a) *p = a->next;
    pthread_mutex_unlock(&lock);
    if (!a) return false;
    ampk_unreserve(a->address, a->bytes, a->committed);
    free(a);
    return true;
}

static bool is_unused(const struct array *a, void *const *unused, int n)
{
    for (int i = 0; i < n; i++)
        if (unused[i] == a->address) return true;
    return false;
}

static bool commit(struct array *a)
{
    a->committed = ampk_commit(a->address, a->bytes, a->initial);
    return a->committed;
}

/* Stops at the first failure: the caller ends the program. */
int amp_deferred_commit(const void *owner, void *const *unused, int n, size_t *short_of)
{
    int failed = 0;
    pthread_mutex_lock(&lock);
    for (struct array *a = arrays; a && !failed; a = a->next) {
        if (a->owner != owner || a->committed || is_unused(a, unused, n) || commit(a)) continue;
        *short_of = a->bytes;
        failed = -1;
    }
    pthread_mutex_unlock(&lock);
    return failed;
}

size_t amp_deferred_bytes(void)
{
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (const struct array *a = arrays; a; a = a->next)
        if (!a->committed) bytes += a->bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* ---- the arrays of a network ---- */

#ifdef GPU

/* Sizes of the weights of the network that this thread parses: arrays of these sizes are needed for
 * sure. Freed when deferring stops. */
static __thread size_t *weight_sizes;

void amp_session_defer(const struct amp_session *s)
{
    if (!s->options.mixed_precision || !amp_darknet_on_device()) return;
    weight_sizes = amp_allocate((size_t)s->desc->n, sizeof *weight_sizes);
    for (int i = 0; i < s->desc->n; i++)
        weight_sizes[i] = s->desc->layers[i].n_weights;
    amp_deferred_begin(s, weight_sizes, s->desc->n);
}

void amp_session_stop_deferring(void)
{
    amp_deferred_end();
    free(weight_sizes);
    weight_sizes = NULL;
}

/* Only these types of Darknet's use the network's workspace; ours have their own. */
static bool uses_workspace(const struct amp_session *s)
{
    for (int i = 0; i < s->net->n; i++) {
        LAYER_TYPE t = s->net->layers[i].type;
        if (!s->plan->layers[i].ours &&
            (t == CONVOLUTIONAL || t == DECONVOLUTIONAL || t == LOCAL || t == CRNN))
            return true;
    }
    return false;
}

/* Lists what no code touches while this plan runs, and commits the rest. Runs again with every
 * plan: a layer that leaves FP16 may go back to Darknet's code. An array that is wrongly called
 * unused is a crash in Darknet's kernels, so everything that is not surely unused is committed. */
int amp_session_commit(const struct amp_session *s, char *err, size_t err_size)
{
    enum { PER_LAYER = 6 };
    int n = 0;
    size_t short_of;
    if (!s->device) return 0;
    void **unused = amp_allocate((size_t)s->net->n * PER_LAYER + 1, sizeof *unused);
    for (int i = 0; i < s->net->n; i++) {
        const layer *l = &s->net->layers[i];
        const struct amp_plan_layer *p = &s->plan->layers[i];
        if (!p->ours || l->type == DROPOUT)
            continue; /* Darknet's dropout has no arrays of its own: they are the layer's before */
        void *own[PER_LAYER] = {s->saved[i].delta, l->x_gpu,    l->x_norm_gpu,
                                l->indexes_gpu,    l->rand_gpu, l->output_gpu};
        bool border = p->out == AMP_FORMAT_BORDER || p->border_copy;
        /* output_gpu is last: a border's output is where Darknet reads it, so it is used. */
        for (int k = 0; k < PER_LAYER - border; k++)
            unused[n++] = own[k];
    }
    if (!uses_workspace(s)) unused[n++] = s->net->workspace;
    int failed = amp_deferred_commit(s, unused, n, &short_of);
    free(unused);
    if (failed)
        snprintf(
            err, err_size,
            "no device memory for %.1f MiB that Darknet's own layers need at %dx%d (%d images in a "
            "pass); lower batch or raise subdivisions",
            (double)short_of / (1 << 20), s->net->w, s->net->h, s->net->batch);
    return failed;
}

/* Detached, Darknet uses every array. */
int amp_session_commit_all(const struct amp_session *s, char *err, size_t err_size)
{
    size_t short_of;
    if (!amp_deferred_commit(s, NULL, 0, &short_of)) return 0;
    snprintf(err, err_size,
             "no device memory for the FP32 arrays that Darknet needs without the plugin");
    return -1;
}

#endif
