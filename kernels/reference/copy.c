/* Reference: copies between dtypes, layouts and channel ranges. */
#include "operations.h"
#include "tensor.h"

void ampk_ref_convert(struct ampk_context *context, const struct ampk_tensor *src,
                      const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    (void)context;
    size_t image = ampk_ref_count(src) / src->n;
    for (int n = 0; n < src->n; n++)
        for (size_t j = 0; j < image; j++)
            ampk_ref_set_flat(dst, n, j, ampk_ref_get_flat(src, n, j), accumulate, amax);
}

/* dst[to + c] (+)= src[from + c] for all c in [0, channels). */
static void copy_channels(const struct ampk_tensor *src, int from, const struct ampk_tensor *dst,
                          int to, int channels, bool accumulate, uint32_t *amax)
{
    for (int n = 0; n < src->n; n++)
        for (int c = 0; c < channels; c++)
            for (int h = 0; h < src->h; h++)
                for (int w = 0; w < src->w; w++)
                    ampk_ref_set(dst, n, to + c, h, w, ampk_ref_get(src, n, from + c, h, w),
                                 accumulate, amax);
}

void ampk_ref_channels_scatter(struct ampk_context *context, const struct ampk_tensor *src,
                               const struct ampk_tensor *dst, int first, uint32_t *amax)
{
    (void)context;
    copy_channels(src, 0, dst, first, src->c, false, amax);
}

void ampk_ref_channels_gather(struct ampk_context *context, const struct ampk_tensor *src,
                              const struct ampk_tensor *dst, int first, bool accumulate,
                              uint32_t *amax)
{
    (void)context;
    copy_channels(src, first, dst, 0, dst->c, accumulate, amax);
}
