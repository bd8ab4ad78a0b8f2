/* Decides when an iteration has ended, as seen from outside a training loop that is Darknet's own:
 * the loop trains on a batch (train_network), prints, saves, and frees the batch (free_data,
 * loader.c). Only the last of these comes after the save, so it is the end. This file must not know
 * who listens.
 *
 * It also runs the passes of commands that look into a network (amp_observe.h); these leave no
 * trace in it. */

#include "iteration.h"

#include "amp.h"
#include "amp_observe.h"
#include "ending.h"
#include "gpus.h"
#include "seed.h"
#include "sessions.h"
#include "symbols.h"

static struct {
    amp_iteration_function *call;
    void *user;
} listener;

static _Thread_local struct {
    network *net; /* NULL: nothing was trained since */
    float loss;
} trained;

static _Thread_local const network *training;

const network *amp_iteration_trains(void)
{
    return training;
}

void amp_on_iteration(amp_iteration_function *call, void *user)
{
    listener.call = call;
    listener.user = user;
}

void amp_iteration_trained(network *net, float loss)
{
    trained.net = net;
    trained.loss = loss;
}

/* Cleared before the call: the listener may free batches of its own. */
void amp_iteration_ended(void)
{
    network *net = trained.net;
    trained.net = NULL;
    if (net && listener.call) listener.call(net, trained.loss, listener.user);
}

/* One call is one iteration: all its subdivisions and the update. Each GPU of -gpus calls it on a
 * thread of its own. */
AMP_INTERPOSE(float, train_network, (network * net, data d))
{
    training = net;
    amp_gpus_enter(net);
    amp_gpus_begin_iteration(net);
    float loss = AMP_REAL(train_network)(net, d);
    amp_gpus_leave(net);
    training = NULL;
    amp_iteration_trained(net, loss);
    return loss;
}

double amp_loss_scale(const network *net)
{
    const struct amp_session *s = amp_session_of(net->layers);
    return s ? s->step.scaler.scale : 0;
}

void amp_log_evaluation(const network *net, const struct amp_evaluation *e)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s) amp_log_add_evaluation(&s->log, e->iteration, e->map50, e->map75, e->map, e->seconds);
}

/* ---- passes for those who want to see what is in them (amp_observe.h) ---- */

/* The log prints to a file, so silence is a file too. Never closed: the next pass uses it again. */
static FILE *nowhere(void)
{
    static FILE *f;
    if (!f) f = fopen("/dev/null", "w");
    if (!f) amp_fail("/dev/null cannot be opened");
    return f;
}

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
    result->tensor = amp_watch_name(step->fault.tensor);
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
    s->log.out = nowhere();
    look_in(s, see, user);
    s->observed = s->step.observed = true;
    if (s->options.seeded) amp_seed_follow(net, s->options.seed, 0);
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

/* While layers are watched the log is silent: its lines would stand between the results. */
void amp_watch_layers(network *net, amp_layer_function *at, void *user)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("amp_watch_layers: the network is not attached");
    s->trace = at;
    s->trace_user = user;
    s->log.out = at ? nowhere() : stderr;
    if (s->graph) amp_graph_trace_layers(s->graph, at, user);
}

const struct amp_plan *amp_plan_in_use(const network *net)
{
    const struct amp_session *s = amp_session_of(net->layers);
    return s ? s->plan : NULL;
}

int amp_left_fp16(const network *net, int layer)
{
    const struct amp_session *s = amp_session_of(net->layers);
    return s && s->demoted[layer] != AMP_FORMATS;
}
