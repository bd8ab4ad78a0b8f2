/* Decides the fate of each pass and each step: accept, repeat backward, skip, apply, or end the
 * run. It only combines the verdicts of guard.h; it must not know
 * Darknet's structures or the backend's arithmetic. What it needs from outside (the name of an
 * image, the end of the program) comes through the function pointers of struct amp_step. */
#include "step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/host.h"
#include "tensors.h"

/* ---- where the time goes ----
 * On a device, operations are only started here, so that all that they take shows where they are
 * waited for: at the end of backward. What forward and the update took is moved to them then. */

static void mark(const struct amp_step *s, enum ampk_mark place)
{
    const struct amp_graph *g = s->graph;
    if (g->backend->mark) g->backend->mark(g->context, place);
}

static void move_to(struct amp_step *s, enum amp_time what, enum ampk_mark begin)
{
    const struct amp_graph *g = s->graph;
    amp_times_move(&s->log->times, AMP_TIME_BACKWARD, what,
                   g->backend->marked_seconds(g->context, begin));
}

static void settle_times(struct amp_step *s)
{
    if (!s->graph->backend->mark) return;
    move_to(s, AMP_TIME_FORWARD, AMPK_MARK_FORWARD);
    if (s->updated) move_to(s, AMP_TIME_UPDATE, AMPK_MARK_UPDATE);
    s->updated = false;
}

/* ---- ends ---- */

/* Weights and running statistics outlive the step. Once they hold inf or NaN, no later step can
 * repair them, so not even amp_on_divergence=continue goes on. */
static bool is_hopeless(const struct amp_fault *f)
{
    return f->class == AMP_FAULT_DIVERGED &&
           (f->tensor == AMP_WATCH_WEIGHTS || f->tensor == AMP_WATCH_ROLLING);
}

/* Ends the run. If the user wants to carry on and there is hope, prints the reason once instead. */
static void stop(struct amp_step *s, const char *why, const char *advice, bool hopeless)
{
    char message[768];
    if (s->observed) return;
    if (s->carry_on && !hopeless) {
        if (!s->told) amp_log_carry_on(s->log, why);
        s->told = true;
        return;
    }
    snprintf(message, sizeof message, "%s%s. Lower learning_rate, %s, or check the labels; %s.",
             s->log->who, why, amp_log_slower_start(s->log), advice);
    s->stop(s->user, message);
}

static void stop_for_fault(struct amp_step *s, const char *why)
{
    char text[512], losses[200];
    const struct amp_fault *f = &s->fault;
    amp_divergence_describe(&s->divergence, losses, sizeof losses);
    snprintf(text, sizeof text, "%s: %s of layer %d (%s), largest magnitude %.3g; %s", why,
             amp_fault_tensor(f, s->graph->net), f->layer,
             f->layer >= 0 ? amp_layer_type_name(s->graph->net->layers[f->layer].type) : "none",
             f->magnitude, losses);
    stop(s, text, "mixed_precision=0 in a layer's section keeps that layer in FP32",
         is_hopeless(f));
}

static void stop_for_loss(struct amp_step *s)
{
    char text[512], losses[200];
    amp_divergence_describe(&s->divergence, losses, sizeof losses);
    snprintf(text, sizeof text, "training diverged: %s", losses);
    stop(s, text, "amp_on_divergence=continue goes on all the same", false);
}

/* Darknet puts a box without a valid place, one with NaN for example, at this coordinate. Its
 * losses would compute an index far outside their arrays from it. */
#define NO_BOX 999999

/* A classifier's truth may hold any number, so the limit NO_BOX applies only to nets with a
 * detection head. */
static bool has_boxes(const struct amp_net_desc *net)
{
    bool boxes = false;
    for (int i = 0; i < net->n; i++)
        boxes |= amp_layer_is_head(&net->layers[i]);
    return boxes;
}

/* Index of the first image of the pass with a value that is not finite or not below `most`, which
 * *value then holds; -1: no such image. */
static int first_bad(const float *x, int images, size_t per_image, float most, float *value)
{
    size_t n = (size_t)images * per_image;
    for (size_t k = 0; k < n; k++) {
        *value = x[k];
        if (!amp_all_finite(&x[k], 1) || *value >= most) return (int)(k / per_image);
    }
    return -1;
}

static int first_bad_truth(const struct amp_step *s, float *value)
{
    const struct amp_batch *b = &s->batch;
    float most = has_boxes(s->graph->net) ? NO_BOX : INFINITY;
    if (!b->host_truth) return -1;
    return first_bad(b->host_truth, s->graph->net->batch, b->truths, most, value);
}

/* Whether no image that the host holds has a value that is not finite. By all threads: one would
 * take as long for this as for a layer. */
static bool is_input_finite(const struct amp_step *s)
{
    const struct amp_graph *g = s->graph;
    uint32_t largest = 0;
    g->backend->amax(g->context, s->batch.host_input,
                     (size_t)g->net->batch * (size_t)g->net->inputs, &largest);
    return largest < AMPK_INF_BITS;
}

static int first_bad_input(const struct amp_step *s, float *value)
{
    const struct amp_net_desc *net = s->graph->net;
    return first_bad(s->batch.host_input, net->batch, (size_t)net->inputs, INFINITY, value);
}

/* Path of the image, or, if nobody knows it, its number in the pass, written to text. */
static const char *name_of(const struct amp_step *s, int image, char text[40])
{
    const char *name = s->image_name ? s->image_name(s->user, s->subdivision, image) : NULL;
    snprintf(text, 40, "number %d of the pass", image);
    return name ? name : text;
}

static struct amp_finding nothing_found(const struct amp_step *s)
{
    struct amp_finding f;
    memset(&f, 0, sizeof f);
    f.fault.class = AMP_FAULT_NONE;
    f.pass = s->subdivision;
    f.rank = -1;
    return f;
}

static struct amp_finding bad_input(const struct amp_step *s, enum amp_watch tensor, int image,
                                    float value)
{
    char text[40];
    bool no_box = amp_all_finite(&value, 1);
    struct amp_finding f = nothing_found(s);
    f.fault = (struct amp_fault){AMP_FAULT_INPUT, 0, tensor, no_box ? (double)value : NAN};
    f.image = image;
    snprintf(f.name, sizeof f.name, "%s", name_of(s, image, text));
    return f;
}

/* What the words say of the pass. */
static struct amp_finding look(struct amp_step *s, bool backward)
{
    struct amp_finding f = nothing_found(s);
    f.fault = amp_graph_fault(s->graph, backward);
    if (backward) f.largest = s->graph->largest_gradient;
    if (f.fault.class == AMP_FAULT_INPUT) { /* not looked at by the host before */
        float value = NAN;
        int image = first_bad_input(s, &value);
        f = bad_input(s, f.fault.tensor, image < 0 ? 0 : image, value);
    }
    return f;
}

/* Nothing of a poisoned step reaches the weights; fault and cause_is_scale are for the log and for
 * the verdict on the scale. */
static void give_up(struct amp_step *s, const struct amp_finding *f)
{
    s->poisoned = true;
    s->cause_is_scale = f->fault.class == AMP_FAULT_BACKWARD;
    s->fault = f->fault;
    s->bad_pass = f->pass;
}

/* The step cannot be saved: the loss of a bad image means nothing. The scale stays, since a lower
 * one would not help either. */
static void refuse_input(struct amp_step *s, const struct amp_finding *f)
{
    char text[40];
    give_up(s, f);
    memcpy(s->bad_image, f->name, sizeof s->bad_image);
    amp_log_fault_of(s->log, f->rank, &f->fault, AMP_VERDICT_SKIP, s->scaler.scale, s->scaler.scale,
                     f->pass, f->rank < 0 ? name_of(s, f->image, text) : f->name);
}

static bool judges_together(const struct amp_step *s)
{
    return s->peers && s->peers->judge;
}

/* The last pass of a step that this process runs. */
static int last_pass(const struct amp_step *s)
{
    return s->peers ? s->last_pass : s->subdivisions - 1;
}

static bool wants_norm(const struct amp_step *s)
{
    return s->log->json || s->graph->plan->rules.clip_norm > 0;
}

void amp_step_begin(struct amp_step *s, const struct amp_batch *batch, int subdivision)
{
    struct amp_graph *g = s->graph;
    bool on_host = batch->input == batch->host_input;
    s->batch = *batch;
    s->subdivision = subdivision;
    s->cost_lost = false;
    s->found = nothing_found(s);
    bool first = subdivision == s->first_pass || s->passes == 0;
    /* A run may begin in the middle of a step: a resumed `seen` need not be a multiple of the
     * step's images. Then no subdivision 0 came before, and passes == 0 marks the beginning. */
    if (first) {
        s->poisoned = s->sent = false;
        s->left_fp16.class = AMP_FAULT_NONE;
        s->loss_sum = s->told_sum = 0;
        s->pass_norm = NAN;
        s->passes = 0;
        amp_log_step(s->log, &s->scaler);
        if (!g->writers_tell) amp_graph_weights_changed(g);
        /* Saved before the first forward, which already moves them. */
        amp_graph_save_rolling(g);
        amp_graph_begin_step(g);
    }
    amp_times_enter(&s->log->times, AMP_TIME_FORWARD);
    mark(s, AMPK_MARK_FORWARD);
    if (s->peers) s->peers->begin(s->peers->user, s, first);
    /* Only the last pass of a step is inspected: one look per step is enough for the log. */
    size_t images = (size_t)g->net->batch * (size_t)s->subdivisions;
    amp_graph_inspect(g, subdivision == last_pass(s) &&
                             amp_log_wants_layers(s->log, g->seen / images));
    /* With other processes the norm is that of the exchanged sums. */
    amp_graph_square_gradients(g, wants_norm(s) && !s->peers && subdivision == last_pass(s));
    amp_graph_begin(g, batch->input, batch->truth, true);
    float value;
    int truth = first_bad_truth(s, &value);
    s->bad_truth = truth >= 0;
    if (s->bad_truth) s->found = bad_input(s, AMP_WATCH_TRUTH, truth, value);
    /* In device memory the INPUT watch word checks the images, and `look` names the image
     * afterwards. Labels are always checked here: Darknet's losses run on them before any word is
     * read. */
    int image = on_host && !s->bad_truth && !is_input_finite(s) ? first_bad_input(s, &value) : -1;
    if (image >= 0) s->found = bad_input(s, AMP_WATCH_INPUT, image, value);
    if (s->found.fault.class != AMP_FAULT_NONE && !judges_together(s)) refuse_input(s, &s->found);
}

bool amp_step_has_bad_truth(const struct amp_step *s)
{
    return s->bad_truth;
}

/* The search for the first scale ends with the first clean pass. */
static void accept_pass(struct amp_step *s, const struct amp_finding *f)
{
    if (s->scaler.searching && s->scaler.scale != s->scaler.max)
        amp_log_scale(s->log, "start-up search done", s->scaler.max, s->scaler.scale);
    if (!s->sent) amp_graph_accept_pass(s->graph, (float)s->scaler.scale);
    /* The sums are those of this pass alone. */
    if (s->log->noisy && s->passes == 1 && !s->sent && s->graph->sums)
        s->pass_norm = amp_graph_sums_norm(s->graph);
    amp_scaler_pass(&s->scaler, f->largest);
}

/* Runs backward again on the same forward: activations, loss deltas and dropout masks of the pass
 * still lie in their buffers. */
static void replay(struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    s->sent = false;
    amp_graph_begin_backward(g, (float)s->scaler.scale);
    for (int i = g->n - 1; i >= g->plan->first_backward; i--)
        amp_graph_backward(g, i);
}

/* True if backward ran again, so that the pass needs a new verdict. */
static bool handle_backward_fault(struct amp_step *s, const struct amp_finding *f)
{
    double old_scale = s->scaler.scale;
    enum amp_verdict verdict = amp_scaler_overflow(&s->scaler, f->largest);
    amp_log_fault_of(s->log, f->rank, &f->fault, verdict, old_scale, s->scaler.scale, f->pass,
                     NULL);
    if (verdict == AMP_VERDICT_RETRY) {
        replay(s);
        return true;
    }
    give_up(s, f);
    return false;
}

/* The time axis of amp_demotions_add counts steps, skipped ones too. */
void amp_step_demote(struct amp_step *s, const struct amp_fault *f)
{
    const struct amp_scaler *scaler = &s->scaler;
    s->left_fp16 = *f;
    s->demote(s->user, f);
    if (amp_demotions_add(&s->demotions, scaler->applied + scaler->skipped, scaler->window))
        amp_log_many_demotions(s->log, AMP_MANY_DEMOTIONS, scaler->window);
}

/* The forward pass failed, and a lower loss scale cannot cure that: the scale acts on gradients
 * only. The step is skipped; a value that did not fit FP16 also moves its layer to FP32. */
static void give_up_forward(struct amp_step *s, const struct amp_finding *f)
{
    if (f->fault.class == AMP_FAULT_INPUT) {
        refuse_input(s, f);
        return;
    }
    give_up(s, f);
    amp_log_fault_of(s->log, f->rank, &f->fault, AMP_VERDICT_SKIP, s->scaler.scale, s->scaler.scale,
                     f->pass, NULL);
    /* With peers, all stop when they have heard of it: begin_update. */
    if (f->fault.class == AMP_FAULT_DIVERGED && !s->peers) stop_for_fault(s, "training diverged");
    if (f->fault.class == AMP_FAULT_FORWARD) amp_step_demote(s, &f->fault);
}

void amp_step_judge_forward(struct amp_step *s)
{
    s->cost_lost = true;
    if (s->poisoned || s->found.fault.class != AMP_FAULT_NONE) return;
    /* false: the words of backward still belong to nobody. */
    s->found = look(s, false);
    if (s->found.fault.class != AMP_FAULT_NONE && !judges_together(s))
        give_up_forward(s, &s->found);
}

/* Either all run backward, or none. */
static void judge_forward_together(struct amp_step *s)
{
    s->peers->judge(s->peers->user, s, &s->found);
    if (s->found.fault.class != AMP_FAULT_NONE) give_up_forward(s, &s->found);
}

/* Ends because the scaler allows a limited number of replays, or lowers the scale to its floor. */
static void judge_pass(struct amp_step *s)
{
    for (;;) {
        struct amp_finding f = look(s, true);
        if (judges_together(s)) s->peers->judge(s->peers->user, s, &f);
        if (f.fault.class == AMP_FAULT_NONE) {
            accept_pass(s, &f);
            return;
        }
        if (f.fault.class != AMP_FAULT_BACKWARD) {
            give_up_forward(s, &f);
            return;
        }
        if (!handle_backward_fault(s, &f)) return;
    }
}

/* Whether the loss is meaningless because forward failed. A failed backward leaves the loss
 * valid. */
static bool is_loss_lost(const struct amp_step *s)
{
    return s->cost_lost || (s->poisoned && s->fault.class != AMP_FAULT_BACKWARD);
}

/* A poisoned pass is not judged again, but its losses are still read: Darknet's lines are printed
 * for every pass. */
static void end_pass(struct amp_step *s)
{
    if (s->poisoned)
        amp_graph_read_losses(s->graph);
    else
        judge_pass(s);
    if (s->graph->own_losses) {
        amp_loss_lines_print(s->graph, stdout);
        if (s->take_losses) s->cost_lost |= !s->take_losses(s->user, &s->pass_loss);
    }
    s->loss_sum += is_loss_lost(s) ? NAN : s->pass_loss;
    s->told_sum += isnan(s->pass_loss) ? 0 : (float)s->pass_loss;
    settle_times(s);
    if (s->peers && s->subdivision == last_pass(s)) {
        amp_times_enter(&s->log->times, AMP_TIME_PEERS);
        s->peers->end_share(s->peers->user, s);
    }
    amp_times_enter(&s->log->times, AMP_TIME_OTHER);
}

/* Not in a poisoned step, whose last backward does not run, nor when backward is repeated. */
static void report_peers(struct amp_step *s, int layer)
{
    if (s->peers && s->subdivision == last_pass(s)) s->peers->ran(s->peers->user, s, layer);
}

void amp_step_backward(struct amp_step *s, int layer, double loss)
{
    struct amp_graph *g = s->graph;
    bool begins = layer == g->n - 1; /* at the last layer */
    if (begins) {
        amp_times_enter(&s->log->times, AMP_TIME_BACKWARD);
        mark(s, AMPK_MARK_FORWARD_DONE);
        s->pass_loss = loss;
        s->passes++;
        if (judges_together(s) && !s->poisoned) judge_forward_together(s);
    }
    if (!s->poisoned) {
        if (begins) report_peers(s, g->n);
        if (begins) amp_graph_begin_backward(g, (float)s->scaler.scale);
        amp_graph_backward(g, layer);
        report_peers(s, layer);
    }
    if (layer == g->plan->first_backward) end_pass(s);
}

/* Darknet calls update layer by layer. The first call decides for all of them, since a step that is
 * applied to some layers only would not be a step. */
static void begin_update(struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    s->updating = true;
    if (s->peers) {
        amp_times_enter(&s->log->times, AMP_TIME_PEERS);
        s->peers->agree(s->peers->user, s);
        if (s->poisoned && s->fault.class == AMP_FAULT_DIVERGED)
            stop_for_fault(s, "training diverged");
    }
    amp_times_enter(&s->log->times, AMP_TIME_UPDATE);
    s->applying = !s->poisoned;
    if (!s->applying) {
        amp_graph_restore_rolling(g);
        /* The weights did not change, but they are packed again: if they are not finite, packing
         * raises the WEIGHTS word in the next step too, and that fault ends the run. */
        amp_graph_weights_changed(g);
    }
    /* Darknet may update without a pass before it; then there is no gradient, only momentum and
     * decay. */
    if (s->passes == 0) amp_graph_clear_gradients(g);
}

bool amp_step_update(struct amp_step *s, int layer, const struct amp_update *u)
{
    struct amp_graph *g = s->graph;
    bool first = !s->updating;
    if (first) begin_update(s);
    s->update = *u;
    if (s->applying && !g->plan->layers[layer].frozen) amp_graph_set_due(g, layer);
    return first && !s->applying;
}

/* Darknet finishes this step itself, from its own weight_updates. They get sums, which are unscaled
 * and finite; a poisoned step adds nothing. */
void amp_step_hand_over(struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    if (!s->passes) return;
    if (s->poisoned) amp_graph_restore_rolling(g);
    if (s->sent && !s->poisoned) amp_graph_accept_pass(g, g->scale);
    s->sent = false;
    for (int i = 0; i < g->n_params && !s->poisoned; i++) {
        const struct amp_param *p = &g->params[i];
        if (p->sum) g->backend->accumulate(g->context, p->sum, p->n, 1, p->update);
    }
    s->passes = 0;
}

/* Printed after AMP_SCALER_FLOOR_STOP skips in a row; "ten" is that number. */
static const char *why_nothing_helps(const struct amp_scaler *s)
{
    static _Thread_local char text[200];
    if (!s->reduced) return "gradients are not finite, ten steps in a row";
    if (!s->dynamic)
        return "gradients overflow FP16 at the fixed loss_scale (loss_scale=dynamic would lower "
               "it), ten steps in a row";
    if (s->min > 1)
        snprintf(
            text, sizeof text,
            "gradients overflow FP16 at the smallest loss scale that loss_scale_min=%.0f allows "
            "(lower loss_scale_min, 1 at least), ten steps in a row",
            s->min);
    else
        snprintf(text, sizeof text,
                 "gradients overflow FP16 even at the smallest loss scale, ten steps in a row");
    return text;
}

/* Whether the run has diverged. A step that was skipped for a bad image says nothing about the run.
 * A demoted layer has no loss to judge, but many of them in a row look like divergence. */
static bool judge_loss(struct amp_step *s, size_t iteration, double loss)
{
    if (!s->passes) return false;
    if (!s->applying && s->fault.class == AMP_FAULT_INPUT) return false;
    if (!s->applying && s->fault.class == AMP_FAULT_FORWARD)
        return amp_divergence_add_demotion(&s->divergence, iteration);
    return amp_divergence_add(&s->divergence, iteration, loss, s->applying);
}

/* Numbers of this step for the log's file. The caller frees layers. */
static struct amp_numbers take_numbers(const struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    struct amp_numbers numbers = {.grad_norm = NAN,
                                  .learning_rate = (double)s->update.learning_rate,
                                  .pass_norm = s->pass_norm,
                                  .pass_images = g->net->batch,
                                  .step_images = g->net->batch * s->passes};
    if (wants_norm(s) && s->applying) numbers.grad_norm = amp_graph_grad_norm(g);
    if (!g->inspecting) return numbers;
    numbers.layers = calloc((size_t)g->n, sizeof *numbers.layers);
    if (!numbers.layers) return numbers;
    numbers.n_layers = g->n;
    amp_numbers_read(g, s->applying, numbers.layers);
    return numbers;
}

static void look_at_memory(const struct amp_step *s)
{
    const struct amp_graph *g = s->graph;
    struct amp_memory m = {0};
    if (!amp_log_wants_memory(s->log)) return;
    m.host = amp_resident_memory();
    if (g->backend->memory) g->backend->memory(g->context, &m.device_used, &m.device_reserved);
    amp_log_memory(s->log, &m);
}

void amp_step_end(struct amp_step *s, size_t iteration, size_t total)
{
    double before = s->scaler.scale;
    int images = s->graph->net->batch * s->subdivisions;
    /* Before the update: the numbers describe the gradients that it is about to apply. */
    struct amp_numbers numbers = take_numbers(s);
    s->updating = false;
    s->update.iteration = iteration;
    s->update.grad_norm = numbers.grad_norm;
    if (s->applying) {
        mark(s, AMPK_MARK_UPDATE);
        amp_graph_update(s->graph, &s->update);
        mark(s, AMPK_MARK_UPDATE_DONE);
    }
    s->updated = s->applying;
    if (s->graph->counts) numbers.clipped = s->graph->counts->clipped;
    enum amp_verdict verdict = amp_scaler_step(&s->scaler, s->applying, s->cause_is_scale);
    if (s->scaler.scale != before)
        amp_log_scale(s->log, "gradients have room", before, s->scaler.scale);
    /* Per image, as Darknet prints it. */
    double loss = s->passes ? s->loss_sum / (s->passes * s->graph->net->batch) : 0;
    look_at_memory(s);
    amp_log_iteration(s->log, &s->scaler, iteration, total, loss, images, &numbers);
    free(numbers.layers);
    bool diverged = judge_loss(s, iteration, loss);
    s->passes = 0;
    /* Last: stopping does not return, and the log already has this iteration. */
    if (verdict == AMP_VERDICT_STOP) stop_for_fault(s, why_nothing_helps(&s->scaler));
    if (diverged) stop_for_loss(s);
}
