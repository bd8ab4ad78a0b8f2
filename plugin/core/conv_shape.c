#include "conv_shape.h"

struct amp_image_shape amp_output_shape(const struct amp_net_desc *net, int i)
{
    if (i < 0) {
        bool image = (int64_t)net->c * net->h * net->w == net->inputs;
        return image ? (struct amp_image_shape){net->c, net->h, net->w}
                     : (struct amp_image_shape){net->inputs, 1, 1};
    }
    const struct amp_layer_desc *l = &net->layers[i];
    if (l->out_w && l->out_h && l->out_c)
        return (struct amp_image_shape){l->out_c, l->out_h, l->out_w};
    return (struct amp_image_shape){l->outputs, 1, 1};
}

struct ampk_conv_shape amp_conv_shape(const struct amp_net_desc *net, int i)
{
    const struct amp_layer_desc *l = &net->layers[i];
    struct amp_image_shape x = amp_output_shape(net, l->sources[0]);
    struct ampk_conv_shape s = {.n = net->batch,
                                .c = x.c,
                                .h = x.h,
                                .w = x.w,
                                .k = l->filters,
                                .kh = l->size,
                                .kw = l->size,
                                .stride = l->stride,
                                .pad = l->pad,
                                .groups = l->groups};
    if (l->type == AMP_CONNECTED) {
        s.kh = x.h;
        s.kw = x.w;
        s.stride = 1;
        s.pad = 0;
        s.groups = 1;
    }
    return s;
}
