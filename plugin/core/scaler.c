/* Decides when the loss scale falls, when it grows, and what follows from an overflow. It must not
 * know tensors, layers or the log: it sees an overflow as one number and a step as applied or
 * not. */
#include "scaler.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FP16_MAX 65504.0

/* In steps. A window of 2000, as in other trainers, would never end in a short run; so it follows
 * the length of the run. */
static int default_window(int max_batches)
{
    int window = max_batches / 50;
    return window < 20 ? 20 : window > 2000 ? 2000 : window;
}

void amp_scaler_init(struct amp_scaler *s, const struct amp_options *o, int max_batches,
                     bool replayable)
{
    memset(s, 0, sizeof *s);
    /* BF16 and TF32 have the range of FP32, so their gradients need no scale. */
    s->reduced = o->dtype == AMP_DTYPE_FP16;
    s->dynamic = s->reduced && o->loss_scale_dynamic;
    /* A replay at the same fixed scale would overflow again, and recurrent layers cannot run
     * backward twice. */
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

/* Lowers the scale; false at the floor. */
static bool back_off(struct amp_scaler *s, double factor)
{
    double lower = s->scale * factor;
    if (lower < s->min) lower = s->min;
    if (lower == s->scale) return false;
    s->scale = lower;
    /* Growth needs a full window without overflow. */
    s->tracker = 0;
    s->step_backoff = true;
    s->backed_off++;
    return true;
}

/* During the search the scale may be many powers of two too high. amax says by how many at least,
 * so one replay jumps over them. After the search one step down is enough. */
static double search_factor(const struct amp_scaler *s, double amax)
{
    double factor = s->backoff;
    if (amax > FP16_MAX && isfinite(amax)) {
        /* The largest power of two that brings amax below FP16's limit. */
        double needed = exp2(floor(log2(FP16_MAX / amax)));
        if (needed < factor) factor = needed;
    }
    return factor;
}

enum amp_verdict amp_scaler_overflow(struct amp_scaler *s, double amax)
{
    bool lowered = s->dynamic && back_off(s, s->searching ? search_factor(s, amax) : s->backoff);
    /* The search may take as many replays as it needs: it ends at the floor. Later, a pass that
     * fails five times is better skipped. */
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
    /* At the ceiling: nothing grew, nothing is counted. */
    if (higher == s->scale) return;
    s->scale = higher;
    s->grown++;
}

enum amp_verdict amp_scaler_step(struct amp_scaler *s, bool applied, bool cause_is_scale)
{
    s->tries = 0;
    /* A step whose scale fell is not a clean one, even if its replay was applied. */
    bool lowered = s->step_backoff, at_floor = s->at_floor && cause_is_scale;
    s->step_backoff = s->at_floor = false;
    if (!applied) {
        s->skipped++;
        /* Only skips that a lower scale might have cured count as hopeless. */
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
