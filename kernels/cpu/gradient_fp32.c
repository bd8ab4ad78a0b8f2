/* Weight gradients in FP32: sums over pixels of dy * x, of some filters and channels at once, which
 * stay in registers. */
#include "cpu.h"
#include "simd.h"

enum { FILTERS = 6, COLUMNS = 2 * AMPK_LANES };

/* out[filters][COLUMNS] (+)= the sums over pixels of dy * x, which start at 0: short sums round
 * less. `dy_step`: values from one pixel of dy to the next, `out_row`: from one filter of out. */
AMPK_INLINE void multiply_block(const int filters, const struct ampk_gradient_rows *r,
                                const float *dy, size_t dy_step, const float *x, float *out,
                                size_t out_row, bool add)
{
    ampk_vec sum[FILTERS][2];
#pragma GCC unroll 8
    for (int f = 0; f < filters; f++)
        sum[f][0] = sum[f][1] = ampk_vec_set(0);
    for (size_t row = 0; row < r->rows; row++) {
        const float *a = dy + row * r->dy_row, *b = x + row * r->x_row;
        for (size_t p = 0; p < r->pixels; p++, a += dy_step, b += r->x_step) {
            ampk_vec left = ampk_vec_load(b, 0, AMPK_FP32, AMPK_LANES);
            ampk_vec right = ampk_vec_load(b, AMPK_LANES, AMPK_FP32, AMPK_LANES);
#pragma GCC unroll 8
            for (int f = 0; f < filters; f++) {
                ampk_vec v = ampk_vec_set(a[f]);
                sum[f][0] = ampk_vec_fma(v, left, sum[f][0]);
                sum[f][1] = ampk_vec_fma(v, right, sum[f][1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int f = 0; f < filters; f++)
        for (int i = 0; i < 2; i++) {
            float *at = out + f * out_row + i * AMPK_LANES;
            if (add) sum[f][i] = sum[f][i] + ampk_vec_load(at, 0, AMPK_FP32, AMPK_LANES);
            ampk_vec_store(at, 0, AMPK_FP32, AMPK_LANES, sum[f][i]);
        }
}

void AMPK_CPU(gradient)(const struct ampk_gradient_rows *r, const float *dy, size_t filters,
                        const float *x, size_t channels, float *out, size_t out_row, bool add)
{
    size_t blocks = (filters + FILTERS - 1) / FILTERS;
    for (size_t c = 0; c < channels; c += COLUMNS)
        for (size_t i = 0; i < blocks; i++) {
            size_t first = i * filters / blocks, count = (i + 1) * filters / blocks - first;
            float *at = out + first * out_row + c;
#define BLOCK(n)                                                                                   \
    case n:                                                                                        \
        multiply_block(n, r, dy + first, filters, x + c, at, out_row, add);                        \
        break;
            switch (count) {
                BLOCK(1)
                BLOCK(2)
                BLOCK(3)
                BLOCK(4)
                BLOCK(5)
                BLOCK(6)
            }
#undef BLOCK
        }
}
