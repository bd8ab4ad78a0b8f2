/* Decides whether a sidecar's state and dtype are used, and gathers the state that a sidecar keeps.
 * It must not know the sidecar's format (core/files/sidecar.c) nor which file belongs to which
 * (core/files/checkpoint.c).
 *
 * On a GPU the masters and momentum are on the device, and core/files/sidecar.c knows no device. So
 * the state is copied to the host, used there, and written back. */

#include "save.h"

#include "plugin/core/files/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what a run has ---- */

/* n + 1: an empty array is no failed malloc. */
static float *on_host(const struct amp_session *s, const float *x, size_t n)
{
    float *copy = malloc((n + 1) * sizeof *copy);
    if (!copy) amp_fail("out of memory");
    s->backend->acquire(s->context); /* wait for what Darknet has just written */
    if (x) s->backend->read(s->context, copy, x, n * sizeof *copy);
    return copy;
}

/* What Darknet owns; on a device, copies on the host, in the same list. */
static struct amp_owned host_list(const struct amp_session *s)
{
    struct amp_owned own = amp_native_list(s->net, s->saved, s->device);
    amp_kept_enter(s->kept, &own);
    if (!s->device) return own;
    for (struct amp_param *p = own.params; p < own.params + own.n_params; p++) {
        p->value = on_host(s, p->value, p->n);
        p->update = on_host(s, p->update, p->n);
        if (p->average) p->average = on_host(s, p->average, p->n);
        if (!p->m) continue;
        p->m = on_host(s, p->m, p->n);
        p->v = on_host(s, p->v, p->n);
    }
    for (struct amp_rolling *r = own.rolling; r < own.rolling + own.n_rolling; r++) {
        r->value = on_host(s, r->value, r->n);
        if (r->average) r->average = on_host(s, r->average, r->n);
    }
    return own;
}

/* The scaler is copied by value; demotions are the session's own array, so that a restore writes
 * into it directly. */
struct amp_run_state amp_run_state_of(const struct amp_session *s)
{
    struct amp_owned host = host_list(s);
    return (struct amp_run_state){
        .host = host,
        .run = {.seen = *s->net->seen,
                .t = *s->net->t,
                .dtype = s->options.dtype,
                .scaler = s->step.scaler,
                .n_layers = s->net->n,
                .demoted = s->demoted,
                .n_params = host.n_params,
                .params = host.params,
                .n_rolling = host.n_rolling,
                .rolling = host.rolling,
                .optimizer = s->options.rules.optimizer,
                .keeps_moments = amp_rules_keep_moments(&s->options.rules),
                .counts = host.counts ? *host.counts : (struct amp_counts){0, 0}}};
}

void amp_run_state_free(const struct amp_session *s, struct amp_run_state *state)
{
    struct amp_owned *host = &state->host;
    for (struct amp_param *p = host->params; s->device && p < host->params + host->n_params; p++) {
        free(p->value);
        free(p->update);
        free(p->m);
        free(p->v);
        free(p->average);
    }
    for (int i = 0; s->device && i < host->n_rolling; i++) {
        free(host->rolling[i].value);
        free(host->rolling[i].average);
    }
    amp_native_free_list(host);
}

/* An array that is not there has NULL on both sides. */
static void write_back(const struct amp_session *s, float *to, const float *from, size_t n)
{
    if (to) s->backend->write(s->context, to, from, n * sizeof *to);
}

/* All but weights and running statistics: a sidecar has none of those. They are in the weights
 * file, which Darknet has loaded. */
static void to_device(const struct amp_session *s, const struct amp_owned *host)
{
    if (!s->device) return;
    struct amp_owned own = amp_native_list(s->net, s->saved, true);
    amp_kept_enter(s->kept, &own);
    for (int i = 0; i < own.n_params; i++) {
        const struct amp_param *to = &own.params[i], *from = &host->params[i];
        write_back(s, to->update, from->update, to->n);
        write_back(s, to->m, from->m, to->n);
        write_back(s, to->v, from->v, to->n);
        write_back(s, to->average, from->average, to->n);
    }
    for (int i = 0; i < own.n_rolling; i++)
        write_back(s, own.rolling[i].average, host->rolling[i].average, own.rolling[i].n);
    amp_native_free_list(&own);
}

static void settle_frozen(struct amp_session *s)
{
    struct amp_owned own = amp_native_list(s->net, s->saved, s->device);
    amp_kept_settle_frozen(s->kept, &own, s->desc);
    amp_native_free_list(&own);
}

/* Writes back a state that a sidecar was restored into. Layers that had left FP16 are in s->demoted
 * now, so the plan must be made again. */
static void put_back(struct amp_session *s, const struct amp_run_state *state)
{
    to_device(s, &state->host);
    *s->net->t = (int)state->run.t;
    s->step.scaler = state->run.scaler;
    s->replan = true;
    if (!s->kept) return;
    settle_frozen(s);
    /* A count whose feature is off now begins anew when it is switched on again. */
    if (s->options.rules.ema_alpha > 0) s->kept->counts.averaged = state->run.counts.averaged;
    if (s->options.rules.clip_norm > 0) s->kept->counts.clipped = state->run.counts.clipped;
}

/* Always true, so that the caller can say "found" and name it in one expression. */
static bool name_spoilt(const struct amp_session *s, const char *array, int layer, char *what,
                        size_t size)
{
    snprintf(what, size, "%s of layer %d (%s)", array, layer,
             amp_layer_type_name(s->desc->layers[layer].type));
    return true;
}

/* Rolling statistics count too: a NaN there spoils inference, though training would not notice. */
bool amp_run_is_spoilt(const struct amp_session *s, const struct amp_run_state *state, char *what,
                       size_t size)
{
    static const char *const names[] = {"weights", "biases", "batch-norm scales"};
    bool spoilt = false;
    const struct amp_owned *host = &state->host;
    const struct amp_param *end = host->params + host->n_params;
    for (const struct amp_param *p = host->params; p < end && !spoilt; p++) {
        const char *array = !amp_all_finite(p->value, p->n)    ? names[p->kind]
                            : !amp_all_finite(p->update, p->n) ? "momentum"
                            : p->m && (!amp_all_finite(p->m, p->n) || !amp_all_finite(p->v, p->n))
                                ? "Adam moments"
                                : NULL;
        spoilt = array && name_spoilt(s, array, p->layer, what, size);
    }
    for (int i = 0; i < host->n_rolling && !spoilt; i++) {
        const struct amp_rolling *r = &host->rolling[i];
        spoilt = !amp_all_finite(r->value, r->n) &&
                 name_spoilt(s, amp_watch_name(AMP_WATCH_ROLLING), r->layer, what, size);
    }
    return spoilt;
}

/* ---- taking it up ---- */

/* Outside of AlexeyAB's time for an average none is missed. */
static bool misses_average(const struct amp_session *s, uint64_t iteration)
{
    const struct amp_rules *r = &s->options.rules;
    bool in_time =
        !r->ema_until || (iteration >= (uint64_t)r->ema_from && iteration < (uint64_t)r->ema_until);
    return r->ema_alpha > 0 && in_time && !amp_sidecar_has_averages(s->sidecar);
}

static void report_resumed(const struct amp_session *s, const struct amp_run *r)
{
    char scale[32];
    uint64_t iteration = amp_iterations_in(s->net, r->seen);
    int demoted = 0;
    for (int i = 0; i < r->n_layers; i++)
        demoted += r->demoted[i] != AMP_FORMATS;
    fprintf(stderr,
            "mixed precision: resumed from %s: iteration %" PRIu64 ", momentum%s, loss scale %s",
            amp_sidecar_path(s->sidecar), iteration,
            s->net->adam || r->keeps_moments ? " and Adam moments" : "",
            amp_scale_text(r->scaler.scale, scale));
    if (demoted) fprintf(stderr, ", layers that left FP16: %d", demoted);
    fputc('\n', stderr);
    if (misses_average(s, iteration))
        fprintf(stderr, "mixed precision: %s has no moving average: it begins with these weights\n",
                amp_sidecar_path(s->sidecar));
}

/* NULL if the layer goes on exactly. between: the run stopped between two draws of a size; Darknet
 * draws one every ten iterations, counted from where a run starts. */
static const char *why_not_exact(const struct amp_layer_desc *l, bool between, bool device)
{
    if (l->dontsave || l->dontload || l->dontloadscales || l->numload)
        return "the cfg keeps parameters of it out of the weights file";
    if (l->random && between) return "random=1 draws its sizes at other iterations";
    /* As list_carried in native.c. */
    bool carries = l->type == AMP_GRU || l->type == AMP_LSTM || (l->type == AMP_RNN && device);
    return carries ? "its recurrent state starts from zero" : NULL;
}

/* One reason is enough: the first layer that has one. */
static void report_not_exact(const struct amp_net_desc *net, uint64_t iteration, bool device)
{
    if (net->auto_subdivisions)
        fprintf(stderr,
                "mixed precision: exactly the run that stopped only if subdivisions=auto was %d "
                "there too\n",
                net->subdivisions);
    for (int i = 0; i < net->n; i++) {
        const char *why = why_not_exact(&net->layers[i], iteration % 10 != 0, device);
        if (!why) continue;
        fprintf(stderr,
                "mixed precision: not exactly the run that stopped, because of layer %d (%s): %s\n",
                i, amp_layer_type_name(net->layers[i].type), why);
        return;
    }
}

/* amp_dtype=auto chose for this machine; the run may have begun on another. */
static void keep_dtype(struct amp_session *s)
{
    char err[512];
    enum amp_dtype_choice here = s->options.dtype, began = amp_sidecar_dtype(s->sidecar);
    const char *reason = s->options.dtype_reason;
    if (!reason || here == began) return;
    s->options.dtype = began;
    s->options.dtype_reason = "the run began with it";
    if (amp_session_make_plan(s, true, err, sizeof err)) amp_fail(err);
    amp_scaler_init(&s->step.scaler, &s->options, s->desc->max_batches);
    fprintf(
        stderr,
        "mixed precision: goes on in %s, as the run began; amp_dtype=auto would take %s (%s). To "
        "change over, write amp_dtype=%s under [net]%s. What runs now:\n",
        amp_dtype_word(began), amp_dtype_word(here), reason, amp_dtype_word(here),
        s->options.level ? " in place of amp_level" : "");
    amp_plan_print(s->plan, s->desc, stderr);
}

static void restore(struct amp_session *s)
{
    char err[3 * PATH_MAX];
    keep_dtype(s);
    struct amp_run_state state = amp_run_state_of(s);
    if (amp_sidecar_restore(s->sidecar, &state.run, err, sizeof err)) amp_fail(err);
    put_back(s, &state);
    report_resumed(s, &state.run);
    report_not_exact(s->desc, amp_iterations_in(s->net, state.run.seen), s->device);
    amp_run_state_free(s, &state);
}

/* seen must be what the file had: after -clear (another count) the user wanted nothing kept, so
 * nothing is missing. Said once. */
static void report_without_sidecar(struct amp_session *s, size_t seen)
{
    bool missed = *s->without_sidecar && s->trained && s->without_sidecar_seen == seen && seen > 0;
    if (missed)
        fprintf(stderr,
                "mixed precision: %s" AMP_SIDECAR_SUFFIX
                " is not there: momentum%s, loss scale and the list of layers that left FP16 start "
                "anew, and it is not exactly the run that stopped. If the weights were copied "
                "without it, copy it too and start again\n",
                s->without_sidecar, s->net->adam ? ", Adam moments" : "");
    if (missed && s->options.dtype_reason)
        fprintf(stderr,
                "mixed precision: the run may have begun in another dtype than %s, which "
                "amp_dtype=auto chose here\n",
                amp_dtype_word(s->options.dtype));
    *s->without_sidecar = 0;
}

/* Makes what the rules need; a graph that was made for passes without an update knows nothing of
 * it. The averages begin with the weights as they are now, which a sidecar's then replace. */
static void keep(struct amp_session *s)
{
    char err[256];
    const struct amp_rules *rules = &s->options.rules;
    bool needs = rules->clip_norm > 0 || rules->ema_alpha > 0 || amp_rules_keep_moments(rules);
    if (s->kept || !needs) return;
    struct amp_owned own = amp_native_list(s->net, s->saved, s->device);
    s->backend->acquire(s->context); /* wait for what Darknet has just written */
    s->kept = amp_kept_create(s->backend, s->context, rules, &own, err, sizeof err);
    amp_native_free_list(&own);
    if (!s->kept) amp_fail(err);
    s->moved = s->graph;
}

void amp_session_restart_kept(struct amp_session *s)
{
    if (!s->kept) return;
    struct amp_owned own = amp_native_list(s->net, s->saved, s->device);
    s->backend->acquire(s->context);
    amp_kept_restart(s->kept, &own);
    amp_native_free_list(&own);
}

int amp_session_swap_averages(struct amp_session *s, char *err, size_t err_size)
{
    struct amp_owned own = amp_native_list(s->net, s->saved, s->device);
    s->backend->acquire(s->context);
    int failed = amp_kept_swap_averages(s->kept, &own);
    s->backend->release(s->context); /* Darknet reads them next */
    amp_native_free_list(&own);
    if (failed) snprintf(err, err_size, "no memory to exchange weights and their averages");
    return failed;
}

/* A count of images that differs from the sidecar's means the program changed it after loading.
 * Then the backup that was loaded is another run's file, too: a signal must not overwrite it. */
void amp_session_resume(struct amp_session *s, size_t seen)
{
    report_without_sidecar(s, seen);
    keep(s);
    if (!s->sidecar) return;
    if (seen == amp_sidecar_seen(s->sidecar)) {
        restore(s);
    } else {
        *s->backup = 0;
        fprintf(stderr,
                "mixed precision: %s is not used, because the count of images seen was set to %zu "
                "after loading (-clear does that): momentum and loss scale start anew\n",
                amp_sidecar_path(s->sidecar), seen);
    }
    amp_sidecar_close(s->sidecar);
    s->sidecar = NULL;
}
