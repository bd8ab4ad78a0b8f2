/* A convolution of the CPU backend. conv_create.c cuts its work and makes it, conv.c runs its
 * passes, conv_operand.c has what their tasks read and write, conv_weights.c takes its weights in
 * and gives its weight gradient out. conv_winograd.c cuts and conv_winograd_run.c runs what
 * winograd.c multiplies. Other weight gradients are conv_pairs.c's in BF16 and conv_gradient.c's in
 * FP32, where they suit, else oneDNN's. conv_1x1.c knows the 1x1 convolutions of BF16 whose passes
 * are not oneDNN's. */
#ifndef AMPK_CPU_CONV_H
#define AMPK_CPU_CONV_H

#include "cpu.h"
#include "dnnl_compat.h"

#include "kernels/conv_shape.h"

/* How the rows of the tensor that a pass writes are cut, and which rows of the other it needs. */
struct bands {
    int count, rows; /* the last band may be shorter */
    int in_rows;     /* of the other tensor; band i's first is i*in_step - in_offset */
    int in_step, in_offset;
    int pad_top, pad_bottom; /* what is left to oneDNN */
};

/* From x to y of the convolution, or from y to x: forward and data gradient, or, transposed, the
 * other way round. Not both if forward_only: the other has no plan then. */
struct pass {
    bool to_x;
    struct bands bands;
    int slices;
    int read;    /* channels that are read: all, or those of a group if slices are groups */
    int written; /* in all slices, filled up to oneDNN's blocks */
    /* Winograd's: units in a task, and how many of them are multiplied at once; parts of a slice,
     * which are stored one after the other; units in a turn, for which the points of what they read
     * are taken first, once for all slices. 0: every task takes its own. */
    int units, at_once, parts, turn;
    int depth;                        /* channels that Winograd multiplies at once */
    struct ampk_dnnl_plan *plan;      /* one unit, one slice; NULL: not oneDNN's */
    struct ampk_dnnl_weights **slice; /* oneDNN's packed weights of each; NULL: not oneDNN's */
    size_t slice_bytes;               /* of the packed weights of each */
    struct ampk_dnnl_lines panels;    /* how those of a 1x1 convolution lie */
    /* Packed weights of all slices; Winograd's are rounded, in order. NULL: every run of the pass
     * takes them anew. */
    char *weights;
};

struct gradient {
    struct bands bands; /* of dy; the other tensor is x */
    int slices_k, slices_c;
    int units, groups; /* units in a task, groups of so many; of pairs: two at a time */
    int chunk;         /* units that Winograd multiplies at once; oneDNN all of a task */
    int filled;        /* filters of a tile in whole panels, where sums lie tap after tap; else 0 */
    struct ampk_dnnl_plan *plan;
    struct ampk_dnnl_weights **partial; /* [tiles][groups] */
    size_t partial_bytes; /* of a task: oneDNN's, Winograd's float [filters][channels][taps], or
                             float [taps][filled][channels] */
    float *kept;          /* the gradient, as kernels.h lays it out */
    bool is_lent;         /* kept is the caller's */
    uint32_t amax;        /* of kept */
};

struct ampk_conv {
    struct ampk_conv_shape shape;
    int filters; /* that are multiplied: k, or more. The weights of those above k are 0. */
    int oh, ow;
    bool apart; /* every group is a slice of its own: of x too, and a tile of the weight gradient */
    struct pass to_y, to_x;
    struct gradient gradient; /* no plan if forward_only */
    bool bf16;                /* BF16 is multiplied: what is read is not FP32 */
    bool packs_anew;          /* every run of a pass takes its weights from: */
    const float *masters;
    uint32_t *masters_amax;               /* raised when they are read first, then NULL */
    const struct ampk_winograd *winograd; /* NULL: oneDNN */
    bool is_1x1;                          /* both passes by isa->product instead of oneDNN */
    const struct ampk_pairs *pairs;       /* of the weight gradient, instead of oneDNN, or NULL */
    bool fp32_gradient;                   /* the same by isa->gradient instead */
    size_t lane_bytes;                    /* a thread's memory: operands and scratch memory */
};

static inline int ampk_smaller(int a, int b)
{
    return a < b ? a : b;
}

static inline int ampk_larger(int a, int b)
{
    return a > b ? a : b;
}

/* Bytes of whole cache lines, so that threads do not write to the same one. */
static inline size_t ampk_whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Bytes of one value that oneDNN reads. */
static inline size_t ampk_operand_bytes(const struct ampk_conv *conv)
{
    return conv->bf16 ? sizeof(uint16_t) : sizeof(float);
}

/* Groups that oneDNN sees in a slice. */
static inline int ampk_conv_slice_groups(const struct ampk_conv *conv)
{
    return conv->apart ? 1 : conv->shape.groups;
}

/* Channels of x that all filters of a slice read. */
static inline int ampk_conv_slice_channels(const struct ampk_conv *conv)
{
    return conv->apart ? conv->shape.c / conv->shape.groups : conv->shape.c;
}

/* Bytes of all that a pass packs. */
static inline size_t ampk_conv_packed_bytes(const struct pass *pass)
{
    return pass->slice_bytes * (size_t)pass->slices;
}

/* Tiles of filters times channels that the weight gradient is cut into. */
static inline int ampk_conv_tiles(const struct gradient *g)
{
    return g->slices_k * g->slices_c;
}

/* The pass that the forward operations run. */
static inline const struct pass *ampk_conv_forward_pass(const struct ampk_conv *conv)
{
    return conv->shape.transposed ? &conv->to_x : &conv->to_y;
}

/* Batch-norm's partial sums: two per channel of the result and unit. */
static inline size_t ampk_conv_sums_bytes(const struct ampk_conv *conv)
{
    size_t units = (size_t)conv->shape.n * ampk_conv_forward_pass(conv)->bands.count;
    return units * 2 * ampk_conv_result(&conv->shape).c * sizeof(float);
}

/* ---- conv_operand.c ---- */

/* Some channels of some rows of an image: rows [first, first+rows), of which t need not have all.
 */
struct operand {
    const struct ampk_tensor *t;
    size_t image;
    int first, rows, channel, channels;
    int padded; /* channels that are multiplied */
};

/* Casts rows to be multiplied; 0 where t has no such row. */
void ampk_conv_load_rows(struct ampk_context *, const struct ampk_conv *, const struct operand *,
                         void *dst);

/* Rows as oneDNN reads them: where they are, if they are stored so, else cast into memory. */
void *ampk_conv_take_rows(struct ampk_context *, const struct ampk_conv *, const struct operand *,
                          void *memory);

/* This thread's memory: x, y, scratch. And the packed weights of a pass's slice. */
struct lane {
    void *x, *y, *scratch;
    const char *weights;
};

/* What becomes of the result: sums are taken, or bias and activation applied, or it is added to
 * what is there, or none of that. */
struct finish {
    const float *shift;
    float *partial; /* [units][2][channels] */
    const float *bias;
    enum ampk_activation activation;
    bool accumulate;
};

/* memory: all threads', of which this thread's is taken. */
struct lane ampk_conv_lane_at(char *memory, const struct ampk_conv *, size_t x_bytes,
                              size_t y_bytes);
/* The same for a unit's operands of a pass. */
struct lane ampk_conv_pass_lane(const struct ampk_conv *, const struct pass *,
                                const struct ampk_tensor *from, const struct ampk_tensor *to,
                                char *memory);
/* The region of the tensor that a pass writes for a unit and a slice. */
struct ampk_region ampk_conv_region(const struct pass *, const struct ampk_tensor *, int unit,
                                    int slice);
/* Rounds the values to storage and finishes them. Returns their largest magnitude. */
uint32_t ampk_conv_store(struct ampk_context *, const float *values, const struct ampk_region *,
                         const struct finish *, int unit);
/* Some channels and filters of a unit of x and dy, for a task of the weight gradient: in the lane,
 * or where they are if `in_place`. */
struct lane ampk_conv_take_unit(struct ampk_context *, const struct ampk_conv *,
                                const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                                int unit, const struct lane *, bool in_place);
/* A unit's sums for batch-norm, two per channel, of which the region's become 0. */
float *ampk_conv_clear_sums(const struct ampk_region *, const struct finish *, int unit);

/* ---- conv_1x1.c ---- */

/* Of a convolution that multiplies BF16. */
bool ampk_1x1_suits(const struct ampk_conv_shape *, const struct ampk_isa *);
/* Makes the panels' lines. */
bool ampk_1x1_create(struct pass *, char *err, size_t err_size);
void ampk_1x1_destroy(struct pass *);
/* How a slice's weights of BF16 lie; NULL: not in lines. */
const struct ampk_dnnl_lines *ampk_conv_lines(const struct pass *);

/* ---- conv_pairs.c ---- */

/* AMX multiplies BF16 many times as fast, and oneDNN uses it. */
bool ampk_has_amx_bf16(void);
/* Of a convolution that multiplies BF16; NULL: its weight gradient is oneDNN's. */
const struct ampk_pairs *ampk_pairs_for(const struct ampk_conv_shape *, const struct ampk_isa *);
/* Bytes of a thread's memory. */
size_t ampk_pairs_lane_bytes(const struct ampk_conv *);
/* sums: the task's part of the gradient. */
void ampk_pairs_task(struct ampk_context *, const struct ampk_conv *, const struct ampk_tensor *x,
                     const struct ampk_tensor *dy, int task, void *memory, float *sums);

/* ---- conv_gradient.c ---- */

/* Of a convolution that multiplies FP32: whether its weight gradient is not oneDNN's. */
bool ampk_gradient_suits(const struct ampk_conv_shape *, const struct ampk_isa *);
/* In how many slices of filters and of channels. */
void ampk_gradient_slice(const struct ampk_conv *, int *slices_k, int *slices_c);
/* As those of conv_pairs.c. */
size_t ampk_gradient_lane_bytes(const struct ampk_conv *);
void ampk_gradient_task(struct ampk_context *, const struct ampk_conv *,
                        const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                        void *memory, float *sums);

/* ---- conv_winograd.c ---- */

/* bf16: oneDNN would multiply BF16 instead, in half the time that FP32 takes it. */
bool ampk_winograd_suits(const struct ampk_conv_shape *, const struct ampk_isa *, bool bf16);
/* Cuts and creates both passes and the gradient, as far as the shape wants them. */
void ampk_winograd_create(struct ampk_conv *, int threads);
/* Floats: the points of a slice's weights, of `depth` channels. */
size_t ampk_winograd_points(const struct pass *);
/* Tiles of the units before this one, of all images. */
size_t ampk_winograd_tiles_before(const struct ampk_conv_shape *, const struct bands *, int unit);
/* Floats: the points of so many tiles. */
size_t ampk_winograd_tile_points(size_t tiles, size_t channels);
/* Tiles of so many units at most. */
size_t ampk_winograd_most_tiles(const struct ampk_conv_shape *, const struct bands *, int units);
/* Bytes of the points that all slices share in a turn. */
size_t ampk_winograd_turn_bytes(const struct ampk_conv *, const struct pass *);
/* Floats: the points of a task's weight gradient. */
size_t ampk_winograd_sums(const struct ampk_conv *);
struct ampk_winograd_band ampk_winograd_band(const struct ampk_conv_shape *, const struct bands *,
                                             int unit);

/* ---- conv_winograd_run.c ---- */

/* weights: in order. memory: the threads', points: for a turn. Raises weights_amax, if not NULL. */
uint32_t ampk_winograd_run(struct ampk_context *, const struct ampk_conv *, const struct pass *,
                           const struct ampk_tensor *from, const struct ampk_tensor *to,
                           const struct finish *, const float *weights, char *memory, float *points,
                           uint32_t *weights_amax);
/* A task of the weight gradient, into partial only if there are several groups of units: else it
 * is in its place, and this returns its largest magnitude. */
uint32_t ampk_winograd_gradient(struct ampk_context *, struct ampk_conv *,
                                const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                                char *memory, float *partial);

/* ---- conv_weights.c ---- */

/* As oneDNN sees them. */
size_t ampk_cpu_conv_padded_weights(const struct ampk_conv *);
/* Bytes of memory that packing weights takes. */
size_t ampk_conv_packing_memory(const struct ampk_context *, const struct ampk_conv *);
/* Bytes of memory that a run of the pass takes for points or weights. */
size_t ampk_conv_pass_memory(const struct ampk_context *, const struct ampk_conv *,
                             const struct pass *);
/* The packed weights of a pass, in that memory if they are packed anew. */
const char *ampk_conv_take_weights(struct ampk_context *, struct ampk_conv *, const struct pass *,
                                   char *memory);
/* Bytes of the partial weight gradients of all tasks, and of what adding them takes. */
size_t ampk_conv_partials_memory(const struct ampk_conv *);
/* Adds them: that is the gradient which the convolution keeps. lanes: the threads' memory. */
void ampk_conv_finish_gradient(struct ampk_context *, struct ampk_conv *, char *lanes,
                               char *partials);

#endif
