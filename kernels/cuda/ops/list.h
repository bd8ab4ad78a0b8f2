/* One launch for many arrays: the kernel's arguments describe the arrays, and each array gets
 * blocks of its own. Small arrays would not fill a GPU one by one, and each launch takes time. */
#ifndef AMPK_CUDA_LIST_H
#define AMPK_CUDA_LIST_H

#include "device.h"

/* As many items as fit 4 KiB of kernel arguments beside a rule of 64 bytes, but 64 at most. */
template <typename Item> struct ampk_list {
    static constexpr int fit = (4096 - 64 - 8) / (int)(sizeof(Item) + sizeof(unsigned));
    static constexpr int most = fit < 64 ? fit : 64;
    Item items[most];
    unsigned first_block[most + 1]; /* first block of each item; the last entry: all blocks */
    int count;

    bool is_full() const
    {
        return count == most;
    }
    void clear()
    {
        count = 0;
        first_block[0] = 0;
    }
    void add(const Item &item, unsigned blocks)
    {
        items[count] = item;
        first_block[count + 1] = first_block[count] + blocks;
        count++;
    }
    unsigned blocks() const
    {
        return first_block[count];
    }
};

/* The item of this block, by bisection. */
template <typename Item>
static __device__ __forceinline__ int ampk_find_item(const ampk_list<Item> &l)
{
    int low = 0, high = l.count; /* first_block[low] <= blockIdx.x < first_block[high] */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (l.first_block[middle] <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
