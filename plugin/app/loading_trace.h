/* Threads that load a batch as training's do, while a step runs, for `amp profile --trace`. */
#ifndef AMP_LOADING_TRACE_H
#define AMP_LOADING_TRACE_H

#include "loading.h"
#include "trace.h"

struct amp_loading_trace;

enum { AMP_TRACE_THREADS = 16 }; /* at most */

/* Starts as many as the cfg has: they load so many images for this network by the cfg's loader,
 * each part of one an event; thread k's are in row first_row + k. NULL: no memory or threads. */
struct amp_loading_trace *amp_loading_trace_start(struct amp_trace *, const struct amp_loading *,
                                                  const struct network *, const struct load_args *,
                                                  int images, int first_row);
/* Waits until all is loaded. */
void amp_loading_trace_end(struct amp_loading_trace *);

#endif
