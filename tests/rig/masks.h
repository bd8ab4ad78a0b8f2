// Dropout's masks on a device, as they are and as they must be. Include after attached.h.
#ifndef AMP_TEST_MASKS_H
#define AMP_TEST_MASKS_H

#include "kernels/philox.h"
#include "plugin/attach/seed.h"

// The last pass's mask of layer i, one byte per element; the caller frees.
static inline uint8_t *mask_of(const network *net, int i)
{
    const struct amp_session *s = amp_session_of(net->layers);
    size_t n = (size_t)(net->batch * net->layers[i].outputs);
    uint8_t *keep = malloc(n);
    REQUIRE(keep);
    s->backend->read(s->context, keep, s->graph->nodes[i].index, n);
    return keep;
}

// It is the one of that seed, of the network in that place, and of the images seen.
static inline void check_mask(const network *net, int i, uint64_t seed, uint32_t place)
{
    int n = net->batch * net->layers[i].outputs;
    struct ampk_draw draw = amp_seed_masks(seed, place, *net->seen);
    uint8_t *keep = mask_of(net, i);
    draw.counter[1] += (uint32_t)i;
    for (int k = 0; k < n; ++k) {
        uint32_t numbers[4];
        ampk_draw_four(&draw, (uint32_t)k / 4, numbers);
        CHECK_INT(keep[k], numbers[k % 4] * 0x1p-32 >= (double)net->layers[i].probability);
    }
    free(keep);
}

#endif
