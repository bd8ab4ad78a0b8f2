#include "executor.h"

const struct amp_executor *amp_executor_of(const struct amp_graph *g, int layer)
{
    if (!g->plan->layers[layer].ours) return &amp_exec_darknet;
    switch (g->net->layers[layer].type) {
    case AMP_CONVOLUTIONAL:
    case AMP_CONNECTED:
        return &amp_exec_convolution;
    case AMP_MAXPOOL:
        return &amp_exec_maxpool;
    case AMP_AVGPOOL:
        return &amp_exec_avgpool;
    case AMP_ROUTE:
        return &amp_exec_route;
    case AMP_SHORTCUT:
        return &amp_exec_shortcut;
    case AMP_UPSAMPLE:
        return &amp_exec_upsample;
    case AMP_REORG:
        return &amp_exec_reorg;
    case AMP_DROPOUT:
        return &amp_exec_dropout;
    case AMP_ACTIVATION:
        return &amp_exec_activation;
    case AMP_YOLO:
        return &amp_exec_yolo;
    case AMP_REGION:
        return &amp_exec_region;
    case AMP_SOFTMAX:
        return &amp_exec_softmax;
    case AMP_COST:
        return &amp_exec_cost;
    case AMP_LOGISTIC:
        return &amp_exec_logistic;
    default:
        return &amp_exec_darknet;
    }
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
