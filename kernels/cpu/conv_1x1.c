/* The forward pass and the data gradient of 1x1 convolutions of BF16 by product_avx512.c: which
 * they are, and how their weights lie. Their units and slices are as conv_create.c cuts them, and
 * conv.c runs them. */
#include "conv.h"

#include <stdio.h>
#include <stdlib.h>

bool ampk_1x1_suits(const struct ampk_conv_shape *s, const struct ampk_isa *isa)
{
    bool one = s->kh == 1 && s->kw == 1 && s->stride == 1 && s->pad == 0 && s->groups == 1;
    return one && isa->product && !ampk_has_amx_bf16();
}

/* In a slice, whose panels are lines of LANES written channels times two that are read. */
bool ampk_1x1_create(struct pass *pass, char *err, size_t err_size)
{
    size_t written = (size_t)pass->written / pass->slices, read = (size_t)pass->read;
    size_t *lane = calloc(written, sizeof *lane), *pair = calloc(read, sizeof *pair);
    pass->panels = (struct ampk_dnnl_lines){.of_filters = !pass->to_x,
                                            .filter = pass->to_x ? pair : lane,
                                            .channel = pass->to_x ? lane : pair,
                                            .tap = calloc(1, sizeof(size_t))};
    if (!lane || !pair || !pass->panels.tap) {
        snprintf(err, err_size, AMPK_NO_MEMORY);
        return false;
    }
    for (size_t i = 0; i < written; i++)
        lane[i] = i / AMPK_DNNL_LANES * AMPK_DNNL_LANES * read + i % AMPK_DNNL_LANES * 2;
    for (size_t i = 0; i < read; i++)
        pair[i] = i / 2 * AMPK_DNNL_LANES * 2 + i % 2;
    pass->slice_bytes = ampk_whole_lines(written * read * sizeof(uint16_t));
    return true;
}

void ampk_1x1_destroy(struct pass *pass)
{
    free(pass->panels.filter);
    free(pass->panels.channel);
    free(pass->panels.tap);
}

const struct ampk_dnnl_lines *ampk_conv_lines(const struct pass *pass)
{
    return pass->plan ? ampk_dnnl_plan_lines(pass->plan) : &pass->panels;
}
