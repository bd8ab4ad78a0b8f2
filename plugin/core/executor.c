#include "executor.h"

/* What plan.c may say is ours: its has_executor, and amp_device_losses below. */
static const struct amp_executor *const by_type[AMP_BLANK + 1] = {
    [AMP_CONVOLUTIONAL] = &amp_exec_convolution,
    [AMP_CONNECTED] = &amp_exec_convolution,
    [AMP_MAXPOOL] = &amp_exec_maxpool,
    [AMP_AVGPOOL] = &amp_exec_avgpool,
    [AMP_ROUTE] = &amp_exec_route,
    [AMP_SHORTCUT] = &amp_exec_shortcut,
    [AMP_UPSAMPLE] = &amp_exec_upsample,
    [AMP_REORG] = &amp_exec_reorg,
    [AMP_DROPOUT] = &amp_exec_dropout,
    [AMP_ACTIVATION] = &amp_exec_activation,
    [AMP_YOLO] = &amp_exec_yolo,
    [AMP_REGION] = &amp_exec_region,
    [AMP_SOFTMAX] = &amp_exec_softmax,
    [AMP_COST] = &amp_exec_cost,
    [AMP_LOGISTIC] = &amp_exec_logistic,
};

const struct amp_executor *amp_executor_of(const struct amp_graph *g, int layer)
{
    return g->plan->layers[layer].ours ? by_type[g->net->layers[layer].type] : &amp_exec_darknet;
}

unsigned amp_device_losses(const struct ampk_backend *b)
{
    unsigned losses = 0;
    if (!b->loss_backward) return 0;
    if (b->yolo_loss) losses |= 1u << AMP_YOLO;
    if (b->region_loss) losses |= 1u << AMP_REGION;
    if (b->softmax_loss) losses |= 1u << AMP_SOFTMAX;
    if (b->cost_loss) losses |= 1u << AMP_COST;
    if (b->logistic_loss) losses |= 1u << AMP_LOGISTIC;
    return losses;
}
