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
    default:
        return &amp_exec_darknet;
    }
}
