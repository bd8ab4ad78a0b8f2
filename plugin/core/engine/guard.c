/* Decides what is wrong with a pass, when the loss scale moves, and whether a run has diverged. It
 * must not react: step.c does. */
#include "guard.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plugin/core/net/net.h"
#include "kernels/kernels.h"

/* ==== faults ====
 *
 * Decides which of four faults the watch words of a pass show. It must not react to a fault: the
 * scaler and step.c do that. Magnitudes are compared as bits: for positive IEEE-754 numbers the
 * order of the bits is the order of the values, with inf and NaN above all of them. */

static double magnitude_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

const char *amp_watch_name(enum amp_watch w)
{
    static const char *const names[AMP_WATCHES] = {"input",
                                                   "truth",
                                                   "weights",
                                                   "batch-norm input",
                                                   "running statistics",
                                                   "output",
                                                   "output copy",
                                                   "loss delta",
                                                   "delta",
                                                   "dy",
                                                   "dW",
                                                   "dbias"};
    return w < AMP_WATCHES ? names[w] : "none";
}

const char *amp_fault_tensor(const struct amp_fault *f, const struct amp_net_desc *net)
{
    bool recurrent = f->layer >= 0 && amp_layer_is_recurrent(&net->layers[f->layer]);
    return recurrent && f->tensor == AMP_WATCH_Y ? "input of a product" : amp_watch_name(f->tensor);
}

static struct amp_fault fault(enum amp_fault_class class, int layer, enum amp_watch w,
                              uint32_t bits)
{
    return (struct amp_fault){class, layer, w, magnitude_of(bits)};
}

/* Whether an FP16 tensor could not hold its largest magnitude. */
static bool refused(uint16_t fp16, int w, uint32_t bits)
{
    return fp16 >> w & 1 && bits >= AMPK_FP16_OVERFLOW_BITS;
}

/* Every fault spreads to the layers after it, so the first faulty word is the cause. */
static struct amp_fault find_forward(const uint32_t (*watch)[AMP_WATCHES], const uint16_t *fp16,
                                     int n_layers)
{
    /* A bad image makes everything after it inf or NaN, so it must be ruled out before a layer is
     * blamed. */
    for (int w = AMP_WATCH_INPUT; w <= AMP_WATCH_TRUTH; w++)
        if (watch[0][w] >= AMPK_INF_BITS)
            return fault(AMP_FAULT_INPUT, 0, (enum amp_watch)w, watch[0][w]);
    for (int i = 0; i < n_layers; i++)
        for (int w = AMP_WATCH_INPUT; w <= AMP_WATCH_LOSS; w++) {
            uint32_t bits = watch[i][w];
            bool follows = w == AMP_WATCH_Y && fp16[i] & AMP_FP16_STATES;
            if (bits >= AMPK_INF_BITS && !follows)
                return fault(AMP_FAULT_DIVERGED, i, (enum amp_watch)w, bits);
            /* Finite before the store: FP32 would have held it. */
            if (refused(fp16[i], w, bits))
                return fault(AMP_FAULT_FORWARD, i, (enum amp_watch)w, bits);
        }
    return fault(AMP_FAULT_NONE, -1, AMP_WATCHES, 0);
}

/* Backward runs from the last layer to the first. After a clean forward any fault here is one of
 * scale, inf and NaN too: they follow from an overflow in a layer behind. */
static struct amp_fault find_backward(const uint32_t (*watch)[AMP_WATCHES], const uint16_t *fp16,
                                      int n_layers)
{
    for (int i = n_layers - 1; i >= 0; i--)
        for (int w = AMP_WATCH_DELTA; w <= AMP_WATCH_DBIAS; w++) {
            uint32_t bits = watch[i][w];
            if (bits >= AMPK_INF_BITS || refused(fp16[i], w, bits))
                return fault(AMP_FAULT_BACKWARD, i, (enum amp_watch)w, bits);
        }
    return fault(AMP_FAULT_NONE, -1, AMP_WATCHES, 0);
}

struct amp_fault amp_fault_find(const uint32_t (*watch)[AMP_WATCHES], const uint16_t *fp16,
                                int n_layers, bool backward)
{
    /* Forward first: backward on a faulty forward shows only consequences. */
    struct amp_fault found = find_forward(watch, fp16, n_layers);
    if (found.class != AMP_FAULT_NONE || !backward) return found;
    return find_backward(watch, fp16, n_layers);
}

double amp_largest_gradient(const uint32_t (*watch)[AMP_WATCHES], const uint16_t *fp16,
                            int n_layers)
{
    uint32_t most = 0;
    for (int i = 0; i < n_layers; i++)
        for (int w = AMP_WATCH_DELTA; w <= AMP_WATCH_DY; w++) {
            uint32_t bits = watch[i][w];
            if (fp16[i] >> w & 1 && bits < AMPK_INF_BITS && bits > most) most = bits;
        }
    return magnitude_of(most);
}

/* As the searches above go: the input, forward, backward. */
static int64_t place_of(const struct amp_fault *f)
{
    int64_t layer = f->layer;
    if (f->class == AMP_FAULT_NONE) return INT64_MAX;
    if (f->class == AMP_FAULT_INPUT) return -1;
    if (f->class == AMP_FAULT_BACKWARD) layer = 2 * (int64_t)INT32_MAX - layer;
    return layer * AMP_WATCHES + f->tensor;
}

bool amp_fault_before(const struct amp_fault *a, const struct amp_fault *b)
{
    return place_of(a) < place_of(b);
}

bool amp_demotions_add(struct amp_demotions *e, int64_t iteration, int window)
{
    if (e->n == AMP_MANY_DEMOTIONS)
        memmove(e->last, e->last + 1, sizeof e->last - sizeof e->last[0]);
    if (e->n < AMP_MANY_DEMOTIONS) e->n++;
    e->last[e->n - 1] = iteration;
    /* Told once: the user has read it, and the cause is the same. */
    if (e->told || e->n < AMP_MANY_DEMOTIONS || iteration - e->last[0] >= window) return false;
    e->told = true;
    return true;
}

bool amp_all_finite(const float *x, size_t n)
{
    /* On bits, since isfinite is "true" in a build with -ffast-math; without a branch, so that it
     * vectorizes. */
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        union {
            float f;
            uint32_t u;
        } v = {x[i]};
        bad |= (v.u & AMPK_INF_BITS) == AMPK_INF_BITS;
    }
    return !bad;
}

/* ==== the loss scale ====
 *
 * Decides when the loss scale falls, when it grows, and what follows from an overflow. It must not
 * know tensors, layers or the log: it sees a pass as one number and a step as applied or
 * not. */

#define FP16_MAX 65504.0

/* In steps. A window of 2000, as in other trainers, would never end in a short run; so it follows
 * the length of the run. */
static int default_window(int max_batches)
{
    int window = max_batches / 50;
    return window < 20 ? 20 : window > 2000 ? 2000 : window;
}

void amp_scaler_init(struct amp_scaler *s, const struct amp_options *o, int max_batches)
{
    memset(s, 0, sizeof *s);
    /* BF16 and TF32 have the range of FP32, so their gradients need no scale. */
    s->reduced = o->dtype == AMP_DTYPE_FP16;
    s->dynamic = s->reduced && o->loss_scale_dynamic;
    /* A replay at the same fixed scale would overflow again. */
    s->retry = amp_options_replay(o);
    s->growth = o->loss_scale_growth;
    s->backoff = o->loss_scale_backoff;
    s->min = o->loss_scale_min;
    s->max = o->loss_scale_max;
    s->window = o->loss_scale_window ? o->loss_scale_window : default_window(max_batches);
    if (!s->reduced)
        s->scale = 1;
    else if (!s->dynamic)
        s->scale = o->loss_scale;
    else
        /* The search begins at the top: each overflow costs one backward pass, and only on the
         * first batch. */
        s->scale = o->loss_scale_init > 0 ? o->loss_scale_init : s->max;
    s->searching = s->dynamic && o->loss_scale_init <= 0;
}

void amp_scaler_resume(struct amp_scaler *s, const struct amp_scaler *from)
{
    /* Counters go on in any case: the log counts all runs of a training. */
    s->redone = from->redone;
    s->skipped = from->skipped;
    s->applied = from->applied;
    s->grown = from->grown;
    s->backed_off = from->backed_off;
    s->floor_skips = from->floor_skips;
    if (!s->dynamic || !from->dynamic) return;
    /* The limits may have changed in the cfg since. */
    s->scale = from->scale < s->min ? s->min : from->scale > s->max ? s->max : from->scale;
    s->searching = from->searching;
    s->tracker = from->tracker;
}

/* Growth needs a full window of steps with room. */
static void keep_from_growing(struct amp_scaler *s)
{
    s->tracker = 0;
    s->tight = true;
}

/* Lowers the scale; false at the floor. */
static bool back_off(struct amp_scaler *s, double factor)
{
    double lower = s->scale * factor;
    if (lower < s->min) lower = s->min;
    if (lower == s->scale) return false;
    s->scale = lower;
    s->backed_off++;
    return true;
}

/* During the search the scale may be many powers of two too high. largest says by how many at
 * least, so one replay jumps over them. After the search one step down is enough. */
static double search_factor(const struct amp_scaler *s, double largest)
{
    double factor = s->backoff;
    if (largest > FP16_MAX && isfinite(largest)) {
        /* The largest power of two that brings it below FP16's limit. */
        double needed = exp2(floor(log2(FP16_MAX / largest)));
        if (needed < factor) factor = needed;
    }
    return factor;
}

enum amp_verdict amp_scaler_overflow(struct amp_scaler *s, double largest)
{
    bool lowered = s->dynamic && back_off(s, s->searching ? search_factor(s, largest) : s->backoff);
    keep_from_growing(s);
    /* The search may take as many replays as it needs: it ends at the floor. Later, a pass that
     * fails five times is better skipped. */
    bool may_retry = s->retry && (s->searching || s->tries < AMP_SCALER_RETRIES);
    s->at_floor = !lowered;
    if (!lowered || !may_retry) return AMP_VERDICT_SKIP;
    s->tries++;
    s->redone++;
    return AMP_VERDICT_RETRY;
}

static double next_scale(const struct amp_scaler *s)
{
    double higher = s->scale * s->growth;
    return higher > s->max ? s->max : higher;
}

void amp_scaler_pass(struct amp_scaler *s, double largest)
{
    s->tries = 0;
    s->searching = false;
    if (largest * (next_scale(s) / s->scale) > FP16_MAX) keep_from_growing(s);
}

static void grow(struct amp_scaler *s)
{
    double higher = next_scale(s);
    s->tracker = 0;
    /* At the ceiling: nothing grew, nothing is counted. */
    if (higher == s->scale) return;
    s->scale = higher;
    s->grown++;
}

enum amp_verdict amp_scaler_step(struct amp_scaler *s, bool applied, bool cause_is_scale)
{
    s->tries = 0;
    bool room = !s->tight, at_floor = s->at_floor && cause_is_scale;
    s->tight = s->at_floor = false;
    if (!applied) {
        s->skipped++;
        /* Only skips that a lower scale might have cured count as hopeless. */
        s->floor_skips = at_floor ? s->floor_skips + 1 : 0;
        return s->floor_skips >= AMP_SCALER_FLOOR_STOP ? AMP_VERDICT_STOP : AMP_VERDICT_SKIP;
    }
    s->applied++;
    s->floor_skips = 0;
    if (s->dynamic && room && ++s->tracker >= s->window) grow(s);
    return AMP_VERDICT_RETRY;
}

const char *amp_scale_text(double scale, char text[32])
{
    int exponent;
    if (frexp(scale, &exponent) == 0.5)
        snprintf(text, 32, "2^%d", exponent - 1);
    else
        snprintf(text, 32, "%g", scale);
    return text;
}

/* ==== divergence ====
 *
 * Decides from the losses of a run whether it has diverged. It must not
 * know why a loss is high, and it ends nothing: step.c does. */

/* In losses. burn_in counts iterations, each of which has one loss. */
static int length_of_start(const struct amp_divergence *d)
{
    return d->burn_in > AMP_DIVERGENCE_START ? d->burn_in : AMP_DIVERGENCE_START;
}

/* Mean of the last losses with `loss` in place of the oldest. The ring may not be full yet. */
static double mean_with(const struct amp_divergence *d, double loss)
{
    int slot = d->losses % AMP_DIVERGENCE_MEAN;
    int n = d->losses < AMP_DIVERGENCE_MEAN ? d->losses + 1 : AMP_DIVERGENCE_MEAN;
    double sum = loss;
    for (int i = 0; i < n; i++)
        if (i != slot) sum += d->recent[i];
    return sum / n;
}

/* 0 as long as there is no loss to compare with: then nothing is above the limit. */
static double limit_of(const struct amp_divergence *d)
{
    if (d->losses == 0) return 0;
    if (d->lowest == 0)
        return fmax(AMP_DIVERGENCE_START_ROOM * d->start_lowest, AMP_DIVERGENCE_START_LEAST);
    return fmax(AMP_DIVERGENCE_FACTOR * d->lowest, AMP_DIVERGENCE_ROOM * d->start_highest);
}

/* 0 stands for "none yet", which no mean can be below. */
static double lower(double lowest, double mean)
{
    return lowest == 0 ? mean : fmin(lowest, mean);
}

/* Takes a loss that is not above the limit. Only such losses enter the mean: those of a run that
 * blows up would raise the limit that they are compared with. */
static void take(struct amp_divergence *d, double loss)
{
    double mean = mean_with(d, loss);
    bool full = d->losses + 1 >= AMP_DIVERGENCE_MEAN;
    d->recent[d->losses % AMP_DIVERGENCE_MEAN] = loss;
    d->losses++;
    /* Before that, the lowest and the highest mean of the start only prepare the limit. */
    if (d->losses > length_of_start(d)) {
        d->lowest = lower(d->lowest, mean);
    } else {
        d->start_lowest = lower(d->start_lowest, mean);
        if (full) d->start_highest = fmax(d->start_highest, mean);
    }
}

static void count(struct amp_divergence *d, size_t iteration, double loss, int more)
{
    /* Remembers where the suspicion began, for the message. */
    if (d->count == 0) {
        d->since = iteration;
        d->then = loss;
    }
    /* Capped, so that a run that carries on for long does not overflow the count. */
    d->count = d->count + more > AMP_DIVERGENCE_STOP ? AMP_DIVERGENCE_STOP : d->count + more;
}

bool amp_divergence_add(struct amp_divergence *d, size_t iteration, double loss, bool applied)
{
    bool lost = !isfinite(loss);
    d->now = lost ? NAN : loss;
    d->limit = limit_of(d);
    if (lost) {
        /* A run that has not applied a step yet has not begun to diverge. */
        if (d->applied) count(d, iteration, NAN, AMP_DIVERGENCE_LOST);
    } else if (d->limit > 0 && loss > d->limit && mean_with(d, loss) > d->limit) {
        count(d, iteration, loss, 1);
    } else {
        take(d, loss);
        d->last = loss;
        d->last_at = iteration;
        /* One good loss clears the suspicion. */
        d->count = 0;
    }
    d->applied |= applied;
    return d->count >= AMP_DIVERGENCE_STOP;
}

bool amp_divergence_add_demotion(struct amp_divergence *d, size_t iteration)
{
    d->now = NAN;
    d->limit = limit_of(d);
    if (d->applied) count(d, iteration, NAN, 1);
    return d->count >= AMP_DIVERGENCE_STOP;
}

bool amp_divergence_suspect(const struct amp_divergence *d)
{
    return d->count > 0;
}

static const char *loss_text(double loss, char text[32])
{
    snprintf(text, 32, "%.4g", loss);
    return isnan(loss) ? "not finite" : text;
}

void amp_divergence_describe(const struct amp_divergence *d, char *text, size_t size)
{
    char then[32], now[32];
    if (d->count)
        snprintf(text, size,
                 "since iteration %zu the loss is not finite or above %.4g: %.4g before, %s then, "
                 "%s now",
                 d->since, d->limit, d->last, loss_text(d->then, then), loss_text(d->now, now));
    else if (d->losses)
        snprintf(text, size, "the last loss, of iteration %zu, was %.4g", d->last_at, d->last);
    else
        snprintf(text, size, "there was no loss before");
}
