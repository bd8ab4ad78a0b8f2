#include "conv.h"

#include "kernels/activation.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/conv_gradient.h"
#include "kernels/cuda/conv_problem.h"
#include "kernels/cuda/conv_update.h"
#include "kernels/cuda/image_conv.h"
#include "kernels/cuda/image_gradient.h"
#include "kernels/cuda/plan_cache.h"
#include "kernels/cuda/plane_gradient.h"
#include "kernels/cuda/settings.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    ALIGNMENT = 16,            /* of operands */
    WORKSPACE_ALIGNMENT = 256, /* and of everything in work memory */
    WORKSPACE_SHARE = 16,      /* a plan gets no more than this part of the device's memory */
    PASSES = AMPK_TC_WEIGHTS + 1,
};

/* An FP32 weight gradient is taken unless it is this much slower than one in 16 bits. */
static const float FP32_GRADIENT_WORTH = 1.03f;

/* A plan that is made when it is first wanted. */
struct slot {
    bool tried;
    struct ampk_tc_plan *plan; /* NULL: there is none */
};

struct ampk_conv {
    struct ampk_conv_shape shape;
    int oh, ow, c, k;                 /* c, k: padded */
    enum ampk_dtype operand;          /* how operands are stored */
    void *weights;                    /* packed */
    struct slot slots[PASSES][2][2];  /* [..][result is FP32][accumulate] */
    void *dw;                         /* the weight gradient, packed; NULL if forward_only */
    enum ampk_dtype gradient;         /* of that, as the last backward, run or recorded, left it */
    enum ampk_dtype library_gradient; /* as the library does */
    bool beside;                      /* and it is computed beside the data gradient */
    /* Forward and the data gradient with batch-norm's sums; NULL: a kernel takes them. */
    struct ampk_tc_plan *summing, *summing_gradients;
    bool image; /* forward with statistics is our kernel's (image_conv.h) */
};

/* ---- plans ---- */

static bool is_set(enum ampk_switch of)
{
    return ampk_cuda_setting(of) == AMPK_ALWAYS;
}

/* A context's libraries are opened by its first convolution. */
static struct ampk_tc *libraries(struct ampk_context *ctx, char *err, size_t err_size)
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

static struct ampk_tc_plan *find_plan(struct ampk_context *ctx, struct ampk_conv *conv,
                                      enum ampk_tc_pass pass, enum ampk_dtype result,
                                      bool accumulate, char *why, size_t why_size)
{
    struct slot *slot = &conv->slots[pass][result == AMPK_FP32][accumulate];
    if (slot->tried) return slot->plan;
    slot->tried = true;
    struct ampk_tc_problem p = ampk_conv_problem(&conv->shape, pass, result, accumulate);
    return slot->plan = ampk_tc_plan_create(ctx->tensor_core, &p, ctx->stream, why, why_size);
}

/* A plan whose result is of this type, else of the operands', which takes its place. */
static struct ampk_tc_plan *find_plan_like(struct ampk_context *ctx, struct ampk_conv *conv,
                                           enum ampk_tc_pass pass, enum ampk_dtype *result)
{
    char why[400];
    struct ampk_tc_plan *plan = find_plan(ctx, conv, pass, *result, false, why, sizeof why);
    if (plan) return plan;
    *result = *result == conv->operand ? AMPK_FP32 : conv->operand;
    return find_plan(ctx, conv, pass, *result, false, why, sizeof why);
}

/* FP32 loses nothing; but where it takes longer, 16 bits and a conversion do, as frameworks have
 * it. */
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

static bool make_plans(struct ampk_context *ctx, struct ampk_conv *conv, char *err, size_t err_size)
{
    enum ampk_dtype operand = conv->operand;
    if (!find_plan(ctx, conv, AMPK_TC_FORWARD, operand, false, err, err_size)) return false;
    if (conv->shape.forward_only) return true;
    char why[400]; /* without it, results are added by a kernel */
    find_plan(ctx, conv, AMPK_TC_DATA, operand, true, why, sizeof why);
    return find_plan(ctx, conv, AMPK_TC_DATA, operand, false, err, err_size) &&
           choose_gradient(ctx, conv, err, err_size);
}

/* The library's weight gradient. */
static struct ampk_tc_plan *library_gradient(struct ampk_context *ctx, struct ampk_conv *conv)
{
    char why[400];
    return find_plan(ctx, conv, AMPK_TC_WEIGHTS, conv->library_gradient, false, why, sizeof why);
}

/* One answer for every backward pass, by the plans for tensors as islands have them, dx not added.
 * Never is context.c's: no stream for it. */
static bool choose_beside(struct ampk_context *ctx, struct ampk_conv *conv)
{
    char why[400];
    if (!ctx->side || conv->shape.forward_only) return false;
    if (is_set(AMPK_CUDA_SIDE_STREAM)) return true;
    return ampk_tc_pays_beside(
        ctx->tensor_core, find_plan(ctx, conv, AMPK_TC_DATA, conv->operand, false, why, sizeof why),
        library_gradient(ctx, conv), ctx->stream, ctx->side);
}

/* Batch-norm's sums from the epilogue of a forward pass or a data gradient. Only for FP16 without
 * groups does cuDNN have engines that it need not compile, and the result has to be without
 * padding. */
static struct ampk_tc_plan *choose_summing(struct ampk_context *ctx, struct ampk_conv *conv,
                                           enum ampk_tc_pass pass, enum ampk_activation activation)
{
    char why[400];
    bool data = pass == AMPK_TC_DATA;
    const struct ampk_conv_shape *s = &conv->shape;
    enum ampk_setting setting =
        ampk_cuda_setting(data ? AMPK_CUDA_GRADIENT_SUMS : AMPK_CUDA_EPILOGUE_SUMS);
    bool padded = data ? conv->c != s->c : conv->k != s->k;
    bool possible = s->compute == AMPK_COMPUTE_FP16 && s->groups == 1 && !padded;
    if (!possible || s->forward_only || setting == AMPK_NEVER) return NULL;
    struct ampk_tc_problem p = ampk_conv_problem(s, pass, conv->operand, false);
    p.sums = true;
    if (data) p.slope = ampk_slope_below(activation);
    struct ampk_tc_plan *plan =
        ampk_tc_plan_create(ctx->tensor_core, &p, ctx->stream, why, sizeof why);
    if (!plan || setting == AMPK_ALWAYS) return plan;
    struct ampk_tc_plan *apart = find_plan(ctx, conv, pass, conv->operand, false, why, sizeof why);
    bool pays = data ? ampk_tc_pays_gradient_sums(ctx, apart, plan, activation)
                     : ampk_tc_pays_sums(ctx, apart, plan);
    return pays ? plan : NULL;
}

/* Against what forward with statistics would be otherwise. */
static bool choose_image(struct ampk_context *ctx, struct ampk_conv *conv)
{
    char why[400];
    const struct ampk_conv_shape *s = &conv->shape;
    enum ampk_setting setting = ampk_cuda_setting(AMPK_CUDA_IMAGE_FORWARD);
    bool possible = !s->forward_only && ampk_image_conv_fits(ctx, s);
    if (!possible || setting == AMPK_NEVER) return false;
    if (setting == AMPK_ALWAYS) return true;
    struct ampk_tc_plan *usual = conv->summing;
    if (!usual)
        usual = find_plan(ctx, conv, AMPK_TC_FORWARD, conv->operand, false, why, sizeof why);
    return ampk_tc_pays_image(ctx, usual, s->c);
}

const char *ampk_cuda_conv_note(const struct ampk_conv *conv)
{
    if (conv->shape.compute == AMPK_COMPUTE_FP32) return NULL;
    for (int pass = 0; pass < PASSES; pass++) {
        const struct slot *slot = &conv->slots[pass][conv->operand == AMPK_FP32][0];
        const char *note = slot->plan ? ampk_tc_plan_info(slot->plan).no_tensor_cores : NULL;
        if (note) return note;
    }
    return NULL;
}

/* ---- shapes ---- */

static size_t padded_weights(const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    return (size_t)conv->k * (conv->c / s->groups) * s->kh * s->kw;
}

static struct ampk_conv *make_conv(const struct ampk_conv_shape *s)
{
    struct ampk_conv *conv = calloc(1, sizeof *conv);
    if (!conv) return NULL;
    conv->shape = *s;
    conv->oh = (s->h + 2 * s->pad - s->kh) / s->stride + 1;
    conv->ow = (s->w + 2 * s->pad - s->kw) / s->stride + 1;
    conv->c = ampk_conv_padded(s, s->c);
    conv->k = ampk_conv_padded(s, s->k);
    conv->operand = ampk_tc_operand(s->compute);
    conv->weights = ampk_rt_alloc(padded_weights(conv) * ampk_dtype_bytes(conv->operand));
    if (conv->weights) return conv;
    free(conv);
    return NULL;
}

/* ---- weights ---- */

static struct ampk_conv_weights weights_layout(const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    return (struct ampk_conv_weights){.k = s->k,
                                      .c = s->c / s->groups,
                                      .taps = s->kh * s->kw,
                                      .padded_k = conv->k,
                                      .padded_c = conv->c / s->groups};
}

void ampk_cuda_conv_set_weights(struct ampk_context *ctx, const struct ampk_new_weights *list,
                                int count)
{
    enum { AT_ONCE = 64 };
    struct ampk_conv_packing packings[AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = count < AT_ONCE ? count : AT_ONCE;
        for (int i = 0; i < n; i++) {
            const struct ampk_conv *conv = list[i].conv;
            packings[i] = (struct ampk_conv_packing){weights_layout(conv), conv->shape.compute,
                                                     list[i].weights, conv->weights, list[i].amax};
        }
        ampk_conv_pack_weights(ctx, packings, n);
    }
}

/* ---- operands and results ---- */

/* Whether a library can read and write t itself. */
static bool is_direct(const struct ampk_tensor *t, enum ampk_dtype dtype, int padded)
{
    bool is_nhwc = t->layout == AMPK_NHWC || t->h * t->w == 1;
    return t->dtype == dtype && is_nhwc && t->c == padded && (uintptr_t)t->data % ALIGNMENT == 0 &&
           ampk_pitch(t) == t->c && (t->n == 1 || t->image_stride == (size_t)t->c * t->h * t->w);
}

/* Work memory of one operation is asked for at once: each piece is given its place first. */
static size_t place(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    return at;
}

static size_t packed_bytes(const struct ampk_tensor *t, int padded, enum ampk_dtype dtype)
{
    return (size_t)t->n * t->h * t->w * padded * ampk_dtype_bytes(dtype);
}

/* A place for t as an operand; none if the tensor itself is one. */
static size_t place_operand(const struct ampk_conv *conv, size_t *used, const struct ampk_tensor *t,
                            int padded)
{
    bool direct = is_direct(t, conv->operand, padded);
    return place(used, direct ? 0 : packed_bytes(t, padded, conv->operand));
}

/* t as an operand, packed at that place if it is not one itself. */
static const void *load_operand(struct ampk_context *ctx, const struct ampk_conv *conv,
                                const struct ampk_tensor *t, int padded, void *place)
{
    if (is_direct(t, conv->operand, padded)) return t->data;
    ampk_conv_pack(ctx, t, conv->shape.compute, padded, place);
    return place;
}

/* How a pass comes by its result. */
struct output {
    struct ampk_tc_plan *plan;
    enum ampk_dtype dtype; /* as the library writes it */
    bool direct;           /* straight to the tensor; else through work memory */
    bool sums;             /* beside y, in work memory */
};

/* y (+)= ..., as kernels.h wants it stored. */
static struct output choose_output(struct ampk_context *ctx, struct ampk_conv *conv,
                                   enum ampk_tc_pass pass, const struct ampk_tensor *y, int padded,
                                   bool accumulate)
{
    char why[400];
    bool direct = is_direct(y, conv->operand, padded) || is_direct(y, AMPK_FP32, padded);
    struct output o = {.dtype = y->dtype};
    if (direct) o.plan = find_plan(ctx, conv, pass, y->dtype, accumulate, why, sizeof why);
    o.direct = o.plan != NULL;
    if (o.direct) return o;
    /* Rounded once, if the library can: by the kernel that stores it. */
    o.dtype = y->dtype == conv->operand && !accumulate ? conv->operand : AMPK_FP32;
    o.plan = find_plan_like(ctx, conv, pass, &o.dtype);
    return o;
}

static size_t place_output(const struct output *o, size_t *used, const struct ampk_tensor *y,
                           int padded)
{
    return place(used, o->direct ? 0 : packed_bytes(y, padded, o->dtype));
}

static size_t place_workspace(const struct ampk_tc_plan *plan, size_t *used)
{
    return place(used, ampk_tc_plan_info(plan).workspace);
}

static void store_output(struct ampk_context *ctx, const struct output *o, const void *packed,
                         const struct ampk_tensor *y, int padded, bool accumulate, uint32_t *amax)
{
    if (o->direct)
        ampk_conv_amax(ctx, y->data, y->dtype, (size_t)y->n * y->c * y->h * y->w, amax);
    else
        ampk_conv_unpack(ctx, packed, o->dtype, padded, y, accumulate, amax);
}

/* ---- forward ---- */

struct forward {
    struct output y;
    size_t x_at, y_at, sums_at, space, bytes;
};

static size_t place_vectors(size_t *used, int count, int channels)
{
    return place(used, (size_t)count * channels * sizeof(float));
}

/* statistics: those of y are wanted. */
static struct output choose_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                                    const struct ampk_tensor *y, bool statistics)
{
    struct output o = choose_output(ctx, conv, AMPK_TC_FORWARD, y, conv->k, false);
    o.sums = statistics && conv->summing && o.direct && o.dtype == conv->operand;
    if (o.sums) o.plan = conv->summing;
    return o;
}

static struct forward plan_forward(const struct ampk_conv *conv, struct output o,
                                   const struct ampk_tensor *x, const struct ampk_tensor *y)
{
    struct forward f = {.y = o};
    f.x_at = place_operand(conv, &f.bytes, x, conv->c);
    f.y_at = place_output(&o, &f.bytes, y, conv->k);
    f.sums_at = place_vectors(&f.bytes, o.sums ? AMPK_TC_SUMS : 0, conv->k);
    f.space = place_workspace(o.plan, &f.bytes);
    return f;
}

/* What is in y, or packed in work memory; and its sums, if there are any. */
struct forwarded {
    void *result;
    float *sums;
};

static struct forwarded run_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                                    struct output o, const struct ampk_tensor *x,
                                    const struct ampk_tensor *y)
{
    struct forward f = plan_forward(conv, o, x, y);
    char *work = ampk_cuda_work(ctx, f.bytes);
    const void *operand = load_operand(ctx, conv, x, conv->c, work + f.x_at);
    struct forwarded to = {o.direct ? y->data : work + f.y_at,
                           o.sums ? (float *)(work + f.sums_at) : NULL};
    struct ampk_tc_sums sums = {.sums = to.sums};
    ampk_tc_run(ctx->tensor_core, o.plan, operand, conv->weights, to.result, o.sums ? &sums : NULL,
                work + f.space, ctx->stream);
    return to;
}

/* Tensors as islands have them. */
static bool reads_image(const struct ampk_conv *conv, const struct ampk_tensor *x,
                        const struct ampk_tensor *y)
{
    return conv->image && is_direct(x, conv->operand, conv->shape.c) &&
           is_direct(y, conv->operand, conv->shape.k);
}

void ampk_cuda_conv_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                            const struct ampk_tensor *x, const struct ampk_tensor *y,
                            const struct ampk_bn_statistics *statistics, uint32_t *amax)
{
    if (statistics && reads_image(conv, x, y)) {
        ampk_image_conv(ctx, x, conv->weights, y, statistics);
        ampk_conv_amax(ctx, y->data, y->dtype, (size_t)y->n * y->c * y->h * y->w, amax);
        return;
    }
    struct output o = choose_forward(ctx, conv, y, statistics != NULL);
    struct forwarded f = run_forward(ctx, conv, o, x, y);
    store_output(ctx, &o, f.result, y, conv->k, false, amax);
    if (f.sums)
        ampk_cuda_summed_statistics(ctx, f.sums, y, statistics);
    else if (statistics)
        ampk_cuda_bn_statistics(ctx, y, statistics);
}

void ampk_cuda_conv_bias_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                                 const struct ampk_tensor *x, const float *bias,
                                 enum ampk_activation activation, const struct ampk_tensor *y,
                                 uint32_t *amax)
{
    struct output o = {.dtype = AMPK_FP32};
    o.plan = find_plan_like(ctx, conv, AMPK_TC_FORWARD, &o.dtype);
    const void *packed = run_forward(ctx, conv, o, x, y).result;
    ampk_conv_unpack_activated(ctx, packed, o.dtype, conv->k, bias, activation, y, amax);
}

/* ---- backward ---- */

/* A backward pass and where its pieces of work memory are. Where the two gradients come one after
 * the other, what they need beside the operands shares a place. */
struct backward {
    const struct ampk_bias_gradient *bias; /* dy is made of it, in its place; NULL: it is there */
    struct output dx;
    struct ampk_tc_plan *gradient;
    bool beside; /* the weight gradient beside the data gradient, on a stream of its own */
    size_t x_at, dy_at, sums_at, dx_at, parameters_at, unread_at, dx_space, dw_space, bytes;
};

/* Where the data gradient goes. */
struct destination {
    const struct ampk_tensor *dx; /* NULL: nowhere */
    bool accumulate;
    uint32_t *amax;
    const struct ampk_gradient_sums *sums; /* NULL: no more than that */
};

static struct output choose_gradient_output(struct ampk_context *ctx, struct ampk_conv *conv,
                                            const struct destination *to)
{
    if (!to->sums) return choose_output(ctx, conv, AMPK_TC_DATA, to->dx, conv->c, to->accumulate);
    return (struct output){conv->summing_gradients, conv->operand, .direct = true, .sums = true};
}

static struct backward plan_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                                     const struct ampk_tensor *x, const struct ampk_tensor *dy,
                                     const struct ampk_bias_gradient *bias,
                                     const struct destination *to)
{
    const struct ampk_tensor *dx = to->dx;
    struct backward b = {.bias = bias, .beside = conv->beside && dx};
    b.gradient = library_gradient(ctx, conv);
    size_t used = 0;
    b.x_at = place_operand(conv, &used, x, conv->c);
    b.dy_at = place_operand(conv, &used, dy, conv->k);
    b.sums_at = place(&used, bias ? ampk_plane_sums_bytes(bias->d, conv->k) : 0);
    size_t shared = used;
    if (dx) {
        b.dx = choose_gradient_output(ctx, conv, to);
        b.dx_at = place_output(&b.dx, &used, dx, conv->c);
        b.parameters_at = place_vectors(&used, b.dx.sums ? AMPK_TC_PARAMETERS : 0, conv->c);
        b.unread_at = place_vectors(&used, b.dx.sums ? AMPK_TC_UNREAD : 0, conv->c);
        b.dx_space = place_workspace(b.dx.plan, &used);
    }
    b.bytes = used;
    if (!b.beside) used = shared;
    b.dw_space = place_workspace(b.gradient, &used);
    if (used > b.bytes) b.bytes = used;
    return b;
}

static void run_data_gradient(struct ampk_context *ctx, const struct ampk_conv *conv,
                              const struct backward *b, const void *dy,
                              const struct destination *to, char *work)
{
    void *result = b->dx.direct ? to->dx->data : work + b->dx_at;
    struct ampk_tc_sums sums = {0};
    if (b->dx.sums) {
        float *parameters = (float *)(work + b->parameters_at);
        ampk_cuda_list_parameters(ctx, to->sums->bn, to->sums->y, parameters);
        sums = (struct ampk_tc_sums){to->sums->sums, to->sums->y->data, parameters,
                                     (float *)(work + b->unread_at)};
    }
    ampk_tc_run(ctx->tensor_core, b->dx.plan, dy, conv->weights, result, b->dx.sums ? &sums : NULL,
                work + b->dx_space, ctx->stream);
    store_output(ctx, &b->dx, result, to->dx, conv->c, to->accumulate, to->amax);
}

static const void *load_dy(struct ampk_context *ctx, const struct ampk_conv *conv,
                           const struct backward *b, const struct ampk_tensor *dy, char *work)
{
    if (!b->bias) return load_operand(ctx, conv, dy, conv->k, work + b->dy_at);
    void *to = is_direct(dy, conv->operand, conv->k) ? dy->data : work + b->dy_at;
    ampk_pass_planes(ctx, b->bias, conv->operand, conv->k, to, work + b->sums_at);
    return to;
}

static void run_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                         const struct ampk_tensor *x, const struct ampk_tensor *dy,
                         const struct ampk_bias_gradient *bias, const struct destination *to)
{
    struct backward b = plan_backward(ctx, conv, x, dy, bias, to);
    char *work = ampk_cuda_work(ctx, b.bytes);
    conv->gradient = conv->library_gradient;
    const void *from_dy = load_dy(ctx, conv, &b, dy, work);
    const void *from_x = load_operand(ctx, conv, x, conv->c, work + b.x_at);
    if (b.beside) {
        ampk_rt_order(ctx->fork, ctx->stream, ctx->side);
        ampk_tc_run(ctx->tensor_core, b.gradient, from_x, from_dy, conv->dw, NULL,
                    work + b.dw_space, ctx->side);
    }
    if (to->dx) run_data_gradient(ctx, conv, &b, from_dy, to, work);
    if (b.beside)
        ampk_rt_order(ctx->join, ctx->side, ctx->stream);
    else
        ampk_tc_run(ctx->tensor_core, b.gradient, from_x, from_dy, conv->dw, NULL,
                    work + b.dw_space, ctx->stream);
}

void ampk_cuda_conv_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                             const struct ampk_tensor *x, const struct ampk_tensor *dy,
                             const struct ampk_tensor *dx, bool accumulate, uint32_t *dx_amax)
{
    struct destination to = {dx, accumulate, dx_amax, NULL};
    run_backward(ctx, conv, x, dy, NULL, &to);
}

void ampk_cuda_conv_bias_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                                  const struct ampk_tensor *x,
                                  const struct ampk_bias_gradient *bias,
                                  const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                                  bool accumulate, const struct ampk_gradient_sums *sums,
                                  uint32_t *dx_amax)
{
    struct destination to = {dx, accumulate, dx_amax, sums};
    bool planes = conv->operand != AMPK_FP32 && ampk_passes_planes(bias);
    if (!planes) ampk_cuda_bias_backward(ctx, bias, dy);
    run_backward(ctx, conv, x, dy, planes ? bias : NULL, &to);
}

void ampk_cuda_conv_backward_summed(struct ampk_context *ctx, struct ampk_conv *conv,
                                    const struct ampk_tensor *x, const struct ampk_tensor *dy,
                                    const struct ampk_tensor *g,
                                    const struct ampk_gradient_sums *sums)
{
    struct destination to = {g, false, NULL, sums};
    run_backward(ctx, conv, x, dy, NULL, &to);
}

/* The weight gradient of a first layer made by a kernel of ours together with dy, in FP32. */
bool ampk_cuda_conv_takes_gradient(struct ampk_context *ctx, struct ampk_conv *conv,
                                   const struct ampk_tensor *x, const struct ampk_layer_gradient *g)
{
    enum ampk_setting setting = ampk_cuda_setting(AMPK_CUDA_IMAGE_GRADIENT);
    if (setting == AMPK_NEVER || !ampk_image_gradient_fits(ctx, &conv->shape, x, g)) return false;
    size_t had = ctx->work_bytes;
    bool taken = setting == AMPK_ALWAYS ||
                 ampk_tc_pays_image_gradient(ctx, library_gradient(ctx, conv), &conv->shape, g);
    void *dw = taken ? ampk_rt_alloc(padded_weights(conv) * sizeof(float)) : NULL;
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
    struct ampk_conv_weights layout = weights_layout(conv);
    conv->gradient = AMPK_FP32;
    ampk_image_gradient(ctx, &layout, x, g, conv->dw, dscale, dbias, dy_amax, db_amax);
}

void ampk_cuda_conv_weight_gradients(struct ampk_context *ctx,
                                     const struct ampk_weight_gradient *list, int count,
                                     float factor, bool accumulate)
{
    enum { AT_ONCE = 256 };
    struct ampk_conv_gradient gradients[AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = count < AT_ONCE ? count : AT_ONCE;
        for (int i = 0; i < n; i++) {
            const struct ampk_conv *conv = list[i].conv;
            gradients[i] = (struct ampk_conv_gradient){weights_layout(conv), conv->gradient,
                                                       conv->dw, list[i].dst, list[i].amax};
        }
        ampk_conv_take_gradients(ctx, gradients, n, factor, accumulate);
    }
}

/* ---- updates ---- */

enum { UPDATES_AT_ONCE = 128 };

/* Describes as many as may be of a list; returns how many. */
static int describe_updates(const struct ampk_weight_update *list, int count,
                            struct ampk_conv_update updates[UPDATES_AT_ONCE])
{
    int n = count < UPDATES_AT_ONCE ? count : UPDATES_AT_ONCE;
    for (int i = 0; i < n; i++) {
        const struct ampk_conv *conv = list[i].conv;
        updates[i] = (struct ampk_conv_update){
            weights_layout(conv), conv->shape.compute,
            conv->weights,        list[i].param.unscale != 0 ? conv->dw : NULL,
            conv->gradient,       &list[i].param,
            list[i].amax};
    }
    return n;
}

void ampk_cuda_conv_update_sgd(struct ampk_context *ctx, const struct ampk_weight_update *list,
                               int count, float momentum)
{
    struct ampk_conv_update updates[UPDATES_AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = describe_updates(list, count, updates);
        ampk_conv_update_by_sgd(ctx, updates, n, momentum);
    }
}

void ampk_cuda_conv_update_adam(struct ampk_context *ctx, const struct ampk_weight_update *list,
                                int count, float b1, float b2, float eps, int t)
{
    struct ampk_conv_update updates[UPDATES_AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = describe_updates(list, count, updates);
        ampk_conv_update_by_adam(ctx, updates, n, b1, b2, eps, t);
    }
}

/* ---- creation ---- */

static bool allocate_gradient(struct ampk_conv *conv)
{
    if (conv->shape.forward_only) return true;
    conv->dw = ampk_rt_alloc(padded_weights(conv) * ampk_dtype_bytes(conv->gradient));
    return conv->dw != NULL;
}

/* Tensors as islands have them. */
static struct ampk_tensor island_x(const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const size_t image = (size_t)s->c * s->h * s->w;
    return (struct ampk_tensor){NULL, conv->operand, AMPK_NHWC, s->n, s->c, s->h, s->w, image, 0};
}

static struct ampk_tensor island_y(const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const size_t image = (size_t)s->k * conv->oh * conv->ow;
    return (struct ampk_tensor){NULL,     conv->operand, AMPK_NHWC, s->n, s->k,
                                conv->oh, conv->ow,      image,     0};
}

static bool reserve_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                             const struct ampk_gradient_sums *sums)
{
    struct ampk_tensor x = island_x(conv), y = island_y(conv);
    struct destination to = {&x, !sums, NULL, sums};
    struct ampk_bias_gradient bias = {.d = &y};
    return ampk_cuda_work_reserve(
        ctx,
        plan_backward(ctx, conv, &x, &y, conv->operand != AMPK_FP32 ? &bias : NULL, &to).bytes);
}

/* Work memory. */
static bool reserve_work(struct ampk_context *ctx, struct ampk_conv *conv)
{
    struct ampk_tensor x = island_x(conv), y = island_y(conv);
    for (int statistics = 0; statistics < 2; statistics++) {
        struct output o = choose_forward(ctx, conv, &y, statistics);
        if (!ampk_cuda_work_reserve(ctx, plan_forward(conv, o, &x, &y).bytes)) return false;
    }
    return conv->shape.forward_only || reserve_backward(ctx, conv, NULL);
}

/* Ways that are taken for speed alone; without memory for them, the usual ones. */
static bool choose_ways(struct ampk_context *ctx, struct ampk_conv *conv)
{
    size_t had = ctx->work_bytes;
    conv->beside = choose_beside(ctx, conv);
    conv->summing = choose_summing(ctx, conv, AMPK_TC_FORWARD, AMPK_LINEAR);
    conv->image = choose_image(ctx, conv); /* what work memory there always is will do */
    if (reserve_work(ctx, conv)) return true;
    if (!conv->beside && !conv->summing) return false;
    conv->beside = false;
    conv->summing = NULL;
    return ampk_cuda_work_reserve(ctx, had) && reserve_work(ctx, conv);
}

bool ampk_cuda_conv_sums_gradients(struct ampk_context *ctx, struct ampk_conv *conv,
                                   enum ampk_activation activation)
{
    static const struct ampk_gradient_sums wanted;
    size_t had = ctx->work_bytes;
    conv->summing_gradients = choose_summing(ctx, conv, AMPK_TC_DATA, activation);
    if (!conv->summing_gradients || reserve_backward(ctx, conv, &wanted))
        return conv->summing_gradients != NULL;
    conv->summing_gradients = NULL;
    ampk_cuda_work_reserve(ctx, had); /* where that fails too, the next operation says so */
    return false;
}

struct ampk_conv *ampk_cuda_conv_create(struct ampk_context *ctx, const struct ampk_conv_shape *s,
                                        char *err, size_t err_size)
{
    char why[400] = "";
    const char *fault = ampk_conv_shape_fault(s);
    struct ampk_conv *conv = NULL;
    if (fault)
        snprintf(why, sizeof why, "%s", fault);
    else if (libraries(ctx, why, sizeof why) && !(conv = make_conv(s)))
        snprintf(why, sizeof why, "out of memory");
    if (conv && make_plans(ctx, conv, why, sizeof why)) {
        if (allocate_gradient(conv) && choose_ways(ctx, conv)) return conv;
        snprintf(why, sizeof why, "out of memory");
    }
    ampk_cuda_conv_destroy(ctx, conv);
    snprintf(err, err_size,
             "convolution of %dx%dx%dx%d by %d filters of %dx%d, stride %d, pad %d, groups %d: %s",
             s->n, s->c, s->h, s->w, s->k, s->kh, s->kw, s->stride, s->pad, s->groups, why);
    return NULL;
}

void ampk_cuda_conv_destroy(struct ampk_context *ctx, struct ampk_conv *conv)
{
    if (!conv) return;
    ampk_cuda_wait(ctx);
    ampk_rt_free(conv->weights);
    ampk_rt_free(conv->dw);
    free(conv);
}
