/* Decides where moments and averages lie and what they begin with. It must not know how they are
 * updated (gradients.c) or saved (sidecar_write.c). */
#include "kept.h"

#include <stdio.h>
#include <stdlib.h>

static float *make_array(struct amp_kept *k, size_t n)
{
    return k->backend->alloc(k->context, (n + 1) * sizeof(float));
}

static bool make_param(struct amp_kept *k, const struct amp_rules *rules, const struct amp_param *p,
                       struct amp_kept_param *kept)
{
    bool moments = amp_rules_keep_moments(rules), averages = rules->ema_alpha > 0;
    if (moments) kept->m = make_array(k, p->n);
    if (moments) kept->v = make_array(k, p->n);
    if (averages) kept->average = make_array(k, p->n);
    return (!moments || (kept->m && kept->v)) && (!averages || kept->average);
}

static bool make_arrays(struct amp_kept *k, const struct amp_rules *rules,
                        const struct amp_owned *owned)
{
    /* AlexeyAB's average is of weights only. */
    bool good = true, averages = rules->ema_alpha > 0 && !rules->ema_until;
    k->params = calloc((size_t)k->n_params + 1, sizeof *k->params);
    k->averages = calloc((size_t)k->n_rolling + 1, sizeof *k->averages);
    if (!k->params || !k->averages) return false;
    for (int i = 0; i < k->n_params && good; i++)
        good = make_param(k, rules, &owned->params[i], &k->params[i]);
    for (int i = 0; i < k->n_rolling && good && averages; i++) {
        if (owned->rolling[i].carried) continue;
        k->averages[i] = make_array(k, owned->rolling[i].n);
        good = k->averages[i];
    }
    return good;
}

static void copy(struct amp_kept *k, float *to, const float *from, size_t n)
{
    struct ampk_span span = {to, from, n};
    if (to) k->backend->copy_many(k->context, &span, 1);
}

static void zero(struct amp_kept *k, float *x, size_t n)
{
    if (x) k->backend->fill_zero(k->context, x, n * sizeof *x);
}

void amp_kept_restart(struct amp_kept *k, const struct amp_owned *owned)
{
    k->counts = (struct amp_counts){0, 0};
    for (int i = 0; i < k->n_params; i++) {
        const struct amp_param *p = &owned->params[i];
        zero(k, k->params[i].m, p->n);
        zero(k, k->params[i].v, p->n);
        copy(k, k->params[i].average, p->value, p->n);
    }
    for (int i = 0; i < k->n_rolling; i++)
        copy(k, k->averages[i], owned->rolling[i].value, owned->rolling[i].n);
}

void amp_kept_settle_frozen(struct amp_kept *k, const struct amp_owned *owned,
                            const struct amp_net_desc *net)
{
    for (int i = 0; i < k->n_params; i++) {
        const struct amp_param *p = &owned->params[i];
        if (net->layers[p->layer].freeze) copy(k, k->params[i].average, p->value, p->n);
    }
    for (int i = 0; i < k->n_rolling; i++) {
        const struct amp_rolling *r = &owned->rolling[i];
        if (net->layers[r->layer].freeze) copy(k, k->averages[i], r->value, r->n);
    }
}

struct amp_kept *amp_kept_create(const struct ampk_backend *backend, struct ampk_context *context,
                                 const struct amp_rules *rules, const struct amp_owned *owned,
                                 char *err, size_t err_size)
{
    struct amp_kept *k = calloc(1, sizeof *k);
    if (k) {
        *k = (struct amp_kept){.backend = backend,
                               .context = context,
                               .n_params = owned->n_params,
                               .n_rolling = owned->n_rolling};
        bool made = make_arrays(k, rules, owned);
        if (made) amp_kept_restart(k, owned);
        if (made) return k;
    }
    amp_kept_free(k);
    snprintf(err, err_size,
             "no memory for the arrays of optimizer=%s%s, each as large as the weights",
             amp_optimizer_word(rules->optimizer), rules->ema_alpha > 0 ? " and ema_alpha" : "");
    return NULL;
}

void amp_kept_free(struct amp_kept *k)
{
    if (!k) return;
    for (int i = 0; k->params && i < k->n_params; i++) {
        k->backend->free(k->context, k->params[i].m);
        k->backend->free(k->context, k->params[i].v);
        k->backend->free(k->context, k->params[i].average);
    }
    for (int i = 0; k->averages && i < k->n_rolling; i++)
        k->backend->free(k->context, k->averages[i]);
    free(k->params);
    free(k->averages);
    free(k);
}

void amp_kept_enter(struct amp_kept *k, struct amp_owned *owned)
{
    if (!k) return;
    for (int i = 0; i < k->n_params; i++) {
        struct amp_param *p = &owned->params[i];
        if (k->params[i].m) p->m = k->params[i].m;
        if (k->params[i].v) p->v = k->params[i].v;
        p->average = k->params[i].average;
    }
    for (int i = 0; i < k->n_rolling; i++)
        owned->rolling[i].average = k->averages[i];
    owned->counts = &k->counts;
}

/* ---- averages in place of weights ---- */

/* room: twice n floats on the host. */
static void swap(struct amp_kept *k, float *a, float *b, size_t n, float *room)
{
    size_t bytes = n * sizeof *room;
    k->backend->read(k->context, room, a, bytes);
    k->backend->read(k->context, room + n, b, bytes);
    k->backend->write(k->context, a, room + n, bytes);
    k->backend->write(k->context, b, room, bytes);
}

static size_t largest_of(const struct amp_owned *o)
{
    size_t most = 1;
    for (int i = 0; i < o->n_params; i++)
        if (o->params[i].n > most) most = o->params[i].n;
    for (int i = 0; i < o->n_rolling; i++)
        if (o->rolling[i].n > most) most = o->rolling[i].n;
    return most;
}

int amp_kept_swap_averages(struct amp_kept *k, const struct amp_owned *owned)
{
    float *room = malloc(2 * largest_of(owned) * sizeof *room);
    if (!room) return -1;
    for (int i = 0; i < k->n_params; i++)
        if (k->params[i].average)
            swap(k, k->params[i].average, owned->params[i].value, owned->params[i].n, room);
    for (int i = 0; i < k->n_rolling; i++)
        if (k->averages[i])
            swap(k, k->averages[i], owned->rolling[i].value, owned->rolling[i].n, room);
    free(room);
    return 0;
}
