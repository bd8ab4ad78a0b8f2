#include "arena.h"

#include <stdint.h>
#include <stdlib.h>

static int larger_first(const void *a, const void *b)
{
    const struct amp_buffer *x = *(struct amp_buffer *const *)a,
                            *y = *(struct amp_buffer *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : x > y;
}

static size_t align_up(size_t bytes)
{
    return (bytes + AMP_ARENA_ALIGN - 1) / AMP_ARENA_ALIGN * AMP_ARENA_ALIGN;
}

static int alive_together(const struct amp_buffer *a, const struct amp_buffer *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* placed: buffers in order of offset. Finds the lowest gap that is free while b lives. */
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
