/* Reference: dropout, clipping and activation, element by element. A mask counts elements in NCHW
 * order, whatever the layout of the tensor. */
#include "activation.h"
#include "kernels/philox.h"
#include "operations.h"
#include "tensor.h"

void ampk_ref_dropout(struct ampk_context *context, const struct ampk_tensor *x,
                      const uint8_t *keep, float scale, const struct ampk_tensor *y,
                      bool accumulate, uint32_t *amax)
{
    (void)context;
    size_t image = ampk_ref_count(x) / x->n;
    for (int n = 0; n < x->n; n++)
        for (size_t j = 0; j < image; j++) {
            double v = keep[n * image + j] ? scale * ampk_ref_get_flat(x, n, j) : 0;
            ampk_ref_set_flat(y, n, j, v, accumulate, amax);
        }
}

/* NaN fails the comparison and stays. */
void ampk_ref_clip(struct ampk_context *context, const struct ampk_tensor *x, float limit)
{
    (void)context;
    size_t image = ampk_ref_count(x) / x->n;
    for (int n = 0; n < x->n; n++)
        for (size_t j = 0; j < image; j++) {
            double v = ampk_ref_get_flat(x, n, j);
            if (fabs(v) > limit) ampk_ref_set_flat(x, n, j, copysign(limit, v), false, NULL);
        }
}

/* Compares as the contract is written, u < probability; the other backends compare whole numbers.
 */
void ampk_ref_dropout_draw(struct ampk_context *context, const struct ampk_draw *draw,
                           float probability, uint8_t *keep, size_t n)
{
    (void)context;
    for (size_t i = 0; i < n; i++) {
        uint32_t numbers[4];
        ampk_draw_four(draw, (uint32_t)(i / 4), numbers);
        keep[i] = !(numbers[i % 4] * 0x1p-32 < (double)probability);
    }
}

void ampk_ref_activation_forward(struct ampk_context *context, const struct ampk_tensor *x,
                                 enum ampk_activation activation, const struct ampk_tensor *y,
                                 uint32_t *amax)
{
    (void)context;
    size_t image = ampk_ref_count(x) / x->n;
    for (int n = 0; n < x->n; n++)
        for (size_t j = 0; j < image; j++) {
            double v = ampk_ref_activate(ampk_ref_get_flat(x, n, j), activation);
            ampk_ref_set_flat(y, n, j, v, false, amax);
        }
}

void ampk_ref_activation_backward(struct ampk_context *context, const struct ampk_tensor *out,
                                  enum ampk_activation activation, const struct ampk_tensor *d,
                                  const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    (void)context;
    size_t image = ampk_ref_count(d) / d->n;
    for (int n = 0; n < d->n; n++)
        for (size_t j = 0; j < image; j++) {
            double slope = ampk_ref_gradient(ampk_ref_get_flat(out, n, j), activation);
            ampk_ref_set_flat(dx, n, j, slope * ampk_ref_get_flat(d, n, j), accumulate, amax);
        }
}
