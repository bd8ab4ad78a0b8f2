/* The CPU backend's table, its context, and the choice of an instruction set. The top file of the
 * backend: none of the others calls it.
 *
 * Environment: AMPK_CPU_ISA=avx512_bf16|avx512|avx2|base takes another instruction set than the
 * best one (tests run all of them). avx512_bf16 is avx512 whose convolutions multiply BF16.
 */
#include "cpu.h"
#include "dnnl_compat.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
/* Not every compiler's __builtin_cpu_supports knows it. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

/* AVX512-BF16. A CPU with AMX-BF16 has that too. */
static bool has_avx512_bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & bit_AVX512BF16;
}
#endif

struct choice {
    const char *name;
    const struct ampk_isa *isa; /* of the element-wise operations */
    bool multiplies_bf16;
};

static bool runs_here(const struct choice *choice)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (choice->multiplies_bf16 && !has_avx512_bf16()) return false;
    if (choice->isa == &ampk_isa_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (choice->isa == &ampk_isa_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#endif
    return choice->isa == &ampk_isa_base;
}

/* The best instruction set that runs here, or the one asked for. */
static const struct choice *choose_isa(char *err, size_t err_size)
{
    static const struct choice best_first[] = {
#ifdef __x86_64__
        {"avx512_bf16", &ampk_isa_avx512, true},
        {"avx512", &ampk_isa_avx512, false},
        {"avx2", &ampk_isa_avx2, false},
#endif
        {"base", &ampk_isa_base, false},
    };
    const char *wanted = getenv("AMPK_CPU_ISA");
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
        if (runs_here(&best_first[i]) && (!wanted || !strcmp(wanted, best_first[i].name)))
            return &best_first[i];
    snprintf(
        err, err_size,
        "AMPK_CPU_ISA=%s: must be avx512_bf16, avx512, avx2 or base, and run on this processor",
        wanted);
    return NULL;
}

static bool multiplies_bf16(void)
{
    char err[200];
    const struct choice *choice = choose_isa(err, sizeof err);
    return choice && choice->multiplies_bf16;
}

static size_t conv_bytes(const struct ampk_conv_shape *s)
{
    char err[200];
    const struct choice *choice = choose_isa(err, sizeof err);
    return choice ? ampk_conv_bytes(s, choice->isa, choice->multiplies_bf16) : 0;
}

static size_t conv_work_bytes(const struct ampk_conv_shape *s)
{
    char err[200];
    const struct choice *choice = choose_isa(err, sizeof err);
    return choice ? ampk_conv_work_bytes(s, choice->isa, choice->multiplies_bf16) : 0;
}

static void context_destroy(struct ampk_context *ctx)
{
    if (!ctx) return;
    ampk_dnnl_destroy(ctx->dnnl);
    free(ctx->memory);
    free(ctx);
}

static struct ampk_context *context_create(int threads, char *err, size_t err_size)
{
    const struct choice *choice = choose_isa(err, err_size);
    if (!choice) return NULL;
    struct ampk_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx) {
        snprintf(err, err_size, "out of memory");
        return NULL;
    }
    ctx->threads = threads > 0 ? threads : omp_get_max_threads();
    ctx->isa = choice->isa;
    ctx->multiplies_bf16 = choice->multiplies_bf16;
    ctx->dnnl = ampk_dnnl_create(ctx->threads, err, err_size);
    if (ctx->dnnl) return ctx;
    context_destroy(ctx);
    return NULL;
}

static void *memory_alloc(struct ampk_context *ctx, size_t bytes)
{
    (void)ctx;
    return ampk_aligned_memory(bytes);
}

static void memory_free(struct ampk_context *ctx, void *memory)
{
    (void)ctx;
    free(memory);
}

/* Every operation is done when it returns. */
static void no_order(struct ampk_context *ctx)
{
    (void)ctx;
}

static void memory_copy(struct ampk_context *ctx, void *dst, const void *src, size_t bytes)
{
    (void)ctx;
    if (bytes) memcpy(dst, src, bytes);
}

static void fill_zero(struct ampk_context *ctx, void *dst, size_t bytes)
{
    (void)ctx;
    if (bytes) memset(dst, 0, bytes);
}

static size_t maxpool_index_bytes(const struct ampk_tensor *y, int size)
{
    return y->n * ampk_image_size(y) * ampk_pool_index_bytes(size);
}

/* ---- element-wise operations: forwarded to the context's instruction set ---- */

#define FORWARD(operation, parameters, arguments)                                                  \
    static void operation parameters                                                               \
    {                                                                                              \
        ctx->isa->operations->operation arguments;                                                 \
    }

FORWARD(convert,
        (struct ampk_context * ctx, const struct ampk_tensor *src, const struct ampk_tensor *dst,
         bool accumulate, uint32_t *amax),
        (ctx, src, dst, accumulate, amax))
FORWARD(maxpool_forward,
        (struct ampk_context * ctx, const struct ampk_tensor *x, int size, int stride, int pad,
         const struct ampk_tensor *y, void *argmax),
        (ctx, x, size, stride, pad, y, argmax))
FORWARD(maxpool_backward,
        (struct ampk_context * ctx, const struct ampk_tensor *dy, const void *argmax, int size,
         int stride, int pad, const struct ampk_tensor *dx, bool accumulate, uint32_t *amax),
        (ctx, dy, argmax, size, stride, pad, dx, accumulate, amax))
FORWARD(avgpool_forward,
        (struct ampk_context * ctx, const struct ampk_tensor *x, const struct ampk_tensor *y,
         uint32_t *amax),
        (ctx, x, y, amax))
FORWARD(avgpool_backward,
        (struct ampk_context * ctx, const struct ampk_tensor *dy, const struct ampk_tensor *dx,
         bool accumulate, uint32_t *amax),
        (ctx, dy, dx, accumulate, amax))
FORWARD(upsample,
        (struct ampk_context * ctx, const struct ampk_tensor *x, int stride, float scale,
         bool reverse, const struct ampk_tensor *y, bool accumulate, uint32_t *amax),
        (ctx, x, stride, scale, reverse, y, accumulate, amax))
FORWARD(shortcut_forward,
        (struct ampk_context * ctx, const struct ampk_tensor *x, const struct ampk_tensor *add,
         float alpha, float beta, enum ampk_activation activation, const struct ampk_tensor *out,
         uint32_t *amax),
        (ctx, x, add, alpha, beta, activation, out, amax))
FORWARD(shortcut_backward,
        (struct ampk_context * ctx, const struct ampk_tensor *out, const struct ampk_tensor *d,
         float alpha, float beta, enum ampk_activation activation, const struct ampk_tensor *dx,
         bool dx_accumulate, const struct ampk_tensor *dadd, bool dadd_accumulate,
         uint32_t *dx_amax, uint32_t *dadd_amax),
        (ctx, out, d, alpha, beta, activation, dx, dx_accumulate, dadd, dadd_accumulate, dx_amax,
         dadd_amax))
FORWARD(reorg,
        (struct ampk_context * ctx, const struct ampk_tensor *src, int w, int h, int c, int stride,
         int forward, const struct ampk_tensor *dst, bool accumulate, uint32_t *amax),
        (ctx, src, w, h, c, stride, forward, dst, accumulate, amax))
FORWARD(flatten,
        (struct ampk_context * ctx, const struct ampk_tensor *src, int size, int layers,
         int forward, const struct ampk_tensor *dst, bool accumulate, uint32_t *amax),
        (ctx, src, size, layers, forward, dst, accumulate, amax))
FORWARD(unfold,
        (struct ampk_context * ctx, const struct ampk_tensor *x, int size, int stride, int pad,
         const struct ampk_tensor *y),
        (ctx, x, size, stride, pad, y))
FORWARD(fold,
        (struct ampk_context * ctx, const struct ampk_tensor *dy, int size, int stride, int pad,
         const struct ampk_tensor *dx, bool accumulate, uint32_t *amax),
        (ctx, dy, size, stride, pad, dx, accumulate, amax))
FORWARD(dropout,
        (struct ampk_context * ctx, const struct ampk_tensor *x, const uint8_t *keep, float scale,
         const struct ampk_tensor *y, bool accumulate, uint32_t *amax),
        (ctx, x, keep, scale, y, accumulate, amax))
FORWARD(dropout_draw,
        (struct ampk_context * ctx, const struct ampk_draw *draw, float probability, uint8_t *keep,
         size_t n),
        (ctx, draw, probability, keep, n))
FORWARD(activation_forward,
        (struct ampk_context * ctx, const struct ampk_tensor *x, enum ampk_activation activation,
         const struct ampk_tensor *y, uint32_t *amax),
        (ctx, x, activation, y, amax))
FORWARD(activation_backward,
        (struct ampk_context * ctx, const struct ampk_tensor *out, enum ampk_activation activation,
         const struct ampk_tensor *d, const struct ampk_tensor *dx, bool accumulate,
         uint32_t *amax),
        (ctx, out, activation, d, dx, accumulate, amax))
FORWARD(amax, (struct ampk_context * ctx, const float *x, size_t n, uint32_t *amax),
        (ctx, x, n, amax))
FORWARD(scale, (struct ampk_context * ctx, float *x, size_t n, float factor), (ctx, x, n, factor))
FORWARD(accumulate, (struct ampk_context * ctx, const float *g, size_t n, float factor, float *sum),
        (ctx, g, n, factor, sum))
FORWARD(copy_many, (struct ampk_context * ctx, const struct ampk_span *spans, int count),
        (ctx, spans, count))
FORWARD(update,
        (struct ampk_context * ctx, const struct ampk_rule *rule, const struct ampk_param *params,
         int count),
        (ctx, rule, params, count))
FORWARD(trust_ratios,
        (struct ampk_context * ctx, const struct ampk_rule *rule, const struct ampk_param *params,
         int count),
        (ctx, rule, params, count))
FORWARD(average_many,
        (struct ampk_context * ctx, const struct ampk_span *spans, int count, float rest),
        (ctx, spans, count, rest))
FORWARD(inspect,
        (struct ampk_context * ctx, const struct ampk_tensor *x, uint32_t *amax, uint32_t *zeros),
        (ctx, x, amax, zeros))
FORWARD(sum_squares, (struct ampk_context * ctx, const float *x, size_t n, float *sum),
        (ctx, x, n, sum))
FORWARD(bn_statistics,
        (struct ampk_context * ctx, const struct ampk_tensor *y,
         const struct ampk_bn_statistics *statistics),
        (ctx, y, statistics))
FORWARD(bn_act_forward,
        (struct ampk_context * ctx, const struct ampk_tensor *y, const struct ampk_batchnorm *bn,
         enum ampk_activation activation, const struct ampk_tensor *add,
         const struct ampk_tensor *out, uint32_t *y_amax, uint32_t *amax),
        (ctx, y, bn, activation, add, out, y_amax, amax))
FORWARD(bn_act_backward,
        (struct ampk_context * ctx, const struct ampk_tensor *y, const struct ampk_tensor *out,
         const struct ampk_batchnorm *bn, enum ampk_activation activation,
         const struct ampk_tensor *d, const struct ampk_tensor *dy, float *dscale, float *dbias,
         uint32_t *dy_amax, uint32_t *db_amax),
        (ctx, y, out, bn, activation, d, dy, dscale, dbias, dy_amax, db_amax))
FORWARD(bn_act_pool_forward,
        (struct ampk_context * ctx, const struct ampk_tensor *y, const struct ampk_batchnorm *bn,
         enum ampk_activation activation, const struct ampk_tensor *out, void *argmax,
         uint32_t *y_amax, uint32_t *amax),
        (ctx, y, bn, activation, out, argmax, y_amax, amax))
FORWARD(bn_act_pool_backward,
        (struct ampk_context * ctx, const struct ampk_tensor *y, const struct ampk_batchnorm *bn,
         enum ampk_activation activation, const struct ampk_tensor *d, const void *argmax,
         const struct ampk_tensor *dy, float *dscale, float *dbias, uint32_t *dy_amax,
         uint32_t *db_amax),
        (ctx, y, bn, activation, d, argmax, dy, dscale, dbias, dy_amax, db_amax))
FORWARD(bias_act_backward,
        (struct ampk_context * ctx, const struct ampk_tensor *out, enum ampk_activation activation,
         const struct ampk_tensor *d, const struct ampk_tensor *dy, float *dbias, uint32_t *dy_amax,
         uint32_t *db_amax),
        (ctx, out, activation, d, dy, dbias, dy_amax, db_amax))

FORWARD(yolo_forward,
        (struct ampk_context * ctx, const struct ampk_yolo_head *o, const struct ampk_tensor *x,
         const struct ampk_tensor *out, uint32_t *amax),
        (ctx, o, x, out, amax))
FORWARD(yolo_loss,
        (struct ampk_context * ctx, const struct ampk_yolo_head *o, const struct ampk_tensor *out,
         const float *truth, float *delta, struct ampk_loss_sums *sums, uint32_t *delta_amax),
        (ctx, o, out, truth, delta, sums, delta_amax))
FORWARD(loss_backward,
        (struct ampk_context * ctx, const float *delta, size_t n, float scale, float *dx,
         bool accumulate, uint32_t *amax),
        (ctx, delta, n, scale, dx, accumulate, amax))

#define FORWARDED(operation)     .operation = operation,
#define COMPUTED_ONCE(operation) .operation = ampk_cpu_##operation,
const struct ampk_backend ampk_cpu = {.name = "cpu",
                                      .multiplies_bf16 = multiplies_bf16,
                                      .conv_bytes = conv_bytes,
                                      .conv_work_bytes = conv_work_bytes,
                                      .context_create = context_create,
                                      .context_destroy = context_destroy,
                                      .alloc = memory_alloc,
                                      .free = memory_free,
                                      .acquire = no_order,
                                      .release = no_order,
                                      .read = memory_copy,
                                      .write = memory_copy,
                                      .fill_zero = fill_zero,
                                      .maxpool_index_bytes = maxpool_index_bytes,
                                      AMPK_CPU_CONV(COMPUTED_ONCE) AMPK_CPU_OPERATIONS(FORWARDED)};
