/* Reference: copies between dtypes and layouts. NCHW order decides which elements belong together,
 * whatever the shapes. */
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
