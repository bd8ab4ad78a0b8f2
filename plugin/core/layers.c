/* The table of executors: it decides which layer types run our code, and on which backends. It must
 * not know the plan: a layer of a listed type may still be Darknet's, for reasons that plan.c
 * finds. */
#include "layers.h"

#include <stddef.h>
#include <string.h>

#define NEEDS(operation) offsetof(struct ampk_backend, operation)

static const struct row {
    const struct amp_executor *executor;
    size_t needs; /* an operation that some backends lack; 0: none needed */
} rows[AMP_BLANK + 1] = {
    [AMP_CONVOLUTIONAL] = {&amp_exec_convolution, 0},
    [AMP_CONNECTED] = {&amp_exec_convolution, 0},
    [AMP_MAXPOOL] = {&amp_exec_maxpool, 0},
    [AMP_AVGPOOL] = {&amp_exec_avgpool, 0},
    [AMP_ROUTE] = {&amp_exec_route, 0},
    [AMP_SHORTCUT] = {&amp_exec_shortcut, 0},
    [AMP_UPSAMPLE] = {&amp_exec_upsample, 0},
    [AMP_REORG] = {&amp_exec_reorg, 0},
    [AMP_DROPOUT] = {&amp_exec_dropout, 0},
    [AMP_ACTIVATION] = {&amp_exec_activation, 0},
    [AMP_YOLO] = {&amp_exec_yolo, NEEDS(yolo_loss)},
    [AMP_REGION] = {&amp_exec_region, NEEDS(region_loss)},
    [AMP_SOFTMAX] = {&amp_exec_softmax, NEEDS(softmax_loss)},
    [AMP_COST] = {&amp_exec_cost, NEEDS(cost_loss)},
    [AMP_LOGISTIC] = {&amp_exec_logistic, NEEDS(logistic_loss)},
};

/* Whether the pointer at this offset is set. memcmp, since operations are functions of many types,
 * and no single pointer type may read them all. */
static bool has_operation(const struct ampk_backend *b, size_t operation)
{
    static const char none[sizeof(void (*)(void))];
    return b && memcmp((const char *)b + operation, none, sizeof none) != 0;
}

/* A type with an operation of its own is a loss, or the softmax before one; all of these also need
 * loss_backward. */
static bool runs_on(const struct row *row, const struct ampk_backend *b)
{
    return !row->needs || (has_operation(b, row->needs) && b->loss_backward);
}

/* AMP_BLANK is the last type, so one word has a bit for each. */
unsigned amp_layers_ours(const struct ampk_backend *b)
{
    unsigned ours = 0;
    for (int type = 0; type <= AMP_BLANK; type++)
        if (rows[type].executor && runs_on(&rows[type], b)) ours |= 1u << type;
    return ours;
}

const struct amp_executor *amp_layer_executor(enum amp_layer_type type)
{
    return rows[type].executor;
}
