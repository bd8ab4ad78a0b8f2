/* Update rules and moving averages of flat FP32 arrays, by the formulas of kernels.h. Products and
 * sums are rounded one by one (no fused multiply-add), so that every instruction set gives the same
 * bits. */
#include "cpu.h"
#include "simd.h"

#include <math.h>

/* The last vector may be shorter: simd.h treats elements from n on as missing. */
AMPK_INLINE ampk_vec load(const float *p, size_t i, size_t n)
{
    return ampk_vec_load(p, i, AMPK_FP32, n - i);
}

AMPK_INLINE void store(float *p, size_t i, size_t n, ampk_vec v)
{
    ampk_vec_store(p, i, AMPK_FP32, n - i, v);
}

/* Clamps to [-clip, clip] if clip > 0; NaN stays NaN. */
AMPK_INLINE ampk_vec clamp(ampk_vec v, float clip)
{
    if (!(clip > 0)) return v;
    ampk_vec most = ampk_vec_set(clip), least = ampk_vec_set(-clip);
    v = ampk_vec_if_greater(v, most, most, v);
    return ampk_vec_if_greater(least, v, least, v);
}

/* A rule for one array: the factors that are equal for all of its weights. */
struct rule {
    const struct ampk_rule *all;
    float unbias1, unbias2; /* 1 - b^t */
    float rate;
};

static struct rule rule_for(const struct ampk_rule *all, const struct ampk_param *p)
{
    return (struct rule){all, (float)(1 - pow(all->b1, all->t)), (float)(1 - pow(all->b2, all->t)),
                         p->trust ? p->rate * *p->trust : p->rate};
}

/* Elements [first, first + n) of an array's arrays. */
static struct ampk_param piece_of(const struct ampk_param *p, size_t first, size_t n)
{
    struct ampk_param piece = *p;
    piece.value += first;
    piece.grad += first;
    if (p->update) piece.update += first;
    if (p->m) piece.m += first;
    if (p->v) piece.v += first;
    if (p->average) piece.average += first;
    piece.n = n;
    return piece;
}

AMPK_INLINE ampk_vec gradient(const struct ampk_rule *r, const struct ampk_param *p, size_t i)
{
    return clamp(ampk_vec_set(p->unscale) * load(p->grad, i, p->n), r->limit);
}

/* Stores the new weights, clamped, and lets the average follow them. */
AMPK_INLINE void store_weight(const struct ampk_rule *r, const struct ampk_param *p, size_t i,
                              ampk_vec weight)
{
    weight = clamp(weight, p->clip);
    store(p->value, i, p->n, weight);
    if (!p->average) return;
    ampk_vec average = load(p->average, i, p->n);
    store(p->average, i, p->n, average + ampk_vec_set(r->average_rest) * (weight - average));
}

/* The order of operations is Darknet's (kernels.h). */
static void sgd_piece(const struct rule *r, struct ampk_param p)
{
    for (size_t i = 0; i < p.n; i += AMPK_LANES) {
        ampk_vec weight = load(p.value, i, p.n);
        ampk_vec velocity = load(p.update, i, p.n) + gradient(r->all, &p, i);
        if (p.decay != 0) velocity -= ampk_vec_set(p.decay) * weight;
        weight += ampk_vec_set(r->rate) * velocity;
        store_weight(r->all, &p, i, weight);
        store(p.update, i, p.n, velocity * ampk_vec_set(r->all->momentum));
    }
}

static void lars_piece(const struct rule *r, struct ampk_param p)
{
    for (size_t i = 0; i < p.n; i += AMPK_LANES) {
        ampk_vec weight = load(p.value, i, p.n);
        ampk_vec d = gradient(r->all, &p, i) - ampk_vec_set(p.decay) * weight;
        ampk_vec step = load(p.update, i, p.n) + ampk_vec_set(r->rate) * d;
        store_weight(r->all, &p, i, weight + step);
        store(p.update, i, p.n, step * ampk_vec_set(r->all->momentum));
    }
}

struct moments {
    ampk_vec m, v;
};

/* Of the gradient d. */
AMPK_INLINE struct moments moments_with(const struct ampk_rule *r, const struct ampk_param *p,
                                        size_t i, ampk_vec d)
{
    ampk_vec m = load(p->m, i, p->n), v = load(p->v, i, p->n);
    m = m * ampk_vec_set(r->b1) + d * ampk_vec_set(1 - r->b1);
    v = v * ampk_vec_set(r->b2) + d * d * ampk_vec_set(1 - r->b2);
    return (struct moments){m, v};
}

static void adam_piece(const struct rule *r, struct ampk_param p)
{
    for (size_t i = 0; i < p.n; i += AMPK_LANES) {
        ampk_vec weight = load(p.value, i, p.n);
        ampk_vec d = gradient(r->all, &p, i) - ampk_vec_set(p.decay) * weight;
        struct moments of = moments_with(r->all, &p, i, d);
        ampk_vec mean = of.m / ampk_vec_set(r->unbias1);
        ampk_vec spread = ampk_vec_sqrt(of.v / ampk_vec_set(r->unbias2));
        ampk_vec step = ampk_vec_set(r->rate) * mean / (spread + ampk_vec_set(r->all->eps));
        store(p.m, i, p.n, of.m);
        store(p.v, i, p.n, of.v);
        store_weight(r->all, &p, i, weight + step);
    }
}

/* Adam's direction, without the decay that AdamW adds to the step. */
AMPK_INLINE ampk_vec decoupled_step(const struct rule *r, const struct ampk_param *p,
                                    struct moments of, ampk_vec weight)
{
    ampk_vec mean = of.m / ampk_vec_set(r->unbias1);
    ampk_vec spread = ampk_vec_sqrt(of.v / ampk_vec_set(r->unbias2));
    return mean / (spread + ampk_vec_set(r->all->eps)) - ampk_vec_set(p->decay) * weight;
}

static void adamw_piece(const struct rule *r, struct ampk_param p)
{
    for (size_t i = 0; i < p.n; i += AMPK_LANES) {
        ampk_vec weight = load(p.value, i, p.n);
        struct moments of = moments_with(r->all, &p, i, gradient(r->all, &p, i));
        ampk_vec step = ampk_vec_set(r->rate) * decoupled_step(r, &p, of, weight);
        store(p.m, i, p.n, of.m);
        store(p.v, i, p.n, of.v);
        store_weight(r->all, &p, i, weight + step);
    }
}

static void update_piece(const struct rule *r, struct ampk_param piece)
{
    switch (r->all->optimizer) {
    case AMPK_SGD:
        sgd_piece(r, piece);
        break;
    case AMPK_LARS:
        lars_piece(r, piece);
        break;
    case AMPK_ADAM:
        adam_piece(r, piece);
        break;
    case AMPK_ADAMW:
        adamw_piece(r, piece);
        break;
    }
}

void AMPK_CPU(update)(struct ampk_context *ctx, const struct ampk_rule *all,
                      const struct ampk_param *params, int count)
{
    for (const struct ampk_param *p = params; p < params + count; p++) {
        struct rule rule = rule_for(all, p);
        size_t pieces = ampk_pieces(p->n);
#pragma omp parallel for num_threads(ctx->threads) if (pieces > 1)
        for (size_t i = 0; i < pieces; i++)
            update_piece(&rule, piece_of(p, i * AMPK_PIECE, ampk_piece(p->n, i * AMPK_PIECE)));
    }
}

/* ---- trust ratios ---- */

/* Square sums of weights and of what the rule compares them with. */
struct squares {
    double weights, steps;
};

/* Missing elements of the last vector are 0 in every array, so their steps are 0 too: 0 / (0 +
 * eps). */
static struct squares run_squares(const struct rule *r, struct ampk_param p)
{
    ampk_vec weights = ampk_vec_set(0), steps = weights;
    for (size_t i = 0; i < p.n; i += AMPK_LANES) {
        ampk_vec weight = load(p.value, i, p.n), step = gradient(r->all, &p, i);
        if (r->all->optimizer == AMPK_ADAMW)
            step = decoupled_step(r, &p, moments_with(r->all, &p, i, step), weight);
        weights += weight * weight;
        steps += step * step;
    }
    return (struct squares){ampk_vec_sum(weights), ampk_vec_sum(steps)};
}

static struct squares piece_squares(const struct rule *r, struct ampk_param p)
{
    struct squares all = {0, 0};
    for (size_t run = 0; run < p.n; run += AMPK_SUM_RUN) {
        size_t n = p.n - run < AMPK_SUM_RUN ? p.n - run : AMPK_SUM_RUN;
        struct squares some = run_squares(r, piece_of(&p, run, n));
        all.weights += some.weights;
        all.steps += some.steps;
    }
    return all;
}

static float ratio(const struct rule *r, const struct ampk_param *p, struct squares sums)
{
    double weights = sqrt(sums.weights), steps = sqrt(sums.steps);
    if (r->all->optimizer == AMPK_LARS)
        steps = (steps + (double)p->decay * weights) / (double)AMPK_LARS_TRUST;
    return weights == 0 || steps == 0 ? 1 : (float)(weights / steps);
}

/* Pieces have a fixed size and are added in order, so the result does not depend on the number of
 * threads. */
static float trust(struct ampk_context *ctx, const struct rule *r, const struct ampk_param *p)
{
    size_t pieces = ampk_pieces(p->n);
    struct squares *parts = ampk_memory(ctx, (pieces + 1) * sizeof *parts), all = {0, 0};
#pragma omp parallel for num_threads(ctx->threads) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        parts[i] = piece_squares(r, piece_of(p, i * AMPK_PIECE, ampk_piece(p->n, i * AMPK_PIECE)));
    for (size_t i = 0; i < pieces; i++) {
        all.weights += parts[i].weights;
        all.steps += parts[i].steps;
    }
    return ratio(r, p, all);
}

void AMPK_CPU(trust_ratios)(struct ampk_context *ctx, const struct ampk_rule *all,
                            const struct ampk_param *params, int count)
{
    for (const struct ampk_param *p = params; p < params + count; p++) {
        struct rule rule = rule_for(all, p);
        if (p->trust) *p->trust = trust(ctx, &rule, p);
    }
}

/* ---- moving averages ---- */

static void average_piece(float *average, const float *value, size_t n, float rest)
{
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec a = load(average, i, n);
        store(average, i, n, a + ampk_vec_set(rest) * (load(value, i, n) - a));
    }
}

void AMPK_CPU(average_many)(struct ampk_context *ctx, const struct ampk_span *spans, int count,
                            float rest)
{
    for (const struct ampk_span *s = spans; s < spans + count; s++) {
        size_t pieces = ampk_pieces(s->n);
#pragma omp parallel for num_threads(ctx->threads) if (pieces > 1)
        for (size_t i = 0; i < pieces; i++)
            average_piece(s->dst + i * AMPK_PIECE, s->src + i * AMPK_PIECE,
                          ampk_piece(s->n, i * AMPK_PIECE), rest);
    }
}
