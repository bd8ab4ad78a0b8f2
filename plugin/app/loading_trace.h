/* Threads that load a batch as training's do, while a step runs, for `amp profile --trace`. */
#ifndef AMP_LOADING_TRACE_H
#define AMP_LOADING_TRACE_H

#include "trace.h"

struct load_args; /* Darknet's */
struct amp_loading_trace;

enum { AMP_TRACE_THREADS = 16 }; /* at most */

/* Starts them: they load so many images, each part of one an event; thread k's are in row
 * first_row + k. NULL: no memory or threads. */
struct amp_loading_trace *amp_loading_trace_start(struct amp_trace *, const struct load_args *,
                                                  int reduces, int threads, int images,
                                                  int first_row);
/* Waits until all is loaded. */
void amp_loading_trace_end(struct amp_loading_trace *);

#endif
