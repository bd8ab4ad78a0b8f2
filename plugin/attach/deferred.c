/* Decides which array waits for memory: a large one, of a size that no weights have, while a
 * network is parsed or resized. It must not know what an array is for; device_arrays.c names the
 * unused ones.
 *
 * An address must be given at once and stay: Darknet stores it in its layers by value, and copies
 * of it travel with every layer that is passed around. */

#include "deferred.h"

#include "kernels/cuda/runtime/reserve.h"

#include <pthread.h>
#include <stdlib.h>

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
    if (!ampk_commit(a->address, a->bytes, a->initial)) return false;
    a->committed = true;
    /* The array has its contents now, and the caller may free x. */
    a->initial = NULL;
    return true;
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
        bytes += a->committed ? 0 : a->bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}
