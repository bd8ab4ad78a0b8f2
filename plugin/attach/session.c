#include "session.h"

#include "backend.h"
#include "complete.h"
#include "ending.h"
#include "give_up.h"
#include "gpus.h"
#include "hooks.h"
#include "interrupt.h"
#include "loader.h"
#include "resume.h"
#include "side.h"
#include "staging.h"
#include "symbols.h"
#include "upload.h"
#include "plugin/decide/named_files.h"
#include "plugin/exec/executor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER;
static struct amp_session *sessions;

// ---- the list of sessions ----

static void enlist(struct amp_session *s)
{
    pthread_mutex_lock(&sessions_lock);
    s->next = sessions;
    sessions = s;
    pthread_mutex_unlock(&sessions_lock);
}

static void delist(struct amp_session *s)
{
    pthread_mutex_lock(&sessions_lock);
    struct amp_session **p = &sessions;
    while (*p && *p != s)
        p = &(*p)->next;
    if (*p) *p = s->next;
    pthread_mutex_unlock(&sessions_lock);
}

struct amp_session *amp_session_of(const layer *layers)
{
    pthread_mutex_lock(&sessions_lock);
    struct amp_session *s = sessions;
    while (s && s->net->layers != layers)
        s = s->next;
    pthread_mutex_unlock(&sessions_lock);
    return s;
}

// What a layer with an update has for itself and never moves: another thread may be resizing its
// network while the list is searched.
static const void *what_stays(const layer *l)
{
    const void *parts[] = {l->weights, l->input_layer, l->uf, l->uz};
    for (int i = 0; i < 4; ++i)
        if (parts[i]) return parts[i];
    return NULL;
}

struct amp_session *amp_session_of_update(const layer *l, int *index)
{
    struct amp_session *found = NULL;
    const void *identity = what_stays(l);
    pthread_mutex_lock(&sessions_lock);
    for (struct amp_session *s = sessions; s && !found; s = s->next)
        for (int i = 0; i < s->net->n && !found; ++i) {
            if (!identity || s->saved[i].identity != identity) continue;
            found = s;
            *index = i;
        }
    pthread_mutex_unlock(&sessions_lock);
    return found;
}

// ---- who writes to the masters ----
//
// On a device that is Darknet's cuda_push_array, or our update: the convolutions take the weights
// anew only after the former. A Darknet whose calls do not pass through the plugin shows itself by
// images that come without one. On the host anybody may write.

static __thread bool write_seen; // by this thread

static bool has_master(const struct amp_session *s, const float *x)
{
    for (int i = 0; i < s->net->n; ++i) {
        uintptr_t first = (uintptr_t)s->saved[i].weights, at = (uintptr_t)x;
        if (first && at >= first && at < first + s->saved[i].n_weights * sizeof *x) return true;
    }
    return false;
}

void amp_session_see_write(const float *x)
{
    write_seen = true;
    pthread_mutex_lock(&sessions_lock);
    for (struct amp_session *s = sessions; s; s = s->next)
        if (has_master(s, x)) s->written = true;
    pthread_mutex_unlock(&sessions_lock);
}

static void judge_weights(struct amp_session *s)
{
    s->sees_writes |= s->device && write_seen;
    s->step.writers_tell = s->sees_writes;
    if (atomic_exchange(&s->written, false)) amp_graph_weights_changed(s->graph);
}

// ---- reading the cfg ----

// A cfg that only Darknet's more tolerant reader accepts is none of our business, unless it asks
// for something of ours.
static bool mentions_our_keys(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f) return false;
    char line[4096];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        char *key = line + strspn(line, " \t");
        key[strcspn(key, "= \t\r\n")] = 0;
        found =
            amp_option_is_key(key) || !strncmp(key, "amp_", 4) || !strncmp(key, "loss_scale", 10);
    }
    fclose(f);
    return found;
}

void amp_session_free(struct amp_session *s)
{
    amp_graph_free(s->graph);
    if (s->context) s->backend->context_destroy(s->context);
    amp_plan_free(s->plan);
    amp_net_desc_free(s->desc);
    amp_cfg_free(s->cfg);
    amp_sidecar_close(s->sidecar);
    free(s->demoted);
    free(s->inference);
    free(s->saved);
    free(s);
}

struct amp_session *amp_session_read(const char *cfg_path)
{
    char err[1024], notes[1024] = "";
    struct amp_session *s = amp_allocate(1, sizeof *s);
    s->cfg = amp_cfg_read(cfg_path, err, sizeof err);
    if (!s->cfg) {
        if (mentions_our_keys(cfg_path)) amp_fail(err);
        amp_session_free(s);
        return NULL;
    }
    if (amp_options_read(s->cfg, &s->options, notes, sizeof notes, err, sizeof err)) amp_fail(err);
    if (notes[0]) fprintf(stderr, "darknet-amp: %s\n", notes);
    if (!s->options.mixed_precision && !s->options.seeded) {
        amp_session_free(s);
        return NULL;
    }
    if (s->options.mixed_precision) {
        if (amp_named_files_check_here(s->cfg, err, sizeof err)) amp_fail(err);
        s->desc = amp_net_describe(s->cfg, 0, 0, true, err, sizeof err);
        if (!s->desc) amp_fail(err);
    }
    return s;
}

// ---- plan and graph ----

static void check_shapes(const struct amp_session *s)
{
    char message[300];
    if (s->desc->n != s->net->n)
        amp_fail("the cfg and the network have different numbers of layers");
    for (int i = 0; i < s->net->n; ++i) {
        const layer *l = &s->net->layers[i];
        const struct amp_layer_desc *d = &s->desc->layers[i];
        if (l->outputs == d->outputs && (int)l->type == (int)d->type) continue;
        snprintf(
            message, sizeof message,
            "layer %d (%s): the cfg describes %d outputs of type %d, Darknet built %d of type %d",
            i, amp_layer_type_name(d->type), d->outputs, (int)d->type, l->outputs, (int)l->type);
        amp_fail(message);
    }
}

static enum amp_format *no_demotions(int n)
{
    enum amp_format *demoted = amp_allocate((size_t)n, sizeof *demoted);
    for (int i = 0; i < n; ++i)
        demoted[i] = AMP_FORMATS;
    return demoted;
}

static void make_plan(struct amp_session *s, bool train)
{
    char err[512];
    enum amp_format *demoted = no_demotions(s->net->n);
    for (int i = 0; i < s->net->n; ++i)
        demoted[i] = train || s->demoted[i] != AMP_FORMATS ? s->demoted[i] : s->inference[i];
    amp_plan_free(s->plan);
    s->plan = amp_plan_make(s->desc, &s->options, amp_device_losses(s->backend), demoted, train,
                            err, sizeof err);
    free(demoted);
    if (!s->plan) amp_fail(err);
}

static void call_forward(void *user, int i, float *input, bool train)
{
    struct amp_session *s = user;
    s->backend->release(s->context);
    amp_native_forward(&s->net->layers[i], &s->saved[i], s->device, s->view, input, train);
    s->backend->acquire(s->context);
}

static void call_backward(void *user, int i, float *input, float *delta)
{
    struct amp_session *s = user;
    const struct amp_binding *bind = &s->graph->nodes[i].bind;
    network view = s->view;
    view.index = i;
    layer *l = &s->net->layers[i];
    float scale = (float)s->step.scaler.scale;
    amp_native_scale_carried(l, s->device, s->backend, s->context, scale);
    s->backend->release(s->context);
    amp_native_backward(l, &s->saved[i], s->device, view, input, delta,
                        s->graph->params + bind->first_param, bind->n_params);
    s->backend->acquire(s->context);
    amp_native_scale_carried(l, s->device, s->backend, s->context, 1 / scale);
}

static float random_uniform(void)
{
    return AMP_USE(rand_uniform)(0, 1);
}

// The backend's note on the convolution of layer i, if there is one.
static const char *note_of(const struct amp_session *s, int i)
{
    const struct ampk_conv *conv = s->graph->nodes[i].conv;
    return conv ? s->backend->conv_note(conv) : NULL;
}

// The layers from the first on that have its note.
static void tell_note(const struct amp_session *s, int first)
{
    const char *note = note_of(s, first);
    flockfile(stderr); // other networks' threads have lines, too
    fprintf(stderr, "darknet-amp: %swithout Tensor Cores (%s): layer", s->log.who, note);
    for (int i = first; i < s->net->n; ++i)
        if (note_of(s, i) == note) fprintf(stderr, "%s %d", i > first ? "," : "", i);
    fprintf(stderr, "\n");
    funlockfile(stderr);
}

static void tell_notes(struct amp_session *s)
{
    if (s->noted || !s->plan->train || !s->backend->conv_note) return;
    s->noted = true;
    for (int i = 0; i < s->net->n; ++i) {
        const char *note = note_of(s, i);
        int before = 0;
        while (before < i && note_of(s, before) != note)
            ++before;
        if (note && before == i) tell_note(s, i);
    }
}

static void make_graph(struct amp_session *s)
{
    char err[512];
    amp_session_commit(s);
    struct amp_owned owned = amp_native_list(s->net, s->saved, s->device);
    struct amp_native native = {s, call_forward, call_backward};
    struct amp_graph *unfinished = s->step.passes ? s->graph : NULL;
    if (!unfinished) amp_graph_free(s->graph);
    s->graph = amp_graph_create(s->backend, s->context, s->desc, s->plan, &owned, native,
                                s->desc->subdivisions > 1, err, sizeof err);
    amp_native_free_list(&owned);
    if (!s->graph) amp_give_up(s, err);
    if (unfinished) amp_graph_take_step(s->graph, unfinished);
    amp_graph_free(unfinished);
    s->graph->random_uniform = random_uniform;
    s->graph->bn_rule = s->device ? AMPK_BN_CUDNN : AMPK_BN_DARKNET_CPU; // as stock would compute
    s->step.graph = s->graph;
    amp_graph_observe(s->graph, s->see, s->see_user);
    amp_graph_trace_layers(s->graph, s->at, s->at_user);
    tell_notes(s);
}

static void describe_again(struct amp_session *s, const network *view)
{
    char err[512];
    amp_net_desc_free(s->desc);
    s->desc = amp_net_describe(s->cfg, view->w, view->h, true, err, sizeof err);
    if (!s->desc) amp_fail(err);
    s->desc->batch = view->batch;
    s->log.net = s->desc;
    check_shapes(s);
}

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

// From losses that would compute indices from it.
static void hide_truth(const struct amp_session *s, const network *view)
{
    size_t bytes = (size_t)view->truths * (size_t)view->batch * sizeof(float);
    memset(view->truth, 0, bytes);
    if (s->device) s->backend->fill_zero(s->context, AMP_SIDE(s->device, view, truth), bytes);
}

// Training alone writes it.
static void open_log(struct amp_session *s)
{
    char err[512];
    if (amp_log_open(&s->log, s->options.log_path, err, sizeof err))
        amp_fail_key(s->cfg, "amp_log", err);
}

void amp_session_begin(struct amp_session *s, const network *view)
{
    if (view->train && !s->observed) {
        amp_interrupt_watch(s);
        amp_session_resume(s, *view->seen - (size_t)view->batch);
    }
    bool resized = view->w != s->desc->w || view->h != s->desc->h || view->batch != s->desc->batch;
    bool wrong_use = view->train ? !s->plan->train : s->plan->train && s->inference_apart;
    bool more = !s->graph || s->moved || wrong_use;
    int passes = view->batch ? (int)(*view->seen / (size_t)view->batch) : 0;
    int subdivision = view->train ? (passes - 1) % view->subdivisions : 0;
    bool replan = s->replan && subdivision == 0;
    s->view = *view;
    amp_session_take_deltas(s);
    if (resized) describe_again(s, view);
    if (resized || more || replan) {
        s->pass_images = view->train ? (size_t)view->batch : 0;
        make_plan(s, view->train);
        make_graph(s);
        s->pass_images = 0;
        s->replan = s->moved = false;
    }
    struct amp_batch batch = batch_of(s, view);
    if (view->train) s->graph->staged = amp_upload_begin(view, s->plan->input_format);
    s->backend->acquire(s->context);
    s->graph->seen = *view->seen;
    judge_weights(s);
    if (view->train) {
        open_log(s);
        amp_step_begin(&s->step, &batch, subdivision);
        if (amp_step_has_bad_truth(&s->step)) hide_truth(s, view);
    } else {
        amp_graph_begin(s->graph, batch.input, NULL, false);
    }
}

static void demote(struct amp_session *s, const struct amp_fault *f, enum amp_format *list)
{
    bool of_readers = f->tensor == AMP_WATCH_COPY;
    for (int i = 0; i < s->net->n; ++i) {
        bool concerned = i == f->layer && !of_readers;
        for (int k = 0; of_readers && k < s->desc->layers[i].n_sources; ++k)
            concerned |= s->plan->layers[i].sources[k] == f->layer &&
                         s->plan->layers[i].in == AMP_FORMAT_FP16;
        if (concerned) list[i] = AMP_FORMAT_FP32;
    }
    s->replan = true;
}

static void demote_in_training(void *user, const struct amp_fault *f)
{
    struct amp_session *s = user;
    demote(s, f, s->demoted);
}

void amp_session_check_inference(struct amp_session *s)
{
    for (;;) {
        struct amp_fault f = amp_graph_fault(s->graph, false);
        if (f.class != AMP_FAULT_FORWARD) return;
        fprintf(stderr,
                "darknet-amp: %s of layer %d does not fit FP16 (largest %.3g); inference runs it "
                "in FP32 from now on\n",
                amp_watch_name(f.tensor), f.layer, f.magnitude);
        demote(s, &f, s->inference);
        s->inference_apart = true;
        network view = s->view;
        AMP_SIDE(s->device, &view, input) = s->graph->input.data;
        amp_session_begin(s, &view);
        for (int i = 0; i < s->net->n; ++i) {
            s->view.index = i;
            amp_graph_forward(s->graph, i);
        }
    }
}

// ---- attaching ----

static void save_pointers(struct amp_session *s)
{
    bool dev = s->device;
    s->saved = amp_allocate((size_t)s->net->n, sizeof *s->saved);
    s->step.last_update = -1;
    for (int i = 0; i < s->net->n; ++i) {
        layer *l = &s->net->layers[i];
        if (!dev) amp_complete_layer(l);
        s->saved[i] = (struct amp_saved){AMP_SIDE(dev, l, forward),
                                         AMP_SIDE(dev, l, backward),
                                         AMP_SIDE(dev, l, update),
                                         AMP_SIDE(dev, l, delta),
                                         AMP_SIDE(dev, l, update) ? what_stays(l) : NULL,
                                         AMP_SIDE(dev, l, weights),
                                         s->desc->layers[i].n_weights};
        AMP_SIDE(dev, l, forward) = amp_hook_forward;
        AMP_SIDE(dev, l, backward) = amp_hook_backward;
        if (AMP_SIDE(dev, l, update)) {
            AMP_SIDE(dev, l, update) = amp_hook_update;
            s->step.last_update = i;
        }
        AMP_SIDE(dev, l, delta) = NULL;
    }
}

static const char *image_name(void *user, int subdivision, int image)
{
    const struct amp_session *s = user;
    int pass = amp_gpus_place(s->net) * s->step.subdivisions + subdivision;
    return amp_loader_image(pass * s->desc->batch + image);
}

// Others that it trains with finish their iteration first, where it is known when they have.
static void stop(void *user, const char *message)
{
    struct amp_session *s = user;
    if (amp_gpus_wait(s))
        amp_gpus_close_logs(s);
    else
        amp_log_close(&s->log, &s->step.scaler);
    amp_fail(message);
}

static void close_all_logs(void)
{
    amp_ending_wait();
    pthread_mutex_lock(&sessions_lock);
    for (struct amp_session *s = sessions; s; s = s->next)
        amp_log_close(&s->log, &s->step.scaler);
    pthread_mutex_unlock(&sessions_lock);
}

static void close_logs_at_exit(void)
{
    atexit(close_all_logs);
    at_quick_exit(close_all_logs); // how the darknet program ends
}

static void start_training_state(struct amp_session *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    amp_scaler_init(&s->step.scaler, &s->options, s->desc->max_batches, s->plan->replayable);
    amp_log_start(&s->log, s->desc);
    s->log.layers_every = s->options.log_layers;
    s->step.log = &s->log;
    s->step.subdivisions = s->desc->subdivisions;
    s->step.demote = demote_in_training;
    s->step.take_losses = amp_hook_take_losses;
    s->step.image_name = image_name;
    s->step.stop = stop;
    s->step.user = s;
    s->step.divergence.burn_in = s->desc->burn_in;
    s->step.carry_on = s->options.on_divergence == AMP_DIVERGENCE_GOES_ON;
    pthread_once(&once, close_logs_at_exit);
}

// Once for all GPUs (-gpus 0,1): a plan follows from cfg and options, whatever the GPU. What one of
// them cannot do it says itself (tell_notes).
static void tell_plan(const struct amp_session *s)
{
    pthread_mutex_lock(&sessions_lock);
    const struct amp_session *other = s->device ? sessions : NULL;
    while (other && (!other->device || other->net->gpu_index == s->net->gpu_index ||
                     strcmp(other->cfg->path, s->cfg->path) != 0))
        other = other->next;
    pthread_mutex_unlock(&sessions_lock);
    if (other)
        fprintf(stderr, "mixed precision: GPU %d as planned above\n", s->net->gpu_index);
    else
        amp_plan_print(s->plan, s->desc, stderr);
}

void amp_session_attach(struct amp_session *s, network *net)
{
    char err[512];
    s->net = net;
    describe_again(s, net); // its size need not be the cfg's any more
    s->demoted = no_demotions(net->n);
    s->inference = no_demotions(net->n);
    s->device = amp_darknet_on_device();
    amp_gpu_use(s);
    s->backend = amp_backend_choose(s->cfg, &s->options);
    s->context = s->backend->context_create(0, err, sizeof err);
    if (!s->context) amp_fail(err);
    amp_ending_watch(AMP_ENDING_AFTER_CONTEXT);
    make_plan(s, true);
    fflush(stdout);
    tell_plan(s);
    start_training_state(s);
    save_pointers(s);
    amp_session_commit(s);
    amp_session_pin(s);
    enlist(s);
}

void amp_session_detach(struct amp_session *s)
{
    amp_interrupt_unwatch(s);
    delist(s);
    amp_step_hand_over(&s->step);
    amp_log_close(&s->log, &s->step.scaler);
    amp_session_unpin(s);
    amp_staging_tidy();
    amp_session_commit_all(s);
    for (int i = 0; i < s->net->n; ++i) {
        layer *l = &s->net->layers[i];
        AMP_SIDE(s->device, l, forward) = s->saved[i].forward;
        AMP_SIDE(s->device, l, backward) = s->saved[i].backward;
        AMP_SIDE(s->device, l, update) = s->saved[i].update;
    }
    amp_session_give_deltas(s);
    amp_session_free(s);
}

void amp_session_give_deltas(struct amp_session *s)
{
    for (int i = 0; i < s->net->n; ++i) {
        layer *l = &s->net->layers[i];
        if (!AMP_SIDE(s->device, l, delta)) AMP_SIDE(s->device, l, delta) = s->saved[i].delta;
    }
}

void amp_session_take_deltas(struct amp_session *s)
{
    for (int i = 0; i < s->net->n; ++i) {
        layer *l = &s->net->layers[i];
        if (!AMP_SIDE(s->device, l, delta)) continue;
        s->saved[i].delta = AMP_SIDE(s->device, l, delta);
        AMP_SIDE(s->device, l, delta) = NULL;
    }
}
