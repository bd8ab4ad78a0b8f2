#include "attach/hooks.h"

#include "attach/session.h"

static struct amp_session *session_of(const network *net)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("a hooked layer was called for a network that is not attached");
    return s;
}

// A loss layer's cost in a pass that is already given up would be NaN, and with it Darknet's
// running average for the rest of the run: the last good one stays.
static void keep_cost_finite(struct amp_session *s, layer *l)
{
    if (!l->cost || !s->step.poisoned) return;
    unsigned bits;
    memcpy(&bits, l->cost, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) *l->cost = 0;
}

void amp_hook_forward(layer l, network net)
{
    struct amp_session *s = session_of(&net);
    int i = net.index;
    if (i == 0)
        amp_session_begin(s, &net);
    else
        s->view = net;
    amp_graph_forward(s->graph, i);
    if (net.train) keep_cost_finite(s, &l);
}

void amp_hook_backward(layer l, network net)
{
    struct amp_session *s = session_of(&net);
    (void)l;
    if (!s->graph->train)
        amp_fail(
            "backward after an inference forward (net->train=0) has no gradients to work on; train "
            "with train_network, or run this program without mixed_precision=1");
    s->view = net;
    amp_step_backward(&s->step, net.index, *net.cost);
}

void amp_hook_update(layer l, update_args a)
{
    int i;
    struct amp_session *s = amp_session_of_update(&l, &i);
    if (!s) amp_fail("an update was called for a layer that is not attached");
    struct amp_update u = {.learning_rate = a.learning_rate,
                           .momentum = a.momentum,
                           .decay = a.decay,
                           .b1 = a.B1,
                           .b2 = a.B2,
                           .eps = a.eps,
                           .batch = a.batch,
                           .adam = a.adam,
                           .t = a.t};
    if (amp_step_update(&s->step, i, &u)) --*s->net->t;
    if (i != s->step.last_update) return;
    size_t images = (size_t)s->net->batch * (size_t)s->net->subdivisions;
    amp_step_end(&s->step, *s->net->seen / images, (size_t)s->net->max_batches);
}
