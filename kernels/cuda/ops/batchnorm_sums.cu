/* The end of batch-norm's backward sums where the kernel that takes them cannot finish them: those
 * of other processes belong to them. */
#include "batchnorm.h"

static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    finish_sums(const float *sums, unsigned channels, unsigned count, ampk_batchnorm bn,
                float *dscale, float *dbias, ampk_coefficients to, uint32_t *db_amax)
{
    unsigned c = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t largest = 0;
    if (c < channels) {
        ampk_finish_channel(bn, c, (float)count, sums[c], sums[channels + c], dscale, dbias, to);
        largest = ampk_larger(ampk_magnitude(dscale[c]), ampk_magnitude(dbias[c]));
    }
    ampk_raise_amax(db_amax, largest);
}

/* of_y lies behind of_g, so both sums are one array. A thread reads its two before it overwrites
 * them. */
void ampk_cuda_share_sums(struct ampk_context *ctx, const struct ampk_batchnorm *bn,
                          unsigned channels, unsigned count, const struct ampk_coefficients *by,
                          float *dscale, float *dbias, uint32_t *db_amax)
{
    unsigned blocks = (channels + AMPK_MAP_THREADS - 1) / AMPK_MAP_THREADS;
    bn->peers->mean(bn->peers->user, by->of_g, 2 * (size_t)channels);
    AMPK_LAUNCH(finish_sums, blocks, AMPK_MAP_THREADS, 0, ctx->stream, by->of_g, channels, count,
                *bn, dscale, dbias, *by, db_amax);
}
