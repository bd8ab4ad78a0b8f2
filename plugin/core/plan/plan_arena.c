/* Decides where each buffer lies in one block, the arena: buffers that never hold data at the same
 * time may share bytes. It must not know what a buffer is for. */
#include "plan.h"

#include <stdint.h>
#include <stdlib.h>

static int larger_first(const void *a, const void *b)
{
    const struct amp_buffer *x = *(struct amp_buffer *const *)a,
                            *y = *(struct amp_buffer *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    /* Equal sizes keep their order, so that qsort, which is not stable, gives the same plan
     * everywhere. */
    return x < y ? -1 : x > y;
}

/* Every buffer begins where vectors and devices read fast. */
static size_t align_up(size_t bytes)
{
    return (bytes + AMP_ARENA_ALIGN - 1) / AMP_ARENA_ALIGN * AMP_ARENA_ALIGN;
}

/* Both ends count: a step may read one buffer and write another. */
static int meet(int first, int last, int other_first, int other_last)
{
    return first <= other_last && other_first <= last;
}

/* A second life begins in backward, never at step 0. */
static int alive_together(const struct amp_buffer *a, const struct amp_buffer *b)
{
    return meet(a->first, a->last, b->first, b->last) ||
           (a->again_last && meet(a->again_first, a->again_last, b->first, b->last)) ||
           (b->again_last && meet(a->first, a->last, b->again_first, b->again_last)) ||
           (a->again_last && b->again_last &&
            meet(a->again_first, a->again_last, b->again_first, b->again_last));
}

/* The lowest gap that is free while b lives. placed: the buffers so far, in order of offset. */
static size_t lowest_free(struct amp_buffer *const *placed, int n, const struct amp_buffer *b)
{
    size_t offset = 0;
    for (int i = 0; i < n; i++) {
        if (!alive_together(placed[i], b)) continue;
        if (offset + b->bytes <= placed[i]->offset) return offset;
        size_t end = align_up(placed[i]->offset + placed[i]->bytes);
        if (end > offset) offset = end;
    }
    return offset;
}

/* Few buffers: an insertion is cheaper than sorting again. */
static void insert_by_offset(struct amp_buffer **placed, int n, struct amp_buffer *b)
{
    int i = n;
    while (i > 0 && placed[i - 1]->offset > b->offset) {
        placed[i] = placed[i - 1];
        i--;
    }
    placed[i] = b;
}

size_t amp_arena_place(struct amp_buffer *buffers, int n)
{
    if (n == 0) return 0;
    struct amp_buffer **order = malloc(2 * (size_t)n * sizeof *order);
    if (!order) return SIZE_MAX;
    struct amp_buffer **placed = order + n;
    for (int i = 0; i < n; i++)
        order[i] = &buffers[i];
    qsort(order, (size_t)n, sizeof *order, larger_first);
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        struct amp_buffer *b = order[i];
        b->offset = lowest_free(placed, i, b);
        insert_by_offset(placed, i, b);
        size_t end = align_up(b->offset + b->bytes);
        if (end > total) total = end;
    }
    free(order);
    return total;
}
