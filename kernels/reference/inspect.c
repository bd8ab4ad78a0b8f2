/* Reference: numbers for the log about tensors and gradients: largest magnitude, zeros, sum of
 * squares. */
#include "operations.h"
#include "tensor.h"

void ampk_ref_inspect(struct ampk_context *context, const struct ampk_tensor *x, uint32_t *amax,
                      uint32_t *zeros)
{
    (void)context;
    size_t image = (size_t)x->c * x->h * x->w;
    for (int n = 0; n < x->n; n++)
        for (size_t j = 0; j < image; j++) {
            double v = ampk_ref_get_flat(x, n, j);
            ampk_ref_raise(amax, (float)v);
            *zeros += v == 0;
        }
}

void ampk_ref_sum_squares(struct ampk_context *context, const float *x, size_t n, float *sum)
{
    double all = 0;
    (void)context;
    for (size_t i = 0; i < n; i++)
        all += (double)x[i] * x[i];
    *sum = (float)all;
}
