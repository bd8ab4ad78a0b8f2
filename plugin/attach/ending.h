/* The end of the program, while other threads are at work.
 *
 * Darknet's trainers return while the next batch is still being loaded. exit then runs OpenCV's
 * destructors under the threads that decode, and the batch, when it is ready, is written to a
 * variable of a function that has returned: both crash now and then. So what must not happen during
 * exit (a layer of ours at work, too) is done between amp_ending_enter and amp_ending_leave; exit
 * waits for those who are inside, and nobody gets in any more. */
#ifndef AMP_ENDING_H
#define AMP_ENDING_H

#include "plugin/core/cfg.h"

#include <stddef.h>

/* Where the program is ending, it does not return: what comes after it would go on without what is
 * missed (a batch, an image). May be nested. A thread that is inside may call exit. */
void amp_ending_enter(void);
void amp_ending_leave(void);
/* Before a wait for other threads, which may not come any more: this one is not inside, however
 * often it was. */
void amp_ending_step_out(void);

/* From the first call on exit and quick_exit wait. What is registered last runs first, so it is
 * called once more when a library has registered its destructors: OpenCV does when it decodes its
 * first image, a backend (kernels.h) when it makes its first context and computes its first layers.
 * (A program that ends just then, in another thread, may still crash.) */
enum amp_ending_after {
    AMP_ENDING_AFTER_IMAGE,
    AMP_ENDING_AFTER_CONTEXT,
    AMP_ENDING_AFTER_FORWARD,
    AMP_ENDING_AFTER_BACKWARD,
    AMP_ENDING_KINDS
};
void amp_ending_watch(enum amp_ending_after);
/* What they do: nobody else gets in, and nobody else is inside. */
void amp_ending_wait(void);

/* ---- at once ---- */

/* Prints "darknet-amp: message" and ends the program with status 1. */
_Noreturn void amp_fail(const char *message);
/* The same about a key under [net]: "darknet-amp: FILE:LINE: KEY=VALUE: why". */
_Noreturn void amp_fail_key(const struct amp_cfg_file *, const char *key, const char *why);
/* n zeroed elements (of 0 one), for free; amp_fail where there is no memory for them. */
void *amp_allocate(size_t n, size_t size);

#endif
