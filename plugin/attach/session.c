/* Decides what is kept and what is made again when size, use or formats change, and when that is.
 * It must not know what a plan chooses (core/plan/plan.c), how the graph computes
 * (core/engine/graph.c) or what becomes of a run whose memory ends; it gives the graph the two
 * callbacks through which Darknet's own layers run. */

#include "session.h"

#include "device.h"
#include "device_memory.h"
#include "interposed.h"
#include "products.h"
#include "plugin/attach/feed/seed.h"
#include "plugin/attach/feed/staging.h"
#include "plugin/core/engine/layers.h"
#include "plugin/core/engine/sync_bn.h"
#include "plugin/core/engine/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the cfg describes ---- */

/* We parse the cfg ourselves, so we and Darknet may disagree. Wrong shapes would mean writing out
 * of bounds; ending the run is better. */
static int check_shapes(const struct amp_net_desc *desc, const network *net, char *err,
                        size_t err_size)
{
    if (desc->n != net->n) {
        snprintf(err, err_size, "the cfg and the network have different numbers of layers");
        return -1;
    }
    for (int i = 0; i < net->n; i++) {
        const layer *l = &net->layers[i];
        const struct amp_layer_desc *d = &desc->layers[i];
        if (l->outputs == d->outputs && (int)l->type == (int)d->type) continue;
        snprintf(
            err, err_size,
            "layer %d (%s): the cfg describes %d outputs of type %d, Darknet built %d of type %d",
            i, amp_layer_type_name(d->type), d->outputs, (int)d->type, l->outputs, (int)l->type);
        return -1;
    }
    return 0;
}

/* The description before lives until the new one is sound: saving needs one. */
int amp_session_describe(struct amp_session *s, const network *view, char *err, size_t err_size)
{
    struct amp_net_desc *desc = amp_net_describe(s->cfg, view->w, view->h, true, err, err_size);
    if (!desc || check_shapes(desc, s->net, err, err_size)) {
        amp_net_desc_free(desc);
        return -1;
    }
    /* A program may change the batch without a resize (set_batch_network). */
    desc->batch = view->batch;
    desc->subdivisions = view->subdivisions; /* more where there are many processes (ranks.h) */
    amp_session_set_desc(s, desc);
    s->log.net = desc;
    return 0;
}

/* ---- plan ---- */

enum amp_format *amp_session_no_demotions(int n)
{
    enum amp_format *demoted = amp_allocate((size_t)n, sizeof *demoted);
    for (int i = 0; i < n; i++)
        demoted[i] = AMP_FORMATS;
    return demoted;
}

/* As in the pass that is under way, or would be next: `seen` counts a pass when it begins. */
static bool stop_backward(struct amp_session *s, size_t pass_images)
{
    return amp_net_stop(s->desc, amp_iterations_in(s->net, *s->net->seen - pass_images));
}

/* Inference has the layers that training demoted, and its own on top. amp_plan_make gets a merged
 * list, since it knows nothing of two uses. */
int amp_session_make_plan(struct amp_session *s, bool train, char *err, size_t err_size)
{
    enum amp_format *demoted = amp_session_no_demotions(s->net->n);
    stop_backward(s, s->pass_images);
    for (int i = 0; i < s->net->n; i++)
        demoted[i] =
            train || s->demoted[i] != AMP_FORMATS ? s->demoted[i] : s->inference_demoted[i];
    amp_plan_free(s->plan);
    s->plan = amp_plan_make(s->desc, &s->options, amp_layers_ours(s->backend), demoted, train, err,
                            err_size);
    free(demoted);
    return s->plan ? 0 : -1;
}

/* ---- graph ---- */

static void lend_products(struct amp_session *s, int i)
{
    bool products = s->plan->layers[i].products;
    amp_products_run(products ? s->graph : NULL, i, &s->net->layers[i], s->device);
}

/* The plan says that the products of recurrent layers are ours. Where Darknet's calls pass by, they
 * are not. */
static void report_products(struct amp_session *s, int i)
{
    if (s->told_products || !s->plan->layers[i].products || s->graph->nodes[i].product_called)
        return;
    s->told_products = true;
    fprintf(
        stderr,
        "darknet-amp: layer %d (%s): this Darknet's calls do not pass through the plugin, so that "
        "the products of recurrent layers stay in FP32; start the program with "
        "LD_PRELOAD=libdarknet_amp.so\n",
        i, amp_layer_type_name(s->desc->layers[i].type));
}

/* Darknet's code works on the default stream and ours does not, so the device is handed over before
 * and taken back after. */
static void call_forward(void *user, int i, float *input, bool train)
{
    struct amp_session *s = user;
    s->backend->release(s->context);
    lend_products(s, i);
    amp_native_forward(&s->net->layers[i], &s->saved[i], s->device, s->view, input, train);
    amp_products_end();
    s->backend->acquire(s->context);
    report_products(s, i);
}

static void call_backward(void *user, int i, float *input, float *delta)
{
    struct amp_session *s = user;
    const struct amp_binding *bind = &s->graph->nodes[i].bind;
    network view = s->view;
    view.index = i;
    layer *l = &s->net->layers[i];
    /* An LSTM or l2norm keeps unscaled gradients from earlier calls; Darknet's backward adds them
     * to deltas that are scaled. So they are scaled just for this call. */
    float scale = s->graph->scale;
    amp_native_scale_kept(l, s->device, s->backend, s->context, scale);
    s->backend->release(s->context);
    lend_products(s, i);
    amp_native_backward(l, &s->saved[i], s->device, view, input, delta, scale,
                        s->graph->params + bind->first_param, bind->n_params);
    amp_products_end();
    s->backend->acquire(s->context);
    amp_native_scale_kept(l, s->device, s->backend, s->context, 1 / scale);
}

static float random_uniform(void)
{
    return AMP_USE(rand_uniform)(0, 1);
}

/* The backend's note on the convolution of layer i; NULL: none. Equal notes are the same
 * pointer. */
static const char *note_of(const struct amp_session *s, int i)
{
    const struct ampk_conv *conv = s->graph->nodes[i].conv;
    return conv ? s->backend->conv_note(conv) : NULL;
}

/* One line for all layers that have the first one's note. */
static void report_note(const struct amp_session *s, int first)
{
    const char *note = note_of(s, first);
    flockfile(stderr); /* other threads print lines too, and this one is built in parts */
    fprintf(stderr, "darknet-amp: %swithout Tensor Cores (%s): layer", s->log.who, note);
    for (int i = first; i < s->net->n; i++)
        if (note_of(s, i) == note) fprintf(stderr, "%s %d", i > first ? "," : "", i);
    fprintf(stderr, "\n");
    funlockfile(stderr);
}

/* Only for training, once per session: a note is about the GPU and does not change with the size. A
 * note's first layer prints for all that have it. */
static void report_notes(struct amp_session *s)
{
    if (s->told_notes || !s->plan->train || !s->backend->conv_note) return;
    s->told_notes = true;
    for (int i = 0; i < s->net->n; i++) {
        const char *note = note_of(s, i);
        int before = 0;
        while (before < i && note_of(s, before) != note)
            before++;
        if (note && before == i) report_note(s, i);
    }
}

/* As the Darknet whose rules the cfg follows computes it on this device. */
static enum ampk_bn_rule bn_rule(const struct amp_session *s)
{
    if (s->device) return AMPK_BN_CUDNN;
    return s->desc->bn_under_root ? AMPK_BN_DARKNET_GPU : AMPK_BN_DARKNET_CPU;
}

/* In the middle of a step the old graph holds gradients of passes that count already. It lives
 * until the new one has taken them over. */
static int make_graph(struct amp_session *s, char *err, size_t err_size)
{
    /* First of all: Darknet's layers may need arrays under this plan that were never given
     * memory. */
    if (amp_session_commit(s, err, err_size)) return -1;
    struct amp_owned owned = amp_native_list(s->net, s->saved, s->device);
    amp_kept_enter(s->kept, &owned);
    /* Random numbers as stock Darknet draws them: rand on the host, the device's generator
     * there. */
    struct amp_native native = {s, call_forward, call_backward, s->device ? NULL : random_uniform};
    struct amp_graph *unfinished = s->step.passes ? s->graph : NULL;
    if (!unfinished) amp_graph_free(s->graph);
    s->graph = amp_graph_create(s->backend, s->context, s->desc, s->plan, &owned, native,
                                s->desc->subdivisions > 1, err, err_size);
    amp_native_free_list(&owned);
    if (!s->graph) return -1;
    if (unfinished) amp_graph_take_step(s->graph, unfinished);
    amp_graph_free(unfinished);
    s->graph->bn_rule = bn_rule(s);
    s->graph->clips_connected = s->device; /* stock clips these on GPUs only */
    s->step.graph = s->graph;
    if (s->spread.bn.count && amp_graph_sync_batchnorm(s->graph, &s->spread.bn, err, err_size))
        return -1;
    amp_graph_observe(s->graph, s->see, s->see_user);
    amp_graph_trace_layers(s->graph, s->trace, s->trace_user);
    report_notes(s);
    return 0;
}

/* ---- layers that leave FP16 ---- */

/* A copy in FP16 is made for the readers of a layer, so they move to FP32 and the layer itself
 * stays. */
static void demote(struct amp_session *s, const struct amp_fault *f, enum amp_format *list)
{
    bool of_readers = f->tensor == AMP_WATCH_COPY;
    for (int i = 0; i < s->net->n; i++) {
        bool concerned = i == f->layer && !of_readers;
        for (int k = 0; of_readers && k < s->desc->layers[i].n_sources; k++)
            concerned |= s->plan->layers[i].sources[k] == f->layer &&
                         s->plan->layers[i].in == AMP_FORMAT_FP16;
        if (concerned) list[i] = AMP_FORMAT_FP32;
    }
    s->replan = true;
}

void amp_session_demote(void *user, const struct amp_fault *f)
{
    struct amp_session *s = user;
    demote(s, f, s->demoted);
}

void amp_session_demote_inference(struct amp_session *s, const struct amp_fault *f)
{
    demote(s, f, s->inference_demoted);
    s->inference_demotes = true;
}

/* ---- deltas that are hidden from Darknet ---- */

void amp_session_give_deltas(struct amp_session *s)
{
    for (int i = 0; i < s->net->n; i++) {
        layer *l = &s->net->layers[i];
        /* A pointer that is there already is newer than the saved one. */
        if (!AMP_SIDE(s->device, l, delta)) AMP_SIDE(s->device, l, delta) = s->saved[i].delta;
    }
}

/* Also at the start of every pass: a program may have resized the network in a way that did not
 * come through attach.c. */
void amp_session_take_deltas(struct amp_session *s)
{
    for (int i = 0; i < s->net->n; i++) {
        layer *l = &s->net->layers[i];
        if (!AMP_SIDE(s->device, l, delta)) continue;
        s->saved[i].delta = AMP_SIDE(s->device, l, delta);
        AMP_SIDE(s->device, l, delta) = NULL;
    }
}

/* ---- a pass begins ---- */

static struct amp_batch batch_of(const struct amp_session *s, const network *view)
{
    return (struct amp_batch){
        .input = AMP_SIDE(s->device, view, input),
        .host_input = view->input,
        .truth = AMP_SIDE(s->device, view, truth),
        .host_truth = view->truth,
        .truths = (size_t)view->truths,
    };
}

/* Darknet's losses compute indices from labels, so a NaN makes them write anywhere. The step is
 * skipped in any case; zeros mean "no object". */
static void hide_truth(const struct amp_session *s, const network *view)
{
    size_t bytes = (size_t)view->truths * (size_t)view->batch * sizeof(float);
    memset(view->truth, 0, bytes);
    if (s->device) s->backend->fill_zero(s->context, AMP_SIDE(s->device, view, truth), bytes);
}

/* Only training writes the log, so only training creates the file. */
static void open_log(struct amp_session *s)
{
    char err[512];
    if (amp_log_open(&s->log, s->options.log_path, err, sizeof err))
        amp_fail_key(s->cfg, "amp_log", err);
}

static bool is_resized(const struct amp_session *s, const network *view)
{
    return view->w != s->desc->w || view->h != s->desc->h || view->batch != s->desc->batch;
}

/* A demoted layer changes format at the next step, not in the middle of one: all passes of a step
 * must add up the same way. A training plan also serves inference, unless inference has demoted
 * layers of its own. */
static bool needs_plan(const struct amp_session *s, bool train, int subdivision)
{
    bool wrong_use = train ? !s->plan->train : s->plan->train && s->inference_demotes;
    return !s->graph || s->moved || wrong_use || (s->replan && subdivision == s->step.first_pass);
}

static bool is_zero(const struct amp_session *s, const struct amp_rolling *r)
{
    float *x = amp_allocate(r->n, sizeof *x);
    bool zero = true;
    s->backend->read(s->context, x, r->value, r->n * sizeof *x);
    for (size_t i = 0; i < r->n; i++)
        zero = zero && x[i] == 0;
    free(x);
    return zero;
}

/* A frozen batch-norm divides by its running variance, which is 0 in a network that was never
 * trained. (Whoever only looks into a network may look at such a one.) */
static void check_frozen(const struct amp_session *s)
{
    char message[300];
    if (s->observed || s->trace) return;
    for (int i = 0; i < s->graph->n_rolling; i++) {
        const struct amp_rolling *r = &s->graph->rolling[i];
        bool variance = i > 0 && r[-1].layer == r->layer; /* it comes behind the mean */
        if (!variance || !s->plan->layers[r->layer].frozen || !is_zero(s, r)) continue;
        const struct amp_cfg_section *section = amp_cfg_layer(s->cfg, r->layer);
        bool own = amp_cfg_find(section, "freeze"); /* else by a stopbackward=1 behind it */
        snprintf(message, sizeof message,
                 "%s:%d: %s in layer %d, but its batch-norm has no running statistics: give "
                 "the weights of a trained network, or train this layer first",
                 s->cfg->path, amp_cfg_line(section, "freeze"),
                 own ? "freeze=1" : "a later stopbackward=1 freezes what is", r->layer);
        amp_fail(message);
    }
}

/* pass_images: if this fails, the pass has not begun, and amp_give_up takes its images out of
 * `seen`. */
static int make_anew(struct amp_session *s, const network *view, bool resized, char *err,
                     size_t err_size)
{
    s->pass_images = view->train ? (size_t)view->batch : 0;
    if (resized && amp_session_describe(s, view, err, err_size)) return -1;
    if (amp_session_make_plan(s, view->train, err, err_size) || make_graph(s, err, err_size))
        return -1;
    if (view->train) check_frozen(s);
    s->pass_images = 0;
    s->replan = s->moved = false;
    return 0;
}

static void begin_training(struct amp_session *s, const network *view, int subdivision)
{
    struct amp_batch batch = batch_of(s, view);
    open_log(s);
    amp_step_begin(&s->step, &batch, subdivision);
    if (amp_step_has_bad_truth(&s->step)) hide_truth(s, view);
}

/* Uploads are asked for the plan's input format, so the plan comes first. acquire takes the device
 * over from Darknet's stream; from then on all work is on ours. Subdivision: `seen` counts this
 * pass already, hence the - 1. */
int amp_session_begin(struct amp_session *s, const network *view, char *err, size_t err_size)
{
    bool resized = is_resized(s, view);
    int passes = view->batch ? (int)(*view->seen / (size_t)view->batch) : 0;
    int subdivision = view->train ? (passes - 1) % view->subdivisions : 0;
    s->view = *view;
    if (view->train && subdivision == s->step.first_pass && stop_backward(s, (size_t)view->batch))
        s->replan = true;
    amp_session_take_deltas(s);
    if ((resized || needs_plan(s, view->train, subdivision)) &&
        make_anew(s, view, resized, err, err_size))
        return -1;
    if (view->train)
        s->graph->staged = amp_upload_begin(view, s->plan->input_format, &s->graph->lane);
    s->backend->acquire(s->context);
    s->graph->seen = *view->seen;
    s->graph->masks = amp_seed_masks(s->mask_seed, s->graph->seen);
    amp_session_judge_weights(s);
    if (view->train)
        begin_training(s, view, subdivision);
    else
        amp_graph_begin(s->graph, AMP_SIDE(s->device, view, input), NULL, false);
    return 0;
}
