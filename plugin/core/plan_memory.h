/* Memory of a plan: buffers that share one block, and the advice if the block does not fit.
 *
 * The plan knows the lifetime of every buffer; no two that live at once overlap. They are placed
 * greedily by size (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net
 * inference", section 5.2): largest first, each at the lowest offset that is free for its whole
 * life. */
#ifndef AMP_PLAN_MEMORY_H
#define AMP_PLAN_MEMORY_H

#include <stddef.h>

struct amp_net_desc;
struct amp_plan;

#define AMP_ARENA_ALIGN 64

struct amp_buffer {
    size_t bytes;
    int first, last; /* steps at which it holds data, both included */
    int layer;       /* its owner, for messages */
    const char *what;
    size_t offset; /* result, a multiple of AMP_ARENA_ALIGN */
};

/* Sets every offset and returns the bytes of the block, or (size_t)-1 if memory for the work ran
 * out. */
size_t amp_arena_place(struct amp_buffer *buffers, int n);

/* Writes to err that a network does not fit: what lacks memory, how large its activations are, and
 * which batch and subdivisions would fit. left: bytes that are free without this network, less the
 * work memory that a backend keeps, so that the advice is rather too careful; 0: unknown. */
void amp_no_memory(const struct amp_net_desc *, const struct amp_plan *, const char *what,
                   size_t left, char *err, size_t err_size);

#endif
