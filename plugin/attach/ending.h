/* Ends the program safely while other threads are at work.
 *
 * Darknet's trainers return while the next batch is still being loaded. Then exit runs OpenCV's
 * destructors under the threads that decode, and the finished batch is written to a variable of a
 * function that has returned: both crash now and then. So work that must not happen during exit (a
 * layer of ours at work, too) is done between amp_ending_enter and amp_ending_leave. Exit waits for
 * the threads inside and lets nobody in any more. */
#ifndef AMP_ENDING_H
#define AMP_ENDING_H

#include "plugin/core/read/cfg.h"

#include <stddef.h>
#include <stdio.h>

/* amp_ending_enter does not return if the program is ending: the code after it would go on without
 * a batch or an image. Calls may be nested. A thread that is inside may call exit. */
void amp_ending_enter(void);
void amp_ending_leave(void);

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
/* Lets nobody else in, and waits until nobody else is inside. exit and quick_exit call it. */
void amp_ending_wait(void);

/* ---- at once ---- */

/* From now on amp_fail and amp_tell print on this descriptor in place of stderr. */
void amp_fail_on(int descriptor);
/* Prints "darknet-amp: message"; of several processes those after the first say which they are. */
void amp_tell(const char *message);
/* The same, and ends the program with status 1. Of several processes another one saves first. */
_Noreturn void amp_fail(const char *message);
/* Fails like that about a key under [net]: "darknet-amp: FILE:LINE: KEY=VALUE: why". */
_Noreturn void amp_fail_key(const struct amp_cfg_file *, const char *key, const char *why);
/* A file that keeps nothing: the log prints to a file, so silence is one too. It stays open. */
FILE *amp_nowhere(void);
/* n zeroed elements (of 0 one), for free; amp_fail where there is no memory for them. */
void *amp_allocate(size_t n, size_t size);

/* ---- memory that Darknet asks for and does not get ----
 * It never looks: without this it would go on with NULL. Our build of libdarknet.so reports it
 * (darknet/compat/memory.c); the program then ends with the size and what to lower. */

/* On this thread. What Darknet asks for meanwhile, for the message: */
enum amp_memory_use {
    AMP_MEMORY_OTHER,
    AMP_MEMORY_PARSE,   /* to make a network */
    AMP_MEMORY_LOAD,    /* to load the images of a batch */
    AMP_MEMORY_CHECKED, /* what its caller in the plugin looks at itself: Darknet goes on */
};

/* Returns the use before, to set again afterwards. */
enum amp_memory_use amp_memory_set_use(enum amp_memory_use);

/* For AMP_MEMORY_PARSE: which layer is being made. A parse begins; cfg: where to find its line, or
 * NULL. And one more layer is there. */
void amp_memory_parse(const struct amp_cfg_file *cfg);
void amp_memory_count_layer(void);

/* Before the program ends at once: does what amp_on_end asked for, the first time. */
void amp_ending_act(void);

#endif
