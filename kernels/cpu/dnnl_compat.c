/* See dnnl_compat.h. Memory objects of x, y and scratch are made per execution (they hold a
 * pointer); those of weights live as long as the weights, because placing one clears the padding
 * of its layout. */
#include "dnnl_compat.h"

#include "kernels/kernels.h"

#include <dnnl.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t layout_t;       /* owned */
typedef const_dnnl_memory_desc_t layout_p; /* borrowed */
#define LAYOUT_P(layout) (layout)
#else
typedef dnnl_memory_desc_t layout_t;
typedef const dnnl_memory_desc_t *layout_p;
#define LAYOUT_P(layout) (&(layout))
#endif

struct ampk_dnnl {
    int threads;
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* one per thread: a stream is for one thread at a time */
};

struct ampk_dnnl_plan {
    const struct ampk_dnnl *dnnl;
    enum ampk_dnnl_step step;
    size_t overrun;                    /* bytes of scratch memory that oneDNN forgets to ask for */
    dnnl_primitive_desc_t description; /* owns the borrowed layouts below */
    dnnl_primitive_t primitive;
    dnnl_primitive_t reorder; /* of weights from plain, of their gradient to plain */
    layout_p x, weights, y, scratch;
    layout_t plain; /* [k][plain_c/groups][kh][kw] */
    bool has_lines;
    struct ampk_dnnl_lines lines;
};

struct ampk_dnnl_weights {
    dnnl_memory_t memory;
    size_t bytes;
};

static void check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success) return;
    fprintf(stderr, "oneDNN: %s failed with status %d\n", what, (int)status);
    abort();
}

/* ---- memory that ends ---- */

/* oneDNN writes its code to memory without looking whether it got any, 256 KiB at least for each
 * piece of code, and where one of its lists cannot grow an exception leaves it: both end the
 * program. So nothing is asked of it where this much more could not be had. It is far more than one
 * plan takes, because threads that load images allocate at the same time. */
enum { ROOM = 32 << 20 };

static bool has_room(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    munmap(memory, bytes);
    return true;
}

/* ---- where the two APIs differ ---- */

static dnnl_status_t layout_create(layout_t *layout, int dims, const dnnl_dims_t sizes,
                                   dnnl_data_type_t type, dnnl_format_tag_t tag)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(layout, dims, sizes, type, tag);
#else
    return dnnl_memory_desc_init_by_tag(layout, dims, sizes, type, tag);
#endif
}

static dnnl_status_t layout_create_strided(layout_t *layout, int dims, const dnnl_dims_t sizes,
                                           const dnnl_dims_t strides)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(layout, dims, sizes, dnnl_f32, strides);
#else
    return dnnl_memory_desc_init_by_strides(layout, dims, sizes, dnnl_f32, strides);
#endif
}

static void layout_destroy(layout_t *layout)
{
#if DNNL_VERSION_MAJOR >= 3
    if (*layout) dnnl_memory_desc_destroy(*layout);
#else
    (void)layout;
#endif
}

/* A layout in blocks: strides from block to block in every dimension, then blocks within blocks. */
struct blocks {
    const dnnl_dim_t *strides, *sizes, *dims;
    int count;
};

static dnnl_status_t blocks_of(layout_p layout, struct blocks *b)
{
#if DNNL_VERSION_MAJOR >= 3
    dnnl_format_kind_t kind;
    const dnnl_dims_t *strides, *sizes, *dims;
    dnnl_status_t status = dnnl_memory_desc_query(layout, dnnl_query_format_kind, &kind);
    if (status == dnnl_success && kind != dnnl_blocked) status = dnnl_unimplemented;
    if (status == dnnl_success)
        status = dnnl_memory_desc_query(layout, dnnl_query_strides, &strides);
    if (status == dnnl_success)
        status = dnnl_memory_desc_query(layout, dnnl_query_inner_nblks_s32, &b->count);
    if (status == dnnl_success)
        status = dnnl_memory_desc_query(layout, dnnl_query_inner_blks, &sizes);
    if (status == dnnl_success)
        status = dnnl_memory_desc_query(layout, dnnl_query_inner_idxs, &dims);
    if (status != dnnl_success) return status;
    b->strides = *strides, b->sizes = *sizes, b->dims = *dims;
#else
    const dnnl_blocking_desc_t *from = &layout->format_desc.blocking;
    if (layout->format_kind != dnnl_blocked) return dnnl_unimplemented;
    *b = (struct blocks){from->strides, from->inner_blks, from->inner_idxs, from->inner_nblks};
#endif
    return dnnl_success;
}

/* Everything that describes a convolution to oneDNN. */
struct description {
    layout_t x, weights, y;
    dnnl_dims_t strides, pads_before, pads_after;
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr;
};

static dnnl_status_t describe(dnnl_primitive_desc_t *out, enum ampk_dnnl_step step,
                              const struct description *d, dnnl_primitive_desc_t forward)
{
    layout_p x = LAYOUT_P(d->x), w = LAYOUT_P(d->weights), y = LAYOUT_P(d->y);
#if DNNL_VERSION_MAJOR >= 3
    static const dnnl_dims_t undilated = {0};
    if (step == AMPK_DNNL_FORWARD)
        return dnnl_convolution_forward_primitive_desc_create(
            out, d->engine, dnnl_forward_training, dnnl_convolution_direct, x, w, NULL, y,
            d->strides, undilated, d->pads_before, d->pads_after, d->attr);
    if (step == AMPK_DNNL_BACKWARD_DATA)
        return dnnl_convolution_backward_data_primitive_desc_create(
            out, d->engine, dnnl_convolution_direct, x, w, y, d->strides, undilated, d->pads_before,
            d->pads_after, forward, d->attr);
    return dnnl_convolution_backward_weights_primitive_desc_create(
        out, d->engine, dnnl_convolution_direct, x, w, NULL, y, d->strides, undilated,
        d->pads_before, d->pads_after, forward, d->attr);
#else
    dnnl_convolution_desc_t op;
    dnnl_status_t status;
    if (step == AMPK_DNNL_FORWARD)
        status = dnnl_convolution_forward_desc_init(&op, dnnl_forward_training,
                                                    dnnl_convolution_direct, x, w, NULL, y,
                                                    d->strides, d->pads_before, d->pads_after);
    else if (step == AMPK_DNNL_BACKWARD_DATA)
        status = dnnl_convolution_backward_data_desc_init(
            &op, dnnl_convolution_direct, x, w, y, d->strides, d->pads_before, d->pads_after);
    else
        status = dnnl_convolution_backward_weights_desc_init(
            &op, dnnl_convolution_direct, x, w, NULL, y, d->strides, d->pads_before, d->pads_after);
    if (status != dnnl_success) return status;
    return dnnl_primitive_desc_create(out, &op, d->attr, d->engine, forward);
#endif
}

/* ---- engine and streams ---- */

static bool create_streams(struct ampk_dnnl *dnnl)
{
    if (dnnl_engine_create(&dnnl->engine, dnnl_cpu, 0) != dnnl_success) return false;
    dnnl->streams = calloc((size_t)dnnl->threads, sizeof *dnnl->streams);
    if (!dnnl->streams) return false;
    for (int i = 0; i < dnnl->threads; i++)
        if (dnnl_stream_create(&dnnl->streams[i], dnnl->engine, dnnl_stream_default_flags) !=
            dnnl_success)
            return false;
    return true;
}

/* oneDNN makes its lists and its first code when they are needed, and has exit take them apart. Who
 * lets exit wait for threads that compute must know that all of it is there: what is registered
 * later runs earlier. */
static void use_everything(struct ampk_dnnl *dnnl)
{
    static atomic_flag used = ATOMIC_FLAG_INIT;
    static const struct ampk_dnnl_shape one = {.n = 1,
                                               .c = 1,
                                               .h = 1,
                                               .w = 1,
                                               .k = 1,
                                               .kh = 1,
                                               .kw = 1,
                                               .stride = 1,
                                               .groups = 1,
                                               .plain_c = 1};
    float a = 1, b = 1, c;
    char err[200];
    if (atomic_flag_test_and_set(&used)) return;
    for (int step = AMPK_DNNL_FORWARD; step <= AMPK_DNNL_BACKWARD_WEIGHTS; step++)
        ampk_dnnl_plan_destroy(
            ampk_dnnl_plan_create(dnnl, (enum ampk_dnnl_step)step, &one, err, sizeof err));
    check(dnnl_sgemm('N', 'N', 1, 1, 1, 1, &a, 1, &b, 1, 0, &c, 1), "dnnl_sgemm");
}

struct ampk_dnnl *ampk_dnnl_create(int threads, char *err, size_t err_size)
{
    struct ampk_dnnl *dnnl = has_room(ROOM) ? calloc(1, sizeof *dnnl) : NULL;
    if (!dnnl) {
        snprintf(err, err_size, AMPK_NO_MEMORY ": oneDNN needs %d MiB to start", ROOM >> 20);
        return NULL;
    }
    dnnl->threads = threads;
    if (create_streams(dnnl)) {
        use_everything(dnnl);
        return dnnl;
    }
    snprintf(err, err_size, "oneDNN: no CPU engine");
    ampk_dnnl_destroy(dnnl);
    return NULL;
}

void ampk_dnnl_destroy(struct ampk_dnnl *dnnl)
{
    if (!dnnl) return;
    for (int i = 0; dnnl->streams && i < dnnl->threads; i++)
        if (dnnl->streams[i]) dnnl_stream_destroy(dnnl->streams[i]);
    if (dnnl->engine) dnnl_engine_destroy(dnnl->engine);
    free(dnnl->streams);
    free(dnnl);
}

/* Executes and waits, on the calling thread's stream. Outside of a parallel region oneDNN must be
 * told to use one thread, inside it does so by itself. */
static void run(const struct ampk_dnnl *dnnl, dnnl_primitive_t primitive, int count,
                const dnnl_exec_arg_t *args, const char *what)
{
    dnnl_stream_t stream = dnnl->streams[omp_get_thread_num()];
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    check(dnnl_primitive_execute(primitive, stream, count, args), what);
    check(dnnl_stream_wait(stream), what);
    omp_set_num_threads(before);
}

/* ---- plans ---- */

/* As oneDNN likes best; and, unless it is NULL, plain. */
static dnnl_status_t weights_layouts(layout_t *best, layout_t *plain, dnnl_data_type_t type,
                                     const struct ampk_dnnl_shape *s)
{
    int g = s->groups, k = s->k / g, c = s->c / g;
    dnnl_dim_t filter = (dnnl_dim_t)s->plain_c / g * s->kh * s->kw;
    const dnnl_dims_t sizes = {g, k, c, s->kh, s->kw};
    const dnnl_dims_t strides = {k * filter, filter, s->kh * s->kw, s->kw, 1};
    int from = g == 1 ? 1 : 0; /* without the dimension of groups if there is one group */
    dnnl_status_t status = layout_create(best, 5 - from, sizes + from, type, dnnl_format_tag_any);
    if (status != dnnl_success || !plain) return status;
    return layout_create_strided(plain, 5 - from, sizes + from, strides + from);
}

static dnnl_status_t create_reorder(dnnl_primitive_t *out, dnnl_engine_t engine, layout_p from,
                                    layout_p to)
{
    dnnl_primitive_desc_t description;
    dnnl_status_t status =
        dnnl_reorder_primitive_desc_create(&description, from, engine, to, engine, NULL);
    if (status != dnnl_success) return status;
    status = dnnl_primitive_create(out, description);
    dnnl_primitive_desc_destroy(description);
    return status;
}

enum dim { FILTER, CHANNEL, ROW, COLUMN };

/* What an index in one dimension adds to the place of a value. */
static size_t place_of(const struct blocks *b, enum dim dim, int index)
{
    dnnl_dim_t left = index, place = 0, stride = 1;
    for (int i = b->count - 1; i >= 0; i--) {
        if (b->dims[i] == (dnnl_dim_t)dim) {
            place += left % b->sizes[i] * stride;
            left /= b->sizes[i];
        }
        stride *= b->sizes[i];
    }
    return (size_t)(place + left * b->strides[dim]);
}

static bool are_lines(const struct blocks *b)
{
    int pair = b->count - 1, lanes = b->count - 2;
    return lanes >= 0 && b->sizes[pair] == 2 && b->sizes[lanes] % AMPK_DNNL_LANES == 0 &&
           b->dims[pair] != b->dims[lanes] && b->dims[pair] <= CHANNEL && b->dims[lanes] <= CHANNEL;
}

static dnnl_status_t find_lines(struct ampk_dnnl_plan *plan, const struct ampk_dnnl_shape *s)
{
    struct blocks b;
    struct ampk_dnnl_lines *l = &plan->lines;
    if (!s->bf16 || s->groups > 1 || plan->step == AMPK_DNNL_BACKWARD_WEIGHTS) return dnnl_success;
    if (blocks_of(plan->weights, &b) != dnnl_success || !are_lines(&b)) return dnnl_success;
    l->filter = calloc((size_t)s->k, sizeof *l->filter);
    l->channel = calloc((size_t)s->c, sizeof *l->channel);
    l->tap = calloc((size_t)s->kh * s->kw, sizeof *l->tap);
    if (!l->filter || !l->channel || !l->tap) return dnnl_out_of_memory;
    for (int k = 0; k < s->k; k++)
        l->filter[k] = place_of(&b, FILTER, k);
    for (int c = 0; c < s->c; c++)
        l->channel[c] = place_of(&b, CHANNEL, c);
    for (int t = 0; t < s->kh * s->kw; t++)
        l->tap[t] = place_of(&b, ROW, t / s->kw) + place_of(&b, COLUMN, t % s->kw);
    l->of_filters = b.dims[b.count - 1] == CHANNEL;
    plan->has_lines = true;
    return dnnl_success;
}

static layout_p query(const struct ampk_dnnl_plan *plan, dnnl_query_t what)
{
    return dnnl_primitive_desc_query_md(plan->description, what, 0);
}

/* A gradient's description wants that of the forward step that it belongs to. */
static dnnl_status_t create_description(struct ampk_dnnl_plan *plan, const struct description *d,
                                        const struct description *forward)
{
    dnnl_primitive_desc_t of_forward;
    dnnl_status_t status = describe(&of_forward, AMPK_DNNL_FORWARD, forward, NULL);
    if (status != dnnl_success) return status;
    if (plan->step == AMPK_DNNL_FORWARD) {
        plan->description = of_forward;
        return status;
    }
    status = describe(&plan->description, plan->step, d, of_forward);
    dnnl_primitive_desc_destroy(of_forward);
    return status;
}

static dnnl_status_t create_primitives(struct ampk_dnnl_plan *plan, const struct description *d,
                                       const struct description *forward)
{
    dnnl_status_t status = create_description(plan, d, forward);
    if (status != dnnl_success) return status;
    bool data = plan->step == AMPK_DNNL_BACKWARD_DATA;
    bool gradient = plan->step == AMPK_DNNL_BACKWARD_WEIGHTS;
    plan->x = query(plan, data ? dnnl_query_diff_src_md : dnnl_query_src_md);
    plan->weights = query(plan, gradient ? dnnl_query_diff_weights_md : dnnl_query_weights_md);
    plan->y = query(plan, data || gradient ? dnnl_query_diff_dst_md : dnnl_query_dst_md);
    plan->scratch = query(plan, dnnl_query_scratchpad_md);
    status = dnnl_primitive_create(&plan->primitive, plan->description);
    if (status != dnnl_success) return status;
    layout_p plain = LAYOUT_P(plan->plain);
    return gradient ? create_reorder(&plan->reorder, d->engine, plan->weights, plain)
                    : create_reorder(&plan->reorder, d->engine, plain, plan->weights);
}

/* What the step reads has the type of operands, what it writes is FP32. */
static dnnl_status_t fill_description(struct description *d, layout_t *plain,
                                      enum ampk_dnnl_step step, const struct ampk_dnnl_shape *s)
{
    dnnl_data_type_t read = s->bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_data_type_t x_type = step == AMPK_DNNL_BACKWARD_DATA ? dnnl_f32 : read;
    dnnl_data_type_t w_type = step == AMPK_DNNL_BACKWARD_WEIGHTS ? dnnl_f32 : read;
    dnnl_data_type_t y_type = step == AMPK_DNNL_FORWARD ? dnnl_f32 : read;
    int oh = (s->h + s->pad_top + s->pad_bottom - s->kh) / s->stride + 1;
    int ow = (s->w + 2 * s->pad_side - s->kw) / s->stride + 1;
    const dnnl_dims_t x = {s->n, s->c, s->h, s->w}, y = {s->n, s->k, oh, ow};
    dnnl_status_t status = layout_create(&d->x, 4, x, x_type, dnnl_nhwc);
    if (status == dnnl_success) status = layout_create(&d->y, 4, y, y_type, dnnl_nhwc);
    if (status == dnnl_success) status = weights_layouts(&d->weights, plain, w_type, s);
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&d->attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(d->attr, dnnl_scratchpad_mode_user);
    return status;
}

static void free_description(struct description *d)
{
    layout_destroy(&d->x);
    layout_destroy(&d->weights);
    layout_destroy(&d->y);
    if (d->attr) dnnl_primitive_attr_destroy(d->attr);
}

static dnnl_status_t fill_plan(struct ampk_dnnl_plan *plan, const struct ampk_dnnl_shape *s)
{
    struct description d = {.strides = {s->stride, s->stride},
                            .pads_before = {s->pad_top, s->pad_side},
                            .pads_after = {s->pad_bottom, s->pad_side},
                            .engine = plan->dnnl->engine};
    struct description forward = d;
    dnnl_status_t status = fill_description(&d, &plan->plain, plan->step, s);
    if (status == dnnl_success) status = fill_description(&forward, NULL, AMPK_DNNL_FORWARD, s);
    if (status == dnnl_success) status = create_primitives(plan, &d, &forward);
    if (status == dnnl_success) status = find_lines(plan, s);
    free_description(&d);
    free_description(&forward);
    return status;
}

/* oneDNN (2.6 to 3.7 at least) writes past its scratch memory in AVX2's weight gradient of a 1x1
 * convolution with a stride when the channels do not fill its blocks: it advances by 8 channels per
 * pixel where it has counted only those that exist. */
static size_t overrun(const struct ampk_dnnl_shape *s)
{
    int oh = (s->h + s->pad_top + s->pad_bottom - s->kh) / s->stride + 1;
    int ow = (s->w + 2 * s->pad_side - s->kw) / s->stride + 1;
    bool strided_1x1 = s->kh == 1 && s->kw == 1 && s->stride > 1;
    return strided_1x1 ? (size_t)oh * ow * 8 * sizeof(float) : 0;
}

struct ampk_dnnl_plan *ampk_dnnl_plan_create(struct ampk_dnnl *dnnl, enum ampk_dnnl_step step,
                                             const struct ampk_dnnl_shape *s, char *err,
                                             size_t err_size)
{
    struct ampk_dnnl_plan *plan = has_room(ROOM) ? calloc(1, sizeof *plan) : NULL;
    dnnl_status_t status = dnnl_out_of_memory;
    if (plan) {
        int before = omp_get_max_threads(); /* oneDNN plans for as many as OpenMP offers */
        omp_set_num_threads(1);
        plan->step = step;
        plan->dnnl = dnnl;
        plan->overrun = overrun(s);
        status = fill_plan(plan, s);
        omp_set_num_threads(before);
    }
    if (status == dnnl_success) return plan;
    snprintf(err, err_size,
             "%s: no convolution for input %dx%dx%dx%d, filters %d of %dx%d, stride %d, "
             "pad %d,%d,%d, groups %d: status %d",
             status == dnnl_out_of_memory ? AMPK_NO_MEMORY : "oneDNN", s->n, s->c, s->h, s->w, s->k,
             s->kh, s->kw, s->stride, s->pad_top, s->pad_bottom, s->pad_side, s->groups,
             (int)status);
    ampk_dnnl_plan_destroy(plan);
    return NULL;
}

void ampk_dnnl_plan_destroy(struct ampk_dnnl_plan *plan)
{
    if (!plan) return;
    if (plan->primitive) dnnl_primitive_destroy(plan->primitive);
    if (plan->reorder) dnnl_primitive_destroy(plan->reorder);
    if (plan->description) dnnl_primitive_desc_destroy(plan->description);
    layout_destroy(&plan->plain);
    free(plan->lines.filter);
    free(plan->lines.channel);
    free(plan->lines.tap);
    free(plan);
}

size_t ampk_dnnl_plan_scratch(const struct ampk_dnnl_plan *plan)
{
    return dnnl_memory_desc_get_size(plan->scratch) + plan->overrun;
}

/* ---- weights ---- */

static dnnl_memory_t memory_of(dnnl_engine_t engine, layout_p layout, void *data)
{
    dnnl_memory_t memory;
    check(dnnl_memory_create(&memory, layout, engine, data), "dnnl_memory_create");
    return memory;
}

struct ampk_dnnl_weights *ampk_dnnl_weights_create(const struct ampk_dnnl_plan *plan, char *err,
                                                   size_t err_size)
{
    struct ampk_dnnl_weights *w = has_room(ROOM) ? calloc(1, sizeof *w) : NULL;
    if (!w) {
        snprintf(err, err_size, AMPK_NO_MEMORY ": weights of a convolution");
        return NULL;
    }
    w->memory = memory_of(plan->dnnl->engine, plan->weights, DNNL_MEMORY_NONE);
    w->bytes = ampk_dnnl_plan_weights(plan);
    return w;
}

void ampk_dnnl_weights_destroy(struct ampk_dnnl_weights *w)
{
    if (!w) return;
    dnnl_memory_destroy(w->memory);
    free(w);
}

size_t ampk_dnnl_plan_weights(const struct ampk_dnnl_plan *plan)
{
    return dnnl_memory_desc_get_size(plan->weights);
}

void ampk_dnnl_weights_place(struct ampk_dnnl_weights *w, void *memory)
{
#if DNNL_VERSION_MAJOR >= 3 /* it does not clear the padding itself */
    memset(memory, 0, w->bytes);
#endif
    check(dnnl_memory_set_data_handle(w->memory, memory), "dnnl_memory_set_data_handle");
}

const struct ampk_dnnl_lines *ampk_dnnl_plan_lines(const struct ampk_dnnl_plan *plan)
{
    return plan->has_lines ? &plan->lines : NULL;
}

static void reorder(const struct ampk_dnnl_plan *plan, dnnl_memory_t from, dnnl_memory_t to)
{
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    run(plan->dnnl, plan->reorder, 2, args, "reorder of weights");
}

void ampk_dnnl_weights_pack(const struct ampk_dnnl_plan *plan, const float *plain,
                            struct ampk_dnnl_weights *w)
{
    dnnl_memory_t from = memory_of(plan->dnnl->engine, LAYOUT_P(plan->plain), (void *)plain);
    reorder(plan, from, w->memory);
    dnnl_memory_destroy(from);
}

void ampk_dnnl_weights_unpack(const struct ampk_dnnl_plan *plan, struct ampk_dnnl_weights *w,
                              float *plain)
{
    dnnl_memory_t to = memory_of(plan->dnnl->engine, LAYOUT_P(plan->plain), plain);
    reorder(plan, w->memory, to);
    dnnl_memory_destroy(to);
}

/* ---- execution ---- */

void ampk_dnnl_execute(const struct ampk_dnnl_plan *plan, void *x,
                       struct ampk_dnnl_weights *weights, void *y, void *scratch)
{
    bool data = plan->step == AMPK_DNNL_BACKWARD_DATA;
    bool gradient = plan->step == AMPK_DNNL_BACKWARD_WEIGHTS;
    dnnl_memory_t mx = memory_of(plan->dnnl->engine, plan->x, x);
    dnnl_memory_t my = memory_of(plan->dnnl->engine, plan->y, y);
    dnnl_memory_t ms = memory_of(plan->dnnl->engine, plan->scratch, scratch);
    const dnnl_exec_arg_t args[] = {
        {data ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, mx},
        {gradient ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, weights->memory},
        {data || gradient ? DNNL_ARG_DIFF_DST : DNNL_ARG_DST, my},
        {DNNL_ARG_SCRATCHPAD, ms},
    };
    run(plan->dnnl, plan->primitive, 4, args, "convolution");
    dnnl_memory_destroy(mx);
    dnnl_memory_destroy(my);
    dnnl_memory_destroy(ms);
}
