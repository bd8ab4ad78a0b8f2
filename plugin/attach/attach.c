/* Decides what happens when a network is parsed, attached, resized and detached, and keeps the
 * promise that detaching leaves it as it was. It must not know what a plan contains
 * (core/plan/plan.c) or what happens in a pass (hooks.c). Files below this one know nothing of
 * these entry points.
 *
 * What Darknet forces here: it hands a layer around by value, so our functions must stand in
 * net->layers itself.
 *
 * Every program builds its network with parse_network_cfg. A program in which that call cannot be
 * caught calls amp_attach. */

#include "attach.h"

#include "ending.h"
#include "no_memory.h"
#include "amp.h"
#include "plugin/attach/feed/batches.h"
#include "device.h"
#include "device_memory.h"
#include "hooks.h"
#include "interposed.h"
#include "plugin/attach/run/ranks.h"
#include "rate.h"
#include "stand_in.h"
#include "plugin/attach/run/run.h"
#include "plugin/attach/run/signals.h"
#include "plugin/attach/feed/seed.h"
#include "plugin/attach/feed/sizes.h"
#include "plugin/attach/feed/staging.h"
#include "plugin/core/read/named_files.h"
#include "plugin/core/read/text.h"
#include "plugin/spread/launcher.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the cfg asks for ---- */

/* The graph and what is kept live in the context's memory, so they go first. */
static void free_session(struct amp_session *s)
{
    amp_graph_free(s->graph);
    amp_kept_free(s->kept);
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

static atomic_bool cuts_line_ends; /* threads parse networks side by side */

void amp_cut_line_ends(void)
{
    cuts_line_ends = true;
}

char *amp_line_end(char *line)
{
    size_t length = line && cuts_line_ends ? strlen(line) : 0;
    if (length && line[length - 1] == '\r') line[length - 1] = '\0';
    return line;
}

/* Once for all the networks of a cfg. */
static void tell_notes(const char *notes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char told[4096];
    pthread_mutex_lock(&lock);
    if (strcmp(told, notes)) {
        amp_notes_print(notes, stderr);
        snprintf(told, sizeof told, "%s", notes);
    }
    pthread_mutex_unlock(&lock);
}

/* Either key, mixed_precision or seed, makes a session: a seeded run without mixed precision needs
 * the options until the network is parsed (attach frees it then). All that can be wrong with the
 * keys is told now, before Darknet builds anything. */
static struct amp_session *read_session(const char *cfg_path)
{
    char err[1024], notes[4096] = "";
    struct amp_session *s = amp_allocate(1, sizeof *s);
    s->cfg = amp_cfg_read(cfg_path, err, sizeof err);
    if (!s->cfg) {
        if (mentions_our_keys(cfg_path)) amp_fail(err);
        free_session(s);
        return NULL;
    }
    if (amp_options_read(s->cfg, &s->options, notes, sizeof notes, err, sizeof err)) amp_fail(err);
    s->measures = amp_cfg_is_variant(cfg_path);
    if (!s->measures && !amp_launch_read(getenv).rank) tell_notes(notes);
    if (!s->options.mixed_precision && !s->options.seeded) {
        free_session(s);
        return NULL;
    }
    if (s->options.mixed_precision) {
        amp_cut_line_ends();
        if (amp_named_files_check_here(s->cfg, err, sizeof err)) amp_fail(err);
        s->desc = amp_net_describe(s->cfg, 0, 0, true, err, sizeof err);
        if (!s->desc) amp_fail(err);
        /* A variant's network measures, on one process. */
        if (!amp_cfg_is_variant(cfg_path)) amp_ranks_start(&s->options);
    }
    return s;
}

/* ---- attaching ---- */

/* Hooks go into every layer, also those that Darknet computes itself: the graph must see each one
 * pass. A layer without an update (l.update NULL) keeps it so, because Darknet calls every update
 * that is set. The last layer that has one ends the step. */
static void save_pointers(struct amp_session *s)
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
        AMP_SIDE(dev, l, forward) = amp_hooks.forward;
        AMP_SIDE(dev, l, backward) = amp_hooks.backward;
        if (AMP_SIDE(dev, l, update)) {
            AMP_SIDE(dev, l, update) = amp_hooks.update;
            s->step.last_update = i;
        }
        AMP_SIDE(dev, l, delta) = NULL;
    }
}

/* Images are counted over the whole batch in hand. With several processes each has a batch of its
 * own passes only. */
static const char *image_name(void *user, int subdivision, int image)
{
    const struct amp_session *s = user;
    int pass = subdivision - s->step.first_pass;
    return amp_batches_image(pass * s->desc->batch + image);
}

static void close_logs_at_exit(void)
{
    atexit(amp_sessions_close_logs);
    at_quick_exit(amp_sessions_close_logs); /* the darknet program ends by quick_exit */
}

/* Darknet reads these keys with adam=1 only, and hands them to every update. */
static void give_betas(struct amp_session *s)
{
    const struct amp_rules *rules = &s->options.rules;
    network *net = s->net;
    if (!amp_rules_keep_moments(rules)) return;
    s->own_betas.kept = true;
    s->own_betas.b1 = net->B1;
    s->own_betas.b2 = net->B2;
    s->own_betas.eps = net->eps;
    net->B1 = (float)rules->b1;
    net->B2 = (float)rules->b2;
    net->eps = (float)amp_rules_eps(rules);
}

static void put_betas_back(struct amp_session *s)
{
    if (!s->own_betas.kept) return;
    s->net->B1 = s->own_betas.b1;
    s->net->B2 = s->own_betas.b2;
    s->net->eps = s->own_betas.eps;
}

/* Sets what lives as long as the session, not as long as a plan: scaler, log and divergence go on
 * through every resize. */
static void start_training_state(struct amp_session *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    amp_scaler_init(&s->step.scaler, &s->options, s->desc->max_batches);
    give_betas(s);
    amp_log_start(&s->log, s->desc);
    s->log.layers_every = s->options.log_layers;
    s->log.noisy = s->options.log_noise && s->options.log_path[0];
    s->log.clips = s->options.rules.clip_norm > 0;
    s->log.onecycle = s->options.schedule.policy == AMP_POLICY_ONECYCLE;
    s->step.log = &s->log;
    s->step.subdivisions = s->desc->subdivisions;
    s->step.demote = amp_session_demote;
    s->step.take_losses = amp_hooks.take_losses;
    s->step.image_name = image_name;
    s->step.stop = amp_run_stop;
    s->step.user = s;
    s->step.divergence.burn_in = s->desc->burn_in;
    s->step.carry_on = s->options.on_divergence == AMP_DIVERGENCE_GOES_ON;
    amp_ranks_join(s, amp_signals_asked, amp_run_save_for_all, amp_give_up);
    pthread_once(&once, close_logs_at_exit);
}

/* The plan that is printed is the first one. */
static void report_stop(const struct amp_session *s)
{
    for (int i = 0; i < s->desc->n; i++) {
        const struct amp_layer_desc *l = &s->desc->layers[i];
        if (!l->stopbackward || !l->stop_until) continue;
        fprintf(stderr,
                "darknet-amp: %s:%d: stopbackward=%d: until that iteration only the layers behind "
                "this one are trained, as by AlexeyAB's Darknet on a GPU\n",
                s->cfg->path, amp_cfg_line(amp_cfg_layer(s->cfg, i), "stopbackward"),
                l->stop_until);
    }
}

static void report_plan(const struct amp_session *s)
{
    const network *net = s->net;
    amp_plan_print(s->plan, s->desc, stderr);
    amp_schedule_print(&s->options.schedule, &s->options.rules, net->learning_rate, net->momentum,
                       stderr);
}

static void report_noise(const struct amp_session *s)
{
    if (s->log.noisy && s->desc->subdivisions < 2)
        fprintf(stderr,
                "darknet-amp: amp_log_noise=1: a step has one pass here (subdivisions=1), and the "
                "noise scale compares a pass with a step: amp_log has null for it; subdivisions=2 "
                "would tell it\n");
}

/* The `darknet` program sets the variable for itself (app/main.c). Inside another program it is too
 * late for that: OpenMP has read the environment. */
static void report_spinning(const struct amp_session *s)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (s->device || omp_get_max_threads() == 1) return;
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
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
static void attach_session(struct amp_session *s, network *net)
{
    char err[512];
    s->net = net;
    /* The program may have resized it before amp_attach. */
    if (amp_session_describe(s, net, err, sizeof err)) amp_fail(err);
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
    if (amp_session_make_plan(s, true, err, sizeof err)) amp_fail(err);
    fflush(stdout);
    report_plan(s);
    report_stop(s);
    report_spinning(s);
    start_training_state(s);
    report_noise(s);
    save_pointers(s);
    if (amp_session_commit(s, err, sizeof err)) amp_give_up(s, err);
    if (s->device) amp_upload_pin(s->net);
    amp_session_enlist(s);
}

/* Leaves the list first, so that no other thread finds a session that is half gone. Gradients of an
 * unfinished step are handed to Darknet, and every deferred array gets its memory: Darknet's own
 * code will touch them all from now on. */
void amp_session_detach(struct amp_session *s)
{
    char err[200];
    amp_session_delist(s);
    amp_step_hand_over(&s->step);
    amp_rate_put_back(s); /* before the betas: a policy moves B1 from where give_betas put it */
    put_betas_back(s);
    amp_log_close(&s->log, &s->step.scaler);
    if (s->device) amp_upload_unpin(s->net);
    amp_staging_tidy();
    if (amp_session_commit_all(s, err, sizeof err)) amp_fail(err);
    for (int i = 0; i < s->net->n; i++) {
        layer *l = &s->net->layers[i];
        AMP_SIDE(s->device, l, forward) = s->saved[i].forward;
        AMP_SIDE(s->device, l, backward) = s->saved[i].backward;
        AMP_SIDE(s->device, l, update) = s->saved[i].update;
    }
    amp_session_give_deltas(s);
    free_session(s);
}

/* ---- networks ---- */

static atomic_int attach_count;

int amp_attach_count(void)
{
    return attach_count;
}

/* Counts every network that the plugin has reached, whether or not its cfg asks for anything: tests
 * and users can tell a plugin that is not loaded from a cfg without keys. AMP_TRACE in the
 * environment prints it. */
static void count_attachment(const char *cfg_path)
{
    attach_count++;
    if (getenv("AMP_TRACE")) fprintf(stderr, "darknet-amp: attached to %s\n", cfg_path);
}

/* Darknet sets the groups of convolutions only, but divides by those of deconvolutions too when it
 * loads weights. */
static void make_loadable(network *net)
{
    for (int i = 0; i < net->n; i++)
        if (net->layers[i].type == DECONVOLUTIONAL) net->layers[i].groups = 1;
}

/* A process has one Darknet, so one look is enough; looking through all its libraries takes a
 * while. */
static void require_matching_darknet(void)
{
    static atomic_bool matches;
    char err[512];
    if (matches) return;
    if (amp_check_abi(err, sizeof(err))) amp_fail(err);
    matches = true;
}

/* On the host, memory that ends shows only as NULL arrays, since Darknet does not check; on a
 * device Darknet ends the program itself. The check wants to see the deltas, so they are given back
 * for its time. */
static int attach(struct amp_session *s, network *net)
{
    if (!s->options.mixed_precision) {
        free_session(s);
        return 0;
    }
    attach_session(s, net);
    if (s->device) return 1;
    amp_session_give_deltas(s);
    amp_check_arrays(s);
    amp_session_take_deltas(s);
    return 1;
}

/* Darknet has made another network than such a cfg describes, and would run one in its own way. */
static void refuse_other_rules(const struct amp_session *s)
{
    if (s && s->desc && s->desc->dialect != AMP_DIALECT_STOCK)
        amp_fail("a cfg that follows the other Darknets' rules must be parsed with the plugin, and "
                 "its network stays attached: start the program with "
                 "LD_PRELOAD=libdarknet_amp.so");
}

/* For amp_attach: the network was parsed without us. Attaching twice does nothing. */
static int attach_to(network *net, const char *cfg_path)
{
    require_matching_darknet();
    if (amp_session_of(net->layers)) return 0;
    count_attachment(cfg_path);
    make_loadable(net);
    struct amp_session *s = read_session(cfg_path);
    refuse_other_rules(s);
    if (s && s->options.seeded && !amp_seed_reaches_darknet())
        amp_fail("seed: the random numbers of this Darknet do not pass through the plugin; start "
                 "the program with LD_PRELOAD=libdarknet_amp.so, or remove the key");
    return s ? attach(s, net) : 0;
}

/* Loader and group hold the network's address also if it has no session (seed alone), so they
 * forget it in any case. */
int amp_network_detach(network *net)
{
    struct amp_session *s = amp_session_of(net->layers);
    amp_batches_forget(net);
    if (!s) return false;
    amp_run_unwatch(s);
    amp_session_detach(s);
    return true;
}

/* The order is forced by Darknet, which makes every array while it parses. Options come first, so
 * that a wrong key ends the program at once; gpu_index next, since the backend depends on it; the
 * seed before Darknet draws weights; deferring before Darknet asks for memory. */
network *amp_network_parse(char *filename)
{
    require_matching_darknet();
    struct amp_session *s = read_session(filename);
#ifdef GPU
    if (!amp_has_gpu()) *AMP_USE(gpu_index) = -1;
#endif
    struct amp_cfg_variant variant = {.fd = -1};
    char *file = filename;
    if (s && s->options.mixed_precision) {
        amp_backend_choose(s->cfg, &s->options);
        file = amp_stand_in_cfg(s, filename, amp_ranks_subdivisions(s), &variant);
    }
    const uint64_t *seed = s && s->options.seeded ? &s->options.seed : NULL;
    amp_seed_enter_parse(seed, s && s->desc && s->desc->dialect != AMP_DIALECT_STOCK);
    if (s) amp_session_defer(s);
    enum amp_memory_use before = amp_memory_set_use(AMP_MEMORY_PARSE);
    amp_memory_parse(s ? s->cfg : NULL);
    network *net = AMP_REAL(parse_network_cfg)(file);
    amp_memory_set_use(before);
    amp_session_stop_deferring();
    amp_seed_leave_parse();
    amp_cfg_variant_close(&variant);
    /* A thread that has a batch in hand is training. A network that it parses now is a second one,
     * to measure with, and must not take the training's place. */
    if (!amp_batches_in_hand()) amp_batches_follow(s ? net : NULL, seed);
#ifdef GPU
    /* With -nogpu and no key of ours, Darknet stays as it is. */
    bool mixed = s && s->options.mixed_precision;
    if (!amp_has_gpu() || (mixed && !amp_darknet_on_device())) amp_no_gpu_heads(net);
#endif
    count_attachment(filename);
    make_loadable(net);
    if (s && s->desc) amp_stand_in_complete(s->desc, net);
    if (s) attach(s, net);
    return net;
}

/* resize_network reallocates what it finds: it needs its own deltas, input that is not page-locked,
 * and new device arrays may be deferred again. Everything is taken back afterwards, and `moved`
 * makes the next pass build a new graph. */
int amp_network_resize(network *net, int w, int h)
{
    char err[512];
    struct amp_session *s = amp_session_of(net->layers);
    if (s) {
        amp_gpu_use(s);
        if (s->device) amp_upload_unpin(s->net);
        amp_session_give_deltas(s);
        amp_session_defer(s);
        amp_stand_in_show(s->desc, net);
        amp_sizes_apply(s, &w, &h);
    }
    enum amp_memory_use before = amp_memory_set_use(s ? AMP_MEMORY_CHECKED : AMP_MEMORY_OTHER);
    int result = AMP_REAL(resize_network)(net, w, h);
    amp_memory_set_use(before);
    amp_session_stop_deferring();
    if (s) {
        amp_stand_in_hide(s->desc, net);
        if (!s->device) amp_check_arrays(s);
        amp_session_take_deltas(s);
        /* Darknet copies the next batch to the device before the first hook runs. */
        if (amp_session_commit(s, err, sizeof err)) amp_give_up(s, err);
        if (s->device) amp_upload_pin(s->net);
        s->moved = true;
    }
    return result;
}

/* ---- as programs call them; exit waits until each has returned ---- */

int amp_attach(network *net, const char *cfg_path)
{
    amp_ending_enter();
    int attached = attach_to(net, cfg_path);
    amp_ending_leave();
    return attached;
}

int amp_detach(network *net)
{
    amp_ending_enter();
    struct amp_session *s = amp_session_of(net->layers);
    refuse_other_rules(s);
    int gpu = s ? amp_gpu_enter(s) : -1;
    int detached = amp_network_detach(net);
    amp_gpu_leave(gpu);
    amp_ending_leave();
    return detached;
}
