/* What programs ask an attached network (amp.h, amp_observe.h): its loss scale, its averages, and
 * passes for commands that look into it. Such a pass runs through the same hooks as training and
 * leaves no trace in the network. */
#include "amp.h"
#include "amp_observe.h"
#include "interposed.h"
#include "session.h"
#include "plugin/attach/feed/seed.h"
#include "plugin/core/engine/tensors.h"

#include <stdlib.h>

/* ---- for programs ---- */

double amp_loss_scale(const network *net)
{
    const struct amp_session *s = amp_session_of(net->layers);
    return s ? s->step.scaler.scale : 0;
}

/* Through the host, since two networks may be on two devices. */
static void copy_average(const struct amp_session *to, float *x, const struct amp_session *from,
                         const float *average, size_t n, float *room)
{
    if (!average) return;
    from->backend->read(from->context, room, average, n * sizeof *room);
    to->backend->write(to->context, x, room, n * sizeof *room);
}

int amp_copy_averages(network *net, const network *trained)
{
    struct amp_session *to = amp_session_of(net->layers), *from = amp_session_of(trained->layers);
    if (!to || !from || !from->kept || from->options.rules.ema_alpha == 0) return 0;
    if (from->options.rules.ema_until) return 0; /* AlexeyAB's -map measures the weights */
    size_t most = 1;
    struct amp_owned own = amp_native_list(net, to->saved, to->device);
    for (int i = 0; i < own.n_params; i++)
        if (own.params[i].n > most) most = own.params[i].n;
    float *room = amp_allocate(most, sizeof *room);
    to->backend->acquire(to->context); /* wait for what Darknet has just written */
    for (int i = 0; i < own.n_params; i++)
        copy_average(to, own.params[i].value, from, from->kept->params[i].average, own.params[i].n,
                     room);
    for (int i = 0; i < own.n_rolling; i++)
        copy_average(to, own.rolling[i].value, from, from->kept->averages[i], own.rolling[i].n,
                     room);
    to->backend->release(to->context);
    if (to->graph) amp_graph_weights_changed(to->graph);
    free(room);
    amp_native_free_list(&own);
    return 1;
}

void amp_log_evaluation(const network *net, unsigned long iteration, double seconds,
                        const struct amp_figure *figures, int n,
                        const struct amp_class_figure *of_classes, int n_classes)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s) amp_log_add_evaluation(&s->log, iteration, seconds, figures, n, of_classes, n_classes);
}

/* ---- passes for those who want to see what is in them (amp_observe.h) ---- */

/* The graph may not exist yet; the session hands the callback to it then. */
static void look_in(struct amp_session *s, amp_see_function *see, void *user)
{
    s->see = see;
    s->see_user = user;
    if (s->graph) amp_graph_observe(s->graph, see, user);
}

/* A fault of a pass has a layer only if it was not clean. */
static void report(const struct amp_session *s, int64_t redone_before, struct amp_pass *result)
{
    const struct amp_step *step = &s->step;
    *result = (struct amp_pass){.clean = !step->poisoned,
                                .scale = step->scaler.scale,
                                .redone = (int)(step->scaler.redone - redone_before)};
    if (result->clean) return;
    result->layer = step->fault.layer;
    result->left_fp16 = step->fault.class == AMP_FAULT_FORWARD;
    result->gradient = step->fault.class == AMP_FAULT_BACKWARD;
    result->tensor = amp_fault_tensor(&step->fault, step->graph->net);
    result->magnitude = step->fault.magnitude;
}

/* Ends the step as if it had never been: no update, rolling statistics as before it. */
static void abandon_step(struct amp_session *s)
{
    amp_graph_restore_rolling(s->graph);
    amp_graph_weights_changed(s->graph); /* the next pass is told of them again */
    s->step.passes = 0;
}

/* One forward and backward without an update. Seed and `seen` as in training, so that dropout draws
 * the same in both networks of a comparison. */
void amp_pass(network *net, amp_see_function *see, void *user, struct amp_pass *result)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("amp_pass: the network is not attached");
    int64_t redone = s->step.scaler.redone;
    FILE *out = s->log.out;
    s->log.out = amp_nowhere();
    look_in(s, see, user);
    s->observed = s->step.observed = true;
    if (s->options.seeded) amp_seed_follow(net, s->options.seed);
    *net->seen += (size_t)net->batch;
    net->train = 1;
    AMP_USE(forward_network)(net);
    AMP_USE(backward_network)(net);
    report(s, redone, result);
    abandon_step(s);
    look_in(s, NULL, NULL);
    s->observed = s->step.observed = false;
    s->log.out = out;
}

void amp_train_unkept(network *net)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("amp_train_unkept: the network is not attached");
    s->unkept = s->step.observed = true;
    s->log.out = amp_nowhere();
}

double amp_last_loss(const network *net)
{
    const struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("amp_last_loss: the network is not attached");
    return s->log.loss;
}

/* While layers are watched the log is silent: its lines would stand between the results. */
void amp_watch_layers(network *net, amp_layer_function *call, void *user)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("amp_watch_layers: the network is not attached");
    s->trace = call;
    s->trace_user = user;
    s->log.out = call ? amp_nowhere() : stderr;
    if (s->graph) amp_graph_trace_layers(s->graph, call, user);
}

const struct amp_plan *amp_plan_in_use(const network *net)
{
    const struct amp_session *s = amp_session_of(net->layers);
    return s ? s->plan : NULL;
}

int amp_stretches(const network *net)
{
    const struct amp_session *s = amp_session_of(net->layers);
    return s && amp_net_stretches(s->desc);
}

int amp_maps_as_fork(const network *net)
{
    const struct amp_session *s = amp_session_of(net->layers);
    return s && amp_net_has_forks_head(s->desc);
}

int amp_left_fp16(const network *net, int layer)
{
    const struct amp_session *s = amp_session_of(net->layers);
    return s && s->demoted[layer] != AMP_FORMATS;
}

void amp_follow_dtype(network *net, const network *other)
{
    struct amp_session *s = amp_session_of(net->layers);
    const struct amp_session *followed = amp_session_of(other->layers);
    if (!s || !followed || s->options.dtype == followed->options.dtype) return;
    s->options.dtype = followed->options.dtype;
    s->replan = true;
}
