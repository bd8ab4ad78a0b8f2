/* Applies an operation to every array of a list, in a few launches: what flat.cu and update.cu
 * share. An operation is a struct with a device function on<N>(item, i), N elements at once, and a
 * make_item(array, operation) beside it. */
#ifndef AMPK_CUDA_APPLY_H
#define AMPK_CUDA_APPLY_H

#include "device.h"

/* 256 threads give full occupancy on every architecture, and a partly filled last block costs
 * little. Of an item, a block has four floats for each thread, four times: enough work to be worth
 * its start, and small arrays still do not wait for each other. */
static const int AMPK_APPLY_THREADS = 256;
static const int AMPK_APPLY_PIECE = AMPK_APPLY_THREADS * 16;

/* Applies the rule to a piece of an item: N = 4 floats at once if the item's addresses allow it.
 * Where they do not, threads keep the same elements, so the results have the same bits. */
template <typename Item, typename Rule>
static __global__ void __launch_bounds__(AMPK_APPLY_THREADS)
    ampk_apply(const ampk_list<Item> l, const Rule rule)
{
    const int at = ampk_find_item(l);
    const Item &item = l.items[at];
    const size_t first = (size_t)(blockIdx.x - l.first_block[at]) * AMPK_APPLY_PIECE;
    const size_t end = item.n - first < AMPK_APPLY_PIECE ? item.n : first + AMPK_APPLY_PIECE;
    size_t i = first + threadIdx.x * 4;
    if (item.is_wide())
        for (; i + 4 <= end; i += AMPK_APPLY_THREADS * 4)
            rule.template on<4>(item, i);
    else
        for (; i + 4 <= end; i += AMPK_APPLY_THREADS * 4)
#pragma unroll 1
            for (int k = 0; k < 4; k++)
                rule.template on<1>(item, i + k);
#pragma unroll 1
    for (; i < end; i++) /* what is left of the item */
        rule.template on<1>(item, i);
}

/* Blocks of an array of n floats. */
static inline unsigned ampk_apply_blocks(size_t n)
{
    return (unsigned)((n + AMPK_APPLY_PIECE - 1) / AMPK_APPLY_PIECE);
}

template <typename Item, typename Array, typename Rule>
static void ampk_apply_to(struct ampk_context *ctx, const Array *arrays, int count, const Rule rule)
{
    static_assert(sizeof(ampk_list<Item>) + sizeof(Rule) <= 4096, "kernel arguments");
    ampk_list<Item> l;
    for (int i = 0; i < count;) {
        l.clear();
        for (; i < count && !l.is_full(); i++)
            if (arrays[i].n) l.add(make_item(arrays[i], rule), ampk_apply_blocks(arrays[i].n));
        if (l.count)
            AMPK_LAUNCH((ampk_apply<Item, Rule>), l.blocks(), AMPK_APPLY_THREADS, 0, ctx->stream, l,
                        rule);
    }
}

/* A span that is read and written. */
struct ampk_span_item {
    float *dst;
    const float *src;
    size_t n;
    __device__ bool is_wide() const
    {
        return (((uintptr_t)dst | (uintptr_t)src) & 15) == 0;
    }
};

#endif
