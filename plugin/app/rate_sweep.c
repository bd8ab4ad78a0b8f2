/* Decides the rates of a sweep, when it ends and which rate it suggests. It must not know how a
 * network trains (lr_find.c) or how the result is shown (rate_report.c). */
#include "rate_sweep.h"

#include <math.h>
#include <stdlib.h>

int amp_sweep_init(struct amp_sweep *s, int most)
{
    *s = (struct amp_sweep){.most = most};
    s->points = calloc((size_t)most, sizeof *s->points);
    return s->points ? 0 : -1;
}

void amp_sweep_free(struct amp_sweep *s)
{
    free(s->points);
    s->points = NULL;
}

double amp_sweep_rate(const struct amp_sweep *s)
{
    double share = (double)s->n / (s->most - 1);
    return AMP_SWEEP_LOWEST * pow(AMP_SWEEP_HIGHEST / AMP_SWEEP_LOWEST, share);
}

/* The mean of the losses so far, each weighing AMP_SWEEP_SMOOTHING times as much as the next one:
 * an exponential average without the weight of a past that was not there. */
static double smooth(const struct amp_sweep *s, double loss)
{
    double past = 1 - pow(AMP_SWEEP_SMOOTHING, s->n),
           before = s->n ? s->points[s->n - 1].smoothed : 0;
    double sum = AMP_SWEEP_SMOOTHING * before * past + (1 - AMP_SWEEP_SMOOTHING) * loss;
    return sum / (1 - pow(AMP_SWEEP_SMOOTHING, s->n + 1));
}

bool amp_sweep_add(struct amp_sweep *s, double loss)
{
    if (!isfinite(loss)) {
        s->diverged = true;
        return false;
    }
    struct amp_sweep_point p = {amp_sweep_rate(s), loss, smooth(s, loss)};
    s->points[s->n] = p;
    if (p.smoothed < s->points[s->best].smoothed) s->best = s->n;
    s->n++;
    s->diverged = p.smoothed > AMP_SWEEP_ENOUGH * s->points[s->best].smoothed;
    return !s->diverged && s->n < s->most;
}

/* Down, since a rate that is too small costs time and one that is too large the training. */
static double two_digits(double x)
{
    double unit = pow(10, floor(log10(x)) - 1);
    return floor(x / unit) * unit;
}

/* At the best rate the loss is about to grow. */
double amp_sweep_suggestion(const struct amp_sweep *s)
{
    if (s->best < 1) return 0;
    return two_digits(s->points[s->best].rate / AMP_SWEEP_MARGIN);
}
