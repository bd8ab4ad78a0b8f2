/* Dense rows of elements between storage and FP32 (struct ampk_rows). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

AMPK_INLINE ampk_vec to_compute(ampk_vec v, enum ampk_compute compute)
{
    if (compute == AMPK_COMPUTE_FP16) return ampk_vec_round(v, AMPK_FP16);
    if (compute == AMPK_COMPUTE_BF16) return ampk_vec_round(v, AMPK_BF16);
    if (compute == AMPK_COMPUTE_TF32) return ampk_vec_round_tf32(v);
    return v;
}

/* Runs the statement with C a constant equal to `compute`. */
#define WITH_COMPUTE(compute, C, statement)                                                        \
    do {                                                                                           \
        if ((compute) == AMPK_COMPUTE_FP16) {                                                      \
            const enum ampk_compute C = AMPK_COMPUTE_FP16;                                         \
            statement;                                                                             \
        } else if ((compute) == AMPK_COMPUTE_BF16) {                                               \
            const enum ampk_compute C = AMPK_COMPUTE_BF16;                                         \
            statement;                                                                             \
        } else if ((compute) == AMPK_COMPUTE_TF32) {                                               \
            const enum ampk_compute C = AMPK_COMPUTE_TF32;                                         \
            statement;                                                                             \
        } else {                                                                                   \
            const enum ampk_compute C = AMPK_COMPUTE_FP32;                                         \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

AMPK_INLINE void load_row(float *dst, const void *src, enum ampk_dtype t, size_t n,
                          enum ampk_compute compute)
{
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = to_compute(ampk_vec_load(src, i, t, n - i), compute);
        ampk_vec_store(dst, i, AMPK_FP32, n - i, v);
    }
}

/* Every value of the storage type is a value of the compute type. */
static bool is_exact(enum ampk_dtype t, enum ampk_compute compute)
{
    return compute == AMPK_COMPUTE_FP32 || (t == AMPK_FP16 && compute == AMPK_COMPUTE_FP16) ||
           (t == AMPK_BF16 && compute == AMPK_COMPUTE_BF16) ||
           (t != AMPK_FP32 && compute == AMPK_COMPUTE_TF32);
}

void AMPK_CPU(rows_load)(float *dst, const void *src, enum ampk_dtype t, size_t n,
                         enum ampk_compute compute)
{
    if (is_exact(t, compute)) compute = AMPK_COMPUTE_FP32;
    AMPK_WITH_DTYPE(t, T, WITH_COMPUTE(compute, C, load_row(dst, src, T, n, C)));
}

AMPK_INLINE uint32_t round_row(float *dst, const float *src, size_t n, enum ampk_compute compute)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_load(src, i, AMPK_FP32, n - i);
        ampk_vec_store(dst, i, AMPK_FP32, n - i, to_compute(v, compute));
        largest = ampk_vec_amax_raise(largest, v, n - i);
    }
    return ampk_vec_amax_get(largest);
}

uint32_t AMPK_CPU(rows_round)(float *dst, const float *src, size_t n, enum ampk_compute compute)
{
    uint32_t largest;
    WITH_COMPUTE(compute, C, largest = round_row(dst, src, n, C));
    return largest;
}

AMPK_INLINE uint32_t store_row(void *dst, enum ampk_dtype t, const float *src, size_t n,
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
        AMPK_WITH_DTYPE(t, T, largest = store_row(dst, T, src, n, true));
    else
        AMPK_WITH_DTYPE(t, T, largest = store_row(dst, T, src, n, false));
    return largest;
}

void AMPK_CPU(rows_add)(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec sum = ampk_vec_add(ampk_vec_load(dst, i, AMPK_FP32, n - i),
                                    ampk_vec_load(src, i, AMPK_FP32, n - i));
        ampk_vec_store(dst, i, AMPK_FP32, n - i, sum);
    }
}

uint32_t AMPK_CPU(rows_amax)(const float *src, size_t n)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES)
        largest = ampk_vec_amax_raise(largest, ampk_vec_load(src, i, AMPK_FP32, n - i), n - i);
    return ampk_vec_amax_get(largest);
}
