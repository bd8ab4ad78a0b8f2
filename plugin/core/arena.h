/* Places buffers with known lifetimes in one block of memory so that no two that live at once
 * overlap.
 *
 * Greedy by size (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net
 * inference", section 5.2): largest first, each at the lowest offset that is free for its whole
 * life.
 */
#ifndef AMP_ARENA_H
#define AMP_ARENA_H

#include <stddef.h>

#define AMP_ARENA_ALIGN 64

struct amp_buffer {
    size_t bytes;
    int first, last; /* steps at which it holds data, both included */
    int layer;       /* whose it is, for messages */
    const char *what;
    size_t offset; /* result, a multiple of AMP_ARENA_ALIGN */
};

/* Sets every offset; returns the bytes of the block, or (size_t)-1 when memory for the work ran
 * out. */
size_t amp_arena_place(struct amp_buffer *buffers, int n);

#endif
