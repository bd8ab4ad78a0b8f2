/* What one instruction set offers: rows of elements between storage and FP32 (struct ampk_rows),
 * and the table of these and of all operations. backend.c picks one of the tables at run time; no
 * other file of an instruction set calls this one. */
#include "cpu.h"
#include "simd.h"

#include <string.h>

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

/* Rows may lie so far apart that the processor does not foresee the next, so each is prefetched 8
 * rows ahead, or fewer where 8 rows are more than 2 KiB: rows a power of two apart push each other
 * out of the first-level cache. Measured with AVX2 alone. */
enum { PREFETCHES = AMPK_LANES == 8, AHEAD = 8, AHEAD_BYTES = 2048, LINE = 64 };

AMPK_INLINE void load(float *dst, const void *src, enum ampk_dtype t, size_t rows, size_t length,
                      size_t stride, enum ampk_compute compute)
{
    const size_t row_bytes = length * ampk_dtype_bytes(t), step = stride * ampk_dtype_bytes(t);
    const size_t ahead = row_bytes * AHEAD <= AHEAD_BYTES ? AHEAD : AHEAD_BYTES / row_bytes + 1;
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; PREFETCHES && r + ahead < rows && i < row_bytes; i += LINE)
            __builtin_prefetch((const char *)src + (r + ahead) * step + i);
        for (size_t i = 0; i < length; i += AMPK_LANES) {
            ampk_vec v = ampk_vec_load(src, r * stride + i, t, length - i);
            ampk_vec_store(dst, r * length + i, AMPK_FP32, length - i, to_compute(v, compute));
        }
    }
}

/* Every value of the storage type is a value of the compute type. */
static bool is_exact(enum ampk_dtype t, enum ampk_compute compute)
{
    return compute == AMPK_COMPUTE_FP32 || (t == AMPK_FP16 && compute == AMPK_COMPUTE_FP16) ||
           (t == AMPK_BF16 && compute == AMPK_COMPUTE_BF16) ||
           (t != AMPK_FP32 && compute == AMPK_COMPUTE_TF32);
}

void AMPK_CPU(rows_load)(float *dst, const void *src, enum ampk_dtype t, size_t rows, size_t length,
                         size_t stride, enum ampk_compute compute)
{
    if (is_exact(t, compute)) compute = AMPK_COMPUTE_FP32;
    if (length == stride) {
        length *= rows;
        rows = 1;
    }
    AMPK_WITH_DTYPE(t, T, WITH_COMPUTE(compute, C, load(dst, src, T, rows, length, stride, C)));
}

AMPK_INLINE void load_bf16(uint16_t *dst, size_t dst_length, const void *src, enum ampk_dtype t,
                           size_t rows, size_t length, size_t stride)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < length; i += AMPK_LANES)
            ampk_vec_store(dst, r * dst_length + i, AMPK_BF16, length - i,
                           ampk_vec_load(src, r * stride + i, t, length - i));
}

void AMPK_CPU(rows_load_bf16)(uint16_t *dst, size_t dst_length, const void *src, enum ampk_dtype t,
                              size_t rows, size_t length, size_t stride)
{
    for (size_t r = 0; r < rows && length < dst_length; r++)
        memset(dst + r * dst_length + length, 0, (dst_length - length) * sizeof *dst);
    if (length == stride && length == dst_length) {
        length *= rows;
        rows = 1;
    }
    if (t == AMPK_BF16)
        for (size_t r = 0; r < rows; r++)
            memcpy(dst + r * dst_length, (const uint16_t *)src + r * stride, length * sizeof *dst);
    else
        AMPK_WITH_DTYPE(t, T, load_bf16(dst, dst_length, src, T, rows, length, stride));
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

AMPK_INLINE uint32_t store(void *dst, enum ampk_dtype t, size_t stride, const float *src,
                           size_t src_stride, size_t rows, size_t length, bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < length; i += AMPK_LANES) {
            size_t at = r * stride + i, left = length - i;
            ampk_vec v = ampk_vec_load(src, r * src_stride + i, AMPK_FP32, left);
            if (accumulate) v = ampk_vec_load(dst, at, t, left) + v;
            ampk_vec_store_amax(dst, at, t, left, v, &largest);
        }
    return ampk_vec_amax_get(largest);
}

uint32_t AMPK_CPU(rows_store)(void *dst, enum ampk_dtype t, size_t stride, const float *src,
                              size_t src_stride, size_t rows, size_t length, bool accumulate)
{
    uint32_t largest;
    if (length == stride && length == src_stride) {
        length *= rows;
        rows = 1;
    }
    if (accumulate)
        AMPK_WITH_DTYPE(t, T, largest = store(dst, T, stride, src, src_stride, rows, length, true));
    else
        AMPK_WITH_DTYPE(t, T,
                        largest = store(dst, T, stride, src, src_stride, rows, length, false));
    return largest;
}

uint32_t AMPK_CPU(rows_add_parts)(float *dst, size_t stride, const struct ampk_parts *parts,
                                  size_t rows, size_t length)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < length; i += AMPK_LANES) {
            const float *from = parts->first + r * parts->stride;
            ampk_vec sum = ampk_vec_load(from, i, AMPK_FP32, length - i);
            for (size_t part = 1; part < parts->count; part++)
                sum += ampk_vec_load(from + part * parts->step, i, AMPK_FP32, length - i);
            ampk_vec_store(dst + r * stride, i, AMPK_FP32, length - i, sum);
            largest = ampk_vec_amax_raise(largest, sum, length - i);
        }
    return ampk_vec_amax_get(largest);
}

void AMPK_CPU(rows_add_scaled)(float *dst, const float *src, size_t n, float factor,
                               bool accumulate)
{
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_load(src, i, AMPK_FP32, n - i);
        v *= ampk_vec_set(factor);
        if (accumulate) v = ampk_vec_load(dst, i, AMPK_FP32, n - i) + v;
        ampk_vec_store(dst, i, AMPK_FP32, n - i, v);
    }
}

uint32_t AMPK_CPU(rows_amax)(const float *src, size_t n)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES)
        largest = ampk_vec_amax_raise(largest, ampk_vec_load(src, i, AMPK_FP32, n - i), n - i);
    return ampk_vec_amax_get(largest);
}

/* ---- the table ---- */

#define AMPK_TEXT_(x) #x
#define AMPK_TEXT(x)  AMPK_TEXT_(x)

#define AMPK_CPU_ENTRY(operation) .operation = AMPK_CPU(operation),
static const struct ampk_backend operations = {.name = AMPK_TEXT(AMPK_ISA),
                                               AMPK_CPU_OPERATIONS(AMPK_CPU_ENTRY)};

#define AMPK_CPU_ROWS_ENTRY(name) .name = AMPK_CPU(rows_##name),
#define AMPK_ISA_TABLE            AMPK_JOIN(ampk_, isa, AMPK_ISA)
const struct ampk_isa AMPK_ISA_TABLE = {
    .name = AMPK_TEXT(AMPK_ISA),
    .operations = &operations,
    .rows = {AMPK_CPU_ROWS(AMPK_CPU_ROWS_ENTRY)},
#ifdef __AVX2__
    .winograd = &AMPK_CPU(winograd),
#endif
#ifdef __AVX512F__
    .put_lines = ampk_avx512_put_lines,
    .pairs = &ampk_avx512_pairs,
    .product = ampk_avx512_product,
#elif defined __AVX2__
    .gradient = ampk_cpu_gradient_avx2,
#endif
};
