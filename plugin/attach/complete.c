#include "complete.h"

#include "fail.h"
#include "symbols.h"

#include "activations.h"

void backward_lstm_layer(layer l, network net); /* in no header */

static float *zeros(size_t n)
{
    return amp_allocate(n, sizeof(float));
}

static void complete_batchnorm(layer *l)
{
    size_t n = (size_t)l->batch * (size_t)l->outputs, c = (size_t)l->out_c;
    if (l->x) return;
    l->x = zeros(n);
    l->x_norm = zeros(n);
    l->mean_delta = zeros(c);
    l->variance_delta = zeros(c);
}

void amp_complete_layer(layer *l)
{
    size_t n = (size_t)l->batch * (size_t)l->outputs, steps = (size_t)l->steps;
    if (l->type == BATCHNORM) complete_batchnorm(l);
    if (l->type == LSTM && !l->delta) l->delta = zeros(n * steps);
    if (l->type == RNN) { /* training keeps the state of every time step, room is for one */
        free(l->state);
        l->state = zeros(n * (steps + 1));
    }
}

/* What backward_region_layer_gpu does; on the CPU Darknet's own is commented out. */
static void backward_region(layer l, network net)
{
    int cells = l.w * l.h, box_size = (l.coords + 1 + l.classes) * cells;
    for (int box = 0; box < l.batch * l.n; box++) {
        int x_y = box * box_size, object = x_y + l.coords * cells;
        AMP_USE(gradient_array)(l.output + x_y, 2 * cells, LOGISTIC, l.delta + x_y);
        if (!l.background)
            AMP_USE(gradient_array)(l.output + object, cells, LOGISTIC, l.delta + object);
    }
    for (int i = 0; i < l.batch * l.inputs; i++)
        net.delta[i] += l.delta[i];
}

amp_backward *amp_complete_backward(const layer *l, amp_backward *own)
{
    if (l->type == REGION) return backward_region;
    return l->type == LSTM ? AMP_USE(backward_lstm_layer) : own;
}
