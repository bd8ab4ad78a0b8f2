/* Convolution: oneDNN multiplies FP32 operands that were rounded to the compute type, and sums in
 * FP32. Tensors keep the type that they are stored in. With compute type BF16 and AVX512-BF16 it
 * multiplies BF16: rows that are stored as BF16 are then read where they lie.
 *
 * A pass runs tasks (conv_create.c): each casts its operands, oneDNN computes, and the result is
 * rounded to storage on its way out, together with batch-norm's sums or bias and activation.
 */
#include "conv.h"

#include <omp.h>
#include <string.h>

/* ---- a task's operands ---- */

/* This thread's memory: x, y, scratch. */
struct lane {
    void *x, *y, *scratch;
};

static struct lane lane_at(char *memory, const struct ampk_conv *conv, size_t x_bytes,
                           size_t y_bytes)
{
    char *x = memory + (size_t)omp_get_thread_num() * conv->lane_bytes;
    char *y = x + ampk_whole_lines(x_bytes);
    return (struct lane){x, y, y + ampk_whole_lines(y_bytes)};
}

/* Some channels of some rows of an image: rows [first, first+rows), of which t need not have all.
 */
struct operand {
    const struct ampk_tensor *t;
    size_t image;
    int first, rows, channel, channels;
    int padded; /* channels that oneDNN reads */
};

static bool is_stored_so(const struct ampk_conv *conv, const struct operand *o)
{
    return conv->bf16 && o->t->dtype == AMPK_BF16 && o->channels == o->t->c &&
           o->padded == o->t->c && o->first >= 0 && o->first + o->rows <= o->t->h;
}

/* Casts rows for oneDNN; 0 where t has no such row. */
static void load_rows(struct ampk_context *ctx, const struct ampk_conv *conv,
                      const struct operand *o, void *dst)
{
    const struct ampk_tensor *t = o->t;
    int begin = ampk_smaller(ampk_larger(o->first, 0), o->first + o->rows);
    int end = ampk_larger(ampk_smaller(o->first + o->rows, t->h), begin);
    size_t row = (size_t)t->w * o->padded * ampk_operand_bytes(conv);
    size_t above = (size_t)(begin - o->first), inside = (size_t)(end - begin);
    size_t below = (size_t)(o->first + o->rows - end);
    char *to = (char *)dst + above * row;
    const void *from = ampk_at(t, o->image, (size_t)begin * t->w * t->c + o->channel);
    memset(dst, 0, above * row);
    if (inside && conv->bf16)
        ctx->isa->rows.load_bf16((uint16_t *)to, (size_t)o->padded, from, t->dtype, inside * t->w,
                                 (size_t)o->channels, (size_t)t->c);
    else if (inside)
        ctx->isa->rows.load((float *)to, from, t->dtype, inside * t->w, (size_t)o->channels,
                            (size_t)t->c, conv->shape.compute);
    memset(to + inside * row, 0, below * row);
}

/* Rows as oneDNN reads them: where they are, if they are stored so, else cast into memory. */
static void *take_rows(struct ampk_context *ctx, const struct ampk_conv *conv,
                       const struct operand *o, void *memory)
{
    if (is_stored_so(conv, o)) return ampk_at(o->t, o->image, (size_t)o->first * o->t->w * o->t->c);
    load_rows(ctx, conv, o, memory);
    return memory;
}

/* The region of t that a pass writes for a unit and a slice. oneDNN wrote `padded` channels. */
static struct ampk_region unit_region(const struct pass *pass, const struct ampk_tensor *t,
                                      int padded, int unit, int slice)
{
    int channels = t->c / pass->slices, first = unit % pass->bands.count * pass->bands.rows;
    int rows = ampk_smaller(pass->bands.rows, t->h - first);
    return (struct ampk_region){.tensor = t,
                                .image = (size_t)unit / pass->bands.count,
                                .pixel = (size_t)first * t->w,
                                .pixels = (size_t)rows * t->w,
                                .channel = (size_t)slice * channels,
                                .channels = (size_t)channels,
                                .source_stride = (size_t)padded / pass->slices};
}

static uint32_t store_region(struct ampk_context *ctx, const float *source,
                             const struct ampk_region *r, bool accumulate)
{
    size_t c = (size_t)r->tensor->c;
    return ctx->isa->rows.store(ampk_at(r->tensor, r->image, r->pixel * c + r->channel),
                                r->tensor->dtype, c, source, r->source_stride, r->pixels,
                                r->channels, accumulate);
}

/* ---- forward ---- */

/* What becomes of y: sums are taken, or bias and activation applied, or neither. */
struct finish {
    const float *shift;
    float *partial; /* [units][2][k] */
    const float *bias;
    enum ampk_activation activation;
};

static uint32_t forward_task(struct ampk_context *ctx, struct ampk_conv *conv,
                             const struct ampk_tensor *x, const struct ampk_tensor *y,
                             const struct finish *finish, int unit, int slice, char *memory)
{
    const struct pass *pass = &conv->forward;
    const struct bands *bands = &pass->bands;
    struct ampk_region region = unit_region(pass, y, conv->filters, unit, slice);
    struct lane lane =
        lane_at(memory, conv, ampk_operand_bytes(conv) * x->c * x->w * bands->in_rows,
                sizeof(float) * region.source_stride * y->w * bands->rows);
    int first = unit % bands->count * bands->in_step - bands->in_offset;
    struct operand read = {x, region.image, first, bands->in_rows, 0, x->c, x->c};
    ampk_dnnl_execute(pass->plan, take_rows(ctx, conv, &read, lane.x), pass->weights[slice], lane.y,
                      lane.scratch);
    if (finish->bias)
        return ctx->isa->rows.store_bias(lane.y, &region, finish->bias, finish->activation);
    if (!finish->shift) return store_region(ctx, lane.y, &region, false);
    float *sums = finish->partial + (size_t)unit * 2 * y->c;
    memset(sums + region.channel, 0, region.channels * sizeof *sums);
    memset(sums + y->c + region.channel, 0, region.channels * sizeof *sums);
    return ctx->isa->rows.store_sums(lane.y, &region, finish->shift, sums, sums + y->c);
}

static uint32_t forward(struct ampk_context *ctx, struct ampk_conv *conv,
                        const struct ampk_tensor *x, const struct ampk_tensor *y,
                        const struct finish *finish, char *memory)
{
    int slices = conv->forward.slices, units = conv->shape.n * conv->forward.bands.count;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic) reduction(max : largest)
    for (int task = 0; task < units * slices; task++) {
        uint32_t found =
            forward_task(ctx, conv, x, y, finish, task / slices, task % slices, memory);
        if (found > largest) largest = found;
    }
    return largest;
}

const float *ampk_cpu_conv_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                                   const struct ampk_tensor *x, const struct ampk_tensor *y,
                                   const struct ampk_bn_statistics *statistics, uint32_t *amax)
{
    size_t operands = conv->lane_bytes * ctx->threads;
    char *memory = ampk_memory(ctx, operands + ampk_conv_sums_bytes(conv));
    struct finish finish = {.shift = statistics ? statistics->rolling_mean : NULL,
                            .partial = (float *)(memory + operands)};
    ampk_amax_raise(amax, forward(ctx, conv, x, y, &finish, memory));
    size_t units = (size_t)conv->shape.n * conv->forward.bands.count;
    if (statistics)
        ctx->isa->rows.finish_statistics(finish.partial, units, (size_t)y->n * y->h * y->w,
                                         (size_t)y->c, statistics);
    return NULL;
}

void ampk_cpu_conv_bias_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                                const struct ampk_tensor *x, const float *bias,
                                enum ampk_activation activation, const struct ampk_tensor *y,
                                uint32_t *amax)
{
    char *memory = ampk_memory(ctx, conv->lane_bytes * ctx->threads);
    struct finish finish = {.bias = bias, .activation = activation};
    ampk_amax_raise(amax, forward(ctx, conv, x, y, &finish, memory));
}

/* ---- backward ---- */

static uint32_t data_task(struct ampk_context *ctx, struct ampk_conv *conv,
                          const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                          bool accumulate, int unit, int slice, char *memory)
{
    const struct pass *pass = &conv->data;
    const struct bands *bands = &pass->bands;
    struct ampk_region region = unit_region(pass, dx, dx->c, unit, slice);
    struct lane lane = lane_at(memory, conv, sizeof(float) * region.channels * dx->w * bands->rows,
                               ampk_operand_bytes(conv) * conv->filters * dy->w * bands->in_rows);
    int first = unit % bands->count * bands->in_step - bands->in_offset;
    struct operand read = {dy, region.image, first, bands->in_rows, 0, dy->c, conv->filters};
    ampk_dnnl_execute(pass->plan, lane.x, pass->weights[slice], take_rows(ctx, conv, &read, lane.y),
                      lane.scratch);
    return store_region(ctx, lane.x, &region, accumulate);
}

static uint32_t data_gradient(struct ampk_context *ctx, struct ampk_conv *conv,
                              const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                              bool accumulate, char *memory)
{
    int slices = conv->data.slices, units = conv->shape.n * conv->data.bands.count;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic) reduction(max : largest)
    for (int task = 0; task < units * slices; task++) {
        uint32_t found =
            data_task(ctx, conv, dy, dx, accumulate, task / slices, task % slices, memory);
        if (found > largest) largest = found;
    }
    return largest;
}

static void gradient_task(struct ampk_context *ctx, struct ampk_conv *conv,
                          const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                          char *memory)
{
    const struct gradient *g = &conv->gradient;
    const struct bands *bands = &g->bands;
    int tile = task / g->groups, first_unit = task % g->groups * g->units;
    int filters = dy->c / g->slices_k, padded = conv->filters / g->slices_k;
    int channels = x->c / g->slices_c;
    int filter = tile / g->slices_c * filters, channel = tile % g->slices_c * channels;
    size_t x_bytes = ampk_operand_bytes(conv) * channels * x->w * bands->in_rows;
    size_t y_bytes = ampk_operand_bytes(conv) * padded * dy->w * bands->rows;
    struct lane lane = lane_at(memory, conv, g->units * x_bytes, g->units * y_bytes);
    void *of_x = lane.x, *of_dy = lane.y;
    for (int i = 0; i < g->units; i++) {
        size_t image = (size_t)(first_unit + i) / bands->count;
        int band = (first_unit + i) % bands->count;
        int first = band * bands->in_step - bands->in_offset;
        struct operand read_x = {x, image, first, bands->in_rows, channel, channels, channels};
        struct operand read_dy = {dy,      image, band * bands->rows, bands->rows, filter,
                                  filters, padded};
        if (g->units == 1) {
            of_x = take_rows(ctx, conv, &read_x, lane.x);
            of_dy = take_rows(ctx, conv, &read_dy, lane.y);
        } else {
            load_rows(ctx, conv, &read_x, (char *)lane.x + i * x_bytes);
            load_rows(ctx, conv, &read_dy, (char *)lane.y + i * y_bytes);
        }
    }
    ampk_dnnl_execute(g->plan, of_x, g->partial[task], of_dy, lane.scratch);
}

static void weight_gradient(struct ampk_context *ctx, struct ampk_conv *conv,
                            const struct ampk_tensor *x, const struct ampk_tensor *dy, char *memory)
{
    int tasks = conv->gradient.slices_k * conv->gradient.slices_c * conv->gradient.groups;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic)
    for (int task = 0; task < tasks; task++)
        gradient_task(ctx, conv, x, dy, task, memory);
    conv->gradient.added = false;
}

void ampk_cpu_conv_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                            const struct ampk_tensor *x, const struct ampk_tensor *dy,
                            const struct ampk_tensor *dx, bool accumulate, uint32_t *dx_amax)
{
    char *memory = ampk_memory(ctx, conv->lane_bytes * ctx->threads);
    if (dx) ampk_amax_raise(dx_amax, data_gradient(ctx, conv, dy, dx, accumulate, memory));
    if (x) weight_gradient(ctx, conv, x, dy, memory);
}
