// Where one image of a batch cannot be loaded: its file, or its labels, may have gone since
// training began. Darknet would end the program in a loader thread, and what was learned since the
// last backup would be lost. Instead the loader thread notes why and leaves Darknet's code; the
// batch is handed over as any other, and the thread that trains saves and ends before it uses it
// (loader.c).
#ifndef AMP_LOADING_H
#define AMP_LOADING_H

#include <limits.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>

// What is wrong with a batch; zeros: nothing. why may be read when its loader threads have ended.
struct amp_loading {
    atomic_bool failed;
    char why[PATH_MAX + 300];
};

// Notes it; of several threads' reasons the first counts.
__attribute__((format(printf, 2, 3))) void amp_loading_note(struct amp_loading *, const char *why,
                                                            ...);

// From here to amp_loading_end the calling thread loads for that batch.
void amp_loading_begin(struct amp_loading *, jmp_buf *way_out);
void amp_loading_end(void);
// The batch that the calling thread loads for; NULL: none.
struct amp_loading *amp_loading_now(void);
// Out of Darknet's code, to way_out. For a frame of C below it that holds nothing.
_Noreturn void amp_loading_leave(void);

#endif
