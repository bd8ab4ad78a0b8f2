/* Decides which library plans a convolution has, in which type it asks for results, and where a
 * kernel of ours takes the place of a plan. It must not know how work memory is laid out. */
#include "conv.h"

#include "kernels/cuda/libs/plan_cache.h"

#include <limits.h>

enum { WORKSPACE_SHARE = 16 }; /* a plan gets at most 1/16 of the device's memory */

/* Take an FP32 weight gradient unless it takes 3 % longer than one in 16 bits. */
static const float FP32_GRADIENT_WORTH = 1.03f;

static bool is_set(enum ampk_switch of)
{
    return ampk_cuda_setting(of) == AMPK_ALWAYS;
}

/* A program without convolutions never pays for opening cuDNN and cuBLASLt: the first convolution
 * of a context does it. */
struct ampk_tc *ampk_conv_libraries(struct ampk_context *ctx, char *err, size_t err_size)
{
    char path[PATH_MAX];
    struct ampk_tc_settings settings = {.workspace_limit =
                                            ctx->device.memory_bytes / WORKSPACE_SHARE,
                                        .search = is_set(AMPK_CUDA_SEARCH),
                                        .untimed = is_set(AMPK_CUDA_UNTIMED)};
    if (ampk_plan_cache_default_path(path, sizeof path)) settings.cache = path;
    if (!ctx->tensor_core)
        ctx->tensor_core = ampk_tc_create(&ctx->device, &settings, err, err_size);
    return ctx->tensor_core;
}

void ampk_cuda_conv_end(struct ampk_context *ctx)
{
    ampk_tc_destroy(ctx->tensor_core);
    ctx->tensor_core = NULL;
}

/* The plan for this pass, made when first wanted. NULL if there is none; why says the reason, the
 * first time only: `tried` remembers failures, too, so that a library that has no plan is not asked
 * in every pass. */
static struct ampk_tc_plan *find_plan(struct ampk_context *ctx, struct ampk_conv *conv,
                                      enum ampk_tc_pass pass, enum ampk_dtype result,
                                      bool accumulate, char *why, size_t why_size)
{
    struct ampk_conv_slot *slot = &conv->slots[pass][result == AMPK_FP32][accumulate];
    if (slot->tried) return slot->plan;
    slot->tried = true;
    if (accumulate && pass != AMPK_TC_DATA) return NULL; /* a kernel adds */
    struct ampk_tc_problem p = ampk_conv_problem(&conv->shape, pass, result, accumulate);
    return slot->plan = ampk_tc_plan_create(ctx->tensor_core, &p, ctx->stream, why, why_size);
}

struct ampk_tc_plan *ampk_conv_find_plan_like(struct ampk_context *ctx, struct ampk_conv *conv,
                                              enum ampk_tc_pass pass, enum ampk_dtype *result)
{
    char why[400];
    struct ampk_tc_plan *plan = find_plan(ctx, conv, pass, *result, false, why, sizeof why);
    if (plan) return plan;
    *result = *result == conv->operand ? AMPK_FP32 : conv->operand;
    return find_plan(ctx, conv, pass, *result, false, why, sizeof why);
}

/* First choice: the library writes y itself. That needs a dense y without padding, of a type that
 * a plan writes. Otherwise the library writes work memory, and a kernel moves the result to y. */
struct ampk_conv_output ampk_conv_choose_output(struct ampk_context *ctx, struct ampk_conv *conv,
                                                enum ampk_tc_pass pass, const struct ampk_tensor *y,
                                                int padded, bool accumulate)
{
    char why[400];
    bool direct =
        ampk_conv_is_direct(y, conv->operand, padded) || ampk_conv_is_direct(y, AMPK_FP32, padded);
    struct ampk_conv_output o = {.dtype = y->dtype};
    if (direct) o.plan = find_plan(ctx, conv, pass, y->dtype, accumulate, why, sizeof why);
    o.direct = o.plan != NULL;
    if (o.direct) return o;
    /* The result must be rounded once only. So the library writes FP32 if it can, and the kernel
     * that stores y rounds. If y has the operands' type and nothing is added, the library may
     * round instead, and the kernel only moves 16-bit values. */
    o.dtype = y->dtype == conv->operand && !accumulate ? conv->operand : AMPK_FP32;
    o.plan = ampk_conv_find_plan_like(ctx, conv, pass, &o.dtype);
    return o;
}

/* Chooses the type of the weight gradient. FP32 loses nothing. Where it is slower, take 16 bits
 * and convert, as other frameworks do. An FP32 result of 16-bit operands exists for matrix
 * products only (ampk_tc_is_wide). */
static bool choose_gradient(struct ampk_context *ctx, struct ampk_conv *conv, char *err,
                            size_t err_size)
{
    struct ampk_tc_plan *wide =
        find_plan(ctx, conv, AMPK_TC_WEIGHTS, AMPK_FP32, false, err, err_size);
    conv->gradient = conv->library_gradient = AMPK_FP32;
    if (conv->operand == AMPK_FP32) return wide != NULL;
    struct ampk_tc_plan *narrow =
        find_plan(ctx, conv, AMPK_TC_WEIGHTS, conv->operand, false, err, err_size);
    if (!wide && !narrow) return false;
    if (wide && narrow) {
        float ms = ampk_tc_plan_info(wide).ms, other = ampk_tc_plan_info(narrow).ms;
        if (ms > 0 && other > 0 && ms > FP32_GRADIENT_WORTH * other) wide = NULL;
    }
    if (!wide) conv->gradient = conv->library_gradient = conv->operand;
    return true;
}

bool ampk_conv_make_plans(struct ampk_context *ctx, struct ampk_conv *conv, char *err,
                          size_t err_size)
{
    enum ampk_dtype operand = conv->operand;
    if (!find_plan(ctx, conv, conv->forward, operand, false, err, err_size)) return false;
    if (conv->shape.forward_only) return true;
    char why[400]; /* without an adding plan, a kernel adds the result */
    find_plan(ctx, conv, conv->backward, operand, true, why, sizeof why);
    return find_plan(ctx, conv, conv->backward, operand, false, err, err_size) &&
           choose_gradient(ctx, conv, err, err_size);
}

struct ampk_tc_plan *ampk_conv_library_gradient(struct ampk_context *ctx, struct ampk_conv *conv)
{
    char why[400];
    return find_plan(ctx, conv, AMPK_TC_WEIGHTS, conv->library_gradient, false, why, sizeof why);
}

/* On an H100 the kernel takes 0.27 to 0.33 of what packing, a plan and the statistics take. */
bool ampk_conv_reads_images(struct ampk_context *ctx, const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    return ampk_cuda_setting(AMPK_CUDA_IMAGE_FORWARD) != AMPK_NEVER && !s->forward_only &&
           !s->transposed && ampk_image_conv_fits(ctx, s);
}

/* Looks at the plans of plain passes whose result has the operands' type, because those run in
 * training. */
const char *ampk_cuda_conv_note(const struct ampk_conv *conv)
{
    if (conv->shape.compute == AMPK_COMPUTE_FP32) return NULL;
    for (int pass = 0; pass < AMPK_CONV_PASSES; pass++) {
        const struct ampk_conv_slot *slot = &conv->slots[pass][conv->operand == AMPK_FP32][0];
        const char *note = slot->plan ? ampk_tc_plan_info(slot->plan).no_tensor_cores : NULL;
        if (note) return note;
    }
    return NULL;
}
