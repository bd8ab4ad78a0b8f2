#include "step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "loss_lines.h"

static void stop(struct amp_step *s, const char *why)
{
    char message[512];
    const struct amp_fault *f = &s->fault;
    amp_log_close(s->log, &s->scaler);
    snprintf(message, sizeof message,
             "%s: %s of layer %d (%s), largest magnitude %.3g. The weights on disk are the last "
             "good ones. Lower "
             "learning_rate, lengthen burn_in, or check the labels; mixed_precision=0 in a layer's "
             "section keeps that "
             "layer in FP32.",
             why, amp_watch_name(f->tensor), f->layer,
             f->layer >= 0 ? amp_layer_type_name(s->graph->net->layers[f->layer].type) : "none",
             f->magnitude);
    s->stop(message);
}

/* The image (of the pass) whose values are not finite, or 0. */
static int first_bad(const float *x, int images, size_t per_image)
{
    for (int i = 0; i < images; i++)
        if (!amp_all_finite(x + (size_t)i * per_image, per_image)) return i;
    return 0;
}

/* Names the image behind an input or label that is not finite. text: where it has no name. */
static const char *bad_image(const struct amp_step *s, enum amp_watch tensor, char text[40])
{
    const struct amp_batch *b = &s->batch;
    int images = s->graph->net->batch;
    int image = tensor == AMP_WATCH_INPUT
                    ? first_bad(b->host_input, images, (size_t)s->graph->net->inputs)
                    : first_bad(b->host_truth, images, b->truths);
    const char *name = s->image_name ? s->image_name(s->user, s->subdivision, image) : NULL;
    snprintf(text, 40, "number %d of the pass", image);
    return name ? name : text;
}

static void refuse_input(struct amp_step *s, enum amp_watch tensor)
{
    char text[40];
    struct amp_fault fault = {AMP_FAULT_INPUT, 0, tensor, NAN};
    s->poisoned = true;
    s->cause_is_scale = false;
    s->fault = fault;
    amp_log_fault(s->log, &fault, AMP_VERDICT_SKIP, s->scaler.scale, s->scaler.scale,
                  s->subdivision, bad_image(s, tensor, text));
}

void amp_step_begin(struct amp_step *s, const struct amp_batch *batch, int subdivision)
{
    struct amp_graph *g = s->graph;
    size_t images = (size_t)g->net->batch, inputs = (size_t)g->net->inputs;
    bool on_host = batch->input == batch->host_input;
    s->batch = *batch;
    s->subdivision = subdivision;
    /* A run may begin in the middle of a step: seen need not be a multiple of its images. */
    if (subdivision == 0 || s->passes == 0) {
        s->poisoned = false;
        s->loss_sum = 0;
        s->passes = 0;
        amp_log_step(s->log);
        g->weights_stale = true; /* whoever may have written to the masters between steps */
        amp_graph_save_rolling(g);
        if (g->sums) g->backend->fill_zero(g->context, g->sums, g->n_gradients * sizeof(float));
    }
    amp_graph_inspect(
        g, subdivision == s->subdivisions - 1 &&
               amp_log_wants_layers(s->log, g->seen / (images * (size_t)s->subdivisions)));
    amp_graph_begin(g, batch->input, batch->truth, true);
    if (on_host && !amp_all_finite(batch->host_input, inputs * images))
        refuse_input(s, AMP_WATCH_INPUT);
    else if (batch->host_truth && !amp_all_finite(batch->host_truth, batch->truths * images))
        refuse_input(s, AMP_WATCH_TRUTH);
}

static void accept_pass(struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    float unscale = (float)(1 / s->scaler.scale);
    if (s->scaler.searching && s->scaler.scale != s->scaler.max)
        amp_log_scale(s->log, "start-up search done", s->scaler.max, s->scaler.scale);
    amp_scaler_pass(&s->scaler);
    if (g->n_gradients == 0) return;
    if (g->sums)
        g->backend->accumulate(g->context, g->gradients, g->n_gradients, unscale, g->sums);
    else
        g->backend->scale(g->context, g->gradients, g->n_gradients, unscale);
}

static void give_up(struct amp_step *s, const struct amp_fault *f)
{
    s->poisoned = true;
    s->cause_is_scale = f->class == AMP_FAULT_BACKWARD;
    s->fault = *f;
}

static void replay(struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    amp_graph_begin_backward(g, (float)s->scaler.scale);
    for (int i = g->n - 1; i >= g->plan->first_backward; i--)
        amp_graph_backward(g, i);
}

/* True: the pass is to be judged again after a replay. */
static bool handle_backward_fault(struct amp_step *s, const struct amp_fault *f)
{
    double old_scale = s->scaler.scale;
    enum amp_verdict verdict = amp_scaler_overflow(&s->scaler, amp_graph_refused(s->graph));
    amp_log_fault(s->log, f, verdict, old_scale, s->scaler.scale, s->subdivision, NULL);
    if (verdict == AMP_VERDICT_RETRY) {
        replay(s);
        return true;
    }
    give_up(s, f);
    return false;
}

static void demote(struct amp_step *s, const struct amp_fault *f)
{
    const struct amp_scaler *scaler = &s->scaler;
    s->demote(s->user, f);
    if (amp_exodus_add(&s->exodus, scaler->applied + scaler->skipped, scaler->window))
        amp_log_exodus(s->log, AMP_EXODUS, scaler->window);
}

/* The forward pass failed: nothing of this step will be used. */
static void give_up_forward(struct amp_step *s, const struct amp_fault *f)
{
    if (f->class == AMP_FAULT_INPUT) {
        refuse_input(s, f->tensor);
        return;
    }
    give_up(s, f);
    amp_log_fault(s->log, f, AMP_VERDICT_SKIP, s->scaler.scale, s->scaler.scale, s->subdivision,
                  NULL);
    if (f->class == AMP_FAULT_DIVERGED) stop(s, "training diverged");
    if (f->class == AMP_FAULT_FORWARD) demote(s, f);
}

void amp_step_judge_forward(struct amp_step *s)
{
    if (s->poisoned) return;
    struct amp_fault f = amp_graph_fault(s->graph, false);
    if (f.class != AMP_FAULT_NONE) give_up_forward(s, &f);
}

static void judge_pass(struct amp_step *s)
{
    for (;;) {
        struct amp_fault f = amp_graph_fault(s->graph, true);
        if (f.class == AMP_FAULT_NONE) {
            accept_pass(s);
            return;
        }
        if (f.class != AMP_FAULT_BACKWARD) {
            give_up_forward(s, &f);
            return;
        }
        if (!handle_backward_fault(s, &f)) return;
    }
}

static void end_pass(struct amp_step *s)
{
    if (s->poisoned)
        amp_graph_read_losses(s->graph);
    else
        judge_pass(s);
    if (s->graph->device_losses) {
        amp_loss_lines_print(s->graph, stdout);
        double loss = s->take_losses ? s->take_losses(s->user) : s->pass_loss;
        if (!isnan(s->pass_loss)) s->pass_loss = loss;
    }
    s->loss_sum += s->pass_loss;
}

void amp_step_backward(struct amp_step *s, int layer, double loss)
{
    struct amp_graph *g = s->graph;
    if (layer == g->n - 1) {
        s->pass_loss = s->poisoned ? NAN : loss; /* Darknet is told 0, see hooks.c */
        s->passes++;
    }
    if (!s->poisoned) {
        if (layer == g->n - 1) amp_graph_begin_backward(g, (float)s->scaler.scale);
        amp_graph_backward(g, layer);
    }
    if (layer == g->plan->first_backward) end_pass(s);
}

/* Lists the parameters that are due, those with Adam's moments or the others; returns how many. */
static int list_due(struct amp_graph *g, const struct amp_update *u, bool adam)
{
    int count = 0;
    for (const struct amp_param *p = g->params; p < g->params + g->n_params; p++) {
        if (!p->due || (u->adam && p->m) != adam) continue;
        float rate = u->learning_rate * p->learning_rate_scale, batch = (float)u->batch;
        bool decays = adam || p->kind == AMP_PARAM_WEIGHTS;
        g->updates[count++] = (struct ampk_param){.value = p->value,
                                                  .update = p->update,
                                                  .m = p->m,
                                                  .v = p->v,
                                                  .grad = p->sum ? p->sum : p->grad,
                                                  .n = p->n,
                                                  .rate = adam ? rate : rate / batch,
                                                  .decay_batch = decays ? u->decay * batch : 0,
                                                  .clip = p->clip};
    }
    return count;
}

static void update_all_due(struct amp_graph *g, const struct amp_update *u)
{
    int count = list_due(g, u, true);
    if (count) g->backend->update_adam(g->context, g->updates, count, u->b1, u->b2, u->eps, u->t);
    count = list_due(g, u, false);
    if (count) g->backend->update_sgd(g->context, g->updates, count, u->momentum);
    for (int i = 0; i < g->n_params; i++)
        g->params[i].due = false;
    g->weights_stale = true;
}

static void begin_update(struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    s->updating = true;
    s->applying = !s->poisoned;
    if (!s->applying) amp_graph_restore_rolling(g);
    if (s->passes > 0) return;
    g->backend->fill_zero(g->context, g->gradients, g->n_gradients * sizeof(float));
    if (g->sums) g->backend->fill_zero(g->context, g->sums, g->n_gradients * sizeof(float));
}

bool amp_step_update(struct amp_step *s, int layer, const struct amp_update *u)
{
    struct amp_graph *g = s->graph;
    bool first = !s->updating;
    if (first) begin_update(s);
    if (s->applying) {
        const struct amp_node *node = &g->nodes[layer];
        for (int k = 0; k < node->bind.n_params; k++)
            g->params[node->bind.first_param + k].due = true;
        s->update = *u;
    }
    return first && !s->applying;
}

void amp_step_hand_over(struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    if (!s->passes) return;
    if (s->poisoned) amp_graph_restore_rolling(g);
    for (int i = 0; i < g->n_params && !s->poisoned; i++) {
        const struct amp_param *p = &g->params[i];
        if (p->sum) g->backend->accumulate(g->context, p->sum, p->n, 1, p->update);
    }
    s->passes = 0;
}

static const char *why_nothing_helps(const struct amp_scaler *s)
{
    if (!s->reduced) return "gradients are not finite, ten steps in a row";
    if (!s->dynamic)
        return "gradients overflow FP16 at the fixed loss_scale (loss_scale=dynamic would lower "
               "it), ten steps in a row";
    return "gradients overflow FP16 even at the smallest loss scale, ten steps in a row";
}

/* What the log's file is to tell of the step; layers: the caller frees. */
static struct amp_numbers take_numbers(const struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    struct amp_numbers numbers = {.grad_norm = NAN};
    if (s->log->json && s->applying) numbers.grad_norm = amp_graph_grad_norm(g);
    if (!g->inspecting) return numbers;
    numbers.layers = calloc((size_t)g->n, sizeof *numbers.layers);
    if (!numbers.layers) return numbers;
    numbers.n_layers = g->n;
    amp_numbers_read(g, s->applying, numbers.layers);
    return numbers;
}

void amp_step_end(struct amp_step *s, size_t iteration, size_t total)
{
    double before = s->scaler.scale;
    int images = s->graph->net->batch * s->subdivisions;
    struct amp_numbers numbers = take_numbers(s);
    s->updating = false;
    if (s->applying) update_all_due(s->graph, &s->update);
    enum amp_verdict verdict = amp_scaler_step(&s->scaler, s->applying, s->cause_is_scale);
    if (s->scaler.scale != before) amp_log_scale(s->log, "clean window", before, s->scaler.scale);
    double loss = s->passes ? s->loss_sum / (s->passes * s->graph->net->batch) : 0;
    amp_log_iteration(s->log, &s->scaler, iteration, total, loss, images, &numbers);
    free(numbers.layers);
    s->passes = 0;
    if (verdict == AMP_VERDICT_STOP) stop(s, why_nothing_helps(&s->scaler));
}
