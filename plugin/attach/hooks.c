/* Decides the order of a pass: what happens before layer 0, after the last layer, and at the last
 * update. Darknet calls these hooks layer by layer, and it has no call for "a pass begins" or "a
 * step ends", so both are told from the layer's index.
 *
 * The hooks must not know how a layer is computed (core/engine/graph.c) or when a step counts
 * (core/engine/step.c). Darknet still walks the layers itself, but for an inference whose layer has
 * left FP16, which the hooks run again.
 *
 * Here are also the passes of commands that look into a network (amp_observe.h); these leave no
 * trace in it. */

#include "hooks.h"

#include "amp.h"
#include "amp_observe.h"
#include "plugin/attach/feed/batches.h"
#include "device.h"
#include "interposed.h"
#include "rate.h"
#include "plugin/attach/run/run.h"
#include "plugin/attach/run/save.h"
#include "plugin/attach/feed/seed.h"
#include "plugin/core/engine/tensors.h"
#include "plugin/spread/group.h"

#include <math.h>

static struct amp_session *session_of(const network *net)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("a hooked layer was called for a network that is not attached");
    return s;
}

/* Memory may end where plan and graph are made anew. */
static void begin(struct amp_session *s, const network *view)
{
    char err[512];
    if (amp_session_begin(s, view, err, sizeof err)) amp_give_up(s, err);
}

/* Darknet averages costs over the whole run, so one NaN would stay in that average to the end. A
 * pass with such a cost is given up anyway: write 0 instead. The log says what happened. Judge
 * first: the step must see the real cost. */
static void judge_costs(struct amp_session *s)
{
    bool finite = true;
    for (int i = 0; i < s->net->n; i++) {
        const float *cost = s->net->layers[i].cost;
        finite = finite && (!cost || amp_all_finite(cost, 1));
    }
    if (finite) return;
    amp_step_judge_forward(&s->step);
    for (int i = 0; i < s->net->n; i++) {
        float *cost = s->net->layers[i].cost;
        if (cost && !amp_all_finite(cost, 1)) *cost = 0;
    }
}

/* Darknet's cost is the mean over the layers that have one (calc_network_cost). Fused losses are
 * known to the graph only, so this writes them to l.cost and computes the mean again. False if one
 * of ours is not finite; Darknet's memory then holds 0, for the reason above. */
static bool take_losses(void *user, double *mean)
{
    struct amp_session *s = user;
    float sum = 0;
    int count = 0;
    bool finite = true;
    for (int i = 0; i < s->net->n; i++) {
        const struct ampk_loss_sums *loss = amp_graph_loss(s->graph, i);
        float *cost = s->net->layers[i].cost;
        if (!cost) continue;
        if (loss) *cost = amp_all_finite(&loss->cost, 1) ? loss->cost : 0;
        finite = finite && (!loss || amp_all_finite(&loss->cost, 1));
        sum += *cost;
        count++;
    }
    *s->net->cost = sum / (float)count;
    *mean = *s->net->cost;
    return finite;
}

#ifdef GPU
/* The array whose next copy to the host is skipped. Per thread: several may train networks. */
static __thread const float *unwanted_pull;

bool amp_hook_pull_is_unwanted(const float *x_gpu)
{
    bool unwanted = x_gpu && x_gpu == unwanted_pull;
    unwanted_pull = NULL;
    return unwanted;
}

/* After every forward Darknet copies the last output that is not a cost's to the host
 * (pull_network_output). Nobody reads it in training, and it is megabytes an image. */
static void forgo_output(const struct amp_session *s)
{
    int i = s->net->n - 1;
    if (!s->device) return;
    while (i > 0 && s->net->layers[i].type == COST)
        i--;
    unwanted_pull = s->net->layers[i].output_gpu;
}

/* After inference Darknet reads detections from l.output on the host. Darknet's own GPU code for
 * heads copies them there itself; ours leaves that to this function. */
static void pull_heads(const struct amp_session *s)
{
    for (int i = 0; s->device && i < s->net->n; i++) {
        const layer *l = &s->net->layers[i];
        if (s->plan->layers[i].ours && (l->type == YOLO || l->type == REGION))
            AMP_REAL(cuda_pull_array)
        (l->output_gpu, l->output, (size_t)l->batch * (size_t)l->outputs);
    }
}
#else
static void forgo_output(const struct amp_session *s)
{
    (void)s;
}

static void pull_heads(const struct amp_session *s)
{
    (void)s;
}
#endif

/* After the last layer of an inference pass. A layer whose values do not fit FP16 moves to FP32,
 * for inference only: its rolling statistics may be young, and training must not pay for that. Then
 * the pass runs again, and again if a later layer overflows now: one layer moves each time, so this
 * ends. Darknet's loop is at the last layer and cannot be restarted, so the layers are run from
 * here. */
static void check_inference(struct amp_session *s)
{
    for (;;) {
        struct amp_fault f = amp_graph_fault(s->graph, false);
        if (f.class != AMP_FAULT_FORWARD) return;
        fprintf(stderr,
                "darknet-amp: %s of layer %d does not fit FP16 (largest %.3g); inference runs it "
                "in FP32 from now on\n",
                amp_fault_tensor(&f, s->desc), f.layer, f.magnitude);
        amp_session_demote_inference(s, &f);
        /* The view is the last layer's by now, with that layer's input. Layer 0 needs the
         * images. */
        network view = s->view;
        AMP_SIDE(s->device, &view, input) = s->graph->input.data;
        begin(s, &view);
        for (int i = 0; i < s->net->n; i++) {
            s->view.index = i;
            amp_graph_forward(s->graph, i);
        }
    }
}

/* With several processes train_network has done it before `seen` was moved (interposed.c). */
static void take_up(struct amp_session *s, const network *net)
{
    if (s->step.peers && amp_iteration_trains() != s->net)
        amp_fail("several processes: this program's calls of train_network do not pass through the "
                 "plugin; start it with LD_PRELOAD=libdarknet_amp.so, or start one process");
    if (s->step.peers) return;
    if (!s->unkept) amp_run_watch(s);
    amp_session_resume(s, *net->seen - (size_t)net->batch);
}

/* Layer 0 begins the pass. `seen` already counts this pass's images (train_network_datum adds them
 * before forward), so a resumed run compares with what it was before. An observed pass belongs to a
 * command that looks and does not train: no signals, no resume. */
static void forward(const network *net)
{
    struct amp_session *s = session_of(net);
    int i = net->index;
    if (i > 0) {
        s->view = *net;
    } else {
        if (net->train && !s->observed) {
            take_up(s, net);
            amp_rate_hand(s);
        }
        begin(s, net);
    }
    amp_group_check(); /* the pass has begun, so all that it moves can be put back */
    amp_graph_forward(s->graph, i);
    if (i < s->net->n - 1) return;
    /* From here on Darknet's own code may use the device again. */
    s->backend->release(s->context);
    if (net->train) {
        judge_costs(s);
        /* On the host they are done. Who runs forward alone reads the cost after it. */
        if (!s->device && s->graph->own_losses) {
            amp_graph_read_losses(s->graph);
            take_losses(s, &(double){0});
        }
        forgo_output(s);
    } else {
        check_inference(s);
        pull_heads(s);
    }
}

/* Nothing here knows which layer is the first: amp_step_backward judges the pass after it. */
static void backward(const network *net)
{
    struct amp_session *s = session_of(net);
    if (!s->graph->train)
        amp_fail(
            "backward after an inference forward (net->train=0) has no gradients to work on; train "
            "with train_network, or run this program without mixed_precision=1");
    s->view = *net;
    amp_group_check();
    amp_step_backward(&s->step, net->index, *net->cost);
}

/* An update call gets only the layer, by value, and no network: the session is found by the layer's
 * arrays. amp_step_update returns true once in a step that is skipped; Darknet has counted Adam's t
 * up for that step already, so t goes down again. The last layer with an update ends the step. */
static void update(const layer *l, const update_args *a)
{
    int i;
    struct amp_session *s = amp_session_of_update(l, &i);
    if (!s) amp_fail("an update was called for a layer that is not attached");
    struct amp_update u = {.learning_rate = a->learning_rate,
                           .momentum = a->momentum,
                           .decay = a->decay,
                           .b1 = a->B1,
                           .b2 = a->B2,
                           .eps = a->eps,
                           .batch = a->batch,
                           .adam = a->adam,
                           .t = a->t};
    if (amp_step_update(&s->step, i, &u)) --*s->net->t;
    if (i != s->step.last_update) return;
    amp_step_end(&s->step, amp_iterations_in(s->net, *s->net->seen), (size_t)s->net->max_batches);
    s->backend->release(s->context);
    amp_run_obey(s);
}

/* ---- as Darknet calls them; exit waits until each has returned ---- */
/* The first forward and the first backward load the libraries that the backend computes with. These
 * register destructors then, so amp_ending_watch is called again after each (ending.h). */
static void on_forward(layer l, network net)
{
    (void)l;
    amp_ending_enter();
    forward(&net);
    amp_ending_watch(AMP_ENDING_AFTER_FORWARD);
    amp_ending_leave();
}

static void on_backward(layer l, network net)
{
    (void)l;
    amp_ending_enter();
    backward(&net);
    amp_ending_watch(AMP_ENDING_AFTER_BACKWARD);
    amp_ending_leave();
}

static void on_update(layer l, update_args a)
{
    amp_ending_enter();
    update(&l, &a);
    amp_ending_leave();
}

const struct amp_hooks amp_hooks = {on_forward, on_backward, on_update, take_losses};

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

void amp_log_evaluation(const network *net, const struct amp_evaluation *e)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s) amp_log_add_evaluation(&s->log, e->iteration, e->map50, e->map75, e->map, e->seconds);
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
void amp_watch_layers(network *net, amp_layer_function *at, void *user)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("amp_watch_layers: the network is not attached");
    s->trace = at;
    s->trace_user = user;
    s->log.out = at ? amp_nowhere() : stderr;
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

void amp_follow_dtype(network *net, const network *other)
{
    struct amp_session *s = amp_session_of(net->layers);
    const struct amp_session *followed = amp_session_of(other->layers);
    if (!s || !followed || s->options.dtype == followed->options.dtype) return;
    s->options.dtype = followed->options.dtype;
    s->replan = true;
}
