/* The precision plan: a pure function from a net's description and the options to what runs where.
 *
 * Terms. A layer's output is a tensor; the layer fixes the home format of its tensor. "Island":
 * reduced (or FP32) storage in NHWC, which our executors read. "Border": FP32 NCHW in Darknet's own
 * l.output, where Darknet's code reads or writes. A reader that wants another format than the home
 * format reads a copy (amp_plan_layer.copy of the producer). A tensor's gradient ("delta") has the
 * home format too.
 *
 * Time runs over 2n steps: forward of layer i is step i, its backward is step 2n-1-i. Tensors that
 * backward reads live to the end (step 2n) if a backward pass may be replayed, else to their last
 * reader. */
#ifndef AMP_PLAN_H
#define AMP_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "plugin/core/net/net.h"
#include "plugin/core/read/json.h"
#include "plugin/core/read/options.h"

enum amp_format {
    AMP_FORMAT_BORDER,
    AMP_FORMAT_FP32,
    AMP_FORMAT_FP16,
    AMP_FORMAT_BF16,
    AMP_FORMATS
};

/* ---- memory: buffers that share one block, the arena ----
 *
 * The plan knows the lifetime of every buffer; no two that live at once overlap. They are placed
 * greedily by size (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net
 * inference", section 5.2): largest first, each at the lowest offset that is free for its whole
 * life. */

#define AMP_ARENA_ALIGN 64

struct amp_buffer {
    size_t bytes;
    int first, last; /* steps at which it holds data, both included */
    /* The same a second time, for what backward computes again; 0 and 0: not so. */
    int again_first, again_last;
    int layer; /* its owner, for messages */
    const char *what;
    size_t offset; /* result, a multiple of AMP_ARENA_ALIGN */
};

/* Sets every offset and returns the bytes of the block, or (size_t)-1 if memory for the work ran
 * out. */
size_t amp_arena_place(struct amp_buffer *buffers, int n);

/* Buffers of a layer in the arena; amp_plan_layer.buffer is -1 for those that it does not need. */
enum amp_buffer_kind {
    AMP_BUFFER_OUT,   /* output, home format, unless border */
    AMP_BUFFER_Y,     /* batch-norm's input; inputs of a recurrent layer's products */
    AMP_BUFFER_INDEX, /* maxpool: where the maximum was; dropout: what was kept */
    AMP_BUFFER_DELTA, /* gradient of the output, unless Darknet's layer has its own memory for it */
    AMP_BUFFER_DY,    /* gradient at the convolution's output, if it cannot overwrite the delta;
                         those at the outputs of a recurrent layer's products */
    AMP_BUFFER_DX,    /* contribution to a source whose delta has another format; one at a time */
    AMP_BUFFER_UNFOLDED, /* local: what its windows see, and then the gradient of that */
    AMP_BUFFER_KINDS
};

/* ---- the plan ---- */

struct amp_plan_layer {
    bool ours;                 /* an executor of ours runs it; else Darknet's FP32 code */
    bool loss;                 /* its forward creates the delta that starts backward */
    bool products;             /* a recurrent layer: Darknet's code runs it, but its matrix products
                                  are the backend's */
    enum ampk_compute compute; /* of matrix products: what operands are rounded to */
    enum amp_format in, out;   /* format it wants of every source; home of its output and delta */
    bool border_copy;          /* Darknet's l.output must also hold it, in FP32 NCHW */
    bool backward;             /* its backward runs */
    bool frozen;               /* never updated; batch-norm uses its running statistics */
    int *sources; /* the sources of its description; a dropout in between replaces its source */
    bool *source_first;     /* its contribution to that source's delta is the first: overwrite */
    bool *source_wanted;    /* that source needs a delta at all */
    bool delta_from_nobody; /* no reader contributes: zero it */
    bool fused; /* a shortcut or maxpool that the convolution before it computes: that convolution
                   writes the sum or the maxima instead of its own output */
    bool recomputed; /* its tensors are dropped in forward, and backward computes them again; so is
                        what it writes of a fused layer after it, which has its own flag */
    int run; /* of recomputed layers that follow each other: the first; -1: not recomputed */
    /* Before this layer's backward, layers [again, again_end) are computed again; -1: none. */
    int again, again_end;
    int delta_owner; /* the layer whose buffer holds this delta: the layer itself, or, if fused sums
                        share one delta with their terms, the first layer of the chain. -1: the
                        delta is stored nowhere; the convolution before a fused maxpool reads the
                        pool's delta */
    /* A [route] whose channels from first_channel on are this layer's output: its only reader, or
     * its last one, which only passes it on. -1: the layer has an output of its own. */
    int route, first_channel;
    bool delta_slice;      /* its delta is those channels of the route's delta too */
    int copy[AMP_FORMATS]; /* buffers of copies of the output in other formats, -1 = none */
    int buffer[AMP_BUFFER_KINDS];
    char reason[400];
};

struct amp_plan {
    const char *dtype, *dtype_reason; /* amp_dtype, and why auto chose it; NULL: the cfg names it */
    int n;
    struct amp_plan_layer *layers;
    int input_copy[AMP_FORMATS]; /* the network's input, converted */
    /* Of the one copy that every reader of the input reads. AMP_FORMATS: they read several, or one
     * of them reads FP32 NCHW itself. */
    enum amp_format input_format;
    int first_backward; /* no layer below it runs backward; nor do layers above it whose `backward`
                           is false */
    enum amp_format island;
    bool train, replays; /* replays: a backward pass may be run again */
    int n_buffers;
    struct amp_buffer *buffers;
    size_t arena_bytes;
    struct amp_rules rules; /* of the update */
    enum amp_level level;
    /* amp_sync_bn: exchanges of a pass, one for each batch-norm that learns in forward, and one in
     * backward where that runs; and what a process sends in them. */
    int synced_forward, synced_backward;
    size_t synced_bytes;
    double flop, flop_reduced; /* forward, per image, convolution and matrix products */
    double flop_again;         /* of that, what backward computes again */
    int n_recomputed;
    bool over_budget; /* checkpoint=auto: nothing fits in so little, this is the least */
    size_t darknet_bytes,
        mixed_bytes; /* predicted activation memory of one pass: of stock FP32, and of this plan */
};

/* ours: bit t is set if layers of type t have an executor on the backend (amp_layers_ours in
 * layers.h). demoted (may be NULL): per layer, the format it was moved to at run time because its
 * output overflowed FP16; AMP_FORMATS = not moved. train: also plan for backward. NULL with the
 * reason in err. */
struct amp_plan *amp_plan_make(const struct amp_net_desc *, const struct amp_options *,
                               unsigned ours, const enum amp_format *demoted, bool train, char *err,
                               size_t err_size);
void amp_plan_free(struct amp_plan *);

/* The layer whose output layer i writes: itself, or the fused layer after it. */
int amp_plan_writes(const struct amp_plan *, int i);

/* Bytes of the moments and moving averages that the rules keep in arrays of ours (kept.h). */
size_t amp_plan_kept_bytes(const struct amp_plan *, const struct amp_net_desc *);

/* Layer i of ours, a matrix layer, as the backend's convolution. */
struct ampk_conv_shape amp_plan_conv_shape(const struct amp_plan *, const struct amp_net_desc *,
                                           int i);

/* ---- plan_products.c: the matrix products of recurrent layers ---- */

/* With fewer vectors in a pass (crnn: pixels), rounding and packing the weights takes longer than
 * is gained: measured on a CPU, docs/training-features.md. */
#define AMP_PRODUCT_ROWS 16
bool amp_plan_products_pay(const struct amp_net_desc *, int i);
/* Outputs of all its inner layers, in all time steps. */
size_t amp_plan_inner_elements(const struct amp_net_desc *, int i);

/* A matrix of recurrent layer i as the backend's convolution of so many images. */
struct ampk_conv_shape amp_plan_product_shape(const struct amp_plan *, const struct amp_net_desc *,
                                              int i, const struct amp_matrix *, int images);
/* Images of one time step. */
int amp_plan_step_images(const struct amp_net_desc *);
/* Bytes of so many images with so many channels, as an operand of layer i's products. */
size_t amp_plan_operand_bytes(const struct amp_plan *, const struct amp_net_desc *, int i,
                              int channels, int images);
/* Where the operands of matrix k begin in a buffer that holds those of all time steps: the inputs
 * of all matrices (AMP_BUFFER_Y), or the gradients at their outputs (AMP_BUFFER_DY). k the number
 * of matrices: their end. The matrices that read the layer's input share one place. */
size_t amp_plan_operand_offset(const struct amp_plan *, const struct amp_net_desc *, int i, int k,
                               bool gradients);
/* Bytes of a whole buffer. Behind a crnn's gradients there is room for one in FP32, NHWC. */
size_t amp_plan_operands(const struct amp_plan *, const struct amp_net_desc *, int i,
                         bool gradients);
/* Bytes that the backend's convolutions take for layer i's products. */
size_t amp_plan_product_bytes(const struct amp_plan *, const struct amp_net_desc *, int i,
                              size_t (*conv_bytes)(const struct ampk_conv_shape *));

/* The loss of ours that is the only reader of layer i, a convolution without batch-norm, and the
 * only contributor to its delta. -1: none. */
int amp_plan_loss_behind(const struct amp_plan *, const struct amp_net_desc *, int i);

size_t amp_format_bytes(enum amp_format);
enum ampk_dtype amp_format_dtype(enum amp_format);
const char *amp_format_name(enum amp_format);
const char *amp_compute_name(enum ampk_compute);

/* Prints the report that attaching and `amp plan` show; writes its numbers into an object. */
void amp_plan_print(const struct amp_plan *, const struct amp_net_desc *, FILE *);
void amp_plan_write_json(const struct amp_plan *, const struct amp_net_desc *, struct amp_json *);

/* Writes to err that a network does not fit: what lacks memory, how large its activations are, and
 * which batch and subdivisions would fit. left: bytes that are free without this network, less the
 * work memory that a backend keeps, so that the advice is rather too careful; 0: unknown. */
void amp_no_memory(const struct amp_net_desc *, const struct amp_plan *, const char *what,
                   size_t left, char *err, size_t err_size);

/* ==== for the files that make a plan (plan_budget.c over plan.c over plan_memory.c over
 * plan_recompute.c over plan_fuse.c) ==== */

struct planner {
    const struct amp_net_desc *net;
    const bool *recompute; /* per layer, in place of the description's flags; NULL: those */
    const struct amp_options *options;
    unsigned ours; /* layer types that have an executor, as for amp_plan_make */
    const enum amp_format *demoted;
    struct amp_plan *plan;
    int capacity; /* of plan->buffers */
};

/* One plan, with these layers recomputed (as planner.recompute); plan_budget.c chooses. */
struct amp_plan *amp_plan_make_with(const struct amp_net_desc *, const struct amp_options *,
                                    unsigned ours, const enum amp_format *demoted, bool train,
                                    const bool *recompute, char *err, size_t err_size);

/* ---- plan_recompute.c ---- */

/* Sets recomputed as asked for, before layers are fused. */
void amp_plan_mark_recomputed(struct planner *);
/* Once layers are fused: takes back what cannot be, and sets run. */
void amp_plan_find_runs(struct planner *);
/* Once slices are found: sets again and again_end. */
void amp_plan_find_again(struct planner *);
/* Whether a run other than its own is computed from the output of layer i (-1: the input) in this
 * format. */
bool amp_plan_is_reread(const struct planner *, int i, enum amp_format);
/* Whether the layer's forward is computed again: by itself, or by the convolution that it is fused
 * to. */
bool amp_plan_runs_again(const struct amp_plan *, int i);

/* ---- plan_fuse.c, once it is known who contributes to which delta ---- */

/* Appends to the layer's reason, which the report prints. */
void amp_plan_add_reason(struct amp_plan_layer *, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sets fused and delta_owner. */
void amp_plan_fuse_layers(struct planner *);
/* Sets route, first_channel and delta_slice. */
void amp_plan_find_slices(struct planner *);
/* The first layer whose output (or delta) is a slice of that of layer i; i itself if there is
 * none. */
int amp_plan_first_slice(const struct planner *, int i, bool delta);
/* The last of the layers that share the delta of i. */
int amp_plan_last_sharer(const struct planner *, int i);

/* ---- plan_memory.c, last ---- */

/* Plans and places all buffers. -1: out of memory. */
int amp_plan_buffers(struct planner *);
/* Elements of layer i's output (-1: of the input) for all images of a pass. */
size_t amp_plan_elements(const struct planner *, int i);

#endif
