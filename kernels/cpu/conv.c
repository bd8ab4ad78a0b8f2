/* Convolution: oneDNN computes in FP32 on operands that were rounded to the compute type, storage
 * is what the tensors say.
 *
 * Forward and data gradient: a thread casts an image to FP32 in memory of its own, where it stays
 * in the cache; oneDNN computes with one thread; the result is rounded to storage on its way out,
 * together with batch-norm's sums or bias and activation. Threads share the images. A batch of
 * fewer images than threads is instead one call in which oneDNN uses all threads, if that runs the
 * same code, which sums every element in the same order.
 *
 * The weight gradient is cut into tasks by the shape alone: slices of filters times groups of
 * images. A task is one call for one thread; the groups of a slice are then added in order.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl_compat.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLICE = 64,               /* filters in a task of the weight gradient, if they divide so */
    TASKS = 16,               /* that it has at least */
    TASK_BYTES = 512 << 10,   /* FP32 operands of a task: second-level cache */
    PARTIAL_BYTES = 32 << 20, /* all partial weight gradients: the sum over them costs time */
};

/* Forward or data gradient. */
struct pass {
    int images, threads; /* of one call */
    struct ampk_dnnl_plan *plan;
    struct ampk_dnnl_weights *weights;
};

struct ampk_conv {
    struct ampk_conv_shape shape;
    size_t x_size, y_size;     /* elements of an image */
    struct pass forward, data; /* data has no plan if forward_only */

    int slices, groups; /* of the weight gradient: filters, images */
    struct ampk_dnnl_plan *gradient;
    struct ampk_dnnl_weights **partial; /* [slices][groups] */

    /* Memory for operands and oneDNN's scratch: of a thread, and of a call that uses all. */
    size_t lane_bytes, whole_bytes;
};

/* ---- creation ---- */

static size_t weight_count(const struct ampk_conv_shape *s)
{
    return (size_t)s->k * (s->c / s->groups) * s->kh * s->kw;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Images in one task of the weight gradient: a divisor of n. */
static int task_images(const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    size_t n = (size_t)s->n, bytes = sizeof(float) * (conv->x_size + conv->y_size / conv->slices);
    size_t images = TASK_BYTES / bytes, for_tasks = n * conv->slices / TASKS;
    size_t at_least = n * weight_count(s) * sizeof(float) / PARTIAL_BYTES;
    if (images > for_tasks) images = for_tasks;
    if (images < at_least) images = at_least;
    if (images < 1) images = 1;
    if (images > n) images = n;
    while (n % images)
        images++;
    return (int)images;
}

static struct ampk_dnnl_shape dnnl_shape(const struct ampk_conv_shape *s, int images, int filters)
{
    return (struct ampk_dnnl_shape){images, s->c,  s->h,      s->w,   filters,
                                    s->kh,  s->kw, s->stride, s->pad, s->groups};
}

static size_t call_bytes(const struct ampk_dnnl_plan *plan, size_t x_size, size_t y_size)
{
    return aligned(x_size * sizeof(float)) + aligned(y_size * sizeof(float)) +
           aligned(ampk_dnnl_plan_scratch(plan));
}

/* GEMM splits its sums by the number of threads, and other code may have another order. */
static bool sums_alike(const struct ampk_dnnl_plan *a, const struct ampk_dnnl_plan *b)
{
    const char *code = ampk_dnnl_plan_code(a);
    return !strcmp(code, ampk_dnnl_plan_code(b)) && !strstr(code, "gemm");
}

/* Replaces the plan for one image by one for the whole batch with all threads, where allowed. */
static bool widen_pass(struct ampk_context *ctx, struct ampk_conv *conv, struct pass *pass,
                       enum ampk_dnnl_step step, char *err, size_t err_size)
{
    const struct ampk_conv_shape *s = &conv->shape;
    struct ampk_dnnl_shape shape = dnnl_shape(s, s->n, s->k);
    struct ampk_dnnl_plan *whole =
        ampk_dnnl_plan_create(ctx->dnnl, step, &shape, ctx->threads, err, err_size);
    if (!whole) return false;
    if (!sums_alike(pass->plan, whole)) {
        ampk_dnnl_plan_destroy(whole);
        return true;
    }
    ampk_dnnl_plan_destroy(pass->plan);
    *pass = (struct pass){.images = s->n, .threads = ctx->threads, .plan = whole};
    return true;
}

static bool create_pass(struct ampk_context *ctx, struct ampk_conv *conv, struct pass *pass,
                        enum ampk_dnnl_step step, char *err, size_t err_size)
{
    const struct ampk_conv_shape *s = &conv->shape;
    struct ampk_dnnl_shape shape = dnnl_shape(s, 1, s->k);
    pass->images = pass->threads = 1;
    pass->plan = ampk_dnnl_plan_create(ctx->dnnl, step, &shape, 1, err, err_size);
    if (!pass->plan) return false;
    if (s->n < ctx->threads && !widen_pass(ctx, conv, pass, step, err, err_size)) return false;
    size_t bytes = call_bytes(pass->plan, pass->images * conv->x_size, pass->images * conv->y_size);
    size_t *need = pass->threads > 1 ? &conv->whole_bytes : &conv->lane_bytes;
    if (bytes > *need) *need = bytes;
    pass->weights = ampk_dnnl_weights_create(pass->plan, err, err_size);
    return pass->weights != NULL;
}

static bool create_gradient(struct ampk_context *ctx, struct ampk_conv *conv, char *err,
                            size_t err_size)
{
    const struct ampk_conv_shape *s = &conv->shape;
    conv->slices = s->groups == 1 && s->k % SLICE == 0 ? s->k / SLICE : 1;
    int images = task_images(conv);
    conv->groups = s->n / images;
    struct ampk_dnnl_shape shape = dnnl_shape(s, images, s->k / conv->slices);
    conv->gradient =
        ampk_dnnl_plan_create(ctx->dnnl, AMPK_DNNL_BACKWARD_WEIGHTS, &shape, 1, err, err_size);
    if (!conv->gradient) return false;
    size_t bytes =
        call_bytes(conv->gradient, images * conv->x_size, images * conv->y_size / conv->slices);
    if (bytes > conv->lane_bytes) conv->lane_bytes = bytes;
    int tasks = conv->slices * conv->groups;
    conv->partial = calloc((size_t)tasks, sizeof *conv->partial);
    if (!conv->partial) {
        snprintf(err, err_size, "out of memory");
        return false;
    }
    for (int i = 0; i < tasks; i++) {
        conv->partial[i] = ampk_dnnl_weights_create(conv->gradient, err, err_size);
        if (!conv->partial[i]) return false;
    }
    return true;
}

/* Batch-norm's partial sums of a forward pass. */
static size_t sums_bytes(const struct ampk_tensor *y)
{
    return ampk_channel_pieces(y) * y->n * 2 * y->c * sizeof(float);
}

/* All operands' memory of one operation. */
static size_t operand_bytes(const struct ampk_context *ctx, const struct ampk_conv *conv)
{
    size_t lanes = conv->lane_bytes * ctx->threads;
    return lanes > conv->whole_bytes ? lanes : conv->whole_bytes;
}

static bool reserve_memory(struct ampk_context *ctx, const struct ampk_conv *conv,
                           const struct ampk_tensor *y, char *err, size_t err_size)
{
    size_t bytes = operand_bytes(ctx, conv) + sums_bytes(y);
    size_t weights = weight_count(&conv->shape) * sizeof(float);
    if (bytes < weights) bytes = weights;
    if (ampk_memory_reserve(ctx, bytes)) return true;
    snprintf(err, err_size, "out of memory: %zu bytes of work memory for a convolution", bytes);
    return false;
}

struct ampk_conv *ampk_cpu_conv_create(struct ampk_context *ctx, const struct ampk_conv_shape *s,
                                       char *err, size_t err_size)
{
    struct ampk_conv *conv = calloc(1, sizeof *conv);
    if (!conv) {
        snprintf(err, err_size, "out of memory");
        return NULL;
    }
    struct ampk_tensor y = {.n = s->n,
                            .c = s->k,
                            .h = (s->h + 2 * s->pad - s->kh) / s->stride + 1,
                            .w = (s->w + 2 * s->pad - s->kw) / s->stride + 1};
    conv->shape = *s;
    conv->x_size = (size_t)s->c * s->h * s->w;
    conv->y_size = ampk_image_size(&y);
    if (create_pass(ctx, conv, &conv->forward, AMPK_DNNL_FORWARD, err, err_size) &&
        (s->forward_only ||
         (create_pass(ctx, conv, &conv->data, AMPK_DNNL_BACKWARD_DATA, err, err_size) &&
          create_gradient(ctx, conv, err, err_size))) &&
        reserve_memory(ctx, conv, &y, err, err_size))
        return conv;
    ampk_cpu_conv_destroy(ctx, conv);
    return NULL;
}

void ampk_cpu_conv_destroy(struct ampk_context *ctx, struct ampk_conv *conv)
{
    (void)ctx;
    if (!conv) return;
    for (int i = 0; conv->partial && i < conv->slices * conv->groups; i++)
        ampk_dnnl_weights_destroy(conv->partial[i]);
    free(conv->partial);
    ampk_dnnl_weights_destroy(conv->forward.weights);
    ampk_dnnl_weights_destroy(conv->data.weights);
    ampk_dnnl_plan_destroy(conv->forward.plan);
    ampk_dnnl_plan_destroy(conv->data.plan);
    ampk_dnnl_plan_destroy(conv->gradient);
    free(conv);
}

/* ---- weights ---- */

void ampk_cpu_conv_set_weights(struct ampk_context *ctx, struct ampk_conv *conv,
                               const float *weights, uint32_t *amax)
{
    size_t count = weight_count(&conv->shape), pieces = ampk_pieces(count);
    float *rounded = ampk_memory(ctx, count * sizeof *rounded);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest)
    for (size_t i = 0; i < pieces; i++) {
        size_t first = i * AMPK_PIECE;
        uint32_t found = ctx->isa->rows.round(rounded + first, weights + first,
                                              ampk_piece(count, first), conv->shape.compute);
        if (found > largest) largest = found;
    }
    ampk_amax_raise(amax, largest);
    ampk_dnnl_weights_pack(conv->forward.plan, rounded, conv->forward.weights);
    if (conv->data.plan) ampk_dnnl_weights_pack(conv->data.plan, rounded, conv->data.weights);
}

/* ---- a thread's memory and its operands ---- */

struct lane {
    float *x, *y;
    void *scratch;
};

static struct lane lane_at(char *memory, const struct ampk_conv *conv, size_t x_size, size_t y_size)
{
    char *base = memory + (size_t)omp_get_thread_num() * conv->lane_bytes;
    char *y = base + aligned(x_size * sizeof(float));
    return (struct lane){(float *)base, (float *)y, y + aligned(y_size * sizeof(float))};
}

/* Images [first, first+count) of t as FP32 values of the compute type: in `space`, or where they
 * are if nothing needs to be done. */
static float *load_images(struct ampk_context *ctx, const struct ampk_tensor *t, int first,
                          int count, enum ampk_compute compute, int threads, float *space)
{
    size_t size = ampk_image_size(t), pieces = ampk_pieces(size);
    if (t->dtype == AMPK_FP32 && compute == AMPK_COMPUTE_FP32 &&
        (count == 1 || t->image_stride == size))
        return ampk_at(t, (size_t)first, 0);
#pragma omp parallel for num_threads(threads)
    for (size_t i = 0; i < (size_t)count * pieces; i++) {
        size_t image = i / pieces, at = i % pieces * AMPK_PIECE;
        ctx->isa->rows.load(space + image * size + at, ampk_at(t, (size_t)first + image, at),
                            t->dtype, ampk_piece(size, at), compute);
    }
    return space;
}

/* As load_images, of channels [channel, channel+channels) only. */
static float *load_channels(struct ampk_context *ctx, const struct ampk_tensor *t, int first,
                            int count, int channel, int channels, enum ampk_compute compute,
                            float *space)
{
    if (channels == t->c) return load_images(ctx, t, first, count, compute, 1, space);
    size_t pixels = (size_t)t->h * t->w;
    for (size_t image = 0; image < (size_t)count; image++)
        for (size_t p = 0; p < pixels; p++)
            ctx->isa->rows.load(space + (image * pixels + p) * channels,
                                ampk_at(t, (size_t)first + image, p * t->c + channel), t->dtype,
                                (size_t)channels, compute);
    return space;
}

/* Image i of t (+)= source; returns the largest magnitude. */
static uint32_t store_image(struct ampk_context *ctx, const float *source,
                            const struct ampk_tensor *t, size_t image, bool accumulate, int threads)
{
    size_t size = ampk_image_size(t), pieces = ampk_pieces(size);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(threads) reduction(max : largest)
    for (size_t i = 0; i < pieces; i++) {
        size_t at = i * AMPK_PIECE;
        uint32_t found = ctx->isa->rows.store(ampk_at(t, image, at), t->dtype, source + at,
                                              ampk_piece(size, at), accumulate);
        if (found > largest) largest = found;
    }
    return largest;
}

/* ---- forward ---- */

/* What becomes of y: exactly one of the three. */
struct finish {
    const float *shift; /* partial sums relative to this */
    float *partial;
    const float *bias; /* bias and activation */
    enum ampk_activation activation;
};

static uint32_t finish_image(struct ampk_context *ctx, const float *source,
                             const struct ampk_tensor *y, size_t image, const struct finish *finish,
                             int threads)
{
    struct ampk_tensor one = *y;
    one.n = 1;
    one.data = ampk_at(y, image, 0);
    if (finish->bias)
        return ctx->isa->rows.store_bias(source, &one, finish->bias, finish->activation, threads);
    if (finish->shift)
        return ctx->isa->rows.store_sums(source, &one, finish->shift, threads,
                                         finish->partial +
                                             image * ampk_channel_pieces(y) * 2 * y->c);
    return store_image(ctx, source, y, image, false, threads);
}

static uint32_t forward(struct ampk_context *ctx, struct ampk_conv *conv,
                        const struct ampk_tensor *x, const struct ampk_tensor *y,
                        const struct finish *finish, char *memory)
{
    const struct pass *pass = &conv->forward;
    int calls = conv->shape.n / pass->images;
    size_t images = (size_t)pass->images;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(calls > 1 ? ctx->threads : 1) schedule(dynamic)               \
    reduction(max                                                                                  \
              : largest)
    for (int call = 0; call < calls; call++) {
        struct lane lane = lane_at(memory, conv, images * conv->x_size, images * conv->y_size);
        int first = call * pass->images;
        float *in =
            load_images(ctx, x, first, pass->images, conv->shape.compute, pass->threads, lane.x);
        ampk_dnnl_execute(pass->plan, in, pass->weights, lane.y, lane.scratch);
        for (size_t i = 0; i < images; i++) {
            uint32_t found = finish_image(ctx, lane.y + i * conv->y_size, y, (size_t)first + i,
                                          finish, pass->threads);
            if (found > largest) largest = found;
        }
    }
    return largest;
}

void ampk_cpu_conv_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                           const struct ampk_tensor *x, const struct ampk_tensor *y,
                           const float *shift, float *sums, uint32_t *amax)
{
    size_t operands = operand_bytes(ctx, conv);
    char *memory = ampk_memory(ctx, operands + sums_bytes(y));
    struct finish finish = {.shift = sums ? shift : NULL, .partial = (float *)(memory + operands)};
    ampk_amax_raise(amax, forward(ctx, conv, x, y, &finish, memory));
    if (sums) ctx->isa->rows.add_partial(finish.partial, y, 2, sums);
}

void ampk_cpu_conv_bias_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                                const struct ampk_tensor *x, const float *bias,
                                enum ampk_activation activation, const struct ampk_tensor *y,
                                uint32_t *amax)
{
    char *memory = ampk_memory(ctx, operand_bytes(ctx, conv));
    struct finish finish = {.bias = bias, .activation = activation};
    ampk_amax_raise(amax, forward(ctx, conv, x, y, &finish, memory));
}

/* ---- backward ---- */

static uint32_t data_gradient(struct ampk_context *ctx, struct ampk_conv *conv,
                              const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                              bool accumulate, char *memory)
{
    const struct pass *pass = &conv->data;
    int calls = conv->shape.n / pass->images;
    size_t images = (size_t)pass->images;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(calls > 1 ? ctx->threads : 1) schedule(dynamic)               \
    reduction(max                                                                                  \
              : largest)
    for (int call = 0; call < calls; call++) {
        struct lane lane = lane_at(memory, conv, images * conv->x_size, images * conv->y_size);
        int first = call * pass->images;
        float *out =
            load_images(ctx, dy, first, pass->images, conv->shape.compute, pass->threads, lane.y);
        ampk_dnnl_execute(pass->plan, lane.x, pass->weights, out, lane.scratch);
        for (size_t i = 0; i < images; i++) {
            uint32_t found = store_image(ctx, lane.x + i * conv->x_size, dx, (size_t)first + i,
                                         accumulate, pass->threads);
            if (found > largest) largest = found;
        }
    }
    return largest;
}

/* One slice of filters, one group of images. */
static void gradient_task(struct ampk_context *ctx, struct ampk_conv *conv,
                          const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                          char *memory)
{
    int images = conv->shape.n / conv->groups, filters = conv->shape.k / conv->slices;
    int slice = task / conv->groups, first = task % conv->groups * images;
    enum ampk_compute compute = conv->shape.compute;
    struct lane lane =
        lane_at(memory, conv, images * conv->x_size, images * conv->y_size / conv->slices);
    float *in = load_images(ctx, x, first, images, compute, 1, lane.x);
    float *out = load_channels(ctx, dy, first, images, slice * filters, filters, compute, lane.y);
    ampk_dnnl_execute(conv->gradient, in, conv->partial[task], out, lane.scratch);
}

/* Adds the groups of a slice and writes them to dw; returns the largest magnitude. */
static uint32_t finish_slice(struct ampk_context *ctx, struct ampk_conv *conv, int slice, float *dw)
{
    struct ampk_dnnl_weights **partial = conv->partial + (size_t)slice * conv->groups;
    size_t count, filters = weight_count(&conv->shape) / conv->slices;
    float *sum = ampk_dnnl_weights_values(partial[0], &count);
    for (int i = 1; i < conv->groups; i++)
        ctx->isa->rows.add(sum, ampk_dnnl_weights_values(partial[i], &count), count);
    ampk_dnnl_weights_unpack(conv->gradient, partial[0], dw + slice * filters);
    return ctx->isa->rows.amax(sum, count);
}

static uint32_t weight_gradient(struct ampk_context *ctx, struct ampk_conv *conv,
                                const struct ampk_tensor *x, const struct ampk_tensor *dy,
                                float *dw, char *memory)
{
    uint32_t largest = 0;
#pragma omp parallel num_threads(ctx->threads)
    {
#pragma omp for schedule(dynamic)
        for (int task = 0; task < conv->slices * conv->groups; task++)
            gradient_task(ctx, conv, x, dy, task, memory);
#pragma omp for schedule(dynamic) reduction(max : largest)
        for (int slice = 0; slice < conv->slices; slice++) {
            uint32_t found = finish_slice(ctx, conv, slice, dw);
            if (found > largest) largest = found;
        }
    }
    return largest;
}

void ampk_cpu_conv_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                            const struct ampk_tensor *x, const struct ampk_tensor *dy,
                            const struct ampk_tensor *dx, bool accumulate, float *dw,
                            uint32_t *dx_amax, uint32_t *dw_amax)
{
    char *memory = ampk_memory(ctx, operand_bytes(ctx, conv));
    if (dx) ampk_amax_raise(dx_amax, data_gradient(ctx, conv, dy, dx, accumulate, memory));
    ampk_amax_raise(dw_amax, weight_gradient(ctx, conv, x, dy, dw, memory));
}
