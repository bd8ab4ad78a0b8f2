#include "hooks.h"

#include "ending.h"
#include "gpus.h"
#include "run.h"
#include "iteration.h"
#include "resume.h"
#include "side.h"
#include "replan.h"
#include "sessions.h"
#include "symbols.h"
#include "plugin/core/tensors.h"

#include <math.h>

static struct amp_session *session_of(const network *net)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("a hooked layer was called for a network that is not attached");
    return s;
}

/* A cost that is not finite belongs to a pass that will be given up. It would stay in Darknet's
 * running average for the rest of the run, so it is replaced by 0; the log says what happened. */
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

static double take_losses(void *user)
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
    return finite ? *s->net->cost : NAN;
}

#ifdef GPU
static __thread const float *unwanted_pull;

bool amp_hook_pull_is_unwanted(const float *x_gpu)
{
    bool unwanted = x_gpu && x_gpu == unwanted_pull;
    unwanted_pull = NULL;
    return unwanted;
}

/* After a forward Darknet copies the output of its last layer but a cost to the host. Nobody reads
 * it in training, and it is megabytes an image. */
static void forgo_output(const struct amp_session *s)
{
    int i = s->net->n - 1;
    if (!s->device) return;
    while (i > 0 && s->net->layers[i].type == COST)
        i--;
    unwanted_pull = s->net->layers[i].output_gpu;
}

/* After inference Darknet reads detections from every head's output on the host, where its own code
 * for them leaves it. */
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

/* After the last layer's inference forward: a layer whose values do not fit FP16 moves to FP32 for
 * inference (whose running statistics may be young), and the pass is run again. */
static void check_inference(struct amp_session *s)
{
    for (;;) {
        struct amp_fault f = amp_graph_fault(s->graph, false);
        if (f.class != AMP_FAULT_FORWARD) return;
        fprintf(stderr,
                "darknet-amp: %s of layer %d does not fit FP16 (largest %.3g); inference runs it "
                "in FP32 from now on\n",
                amp_watch_name(f.tensor), f.layer, f.magnitude);
        amp_session_demote_inference(s, &f);
        network view = s->view;
        AMP_SIDE(s->device, &view, input) = s->graph->input.data;
        amp_session_begin(s, &view);
        for (int i = 0; i < s->net->n; i++) {
            s->view.index = i;
            amp_graph_forward(s->graph, i);
        }
    }
}

static void forward(const network *net)
{
    struct amp_session *s = session_of(net);
    int i = net->index;
    if (i > 0) {
        s->view = *net;
    } else {
        if (net->train && !s->observed) {
            amp_run_watch(s);
            amp_session_resume(s, *net->seen - (size_t)net->batch);
        }
        amp_session_begin(s, net);
    }
    amp_graph_forward(s->graph, i);
    if (i < s->net->n - 1) return;
    s->backend->release(s->context);
    if (net->train) {
        judge_costs(s);
        forgo_output(s);
    } else {
        check_inference(s);
        pull_heads(s);
    }
}

static void backward(const network *net)
{
    struct amp_session *s = session_of(net);
    if (!s->graph->train)
        amp_fail(
            "backward after an inference forward (net->train=0) has no gradients to work on; train "
            "with train_network, or run this program without mixed_precision=1");
    s->view = *net;
    amp_step_backward(&s->step, net->index, *net->cost);
}

static void wait_for_device(const struct amp_session *s)
{
    s->backend->read(s->context, NULL, NULL, 0);
}

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
    if (amp_gpus_count(s->net) == 1)
        amp_run_obey(s); /* else when all have ended theirs */
    else
        wait_for_device(s); /* this thread ends: nobody else would hear of what failed */
}

/* ---- as Darknet calls them; exit waits for the end of each ---- */

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
