/* Decides how the matrices inside a recurrent layer become convolutions of the backend, and where
 * their operands lie. It must not know what a recurrent layer computes: products.c multiplies,
 * Darknet's code does the rest.
 *
 * A matrix that reads the layer's input needs no state, so one product serves all time steps. One
 * that reads a state multiplies step by step, forward and for the gradient of the state; its weight
 * gradient is again one product of all steps. */
#include "plan.h"

/* A matrix on vectors is a 1x1 convolution of one image, whose pixels are the vectors. Darknet's
 * crnn turns the image (net_layers.c), and so do we. */
struct ampk_conv_shape amp_plan_product_shape(const struct amp_plan *plan,
                                              const struct amp_net_desc *net, int i,
                                              const struct amp_matrix *m, int images)
{
    const struct amp_layer_desc *l = &net->layers[i];
    bool crnn = l->type == AMP_CRNN;
    return (struct ampk_conv_shape){.n = crnn ? images : 1,
                                    .c = m->inputs,
                                    .h = crnn ? l->out_h : images,
                                    .w = crnn ? l->out_w : 1,
                                    .k = m->outputs,
                                    .kh = crnn ? 3 : 1,
                                    .kw = crnn ? 3 : 1,
                                    .stride = 1,
                                    .pad = crnn,
                                    .groups = 1,
                                    .compute = plan->layers[i].compute,
                                    .forward_only = !plan->layers[i].backward,
                                    .biased = true};
}

int amp_plan_step_images(const struct amp_net_desc *net)
{
    return net->batch / (net->time_steps > 1 ? net->time_steps : 1);
}

static size_t elements(const struct amp_net_desc *net, int i, int channels, int images)
{
    const struct amp_layer_desc *l = &net->layers[i];
    size_t area = l->type == AMP_CRNN ? (size_t)l->out_w * (size_t)l->out_h : 1;
    return area * (size_t)channels * (size_t)images;
}

size_t amp_plan_inner_elements(const struct amp_net_desc *net, int i)
{
    struct amp_matrix list[AMP_MOST_MATRICES];
    int n = amp_layer_matrices(&net->layers[i], list);
    size_t sum = 0;
    for (int k = 0; k < n; k++)
        sum += elements(net, i, list[k].outputs, net->batch);
    return sum;
}

/* A program may have set a batch that the time steps do not divide. */
bool amp_plan_products_pay(const struct amp_net_desc *net, int i)
{
    int images = amp_plan_step_images(net), steps = net->time_steps > 1 ? net->time_steps : 1;
    return images * steps == net->batch && elements(net, i, 1, net->batch) >= AMP_PRODUCT_ROWS;
}

size_t amp_plan_operand_bytes(const struct amp_plan *plan, const struct amp_net_desc *net, int i,
                              int channels, int images)
{
    enum ampk_compute c = plan->layers[i].compute;
    bool reduced = c == AMPK_COMPUTE_FP16 || c == AMPK_COMPUTE_BF16;
    return elements(net, i, channels, images) * (reduced ? 2 : 4);
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + AMP_ARENA_ALIGN - 1) / AMP_ARENA_ALIGN * AMP_ARENA_ALIGN;
}

size_t amp_plan_operand_offset(const struct amp_plan *plan, const struct amp_net_desc *net, int i,
                               int k, bool gradients)
{
    struct amp_matrix list[AMP_MOST_MATRICES];
    int n = amp_layer_matrices(&net->layers[i], list);
    size_t offset = 0;
    if (k < n && list[k].reads_input && !gradients) return 0;
    for (int j = 0; j < k; j++) {
        int channels = gradients ? list[j].outputs : list[j].inputs;
        if (!gradients && list[j].reads_input && j > 0) continue;
        offset += whole_lines(amp_plan_operand_bytes(plan, net, i, channels, net->batch));
    }
    return offset;
}

size_t amp_plan_operands(const struct amp_plan *plan, const struct amp_net_desc *net, int i,
                         bool gradients)
{
    struct amp_matrix list[AMP_MOST_MATRICES];
    int n = amp_layer_matrices(&net->layers[i], list), most = 0;
    for (int k = 0; k < n; k++)
        if (list[k].inputs > most) most = list[k].inputs;
    bool turned = gradients && net->layers[i].type == AMP_CRNN;
    return amp_plan_operand_offset(plan, net, i, n, gradients) +
           (turned ? elements(net, i, most, net->batch) * sizeof(float) : 0);
}

size_t amp_plan_product_bytes(const struct amp_plan *plan, const struct amp_net_desc *net, int i,
                              size_t (*conv_bytes)(const struct ampk_conv_shape *))
{
    struct amp_matrix list[AMP_MOST_MATRICES];
    int n = amp_layer_matrices(&net->layers[i], list);
    size_t bytes = 0;
    for (int k = 0; k < n; k++)
        for (int all = 0; all < 2; all++) {
            int images = all ? net->batch : amp_plan_step_images(net);
            struct ampk_conv_shape s = amp_plan_product_shape(plan, net, i, &list[k], images);
            /* As products.c makes them. */
            bool made = all ? list[k].reads_input || !s.forward_only : !list[k].reads_input;
            if (made) bytes += conv_bytes(&s);
        }
    return bytes;
}
