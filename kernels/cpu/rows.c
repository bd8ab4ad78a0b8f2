/* Rows of elements between storage and FP32 (struct ampk_rows). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

AMPK_INLINE void load_rounded(float *dst, const void *src, enum ampk_dtype t, size_t n,
                              enum ampk_compute compute)
{
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_load(src, i, t, n - i);
        if (compute == AMPK_COMPUTE_FP16) v = ampk_vec_round(v, AMPK_FP16);
        if (compute == AMPK_COMPUTE_BF16) v = ampk_vec_round(v, AMPK_BF16);
        if (compute == AMPK_COMPUTE_TF32) v = ampk_vec_round_tf32(v);
        ampk_vec_store(dst, i, AMPK_FP32, n - i, v);
    }
}

/* A value of the compute type, and every storage value that it represents, stays as it is. */
static bool is_exact(enum ampk_dtype t, enum ampk_compute compute)
{
    return compute == AMPK_COMPUTE_FP32 || (t == AMPK_FP16 && compute == AMPK_COMPUTE_FP16) ||
           (t == AMPK_BF16 && compute == AMPK_COMPUTE_BF16) ||
           (t != AMPK_FP32 && compute == AMPK_COMPUTE_TF32);
}

void AMPK_CPU(rows_load)(float *dst, const void *src, enum ampk_dtype t, size_t n,
                         enum ampk_compute compute)
{
    if (is_exact(t, compute))
        AMPK_WITH_DTYPE(t, T, load_rounded(dst, src, T, n, AMPK_COMPUTE_FP32));
    else if (compute == AMPK_COMPUTE_FP16)
        AMPK_WITH_DTYPE(t, T, load_rounded(dst, src, T, n, AMPK_COMPUTE_FP16));
    else if (compute == AMPK_COMPUTE_BF16)
        AMPK_WITH_DTYPE(t, T, load_rounded(dst, src, T, n, AMPK_COMPUTE_BF16));
    else
        AMPK_WITH_DTYPE(t, T, load_rounded(dst, src, T, n, AMPK_COMPUTE_TF32));
}

AMPK_INLINE uint32_t store_rounded(void *dst, enum ampk_dtype t, const float *src, size_t n,
                                   bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_load(src, i, AMPK_FP32, n - i);
        if (accumulate) v = ampk_vec_add(ampk_vec_load(dst, i, t, n - i), v);
        ampk_vec_store_amax(dst, i, t, n - i, v, &largest);
    }
    return ampk_vec_amax_get(largest);
}

uint32_t AMPK_CPU(rows_store)(void *dst, enum ampk_dtype t, const float *src, size_t n,
                              bool accumulate)
{
    uint32_t largest;
    if (accumulate)
        AMPK_WITH_DTYPE(t, T, largest = store_rounded(dst, T, src, n, true));
    else
        AMPK_WITH_DTYPE(t, T, largest = store_rounded(dst, T, src, n, false));
    return largest;
}
