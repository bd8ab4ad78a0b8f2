/* Batch-norm fused with activation, and bias with activation. */
#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu.h"

void AMPK_CPU(bn_statistics)(struct ampk_context *ctx, int c, const float *sums, const float *shift,
                             size_t count, float *mean, float *variance)
{
    (void)ctx;
    for (int i = 0; i < c; i++) {
        double sum = sums[i], squares = sums[c + i], n = (double)count;
        double spread = squares - sum * sum / n;
        mean[i] = (float)(shift[i] + sum / n);
        variance[i] = count > 1 && !(spread < 0) ? (float)(spread / (n - 1)) : 0;
    }
}

void AMPK_CPU(bn_roll)(struct ampk_context *ctx, int c, const float *mean, const float *variance,
                       float *rolling_mean, float *rolling_variance)
{
    (void)ctx;
    for (int i = 0; i < c; i++) {
        rolling_mean[i] = .99f * rolling_mean[i] + .01f * mean[i];
        rolling_variance[i] = .99f * rolling_variance[i] + .01f * variance[i];
    }
}
