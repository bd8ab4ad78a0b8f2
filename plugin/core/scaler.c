#include "scaler.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FP16_MAX 65504.0

static int default_window(int max_batches)
{
    int window = max_batches / 50;
    return window < 20 ? 20 : window > 2000 ? 2000 : window;
}

void amp_scaler_init(struct amp_scaler *s, const struct amp_options *o, int max_batches,
                     bool replayable)
{
    memset(s, 0, sizeof *s);
    s->reduced = o->dtype == AMP_DTYPE_FP16;
    s->dynamic = s->reduced && o->loss_scale_dynamic;
    s->retry = o->on_overflow == AMP_OVERFLOW_RETRY && s->dynamic && replayable;
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
        s->scale = o->loss_scale_init > 0 ? o->loss_scale_init : s->max;
    s->searching = s->dynamic && o->loss_scale_init <= 0;
}

void amp_scaler_resume(struct amp_scaler *s, const struct amp_scaler *from)
{
    s->redone = from->redone;
    s->skipped = from->skipped;
    s->applied = from->applied;
    s->grown = from->grown;
    s->backed_off = from->backed_off;
    s->floor_skips = from->floor_skips;
    if (!s->dynamic || !from->dynamic) return;
    s->scale = from->scale < s->min ? s->min : from->scale > s->max ? s->max : from->scale;
    s->searching = from->searching;
    s->tracker = from->tracker;
}

/* Lowers the scale; false at the floor. */
static bool back_off(struct amp_scaler *s, double factor)
{
    double lower = s->scale * factor;
    if (lower < s->min) lower = s->min;
    if (lower == s->scale) return false;
    s->scale = lower;
    s->tracker = 0;
    s->step_backoff = true;
    s->backed_off++;
    return true;
}

/* During the search the scale may be too high by many powers of two. amax says how many at least,
 * so that one replay jumps over them; afterwards a single step down is what a gradient needs. */
static double search_factor(const struct amp_scaler *s, double amax)
{
    double factor = s->backoff;
    if (amax > FP16_MAX && isfinite(amax)) {
        double needed = exp2(floor(log2(FP16_MAX / amax)));
        if (needed < factor) factor = needed;
    }
    return factor;
}

enum amp_verdict amp_scaler_overflow(struct amp_scaler *s, double amax)
{
    bool lowered = s->dynamic && back_off(s, s->searching ? search_factor(s, amax) : s->backoff);
    bool may_retry = s->retry && (s->searching || s->tries < AMP_SCALER_RETRIES);
    s->at_floor = !lowered;
    if (!lowered || !may_retry) return AMP_VERDICT_SKIP;
    s->tries++;
    s->redone++;
    return AMP_VERDICT_RETRY;
}

void amp_scaler_pass(struct amp_scaler *s)
{
    s->tries = 0;
    s->searching = false;
}

static void grow(struct amp_scaler *s)
{
    double higher = s->scale * s->growth;
    s->tracker = 0;
    if (higher > s->max) higher = s->max;
    if (higher == s->scale) return;
    s->scale = higher;
    s->grown++;
}

enum amp_verdict amp_scaler_step(struct amp_scaler *s, bool applied, bool cause_is_scale)
{
    s->tries = 0;
    bool lowered = s->step_backoff, at_floor = s->at_floor && cause_is_scale;
    s->step_backoff = s->at_floor = false;
    if (!applied) {
        s->skipped++;
        s->floor_skips = at_floor ? s->floor_skips + 1 : 0;
        return s->floor_skips >= AMP_SCALER_FLOOR_STOP ? AMP_VERDICT_STOP : AMP_VERDICT_SKIP;
    }
    s->applied++;
    s->floor_skips = 0;
    if (s->dynamic && !lowered && ++s->tracker >= s->window) grow(s);
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
