/* Passes for those who want to see what is in them (amp_observe.h). */

#include "amp_observe.h"

#include "fail.h"
#include "seed.h"
#include "sessions.h"
#include "symbols.h"

static FILE *nowhere(void)
{
    static FILE *f;
    if (!f) f = fopen("/dev/null", "w");
    if (!f) amp_fail("/dev/null cannot be opened");
    return f;
}

static void look_in(struct amp_session *s, amp_see_function *see, void *user)
{
    s->see = see;
    s->see_user = user;
    if (s->graph) amp_graph_observe(s->graph, see, user);
}

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

/* The step ends here, as if it had never been. */
static void abandon_step(struct amp_session *s)
{
    amp_graph_restore_rolling(s->graph);
    amp_graph_weights_changed(s->graph); /* the next pass is told of them again */
    s->step.passes = 0;
}

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
