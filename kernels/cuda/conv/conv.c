/* Convolutions: creation and the passes. Each pass first decides how its result is produced
 * (choose_...), then lays out work memory (plan_...), then packs operands, runs a library plan and
 * stores the result (run_...). Creation runs the first two steps as well, to reserve the work
 * memory of later passes.
 *
 * Knows tensors, plans and work memory. Does not know engines, the plan file or how plans are
 * timed (libs/). */
#include "conv.h"

#include "kernels/conv_shape.h"
#include "kernels/cuda/runtime/backend.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- forward ---- */

/* A forward pass and the byte offsets of its pieces in work memory. */
struct forward_work {
    struct ampk_conv_output y;
    size_t x_at, y_at, workspace_at, bytes;
};

static struct ampk_conv_output choose_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                                              const struct ampk_tensor *y)
{
    return ampk_conv_choose_output(ctx, conv, conv->forward, y, conv->padded_out, false);
}

static struct forward_work plan_forward(const struct ampk_conv *conv, struct ampk_conv_output o,
                                        const struct ampk_tensor *x, const struct ampk_tensor *y)
{
    struct forward_work f = {.y = o};
    f.x_at = ampk_conv_place_operand(conv, &f.bytes, x, conv->padded_in);
    f.y_at = ampk_conv_place_output(&o, &f.bytes, y, conv->padded_out);
    f.workspace_at = ampk_conv_place_workspace(o.plan, &f.bytes);
    return f;
}

/* Returns the result, in y or packed in work memory. */
static const void *run_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                               struct ampk_conv_output o, const struct ampk_tensor *x,
                               const struct ampk_tensor *y)
{
    struct forward_work f = plan_forward(conv, o, x, y);
    char *work = ampk_cuda_work(ctx, f.bytes);
    const void *operand = ampk_conv_load_operand(ctx, conv, x, conv->padded_in, work + f.x_at);
    void *result = o.direct ? y->data : work + f.y_at;
    ampk_tc_run(ctx->tensor_core, o.plan, operand, conv->weights, result, work + f.workspace_at,
                ctx->stream);
    return result;
}

/* Whether x and y are as islands have them: dense NHWC in the operands' type, without padding. The
 * kernel for images reads nothing else. */
static bool reads_image(const struct ampk_conv *conv, const struct ampk_tensor *x,
                        const struct ampk_tensor *y)
{
    return conv->image && ampk_conv_is_direct(x, conv->operand, conv->shape.c) &&
           ampk_conv_is_direct(y, conv->operand, conv->shape.k);
}

/* The kernel for images rounds y and takes the statistics from the same registers, so only amax
 * needs another pass over y. */
void ampk_cuda_conv_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                            const struct ampk_tensor *x, const struct ampk_tensor *y,
                            const struct ampk_bn_statistics *statistics, uint32_t *amax)
{
    if (statistics && reads_image(conv, x, y)) {
        ampk_image_conv(ctx, x, conv->weights, y, statistics);
        ampk_conv_amax(ctx, y->data, y->dtype, (size_t)y->n * y->c * y->h * y->w, amax);
        return;
    }
    struct ampk_conv_output o = choose_forward(ctx, conv, y);
    const void *result = run_forward(ctx, conv, o, x, y);
    ampk_conv_store_output(ctx, &o, result, y, conv->padded_out, false, amax);
    if (statistics) ampk_cuda_bn_statistics(ctx, y, statistics);
}

/* FP32 is asked for first, because the bias is added and the activation applied before the only
 * rounding. */
static struct ampk_conv_output choose_biased(struct ampk_context *ctx, struct ampk_conv *conv)
{
    struct ampk_conv_output o = {.dtype = AMPK_FP32};
    o.plan = ampk_conv_find_plan_like(ctx, conv, conv->forward, &o.dtype);
    return o;
}

void ampk_cuda_conv_bias_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                                 const struct ampk_tensor *x, const float *bias,
                                 enum ampk_activation activation, const struct ampk_tensor *y,
                                 uint32_t *amax)
{
    struct ampk_conv_output o = choose_biased(ctx, conv);
    const void *packed = run_forward(ctx, conv, o, x, y);
    ampk_conv_unpack_activated(ctx, packed, o.dtype, conv->padded_out, bias, activation, y, amax);
}

/* ---- backward ---- */

/* A backward pass and the byte offsets of its pieces in work memory. The two gradients run one
 * after the other: their results and workspaces share a place; the operands do not, because both
 * gradients read dy. (Beside each other on two streams they were timed faster by themselves, but a
 * step of yolov3 took 3 % longer on an H100.) */
struct backward_work {
    const struct ampk_bias_gradient *bias; /* make dy from this, in dy's place; NULL: dy is given */
    struct ampk_conv_output dx;
    struct ampk_tc_plan *gradient;
    size_t x_at, dy_at, sums_at, dx_at, dx_workspace_at, dw_workspace_at, bytes;
};

/* Where the data gradient goes. */
struct destination {
    const struct ampk_tensor *dx; /* NULL: nowhere */
    bool accumulate;
    uint32_t *amax;
};

/* The weight gradient starts again at `shared`, behind the operands. */
static struct backward_work plan_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                                          const struct ampk_tensor *x, const struct ampk_tensor *dy,
                                          const struct ampk_bias_gradient *bias,
                                          const struct destination *to)
{
    const struct ampk_tensor *dx = to->dx;
    struct backward_work b = {.bias = bias};
    b.gradient = ampk_conv_library_gradient(ctx, conv);
    size_t used = 0;
    if (x) b.x_at = ampk_conv_place_operand(conv, &used, x, conv->padded_in);
    b.dy_at = ampk_conv_place_operand(conv, &used, dy, conv->padded_out);
    b.sums_at = ampk_conv_place(&used, bias ? ampk_plane_sums_bytes(bias->d, conv->padded_out) : 0);
    size_t shared = used;
    if (dx) {
        b.dx =
            ampk_conv_choose_output(ctx, conv, conv->backward, dx, conv->padded_in, to->accumulate);
        b.dx_at = ampk_conv_place_output(&b.dx, &used, dx, conv->padded_in);
        b.dx_workspace_at = ampk_conv_place_workspace(b.dx.plan, &used);
    }
    b.bytes = used;
    used = shared;
    if (x) b.dw_workspace_at = ampk_conv_place_workspace(b.gradient, &used);
    if (used > b.bytes) b.bytes = used;
    return b;
}

static void run_data_gradient(struct ampk_context *ctx, const struct ampk_conv *conv,
                              const struct backward_work *b, const void *dy,
                              const struct destination *to, char *work)
{
    void *result = b->dx.direct ? to->dx->data : work + b->dx_at;
    ampk_tc_run(ctx->tensor_core, b->dx.plan, dy, conv->weights, result, work + b->dx_workspace_at,
                ctx->stream);
    ampk_conv_store_output(ctx, &b->dx, result, to->dx, conv->padded_in, to->accumulate, to->amax);
}

/* With a bias gradient, one kernel scales, rounds, pads and sums the loss's planes
 * (plane_gradient.cu); a separate packing would read them twice. */
static const void *load_dy(struct ampk_context *ctx, const struct ampk_conv *conv,
                           const struct backward_work *b, const struct ampk_tensor *dy, char *work)
{
    if (!b->bias) return ampk_conv_load_operand(ctx, conv, dy, conv->padded_out, work + b->dy_at);
    void *to =
        ampk_conv_is_direct(dy, conv->operand, conv->padded_out) ? dy->data : work + b->dy_at;
    ampk_pass_planes(ctx, b->bias, conv->operand, conv->padded_out, to, work + b->sums_at);
    return to;
}

static void run_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                         const struct ampk_tensor *x, const struct ampk_tensor *dy,
                         const struct ampk_bias_gradient *bias, const struct destination *to)
{
    struct backward_work b = plan_backward(ctx, conv, x, dy, bias, to);
    char *work = ampk_cuda_work(ctx, b.bytes);
    if (x) conv->gradient = conv->library_gradient;
    const void *from_dy = load_dy(ctx, conv, &b, dy, work);
    const void *from_x =
        x ? ampk_conv_load_operand(ctx, conv, x, conv->padded_in, work + b.x_at) : NULL;
    bool swapped = conv->shape.transposed;
    const void *first = swapped ? from_dy : from_x, *second = swapped ? from_x : from_dy;
    if (to->dx) run_data_gradient(ctx, conv, &b, from_dy, to, work);
    if (x)
        ampk_tc_run(ctx->tensor_core, b.gradient, first, second, conv->dw, work + b.dw_workspace_at,
                    ctx->stream);
}

void ampk_cuda_conv_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                             const struct ampk_tensor *x, const struct ampk_tensor *dy,
                             const struct ampk_tensor *dx, bool accumulate, uint32_t *dx_amax)
{
    struct destination to = {dx, accumulate, dx_amax};
    run_backward(ctx, conv, x, dy, NULL, &to);
}

/* Planes become 16-bit operands only (plane_gradient.cu). FP32 and TF32 operands take the general
 * kernel. */
void ampk_cuda_conv_bias_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                                  const struct ampk_tensor *x,
                                  const struct ampk_bias_gradient *bias,
                                  const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                                  bool accumulate, uint32_t *dx_amax)
{
    struct destination to = {dx, accumulate, dx_amax};
    bool planes = conv->operand != AMPK_FP32 && ampk_passes_planes(bias);
    if (!planes) ampk_cuda_bias_backward(ctx, bias, dy);
    run_backward(ctx, conv, x, dy, planes ? bias : NULL, &to);
}

/* Our kernel makes the first layer's weight gradient together with dy, in FP32: the convolution
 * trades its dw for one in FP32. Without memory for that, everything stays as it was. */
bool ampk_cuda_conv_takes_gradient(struct ampk_context *ctx, struct ampk_conv *conv,
                                   const struct ampk_tensor *x, const struct ampk_layer_gradient *g)
{
    if (ampk_cuda_setting(AMPK_CUDA_IMAGE_GRADIENT) == AMPK_NEVER || conv->shape.transposed ||
        !ampk_image_gradient_fits(ctx, &conv->shape, x, g))
        return false;
    size_t had = ctx->work_bytes;
    void *dw = ampk_rt_alloc(ampk_conv_padded_weights(conv) * sizeof(float));
    if (!dw || !ampk_cuda_work_reserve(ctx, ampk_image_gradient_work(x, conv->shape.k))) {
        ampk_rt_free(dw);
        ampk_cuda_work_reserve(ctx, had); /* where that fails too, the next operation says so */
        return false;
    }
    ampk_rt_free(conv->dw);
    conv->dw = dw;
    return true;
}

void ampk_cuda_conv_bn_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                                const struct ampk_tensor *x, const struct ampk_layer_gradient *g,
                                float *dscale, float *dbias, uint32_t *dy_amax, uint32_t *db_amax)
{
    struct ampk_conv_weights layout = ampk_conv_weights_layout(conv);
    conv->gradient = AMPK_FP32;
    ampk_image_gradient(ctx, &layout, x, g, conv->dw, dscale, dbias, dy_amax, db_amax);
}

/* ---- creation ---- */

/* Makes the convolution without plans. Its weights are undefined until conv_set_weights. */
static struct ampk_conv *make_conv(const struct ampk_conv_shape *s)
{
    struct ampk_conv *conv = calloc(1, sizeof *conv);
    if (!conv) return NULL;
    conv->shape = *s;
    conv->oh = ampk_conv_out(s, s->h, s->kh);
    conv->ow = ampk_conv_out(s, s->w, s->kw);
    conv->padded_c = ampk_conv_padded(s, s->c);
    conv->padded_k = ampk_conv_padded(s, s->k);
    conv->forward = s->transposed ? AMPK_TC_DATA : AMPK_TC_FORWARD;
    conv->backward = s->transposed ? AMPK_TC_FORWARD : AMPK_TC_DATA;
    conv->padded_in = s->transposed ? conv->padded_k : conv->padded_c;
    conv->padded_out = s->transposed ? conv->padded_c : conv->padded_k;
    conv->operand = ampk_tc_operand(s->compute);
    conv->weights = ampk_rt_alloc(ampk_conv_padded_weights(conv) * ampk_dtype_bytes(conv->operand));
    if (conv->weights) return conv;
    free(conv);
    return NULL;
}

static bool allocate_gradient(struct ampk_conv *conv)
{
    if (conv->shape.forward_only) return true;
    conv->dw = ampk_rt_alloc(ampk_conv_padded_weights(conv) * ampk_dtype_bytes(conv->gradient));
    return conv->dw != NULL;
}

/* What forward reads or writes as islands have it: dense NHWC in the operands' type. It has no
 * data: it serves for planning only. */
static struct ampk_tensor island(const struct ampk_conv *conv, bool written)
{
    const struct ampk_conv_shape *s = &conv->shape;
    bool x = written == s->transposed; /* of the convolution */
    int c = x ? s->c : s->k, h = x ? s->h : conv->oh, w = x ? s->w : conv->ow;
    size_t image = (size_t)c * h * w;
    return (struct ampk_tensor){NULL, conv->operand, AMPK_NHWC, s->n, c, h, w, image, 0};
}

/* `accumulate` may take work memory that the plain pass does not. */
static bool reserve_backward(struct ampk_context *ctx, struct ampk_conv *conv)
{
    struct ampk_tensor x = island(conv, false), y = island(conv, true);
    struct destination to = {&x, true, NULL};
    struct ampk_bias_gradient bias = {.d = &y};
    return ampk_cuda_work_reserve(
        ctx,
        plan_backward(ctx, conv, &x, &y, conv->operand != AMPK_FP32 ? &bias : NULL, &to).bytes);
}

/* Reserves work memory for every pass, with tensors as islands have them, so that no pass has to
 * wait for memory in the middle of training or a recording. */
static bool reserve_work(struct ampk_context *ctx, struct ampk_conv *conv)
{
    struct ampk_tensor x = island(conv, false), y = island(conv, true);
    struct ampk_conv_output o = choose_forward(ctx, conv, &y);
    if (!ampk_cuda_work_reserve(ctx, plan_forward(conv, o, &x, &y).bytes)) return false;
    if (conv->shape.biased) {
        o = choose_biased(ctx, conv);
        if (!ampk_cuda_work_reserve(ctx, plan_forward(conv, o, &x, &y).bytes)) return false;
    }
    return conv->shape.forward_only || reserve_backward(ctx, conv);
}

struct ampk_conv *ampk_cuda_conv_create(struct ampk_context *ctx, const struct ampk_conv_shape *s,
                                        char *err, size_t err_size)
{
    char why[400] = "";
    const char *fault = ampk_conv_shape_fault(s);
    struct ampk_conv *conv = NULL;
    if (fault)
        snprintf(why, sizeof why, "%s", fault);
    else if (ampk_conv_libraries(ctx, why, sizeof why) && !(conv = make_conv(s)))
        snprintf(why, sizeof why, AMPK_NO_MEMORY);
    if (conv && ampk_conv_make_plans(ctx, conv, why, sizeof why)) {
        /* The kernel for images needs no more work memory than every context has. */
        conv->image = ampk_conv_reads_images(ctx, conv);
        if (allocate_gradient(conv) && reserve_work(ctx, conv)) return conv;
        snprintf(why, sizeof why, AMPK_NO_MEMORY);
    }
    ampk_cuda_conv_destroy(ctx, conv);
    snprintf(err, err_size,
             "convolution of %dx%dx%dx%d by %d filters of %dx%d, stride %d, pad %d, groups %d: %s",
             s->n, s->c, s->h, s->w, s->k, s->kh, s->kw, s->stride, s->pad, s->groups, why);
    return NULL;
}

/* Weights in the operands' type, and their gradient, which is FP32 where that costs no time. */
size_t ampk_cuda_conv_bytes(const struct ampk_conv_shape *s)
{
    struct ampk_conv conv = {.shape = *s,
                             .padded_c = ampk_conv_padded(s, s->c),
                             .padded_k = ampk_conv_padded(s, s->k),
                             .operand = ampk_tc_operand(s->compute)};
    size_t gradient = s->forward_only ? 0 : sizeof(float);
    return ampk_conv_padded_weights(&conv) * (ampk_dtype_bytes(conv.operand) + gradient);
}

/* Waits first: the stream may still run a pass that reads these weights. */
void ampk_cuda_conv_destroy(struct ampk_context *ctx, struct ampk_conv *conv)
{
    if (!conv) return;
    ampk_cuda_wait(ctx);
    ampk_rt_free(conv->weights);
    ampk_rt_free(conv->dw);
    free(conv);
}
