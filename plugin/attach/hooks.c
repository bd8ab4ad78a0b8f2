/* Decides the order of a pass: what happens before layer 0, after the last layer, and at the last
 * update. Darknet calls these hooks layer by layer, and it has no call for "a pass begins" or "a
 * step ends", so both are told from the layer's index.
 *
 * The hooks must not know how a layer is computed (core/engine/graph.c) or when a step counts
 * (core/engine/step.c). Darknet still walks the layers itself, but for an inference whose layer has
 * left FP16, which the hooks run again. */

#include "hooks.h"

#include "ending.h"
#include "amp.h"
#include "plugin/attach/feed/batches.h"
#include "plugin/attach/feed/iterations.h"
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
