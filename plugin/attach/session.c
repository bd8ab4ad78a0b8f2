/* Decides when a session has to make plan and graph anew, and keeps the promise that detaching
 * leaves the network as it was. It must not know what a plan contains (core/plan.c), nor who calls
 * it: attach.c does once per network, hooks.c once per pass.
 *
 * What Darknet forces here: it hands a layer around by value, so our functions must stand in
 * net->layers itself; and it fills l.delta with zeros before every forward if that is not NULL, so
 * deltas are hidden while attached. */

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
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the cfg asks for ---- */

/* A cfg that our reader rejects but Darknet's more tolerant one accepts is fine, unless it has a
 * key of ours: then the error must be told. */
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

/* Either key, mixed_precision or seed, makes a session: a seeded run without mixed precision needs
 * the options until the network is parsed (attach.c frees it then). All that can be wrong with the
 * keys is told now, before Darknet builds anything. */
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

/* Hooks go into every layer, also those that Darknet computes itself: the graph must see each one
 * pass. A layer without an update (l.update NULL) keeps it so, because Darknet calls every update
 * that is set. The last layer that has one ends the step. */
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

/* Images are counted over the whole batch in hand. With several GPUs each gets a part of
 * consecutive passes, in the order of their places. */
static const char *image_name(void *user, int subdivision, int image)
{
    const struct amp_session *s = user;
    int pass = amp_gpus_place(s->net) * s->step.subdivisions + subdivision;
    return amp_loader_image(pass * s->desc->batch + image);
}

/* Ends a run that has diverged. Networks that train with this one finish their iteration first; if
 * that cannot be known (amp_gpus_wait), only this one's log is closed. */
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
    at_quick_exit(amp_sessions_close_logs); /* the darknet program ends by quick_exit */
}

static void start_scaler(struct amp_session *s)
{
    amp_scaler_init(&s->step.scaler, &s->options, s->desc->max_batches, s->plan->replayable);
}

void amp_session_keep_dtype(struct amp_session *s, enum amp_dtype_choice dtype)
{
    s->options.dtype = dtype;
    s->options.dtype_reason = "the run began with it";
    amp_session_make_plan(s, true);
    start_scaler(s);
}

/* Sets what lives as long as the session, not as long as a plan: scaler, log and divergence go on
 * through every resize. */
static void start_training_state(struct amp_session *s, const struct amp_hooks *hooks)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    start_scaler(s);
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

/* Printed once for all GPUs (-gpus 0,1): a plan follows from cfg and options, whatever the GPU.
 * What one GPU cannot do is told for that GPU (tell_notes in replan.c). */
static void tell_plan(const struct amp_session *s)
{
    if (amp_session_is_planned_alike(s))
        fprintf(stderr, "mixed precision: GPU %d as planned above\n", s->net->gpu_index);
    else
        amp_plan_print(s->plan, s->desc, stderr);
}

/* The `darknet` program sets the variable for itself (app/main.c). Inside another program it is too
 * late for that: OpenMP has read the environment. */
static void tell_spinning(const struct amp_session *s)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (s->device || getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (atomic_flag_test_and_set(&told)) return;
    fprintf(stderr,
            "darknet-amp: OpenMP's threads spin while they wait for each other. If other programs "
            "use the same cores, that makes a step several times as long: start with "
            "GOMP_SPINCOUNT=" AMP_SPIN_COUNT " in the environment\n");
}

/* Darknet's own arrays may have taken all memory. Like ours, they grow with the images of a pass,
 * so the same advice helps. */
static _Noreturn void fail_without_context(const network *net, const char *why)
{
    char message[700];
    if (!strstr(why, AMPK_NO_MEMORY)) amp_fail(why);
    snprintf(message, sizeof message,
             "%s (%d images of %dx%d in a pass): lower batch or raise subdivisions", why,
             net->batch, net->w, net->h);
    amp_fail(message);
}

/* The order is forced. The GPU is set before the backend makes its context on it; the plan exists
 * before pointers are saved, because a failure until then leaves the network untouched; arrays get
 * memory (commit) only when the plan says which ones are used; other threads find the session only
 * when it is complete (enlist). */
void amp_session_attach(struct amp_session *s, network *net, const struct amp_hooks *hooks)
{
    char err[512];
    s->net = net;
    amp_session_describe(s, net); /* the program may have resized it before amp_attach */
    s->demoted = amp_session_no_demotions(net->n);
    s->inference_demoted = amp_session_no_demotions(net->n);
    s->device = amp_darknet_on_device();
    s->mask_seed = s->options.seeded ? s->options.seed : amp_seed_of_clock();
    amp_gpu_use(s);
    s->backend = amp_backend_choose(s->cfg, &s->options);
    amp_options_settle_dtype(&s->options, s->device,
                             s->backend->multiplies_bf16 && s->backend->multiplies_bf16());
    s->context = s->backend->context_create(0, err, sizeof err);
    if (!s->context) fail_without_context(net, err);
    amp_ending_watch(AMP_ENDING_AFTER_CONTEXT);
    amp_session_make_plan(s, true);
    fflush(stdout);
    tell_plan(s);
    tell_spinning(s);
    start_training_state(s, hooks);
    save_pointers(s, hooks);
    amp_session_commit(s);
    amp_session_pin(s);
    amp_session_enlist(s);
}

/* The graph lives in the context's memory, so it goes first. */
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

/* Leaves the list first, so that no other thread finds a session that is half gone. Gradients of an
 * unfinished step are handed to Darknet, and every deferred array gets its memory: Darknet's own
 * code will touch them all from now on. */
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
    return !s->graph || s->moved || wrong_use || (s->replan && subdivision == 0);
}

/* pass_images: if memory ends in here, the pass has not begun, and amp_give_up takes its images out
 * of `seen`. */
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

/* Uploads are asked for the plan's input format, so the plan comes first. acquire takes the device
 * over from Darknet's stream; from then on all work is on ours. Subdivision: `seen` counts this
 * pass already, hence the - 1. */
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
