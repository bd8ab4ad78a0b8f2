/* tensor_core.h on the host's memory, by plain loops: what cuDNN and cuBLASLt are on a GPU.
 *
 * Operands are widened to FP32 once; the innermost loop runs over channels, which are adjacent in
 * memory, so that compilers make vectors of it without reordering a sum. Every sum has one order,
 * whatever the number of threads. */
#include "tensor_core_host.h"

#include "kernels/cuda/libs/tensor_core.h"
#include "emulation.h"

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE = 512 }; /* unused, but it must be there */

struct ampk_tc_plan {
    struct ampk_tc_problem p;
    struct ampk_tc_plan *next;
};

struct ampk_tc {
    struct ampk_tc_plan *plans;
    ampk_rt_stream stream; /* of operations */
    int device;            /* of the libraries' handles */
};

static bool refuse_fp32, refuse_accumulate;
static atomic_size_t ran_forward;

void tensor_core_host_refuse(bool fp32_results, bool accumulate)
{
    refuse_fp32 = fp32_results;
    refuse_accumulate = accumulate;
}

size_t tensor_core_host_forward(void)
{
    return ran_forward;
}

struct ampk_tc *ampk_tc_create(const struct ampk_rt_device *device,
                               const struct ampk_tc_settings *settings, char *err, size_t err_size)
{
    (void)device;
    (void)settings;
    struct ampk_tc *tc = calloc(1, sizeof *tc);
    if (!tc) snprintf(err, err_size, "out of memory");
    if (tc) tc->device = emulation_device();
    return tc;
}

void ampk_tc_destroy(struct ampk_tc *tc)
{
    while (tc && tc->plans) {
        struct ampk_tc_plan *plan = tc->plans;
        tc->plans = plan->next;
        free(plan);
    }
    free(tc);
}

/* Nothing is timed here. */
void ampk_tc_say_timed(struct ampk_tc *tc)
{
    (void)tc;
}

struct ampk_tc_plan *ampk_tc_plan_create(struct ampk_tc *tc, const struct ampk_tc_problem *p,
                                         ampk_rt_stream stream, char *why, size_t why_size)
{
    emulation_only_on(tc->device, "a handle of cuDNN or cuBLASLt");
    tc->stream = stream;
    bool fp32 = p->result == AMPK_FP32 && ampk_tc_operand(p->compute) != AMPK_FP32;
    bool refused = (fp32 && (refuse_fp32 || p->accumulate)) || (p->accumulate && refuse_accumulate);
    struct ampk_tc_plan *plan = refused ? NULL : calloc(1, sizeof *plan);
    if (!plan) {
        snprintf(why, why_size, refused ? "refused for the test" : "out of memory");
        return NULL;
    }
    *plan = (struct ampk_tc_plan){*p, tc->plans};
    return tc->plans = plan;
}

struct ampk_tc_plan_info ampk_tc_plan_info(const struct ampk_tc_plan *plan)
{
    (void)plan;
    return (struct ampk_tc_plan_info){.workspace = WORKSPACE,
                                      .no_tensor_cores = "this is the emulation"};
}

/* ---- numbers ---- */

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float from_fp16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 0) return from_bits(sign | to_bits((float)fraction * 0x1p-24f));
    return from_bits(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

/* bits without their lowest ones, to nearest even. */
static uint32_t drop(uint32_t bits, int lowest)
{
    return (bits + ((1u << (lowest - 1)) - 1) + (bits >> lowest & 1)) >> lowest;
}

static uint16_t to_fp16(float f)
{
    uint32_t bits = to_bits(f), size = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x477ff000) return sign | 0x7c00;
    /* Below the normal numbers, adding 1/2 leaves just the bits that FP16 has. */
    if (size < 0x38800000) return sign | (uint16_t)(to_bits(from_bits(size) + .5f) - 0x3f000000);
    return sign | (uint16_t)drop(size - (112u << 23), 13);
}

static uint16_t to_bf16(float f)
{
    uint32_t bits = to_bits(f);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (uint16_t)drop(bits, 16);
}

static float load(const void *from, size_t i, enum ampk_dtype dtype)
{
    if (dtype == AMPK_FP16) return from_fp16(((const uint16_t *)from)[i]);
    if (dtype == AMPK_BF16) return from_bits((uint32_t)((const uint16_t *)from)[i] << 16);
    return ((const float *)from)[i];
}

static void store(void *to, size_t i, enum ampk_dtype dtype, float v)
{
    if (dtype == AMPK_FP16)
        ((uint16_t *)to)[i] = to_fp16(v);
    else if (dtype == AMPK_BF16)
        ((uint16_t *)to)[i] = to_bf16(v);
    else
        ((float *)to)[i] = v;
}

static float *floats(size_t n)
{
    float *memory = calloc(n ? n : 1, sizeof *memory);
    if (memory) return memory;
    fprintf(stderr, "emulated Tensor Cores: no memory for %zu numbers\n", n);
    abort();
}

/* An operand in FP32; for TF32 it is rounded here. */
static float *widen(const struct ampk_tc_problem *p, const void *from, size_t n)
{
    enum ampk_dtype dtype = ampk_tc_operand(p->compute);
    bool tf32 = p->compute == AMPK_COMPUTE_TF32;
    float *wide = floats(n);
#pragma omp parallel for
    for (size_t i = 0; i < n; i++) {
        float v = load(from, i, dtype);
        bool finite = (to_bits(v) & 0x7f800000) != 0x7f800000;
        wide[i] = tf32 && finite ? from_bits(drop(to_bits(v), 13) << 13) : v;
    }
    return wide;
}

/* ---- passes ---- */

struct sizes {
    int oh, ow, c, k; /* c, k: of a group */
    size_t x, weights, y;
};

static struct sizes sizes_of(const struct ampk_tc_problem *p)
{
    struct sizes s = {ampk_tc_out(p, p->h, p->kh),
                      ampk_tc_out(p, p->w, p->kw),
                      p->c / p->groups,
                      p->k / p->groups,
                      0,
                      0,
                      0};
    s.x = (size_t)p->n * p->h * p->w * p->c;
    s.weights = (size_t)p->k * p->kh * p->kw * s.c;
    s.y = (size_t)p->n * s.oh * s.ow * p->k;
    return s;
}

/* The pixel of x that output (row, column) meets at a tap; -1: outside. */
static long pixel_at(const struct ampk_tc_problem *p, int image, int row, int column, int tap)
{
    int h = row * p->stride - p->pad + tap / p->kw, w = column * p->stride - p->pad + tap % p->kw;
    if (h < 0 || h >= p->h || w < 0 || w >= p->w) return -1;
    return ((long)image * p->h + h) * p->w + w;
}

/* sum[i] += factor * v[i] */
static void add_products(float *restrict sum, float factor, const float *restrict v, int n)
{
    for (int i = 0; i < n; i++)
        sum[i] += factor * v[i];
}

/* [k][tap][c] -> [group][tap][c][k of the group] */
static float *turn_weights(const struct ampk_tc_problem *p, const struct sizes *s, const float *w)
{
    int taps = p->kh * p->kw;
    float *turned = floats(s->weights);
#pragma omp parallel for
    for (int k = 0; k < p->k; k++)
        for (int i = 0; i < taps * s->c; i++)
            turned[((size_t)(k / s->k) * taps * s->c + i) * s->k + k % s->k] =
                w[(size_t)k * taps * s->c + i];
    return turned;
}

static void forward(const struct ampk_tc_problem *p, const struct sizes *s, const float *x,
                    const float *weights, float *y)
{
    int taps = p->kh * p->kw;
    float *turned = turn_weights(p, s, weights);
#pragma omp parallel for collapse(2)
    for (int image = 0; image < p->n; image++)
        for (int row = 0; row < s->oh; row++)
            for (int column = 0; column < s->ow; column++)
                for (int tap = 0; tap < taps; tap++) {
                    long pixel = pixel_at(p, image, row, column, tap);
                    float *to = y + (((size_t)image * s->oh + row) * s->ow + column) * p->k;
                    for (int c = 0; pixel >= 0 && c < p->c; c++) {
                        size_t first = ((size_t)(c / s->c) * taps + tap) * s->c + c % s->c;
                        add_products(to + c / s->c * s->k, x[pixel * p->c + c],
                                     turned + first * s->k, s->k);
                    }
                }
    free(turned);
}

static void data_gradient(const struct ampk_tc_problem *p, const struct sizes *s, const float *dy,
                          const float *weights, float *dx)
{
    int taps = p->kh * p->kw;
#pragma omp parallel for
    for (int image = 0; image < p->n; image++)
        for (int row = 0; row < s->oh; row++)
            for (int column = 0; column < s->ow; column++)
                for (int tap = 0; tap < taps; tap++) {
                    long pixel = pixel_at(p, image, row, column, tap);
                    const float *from =
                        dy + (((size_t)image * s->oh + row) * s->ow + column) * p->k;
                    for (int k = 0; pixel >= 0 && k < p->k; k++)
                        add_products(dx + pixel * p->c + k / s->k * s->c, from[k],
                                     weights + ((size_t)k * taps + tap) * s->c, s->c);
                }
}

static void weight_gradient(const struct ampk_tc_problem *p, const struct sizes *s, const float *x,
                            const float *dy, float *dw)
{
    int taps = p->kh * p->kw;
#pragma omp parallel for
    for (int k = 0; k < p->k; k++)
        for (int image = 0; image < p->n; image++)
            for (int row = 0; row < s->oh; row++)
                for (int column = 0; column < s->ow; column++)
                    for (int tap = 0; tap < taps; tap++) {
                        long pixel = pixel_at(p, image, row, column, tap);
                        if (pixel < 0) continue;
                        add_products(
                            dw + ((size_t)k * taps + tap) * s->c,
                            dy[(((size_t)image * s->oh + row) * s->ow + column) * p->k + k],
                            x + pixel * p->c + k / s->k * s->c, s->c);
                    }
}

static void require_aligned(const void *p, size_t bytes, const char *what)
{
    if ((uintptr_t)p % bytes == 0) return;
    fprintf(stderr, "emulated Tensor Cores: %s at %p, not a multiple of %zu\n", what, p, bytes);
    abort();
}

struct run {
    const struct ampk_tc_problem *p;
    const void *first, *second;
    void *result, *workspace;
};

static void run(void *data)
{
    const struct run *r = data;
    const struct ampk_tc_problem *p = r->p;
    const void *first = r->first, *second = r->second;
    void *result = r->result, *workspace = r->workspace;
    struct sizes s = sizes_of(p);
    size_t of_first = p->pass == AMPK_TC_DATA ? s.y : s.x;
    size_t of_second = p->pass == AMPK_TC_WEIGHTS ? s.y : s.weights;
    size_t of_result = p->pass == AMPK_TC_FORWARD ? s.y : p->pass == AMPK_TC_DATA ? s.x : s.weights;
    require_aligned(first, 16, "first operand");
    require_aligned(second, 16, "second operand");
    require_aligned(result, 16, "result");
    require_aligned(workspace, 256, "workspace");
    emulation_device_begin();
    memset(workspace, 0xff, WORKSPACE);
    float *a = widen(p, first, of_first), *b = widen(p, second, of_second);
    float *sums = floats(of_result);
    if (p->pass == AMPK_TC_FORWARD)
        forward(p, &s, a, b, sums);
    else if (p->pass == AMPK_TC_DATA)
        data_gradient(p, &s, a, b, sums);
    else
        weight_gradient(p, &s, a, b, sums);
#pragma omp parallel for
    for (size_t i = 0; i < of_result; i++)
        store(result, i, p->result, sums[i] + (p->accumulate ? load(result, i, p->result) : 0));
    memset(workspace, 0xff, WORKSPACE); /* again: nothing that is read later may lie there */
    emulation_device_end();
    free(a);
    free(b);
    free(sums);
}

void ampk_tc_run(struct ampk_tc *tc, const struct ampk_tc_plan *plan, const void *first,
                 const void *second, void *result, void *workspace, ampk_rt_stream stream)
{
    struct run *kept = malloc(sizeof *kept);
    if (!kept) abort();
    emulation_only_on(tc->device, "a handle of cuDNN or cuBLASLt");
    for (int i = 0; i < 4; i++)
        emulation_check_memory((const void *[]){first, second, result, workspace}[i],
                               "a convolution's memory");
    *kept = (struct run){&plan->p, first, second, result, workspace};
    ran_forward += plan->p.pass == AMPK_TC_FORWARD;
    if (stream != tc->stream) {
        fprintf(stderr, "emulated Tensor Cores: another stream than that of the plans\n");
        abort();
    }
    if (emulation_record(run, kept, free)) return;
    run(kept);
    free(kept);
}
