/* simd.h in portable C: one lane. It defines what the other two headers must compute, except that
 * its multiply-add rounds twice. */
#ifndef AMPK_SIMD_BASE_H
#define AMPK_SIMD_BASE_H

enum { AMPK_LANES = 1 };
typedef float ampk_vec;
typedef uint32_t ampk_vec_amax;

AMPK_INLINE ampk_vec ampk_vec_set(float v)
{
    return v;
}
AMPK_INLINE ampk_vec ampk_vec_fma(ampk_vec a, ampk_vec b, ampk_vec c)
{
    return a * b + c;
}
AMPK_INLINE ampk_vec ampk_vec_if_positive(ampk_vec x, ampk_vec a, ampk_vec b)
{
    return x > 0 ? a : b;
}
AMPK_INLINE ampk_vec ampk_vec_if_greater(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return a > b ? x : y;
}
AMPK_INLINE ampk_vec ampk_vec_if_equal(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return a == b ? x : y;
}
AMPK_INLINE ampk_vec ampk_vec_sqrt(ampk_vec v)
{
    return __builtin_sqrtf(v);
}
AMPK_INLINE ampk_vec ampk_vec_times_power(ampk_vec x, ampk_vec n)
{
    return x * ampk_from_bits((uint32_t)((int)n + 127) << 23);
}
AMPK_INLINE ampk_vec ampk_vec_round_tf32(ampk_vec v)
{
    return ampk_round_tf32(v);
}
AMPK_INLINE ampk_vec ampk_vec_load(const void *base, size_t i, enum ampk_dtype t, size_t left)
{
    return left > 0 ? ampk_load(base, i, t) : 0;
}
AMPK_INLINE ampk_vec ampk_vec_round(ampk_vec v, enum ampk_dtype t)
{
    if (t == AMPK_FP16) return ampk_fp16_to_float(ampk_float_to_fp16(v));
    if (t == AMPK_BF16) return ampk_bf16_to_float(ampk_float_to_bf16(v));
    return v;
}
AMPK_INLINE void ampk_vec_store(void *base, size_t i, enum ampk_dtype t, size_t left, ampk_vec v)
{
    if (left > 0) ampk_store(base, i, t, v);
}
AMPK_INLINE ampk_vec ampk_vec_load_bytes(const uint8_t *p, size_t left)
{
    return left > 0 ? *p : 0;
}
AMPK_INLINE void ampk_vec_store_bytes(uint8_t *p, size_t left, ampk_vec v)
{
    if (left > 0) *p = (uint8_t)v;
}
AMPK_INLINE ampk_vec_amax ampk_vec_amax_zero(void)
{
    return 0;
}
AMPK_INLINE ampk_vec_amax ampk_vec_amax_raise(ampk_vec_amax m, ampk_vec v, size_t left)
{
    uint32_t b = ampk_bits(v) & 0x7fffffff;
    return left > 0 && b > m ? b : m;
}
AMPK_INLINE uint32_t ampk_vec_amax_get(ampk_vec_amax m)
{
    return m;
}

AMPK_INLINE void ampk_vec_transpose(ampk_vec r[1])
{
    (void)r;
}

#endif
