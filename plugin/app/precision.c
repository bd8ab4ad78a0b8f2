/* Decides from two runs of the same passes which layers should stay FP32 and whether the loss scale
 * must move, and says why. Pure C: it must not know Darknet, networks or how passes are run; it
 * gets tensors and returns lines for the cfg.
 *
 * A layer is named for what it does itself. An error that was given to it, through its inputs or
 * its readers' deltas, is the fault of another layer. */

#include "precision.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The limits beyond which something is advised. Errors and lost shares are relative to FP32;
 * headroom is a factor, since outputs grow while a net learns. */
static const double least_headroom = 4, most_error = .05, most_growth = 4, most_lost = .5,
                    most_lost_norm = .05, least_cosine = .9, good_cosine = .95,
                    most_gradient_growth = 10, most_weights_error = .05;

enum { SCALE_ADVICE = 3 }; /* at most one for each key that steers the loss scale */

int amp_precision_init(struct amp_precision *p, const struct amp_net_desc *net,
                       const struct amp_cfg_file *cfg, const struct amp_options *options)
{
    size_t n = (size_t)net->n;
    *p =
        (struct amp_precision){.net = net, .cfg = cfg, .options = *options, .scale = 1, .left = -1};
    for (int w = 0; w < AMP_SEEN; w++)
        p->tensors[w] = calloc(n, sizeof *p->tensors[w]);
    p->advised = calloc(n, sizeof *p->advised);
    p->rounds_weights = calloc(n, sizeof *p->rounds_weights);
    p->advice = calloc(n + SCALE_ADVICE, sizeof *p->advice);
    if (!p->tensors[0] || !p->tensors[1] || !p->tensors[2] || !p->advised || !p->rounds_weights ||
        !p->advice)
        return -1;
    for (int i = 0; i < net->n; i++)
        /* A layer that the cfg keeps in FP32 needs no advice. */
        p->advised[i] = net->layers[i].override == 0;
    return 0;
}

void amp_precision_free(struct amp_precision *p)
{
    for (int w = 0; w < AMP_SEEN; w++) {
        for (int i = 0; p->tensors[w] && i < p->net->n; i++)
            free(p->tensors[w][i].sample);
        free(p->tensors[w]);
    }
    free(p->advised);
    free(p->rounds_weights);
    free(p->advice);
}

/* ---- seeing ---- */

/* The same stride in both passes, so that samples are of the same elements. */
static size_t stride_of(size_t n)
{
    return (n + AMP_PRECISION_SAMPLE - 1) / AMP_PRECISION_SAMPLE;
}

static double largest_of(const struct amp_seen *s)
{
    double largest = 0;
    for (size_t i = 0; i < s->n; i++)
        largest = fmax(largest, fabs((double)s->values[i]));
    return largest;
}

/* Keeps only a sample: whole tensors of all layers would take more memory than the network. */
void amp_precision_see_fp32(const struct amp_seen *s, void *user)
{
    struct amp_precision *p = user;
    struct amp_compared *t = &p->tensors[s->what][s->layer];
    size_t stride = stride_of(s->n);
    free(t->sample);
    t->n_sample = stride ? (s->n + stride - 1) / stride : 0;
    t->sample = malloc((t->n_sample + 1) * sizeof *t->sample);
    if (!t->sample) t->n_sample = 0;
    for (size_t k = 0; k < t->n_sample; k++)
        t->sample[k] = s->values[k * stride];
    t->fp32_largest = fmax(t->fp32_largest, largest_of(s));
}

/* lost: FP32 has a value, mixed precision has 0. These are the elements that a larger loss scale
 * would save. */
static void sum_sample(struct amp_compared *t, const struct amp_seen *s, double factor)
{
    struct amp_sums *sums = &t->batch;
    size_t stride = stride_of(s->n);
    for (size_t k = 0; k < t->n_sample; k++) {
        double a = (double)t->sample[k], b = factor * (double)s->values[k * stride];
        bool lost = a != 0 && b == 0;
        sums->difference += (a - b) * (a - b);
        sums->fp32 += a * a;
        sums->mixed += b * b;
        sums->product += a * b;
        sums->nonzero += a != 0;
        sums->n_lost += lost;
        sums->lost += lost ? a * a : 0;
    }
}

void amp_precision_see_mixed(const struct amp_seen *s, void *user)
{
    struct amp_precision *p = user;
    struct amp_compared *t = &p->tensors[s->what][s->layer];
    t->format = s->format;
    t->seen = t->n_sample > 0;
    t->batch_largest = largest_of(s);
    /* Sums of this pass replace those of an earlier pass over the same batch, so a repeated pass
     * counts once. */
    t->batch = (struct amp_sums){.n = (double)s->n};
    for (size_t i = 0; i < s->n; i++)
        t->batch.zeros += s->values[i] == 0;
    sum_sample(t, s, s->what == AMP_SEEN_OUT ? 1 : 1 / p->scale);
}

static void add(struct amp_sums *to, const struct amp_sums *from)
{
    to->n += from->n;
    to->zeros += from->zeros;
    to->difference += from->difference;
    to->fp32 += from->fp32;
    to->mixed += from->mixed;
    to->product += from->product;
    to->nonzero += from->nonzero;
    to->n_lost += from->n_lost;
    to->lost += from->lost;
}

/* Only a batch that ended counts. error is inf if FP32 has only zeros and mixed precision does
 * not. */
static void take_batch(struct amp_compared *t)
{
    const struct amp_sums *s = &t->all;
    add(&t->all, &t->batch);
    t->batch = (struct amp_sums){0};
    t->largest = fmax(t->largest, t->batch_largest);
    t->zero = s->n > 0 ? s->zeros / s->n : 0;
    t->error = s->fp32 > 0 ? sqrt(s->difference / s->fp32) : s->mixed > 0 ? INFINITY : 0;
    t->cosine = s->fp32 > 0 && s->mixed > 0 ? s->product / sqrt(s->fp32 * s->mixed) : NAN;
    t->lost = s->nonzero > 0 ? s->n_lost / s->nonzero : 0;
    t->lost_norm = s->fp32 > 0 ? sqrt(s->lost / s->fp32) : 0;
}

void amp_precision_end_batch(struct amp_precision *p)
{
    for (int w = 0; w < AMP_SEEN; w++)
        for (int i = 0; i < p->net->n; i++)
            take_batch(&p->tensors[w][i]);
    p->batches++;
}

/* ---- advice ---- */

__attribute__((format(printf, 2, 3))) static void explain(struct amp_advice *a, const char *format,
                                                          ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(a->why, sizeof a->why, format, args);
    va_end(args);
}

/* Notes one line for the cfg. Section 0 is [net], so layer i is section i + 1. */
static struct amp_advice *advise(struct amp_precision *p, int section, const char *key,
                                 const char *value)
{
    const struct amp_cfg_section *s = &p->cfg->sections[section];
    struct amp_advice *a = &p->advice[p->n_advice++];
    *a = (struct amp_advice){.layer = section - 1,
                             .line = amp_cfg_line(s, key),
                             .replace = amp_cfg_find(s, key),
                             .key = key,
                             .value = value};
    return a;
}

static struct amp_advice *advise_layer(struct amp_precision *p, int layer)
{
    p->advised[layer] = true;
    return advise(p, layer + 1, "mixed_precision", "0");
}

void amp_precision_left(struct amp_precision *p, int layer, const char *tensor, double magnitude)
{
    if (!p->advised[layer])
        explain(advise_layer(p, layer), "FP16 cannot hold its %s (largest %.3g, at most %.0f)",
                tensor, magnitude, AMP_FP16_LARGEST);
}

/* Rounds to the nearest FP16 value. 11 bits; below 2^-14 values are 2^-24 apart. */
static double round_to_fp16(double x)
{
    int exponent;
    frexp(x, &exponent);
    int unit = exponent - 11 > -24 ? exponent - 11 : -24;
    return ldexp(nearbyint(ldexp(x, -unit)), unit);
}

void amp_precision_weights(struct amp_precision *p, int layer, const float *weights, size_t n)
{
    double difference = 0, sum = 0, nonzero = 0, lost = 0;
    p->rounds_weights[layer] = true;
    for (size_t k = 0; k < n; k++) {
        double w = (double)weights[k], rounded = round_to_fp16(w);
        difference += (w - rounded) * (w - rounded);
        sum += w * w;
        nonzero += w != 0;
        lost += w != 0 && rounded == 0;
    }
    double error = sum > 0 ? sqrt(difference / sum) : 0;
    if (!p->advised[layer] && error > most_weights_error)
        explain(advise_layer(p, layer),
                "its weights are too small for FP16: rounding changes them by %.0f %% and makes "
                "%.0f %% of them 0",
                100 * error, 100 * lost / nonzero);
}

static bool is_fp16(const struct amp_compared *t)
{
    return t->seen && !strcmp(t->format, "fp16");
}

static bool is_reduced(const struct amp_compared *t)
{
    return t->seen && strcmp(t->format, "fp32");
}

/* True if leaving FP16 would change anything in this layer. */
static bool may_leave(const struct amp_precision *p, int layer)
{
    return !p->advised[layer] &&
           (p->rounds_weights[layer] || is_reduced(&p->tensors[AMP_SEEN_OUT][layer]) ||
            is_reduced(&p->tensors[AMP_SEEN_DELTA][layer]));
}

static bool reads(const struct amp_precision *p, int reader, int layer)
{
    const struct amp_layer_desc *l = &p->net->layers[reader];
    for (int k = 0; k < l->n_sources; k++)
        if (l->sources[k] == layer) return true;
    return false;
}

/* Advises on the layers whose backward passes make the delta of a layer that is FP32 itself; if
 * those are FP32 too, on the next one after them. False: there is none. */
static bool advise_readers(struct amp_precision *p, int layer, const char *what)
{
    bool found = false;
    for (int i = layer + 1; i < p->net->n; i++) {
        if (!reads(p, i, layer) || !may_leave(p, i)) continue;
        explain(advise_layer(p, i), "its backward pass makes the delta of layer %d: %s", layer,
                what);
        found = true;
    }
    for (int i = layer + 1; i < p->net->n && !found; i++) {
        if (!may_leave(p, i)) continue;
        explain(advise_layer(p, i), "the delta of layer %d comes through it: %s", layer, what);
        found = true;
    }
    return found;
}

__attribute__((format(printf, 3, 4))) static void leave_unsolved(struct amp_precision *p, int layer,
                                                                 const char *format, ...)
{
    va_list args;
    va_start(args, format);
    p->left = layer;
    vsnprintf(p->left_why, sizeof p->left_why, format, args);
    va_end(args);
}

/* ---- gradients that overflow ---- */

/* A magnitude that is not finite has no number to print. */
static void overflow_of_layer(struct amp_precision *p, int layer, const char *tensor,
                              double magnitude)
{
    char what[160];
    if (isfinite(magnitude))
        snprintf(what, sizeof what,
                 "FP16 cannot hold its %s even at loss scale %.0f (largest %.3g, at most %.0f)",
                 tensor, p->scale, magnitude, AMP_FP16_LARGEST);
    else
        snprintf(what, sizeof what, "inf or NaN in its %s even at loss scale %.0f", tensor,
                 p->scale);
    if (!p->advised[layer])
        explain(advise_layer(p, layer), "%s", what);
    else if (!advise_readers(p, layer, "inf, NaN or more than FP16 can hold there"))
        leave_unsolved(p, layer, "%s", what);
}

/* Advises to let the scale fall, if a key holds it up. False: no key does, so a layer is at
 * fault. */
static bool let_scale_fall(struct amp_precision *p, int layer, const char *tensor)
{
    const struct amp_options *o = &p->options;
    if (!o->loss_scale_dynamic && o->loss_scale > 1)
        explain(advise(p, 0, "loss_scale", "dynamic"),
                "at the fixed loss scale %.0f gradients overflow FP16 (first the %s of layer %d)",
                p->scale, tensor, layer);
    else if (o->loss_scale_dynamic && o->loss_scale_min > 1)
        explain(
            advise(p, 0, "loss_scale_min", "1"),
            "at the smallest loss scale allowed, %.0f, gradients overflow FP16 (first the %s of "
            "layer %d)",
            p->scale, tensor, layer);
    else
        return false;
    return true;
}

void amp_precision_overflow(struct amp_precision *p, int layer, const char *tensor,
                            double magnitude)
{
    if (let_scale_fall(p, layer, tensor)) return;
    overflow_of_layer(p, layer, tensor, magnitude);
    for (int i = p->net->n - 1; i >= 0; i--) {
        const struct amp_compared *delta = &p->tensors[AMP_SEEN_DELTA][i];
        /* One run names all: from FP32's deltas it is known which others would overflow, too. */
        double scaled = delta->fp32_largest * p->scale;
        if (is_fp16(delta) && scaled > AMP_FP16_LARGEST && !p->advised[i])
            overflow_of_layer(p, i, "delta", scaled);
    }
}

/* ---- judging ---- */

/* The largest error among the tensors that the layer reads. */
static double error_given(const struct amp_precision *p, int layer)
{
    const struct amp_layer_desc *l = &p->net->layers[layer];
    double most = 0;
    for (int k = 0; k < l->n_sources; k++)
        if (l->sources[k] >= 0) most = fmax(most, p->tensors[AMP_SEEN_OUT][l->sources[k]].error);
    return most;
}

static bool judge_output(struct amp_precision *p, int i)
{
    const struct amp_compared *out = &p->tensors[AMP_SEEN_OUT][i];
    double given = error_given(p, i);
    if (is_fp16(out) && out->largest * least_headroom > AMP_FP16_LARGEST)
        explain(advise_layer(p, i), "its largest output, %.3g, is close to what FP16 holds (%.0f)",
                out->largest, AMP_FP16_LARGEST);
    else if (is_reduced(out) && out->error > most_error && out->error > most_growth * given)
        explain(advise_layer(p, i),
                "its output differs from FP32 by %.1f %%, what it reads by %.1f %%",
                100 * out->error, 100 * given);
    return p->advised[i];
}

/* Many lost values may weigh nothing together, so share and norm must both be large. */
static bool loses_too_much(const struct amp_compared *t)
{
    return t->seen && t->lost > most_lost && t->lost_norm > most_lost_norm;
}

/* Advises to let the scale rise, if a key holds it down. False: no key does, or more would not
 * help. */
static bool let_scale_rise(struct amp_precision *p, int layer, const char *what)
{
    const struct amp_options *o = &p->options;
    bool fixed = !o->loss_scale_dynamic;
    if (!fixed && (p->scale < o->loss_scale_max || p->scale == AMP_LOSS_SCALE_MAX)) return false;
    struct amp_advice *a =
        fixed ? advise(p, 0, "loss_scale", "dynamic") : advise(p, 0, "loss_scale_max", "16777216");
    explain(a, "at %s loss scale allowed, %.0f, layer %d's %s", fixed ? "the only" : "the largest",
            p->scale, layer, what);
    return true;
}

/* True if a reader's delta had lost too much already: then this layer was given the loss. */
static bool is_given_losses(const struct amp_precision *p, int layer)
{
    for (int i = layer + 1; i < p->net->n; i++)
        if (reads(p, i, layer) && loses_too_much(&p->tensors[AMP_SEEN_DELTA][i])) return true;
    return false;
}

/* Judges what a layer loses. True: the loss scale is to blame, not the layer. */
static bool judge_losses(struct amp_precision *p, int i)
{
    const struct amp_compared *delta = &p->tensors[AMP_SEEN_DELTA][i];
    const struct amp_compared *gradient = &p->tensors[AMP_SEEN_GRADIENT][i];
    bool in_delta = loses_too_much(delta);
    char what[160];
    if (in_delta ? is_given_losses(p, i) : !loses_too_much(gradient)) return false;
    snprintf(what, sizeof what, "%s is too small for FP16 to %.0f %%",
             in_delta ? "delta" : "weight gradient",
             100 * (in_delta ? delta->lost : gradient->lost));
    if (let_scale_rise(p, i, what)) return true;
    if (in_delta && (!is_fp16(delta) || p->advised[i]))
        advise_readers(p, i, "too much of it is lost");
    else if (!p->advised[i])
        explain(advise_layer(p, i), "at loss scale %.0f its %s", p->scale, what);
    return false;
}

/* Batch-norm's backward multiplies the errors of what it reads, the more so in small batches and
 * with random weights. Only an error far beyond that is the layer's own. */
static void judge_weight_gradient(struct amp_precision *p, int i)
{
    double read = fmax(error_given(p, i), p->tensors[AMP_SEEN_OUT][i].error);
    const struct amp_compared *delta = &p->tensors[AMP_SEEN_DELTA][i];
    const struct amp_compared *gradient = &p->tensors[AMP_SEEN_GRADIENT][i];
    if (delta->seen && gradient->seen && delta->cosine >= good_cosine &&
        gradient->cosine < least_cosine &&
        gradient->error > most_gradient_growth * fmax(read, delta->error))
        explain(advise_layer(p, i), "the gradient of its weights has a cosine of %.3f to FP32's",
                gradient->cosine);
}

/* ---- what no advice may leave behind ---- */

/* The largest error of an output: such errors come back in every gradient. */
static double largest_output_error(const struct amp_precision *p)
{
    double most = 0;
    for (int i = 0; i < p->net->n; i++)
        if (p->tensors[AMP_SEEN_OUT][i].seen) most = fmax(most, p->tensors[AMP_SEEN_OUT][i].error);
    return most;
}

static bool is_wrong(const struct amp_precision *p, const struct amp_compared *t)
{
    bool turned =
        t->cosine < least_cosine && t->error > most_gradient_growth * largest_output_error(p);
    return t->seen && (t->lost_norm > most_lost || turned);
}

/* The last layer whose delta or weight gradient is wrong; -1: none. */
static int last_wrong(const struct amp_precision *p, enum amp_seen_what what)
{
    int i = p->net->n - 1;
    while (i >= 0 && !is_wrong(p, &p->tensors[what][i]))
        i--;
    return i;
}

static void describe(const struct amp_compared *t, const char *name, char *text, size_t size)
{
    if (t->lost_norm > most_lost)
        snprintf(text, size, "%s has lost %.0f %% of its norm", name, 100 * t->lost_norm);
    else
        snprintf(text, size, "%s has a cosine of %.3f to FP32's", name, t->cosine);
}

/* Finds the layer where wrong gradients begin, and whether in the delta or in the weight gradient.
 * Backward runs from the last layer, so the last one is the first to be wrong. -1: every weight
 * gradient is good enough. */
static int find_wrong(const struct amp_precision *p, bool *in_delta, char *text, size_t size)
{
    int gradient = last_wrong(p, AMP_SEEN_GRADIENT), delta = last_wrong(p, AMP_SEEN_DELTA);
    if (gradient < 0) return -1;
    *in_delta = delta >= gradient;
    int i = *in_delta ? delta : gradient;
    describe(&p->tensors[*in_delta ? AMP_SEEN_DELTA : AMP_SEEN_GRADIENT][i],
             *in_delta ? "delta" : "weight gradient", text, size);
    return i;
}

/* True if the loss scale may rise; that is then advised. */
static bool judge_scale(struct amp_precision *p)
{
    char what[160];
    bool in_delta;
    int i = find_wrong(p, &in_delta, what, sizeof what);
    return i >= 0 && let_scale_rise(p, i, what);
}

static void judge_what_is_left(struct amp_precision *p)
{
    char what[160];
    bool in_delta;
    int i = find_wrong(p, &in_delta, what, sizeof what);
    if (i < 0) return;
    if (may_leave(p, i) && (!in_delta || is_reduced(&p->tensors[AMP_SEEN_DELTA][i])))
        explain(advise_layer(p, i), "its %s", what);
    else if (!advise_readers(p, i, "that layer's gradients are wrong"))
        leave_unsolved(p, i, "its %s", what);
}

void amp_precision_judge(struct amp_precision *p)
{
    bool fp16 = p->options.dtype == AMP_DTYPE_FP16;
    bool scale = false; /* must rise; until it has, gradients say nothing about layers */
    for (int i = p->net->n - 1; i >= 0 && !scale && fp16; i--)
        scale = judge_losses(p, i);
    if (!scale && fp16) scale = judge_scale(p);
    for (int i = 0; i < p->net->n; i++)
        if (!p->advised[i] && !judge_output(p, i) && !scale) judge_weight_gradient(p, i);
    if (!p->n_advice) judge_what_is_left(p);
}
