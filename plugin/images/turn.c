/* Decides which instruction set computes a turned image. The arithmetic is in turn_rows.c. */
#include "turn.h"

#include "turn_rows.h"

void amp_turn(const struct amp_pixels *image, const struct amp_turn *t, float *canvas)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        amp_turn_avx512(image, t, canvas);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        amp_turn_avx2(image, t, canvas);
        return;
    }
#endif
    amp_turn_base(image, t, canvas);
}
