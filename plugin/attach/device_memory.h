/* Device arrays of Darknet that get memory only when somebody needs it.
 *
 * Darknet asks for every FP32 activation, delta and copy while it parses the cfg. If the plugin
 * runs a layer, nobody touches that layer's arrays. So during a parse and during a resize every
 * large array is an address without memory (kernels/cuda/runtime/reserve.h). Once the plan is made,
 * the arrays that Darknet's own code will touch are committed; the others stay addresses. In a
 * Darknet without GPU nothing is deferred. */
#ifndef AMP_DEVICE_MEMORY_H
#define AMP_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* ---- arrays ---- */

/* Between begin and end amp_deferred_make defers arrays for an owner: one network. sizes: numbers
 * of floats that are never deferred, because arrays of these sizes are needed for sure
 * (weights). */
void amp_deferred_begin(const void *owner, const size_t *sizes, int n);
void amp_deferred_end(void);

/* Returns an address for n floats that will hold x (NULL: zeros) once committed. NULL: this array
 * is not to be deferred, or cannot be, which is said once. x must live until the commit. */
float *amp_deferred_make(const float *x, size_t n);
/* Frees the array. False: it is not one of ours. */
bool amp_deferred_free(void *array);

/* Commits every deferred array of the owner except the unused ones. -1: no memory left; *short_of
 * is the size that could not be had. */
int amp_deferred_commit(const void *owner, void *const *unused, int n, size_t *short_of);

/* Bytes of all arrays that have no memory at present. */
size_t amp_deferred_bytes(void);

/* ---- the arrays of a session's network ---- */

struct amp_session;

#ifdef GPU

/* Between these two calls Darknet makes its arrays without memory. */
void amp_session_defer(const struct amp_session *);
void amp_session_stop_deferring(void);
/* commit: gives memory to the arrays that are touched while the plan runs; commit_all: to all.
 * -1 with text in err: there is not enough. */
int amp_session_commit(const struct amp_session *, char *err, size_t err_size);
int amp_session_commit_all(const struct amp_session *, char *err, size_t err_size);

#else
static inline void amp_session_defer(const struct amp_session *s)
{
    (void)s;
}
static inline void amp_session_stop_deferring(void) {}
static inline int amp_session_commit(const struct amp_session *s, char *err, size_t err_size)
{
    (void)s, (void)err, (void)err_size;
    return 0;
}
static inline int amp_session_commit_all(const struct amp_session *s, char *err, size_t err_size)
{
    (void)s, (void)err, (void)err_size;
    return 0;
}
#endif

#endif
