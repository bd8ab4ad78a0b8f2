/* Decides which of four faults the watch words of a pass show. It must not react to a fault: the
 * scaler and step.c do that. Magnitudes are compared as bits: for positive IEEE-754 numbers the
 * order of the bits is the order of the values, with inf and NaN above all of them. */
#include "fault.h"

#include "kernels/kernels.h"

#include <string.h>

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
            if (bits >= AMPK_INF_BITS) return fault(AMP_FAULT_DIVERGED, i, (enum amp_watch)w, bits);
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
