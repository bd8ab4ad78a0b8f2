#include "session.h"

#include "backend.h"
#include "device_arrays.h"
#include "ending.h"
#include "gpus.h"
#include "loader.h"
#include "replan.h"
#include "seed.h"
#include "sessions.h"
#include "side.h"
#include "staging.h"
#include "upload.h"
#include "plugin/core/named_files.h"
#include "plugin/core/tensors.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the cfg asks for ---- */

/* A cfg that only Darknet's more tolerant reader accepts is none of our business, unless it asks
 * for something of ours. */
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

/* ---- attaching ---- */

static void save_pointers(struct amp_session *s, const struct amp_hooks *hooks)
{
    bool dev = s->device;
    s->saved = amp_allocate((size_t)s->net->n, sizeof *s->saved);
    s->step.last_update = -1;
    for (int i = 0; i < s->net->n; i++) {
        layer *l = &s->net->layers[i];
        if (!dev) amp_native_complete(l);
        s->saved[i] = (struct amp_saved){AMP_SIDE(dev, l, forward),
                                         AMP_SIDE(dev, l, backward),
                                         AMP_SIDE(dev, l, update),
                                         AMP_SIDE(dev, l, delta),
                                         AMP_SIDE(dev, l, update) ? amp_session_identity(l) : NULL,
                                         AMP_SIDE(dev, l, weights),
                                         s->desc->layers[i].n_weights};
        AMP_SIDE(dev, l, forward) = hooks->forward;
        AMP_SIDE(dev, l, backward) = hooks->backward;
        if (AMP_SIDE(dev, l, update)) {
            AMP_SIDE(dev, l, update) = hooks->update;
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

/* Others that it trains with finish their iteration first, where it is known when they have. */
static void stop(void *user, const char *message)
{
    struct amp_session *s = user;
    const struct amp_session *first = amp_gpus_first(s);
    const char *good = *first->last_saved ? first->last_saved : first->backup;
    char text[PATH_MAX + 1000];
    if (amp_gpus_wait(s))
        amp_gpus_close_logs(s);
    else
        amp_log_close(&s->log, &s->step.scaler);
    snprintf(text, sizeof text, "%s %s%s", message,
             *good ? "The last good weights are " : "This run has saved nothing.", good);
    amp_fail(text);
}

static void close_logs_at_exit(void)
{
    atexit(amp_sessions_close_logs);
    at_quick_exit(amp_sessions_close_logs); /* how the darknet program ends */
}

static void start_training_state(struct amp_session *s, const struct amp_hooks *hooks)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    amp_scaler_init(&s->step.scaler, &s->options, s->desc->max_batches, s->plan->replayable);
    amp_log_start(&s->log, s->desc);
    s->log.layers_every = s->options.log_layers;
    s->step.log = &s->log;
    s->step.subdivisions = s->desc->subdivisions;
    s->step.demote = amp_session_demote;
    s->step.take_losses = hooks->take_losses;
    s->step.image_name = image_name;
    s->step.stop = stop;
    s->step.user = s;
    s->step.divergence.burn_in = s->desc->burn_in;
    s->step.carry_on = s->options.on_divergence == AMP_DIVERGENCE_GOES_ON;
    pthread_once(&once, close_logs_at_exit);
}

/* Once for all GPUs (-gpus 0,1): a plan follows from cfg and options, whatever the GPU. What one of
 * them cannot do it says itself (tell_notes). */
static void tell_plan(const struct amp_session *s)
{
    if (amp_session_is_planned_alike(s))
        fprintf(stderr, "mixed precision: GPU %d as planned above\n", s->net->gpu_index);
    else
        amp_plan_print(s->plan, s->desc, stderr);
}

// Darknet's own arrays may have taken it all: they grow with the images of a pass as ours do.
static _Noreturn void fail_without_context(const network *net, const char *why)
{
    char message[700];
    if (!strstr(why, AMPK_NO_MEMORY)) amp_fail(why);
    snprintf(message, sizeof message,
             "%s (%d images of %dx%d in a pass): lower batch or raise subdivisions", why,
             net->batch, net->w, net->h);
    amp_fail(message);
}

void amp_session_attach(struct amp_session *s, network *net, const struct amp_hooks *hooks)
{
    char err[512];
    s->net = net;
    amp_session_describe(s, net); /* its size need not be the cfg's any more */
    s->demoted = amp_session_no_demotions(net->n);
    s->inference_demoted = amp_session_no_demotions(net->n);
    s->device = amp_darknet_on_device();
    s->mask_seed = s->options.seeded ? s->options.seed : amp_seed_of_clock();
    amp_gpu_use(s);
    s->backend = amp_backend_choose(s->cfg, &s->options);
    s->context = s->backend->context_create(0, err, sizeof err);
    if (!s->context) fail_without_context(net, err);
    amp_ending_watch(AMP_ENDING_AFTER_CONTEXT);
    amp_session_make_plan(s, true);
    fflush(stdout);
    tell_plan(s);
    start_training_state(s, hooks);
    save_pointers(s, hooks);
    amp_session_commit(s);
    amp_session_pin(s);
    amp_session_enlist(s);
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
    free(s->inference_demoted);
    free(s->saved);
    free(s);
}

void amp_session_detach(struct amp_session *s)
{
    amp_session_delist(s);
    amp_step_hand_over(&s->step);
    amp_log_close(&s->log, &s->step.scaler);
    amp_session_unpin(s);
    amp_staging_tidy();
    amp_session_commit_all(s);
    for (int i = 0; i < s->net->n; i++) {
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
    for (int i = 0; i < s->net->n; i++) {
        layer *l = &s->net->layers[i];
        if (!AMP_SIDE(s->device, l, delta)) AMP_SIDE(s->device, l, delta) = s->saved[i].delta;
    }
}

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

/* From losses that would compute indices from it. */
static void hide_truth(const struct amp_session *s, const network *view)
{
    size_t bytes = (size_t)view->truths * (size_t)view->batch * sizeof(float);
    memset(view->truth, 0, bytes);
    if (s->device) s->backend->fill_zero(s->context, AMP_SIDE(s->device, view, truth), bytes);
}

/* Training alone writes it. */
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

/* A layer that was demoted waits for the next step. */
static bool needs_plan(const struct amp_session *s, bool train, int subdivision)
{
    bool wrong_use = train ? !s->plan->train : s->plan->train && s->inference_demotes;
    return !s->graph || s->moved || wrong_use || (s->replan && subdivision == 0);
}

static void make_anew(struct amp_session *s, const network *view)
{
    s->pass_images = view->train ? (size_t)view->batch : 0;
    amp_session_make_plan(s, view->train);
    amp_session_make_graph(s);
    s->pass_images = 0;
    s->replan = s->moved = false;
}

static void begin_training(struct amp_session *s, const network *view, int subdivision)
{
    struct amp_batch batch = batch_of(s, view);
    open_log(s);
    amp_step_begin(&s->step, &batch, subdivision);
    if (amp_step_has_bad_truth(&s->step)) hide_truth(s, view);
}

void amp_session_begin(struct amp_session *s, const network *view)
{
    bool resized = is_resized(s, view);
    int passes = view->batch ? (int)(*view->seen / (size_t)view->batch) : 0;
    int subdivision = view->train ? (passes - 1) % view->subdivisions : 0;
    s->view = *view;
    amp_session_take_deltas(s);
    if (resized) amp_session_describe(s, view);
    if (resized || needs_plan(s, view->train, subdivision)) make_anew(s, view);
    if (view->train) s->graph->staged = amp_upload_begin(view, s->plan->input_format);
    s->backend->acquire(s->context);
    s->graph->seen = *view->seen;
    s->graph->masks =
        amp_seed_masks(s->mask_seed, (uint32_t)amp_gpus_place(s->net), s->graph->seen);
    amp_session_judge_weights(s);
    if (view->train)
        begin_training(s, view, subdivision);
    else
        amp_graph_begin(s->graph, AMP_SIDE(s->device, view, input), NULL, false);
}
