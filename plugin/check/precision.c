#include "precision.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* What is too much. Headroom: outputs grow while a net learns. */
static const double least_headroom = 4, most_error = .05, most_growth = 4, most_lost = .5,
                    least_cosine = .9, good_cosine = .95;

int amp_precision_init(struct amp_precision *p, const struct amp_net_desc *net)
{
    size_t n = (size_t)net->n;
    *p = (struct amp_precision){.net = net, .scale = 1};
    for (int w = 0; w < AMP_SEEN; ++w)
        p->tensors[w] = calloc(n, sizeof *p->tensors[w]);
    p->left = calloc(n, sizeof *p->left);
    p->advice = calloc(n, sizeof *p->advice);
    bool all = p->tensors[0] && p->tensors[1] && p->tensors[2] && p->left && p->advice;
    return all ? 0 : -1;
}

void amp_precision_free(struct amp_precision *p)
{
    for (int w = 0; w < AMP_SEEN; ++w) {
        for (int i = 0; p->tensors[w] && i < p->net->n; ++i)
            free(p->tensors[w][i].sample);
        free(p->tensors[w]);
    }
    free(p->left);
    free(p->advice);
}

/* ---- seeing ---- */

static size_t stride_of(size_t n)
{
    return (n + AMP_PRECISION_SAMPLE - 1) / AMP_PRECISION_SAMPLE;
}

void amp_precision_see_fp32(const struct amp_seen *s, void *user)
{
    struct amp_precision *p = user;
    struct amp_compared *t = &p->tensors[s->what][s->layer];
    size_t stride = stride_of(s->n);
    free(t->sample);
    t->n_sample = stride ? (s->n + stride - 1) / stride : 0;
    t->sample = malloc((t->n_sample + 1) * sizeof *t->sample);
    if (!t->sample) t->n_sample = 0;
    for (size_t k = 0; k < t->n_sample; ++k)
        t->sample[k] = s->values[k * stride];
}

static void compare_sample(struct amp_compared *t, const struct amp_seen *s, double factor)
{
    double difference = 0, fp32 = 0, mixed = 0, product = 0;
    size_t stride = stride_of(s->n), lost = 0, nonzero = 0;
    for (size_t k = 0; k < t->n_sample; ++k) {
        double a = (double)t->sample[k], b = factor * (double)s->values[k * stride];
        difference += (a - b) * (a - b);
        fp32 += a * a;
        mixed += b * b;
        product += a * b;
        nonzero += a != 0;
        lost += a != 0 && b == 0;
    }
    t->error = fp32 > 0 ? sqrt(difference / fp32) : mixed > 0 ? INFINITY : 0;
    t->cosine = fp32 > 0 && mixed > 0 ? product / sqrt(fp32 * mixed) : NAN;
    t->lost = nonzero ? (double)lost / (double)nonzero : 0;
}

void amp_precision_see_mixed(const struct amp_seen *s, void *user)
{
    struct amp_precision *p = user;
    struct amp_compared *t = &p->tensors[s->what][s->layer];
    size_t zeros = 0;
    double largest = 0;
    for (size_t i = 0; i < s->n; ++i) {
        largest = fmax(largest, fabs((double)s->values[i]));
        zeros += s->values[i] == 0;
    }
    t->format = s->format;
    t->largest = largest;
    t->zero = s->n ? (double)zeros / (double)s->n : 0;
    t->seen = t->n_sample > 0;
    compare_sample(t, s, s->what == AMP_SEEN_OUT ? 1 : 1 / p->scale);
}

/* ---- judging ---- */

__attribute__((format(printf, 3, 4))) static bool advise(struct amp_precision *p, int layer,
                                                         const char *format, ...)
{
    struct amp_advice *a = &p->advice[p->n_advice++];
    va_list args;
    va_start(args, format);
    a->layer = layer;
    vsnprintf(a->why, sizeof a->why, format, args);
    va_end(args);
    return true;
}

void amp_precision_left(struct amp_precision *p, int layer, const char *tensor, double magnitude)
{
    if (!p->left[layer])
        advise(p, layer, "its %s does not fit FP16 (largest %.3g, FP16 holds %.0f)", tensor,
               magnitude, AMP_FP16_LARGEST);
    p->left[layer] = true;
}

static bool is_fp16(const struct amp_compared *t)
{
    return t->seen && !strcmp(t->format, "fp16");
}

/* The largest error among what the layer reads. */
static double error_given(const struct amp_precision *p, int layer)
{
    const struct amp_layer_desc *l = &p->net->layers[layer];
    double most = 0;
    for (int k = 0; k < l->n_sources; ++k)
        if (l->sources[k] >= 0) most = fmax(most, p->tensors[AMP_SEEN_OUT][l->sources[k]].error);
    return most;
}

static bool judge_output(struct amp_precision *p, int i)
{
    const struct amp_compared *out = &p->tensors[AMP_SEEN_OUT][i];
    if (!is_fp16(out)) return false;
    if (out->largest * least_headroom > AMP_FP16_LARGEST)
        return advise(p, i, "its largest output, %.3g, is close to what FP16 holds (%.0f)",
                      out->largest, AMP_FP16_LARGEST);
    if (out->error > most_error && out->error > most_growth * error_given(p, i))
        return advise(p, i, "its output differs from FP32 by %.1f %%, what it reads by %.1f %%",
                      100 * out->error, 100 * error_given(p, i));
    return false;
}

static bool judge_gradient(struct amp_precision *p, int i)
{
    const struct amp_compared *delta = &p->tensors[AMP_SEEN_DELTA][i];
    const struct amp_compared *gradient = &p->tensors[AMP_SEEN_GRADIENT][i];
    if (is_fp16(delta) && delta->lost > most_lost)
        return advise(p, i, "%.0f %% of its gradients are too small for FP16 at loss scale %g",
                      100 * delta->lost, p->scale);
    if (delta->seen && gradient->seen && delta->cosine >= good_cosine &&
        gradient->cosine < least_cosine)
        return advise(p, i, "the gradient of its weights has a cosine of %.3f to FP32's",
                      gradient->cosine);
    return false;
}

void amp_precision_judge(struct amp_precision *p)
{
    for (int i = 0; i < p->net->n; ++i)
        if (!p->left[i] && !judge_output(p, i)) judge_gradient(p, i);
}
