/* The inside of a graph: its tensors and watch words, and the helpers that every executor uses. For
 * the files that run layers and for tests; all other files include graph.h.
 *
 * This file knows no layer type. It finds a layer's sources, passes a layer's contribution on to
 * the delta of a source, and reads from the watch words what went wrong in a pass. */
#ifndef AMP_TENSORS_H
#define AMP_TENSORS_H

#include "graph.h"

/* Darknet's constant: until so many images, [region] pulls boxes to their anchors. */
enum { AMP_REGION_WARM_UP_IMAGES = 12800 };

/* Consecutive layers of ours that run in one go. Where the backend can, they are recorded, since
 * starting operations one by one costs more than many of them take. Layers that Darknet runs stay
 * outside, and so does dropout with masks drawn on the host. A recording holds the values that its
 * operations were given; other values need a new recording. */
enum amp_segment_pass {
    AMP_SEGMENT_INFERENCE,
    AMP_SEGMENT_FORWARD,
    AMP_SEGMENT_BACKWARD,
    AMP_SEGMENT_SQUARED, /* backward of a pass whose gradients are squared */
    AMP_SEGMENT_PASSES
};

enum { AMP_LANES = 2 }; /* places for staged images */

struct amp_segment {
    int first, last; /* layers */
    struct amp_segment_run {
        bool ran; /* once without recording, so plans are chosen and memory is there */
        /* Values of the last run, which the recording holds too. */
        float scale;
        const void *input;
        const float *truth;
        bool region_warm_up;
        bool squares_sums; /* the sums count for the square: the step has an accepted pass */
        struct ampk_recording *recording;
    } runs[AMP_SEGMENT_PASSES][AMP_LANES]; /* passes take lanes in turns: each has its recordings */
};

struct amp_node {
    const struct amp_layer_desc *desc;
    const struct amp_plan_layer *plan;
    struct amp_binding bind;
    struct ampk_tensor out, delta, y, dy;
    struct ampk_tensor copy[AMP_FORMATS];
    void *index, *own_index; /* maxpool, dropout */
    uint8_t *drawn;          /* dropout: the mask, if the host draws it */
    void *dx;
    void *unfolded;      /* local */
    float *place_biases; /* local: its biases, or their gradient, as NHWC; backend memory */
    struct ampk_conv *conv;
    /* Its place in of_pass; NULL: the layer learns nothing. */
    const struct ampk_weight_gradient *gradient;
    float *mean, *variance;       /* of this batch */
    bool fuses_weight_gradient;   /* batch-norm's backward computes the weight gradient too
                                     (conv_bn_backward): it stores no dy, and conv_backward is not
                                     called */
    float *loss;                  /* unscaled copy of a loss layer's delta */
    struct amp_product *products; /* of a recurrent layer (products.c) */
    int n_products;
    float *no_bias;      /* zeros for them; backend memory */
    bool product_called; /* by Darknet's code, in the present pass of the layer */
    void *options,
        *constants; /* of a loss on the device (layers_loss.c); constants: backend memory */
    struct amp_param *weights, *biases, *scales;
    uint32_t *watch;             /* AMP_WATCHES words */
    struct amp_segment *segment; /* NULL: the layer runs by itself */
};

struct amp_graph {
    const struct ampk_backend *backend;
    struct ampk_context *context;
    const struct amp_net_desc *net;
    const struct amp_plan *plan;
    struct amp_native native;
    /* As in the Darknet build whose FP32 training this one replaces. */
    enum ampk_bn_rule bn_rule;
    bool clips_connected; /* the delta of a connected layer is kept within 1 */
    int n;
    struct amp_node *nodes;
    struct ampk_tensor input; /* the network's, FP32 NCHW */
    void
        *staged; /* the input as its readers want it, in the plan's input_format; it stays until the
                    pass is judged. Set it before amp_graph_begin, which resets it to NULL: none */
    int lane;    /* where that is, below AMP_LANES */
    const float *truth;     /* the network's, backend memory; NULL: none */
    size_t seen;            /* images so far, this pass's too; set before amp_graph_begin */
    struct ampk_draw masks; /* for a backend that draws dropout's masks: the counter of layer i is
                               this one with its second word raised by i. Set with seen */
    struct ampk_tensor input_copy[AMP_FORMATS];
    int n_params;
    struct amp_param *params;
    int n_rolling;
    struct amp_rolling *rolling;
    float *rolling_saved; /* backend memory */
    int n_changed;
    struct amp_changed *changed;
    float *changed_saved;      /* backend memory */
    struct ampk_span *copies;  /* room for n_rolling and for n_changed */
    struct amp_counts *counts; /* NULL: nobody counts */
    float *trust; /* backend memory: a number for each param; NULL: the rules use none */
    struct ampk_param *updates;              /* room for n_params */
    const struct amp_param **due;            /* the same room: whose updates they are */
    struct ampk_weight_update *conv_updates; /* room for n */
    int n_convs;
    /* For every convolution: the masters that it packs if they are stale. */
    struct ampk_new_weights *convs;
    bool multiplies; /* some of them are products of recurrent layers, whose update packs nothing */
    /* The params' grad and sum, weights of convolutions last. */
    float *gradients, *sums; /* sums: NULL where a step has one pass */
    size_t n_gradients;      /* floats of all params */
    size_t n_flat;           /* floats before the convolutions' weights */
    bool own_gradients;      /* a step has one pass, and the update reads weight gradients from the
                                convolutions themselves: `gradients` has no room for them */
    bool has_accepted_pass;  /* the step has at least one accepted pass. While false, the gradients
                                that the update would read of convolutions' weights are stale: they
                                count as 0, and the next accepted pass overwrites them */
    float unscale; /* factor on the gradients that the update reads: 1 for sums, which are unscaled;
                      1 / loss scale for the only pass of a step without sums */
    int n_learning; /* convolutions that learn; each of them has a target in both lists: */
    /* Used in backward: raises the DW word; writes to grad if the gradient is not kept there. */
    struct ampk_weight_gradient *of_pass;
    struct ampk_weight_gradient *of_step; /* used when the pass is accepted: adds to sum, if any */
    char *arena;
    uint32_t (*watch)[AMP_WATCHES]; /* backend memory, n x AMP_WATCHES */
    bool own_losses; /* some loss is ours; its sums lie beside watch and are read with
                        it: */
    struct ampk_loss_sums *loss_sums; /* of every layer, backend memory */
    struct ampk_loss_sums *losses;    /* host copy, as of the last read */
    uint16_t *fp16;                   /* which tensors are stored as FP16 (guard.h) */
    bool watch_begun;   /* the update has cleared the words and raised WEIGHTS: the words belong to
                           the next pass, and amp_graph_begin keeps them */
    bool weights_stale; /* masters changed since the convolutions were given them: the next begin
                           does it, and the WEIGHTS words are raised then or in its passes */
    bool writers_tell;  /* whoever writes to the masters between steps or inferences calls
                           amp_graph_weights_changed; if false, anybody may write without a word */
    bool train;         /* the present pass trains */
    bool again;         /* layers run forward a second time, for backward (plan.h, recomputed) */
    float *spare;       /* backend memory: statistics of such a run, four arrays of */
    int spare_channels; /* so many floats; NULL: no batch-norm is recomputed */
    struct amp_sync_bn *sync; /* NULL: batch-norm works over this process's passes alone */
    float scale;              /* loss scale of the present backward */
    bool backward_began;      /* since the last forward */
    bool inspecting;          /* the present pass is inspected */
    uint32_t *inspected;      /* backend memory, AMP_INSPECTED x n */
    bool squares;             /* what watches weight gradients sums all gradients' squares too */
    float *grad_square;       /* their sum; backend memory behind loss_sums */
    float squared;            /* host copy, as of the last read; NAN: none */
    double largest_gradient;  /* amp_largest_gradient, of the last backward that was judged */
    amp_see_function *see;    /* NULL: nobody looks; set by amp_graph_observe */
    void *see_user;
    amp_layer_function *trace; /* NULL: nobody traces; set by amp_graph_trace_layers */
    void *trace_user;
    bool in_range; /* of a whole pass, for a profiler */
    int n_segments;
    struct amp_segment *segments;
    /* For other processes (buckets.c). The arrays are backend memory: */
    int n_buckets;
    struct amp_bucket *buckets;
    struct ampk_weight_gradient *of_bucket; /* room for n_learning */
    float *sums_sent; /* what the sums would be with the pass at hand; it takes turns with sums.
                         NULL: gradients leave in one piece */
    uint16_t *sums_rounded;
    float *rolling_terms;
    bool warm;      /* a backward has run, so plans are chosen */
    bool no_memory; /* the graph could not be created for lack of memory */
};

/* ---- tensors ---- */

struct ampk_tensor amp_graph_tensor(void *data, enum amp_format, int n, int c, int h, int w);
/* The output shape of a layer (-1: the network's input); flat where Darknet has no image shape. */
struct ampk_tensor amp_graph_shaped(const struct amp_graph *, int layer, void *data,
                                    enum amp_format);
/* Where a buffer of the plan lies; NULL: -1, the plan's number for none. */
void *amp_graph_in_arena(const struct amp_graph *, int buffer);
/* The copies of layer i's output (-1: of the input) in other formats; buffers: the plan's. */
void amp_graph_make_copies(struct amp_graph *, int i, const int *buffers, struct ampk_tensor *copy);

/* Reports that an executor's create has no memory for `what`; layer -1: no layer's. Returns -1;
 * amp_graph_create then says what would fit. */
int amp_graph_no_memory(struct amp_graph *, int layer, const char *what, char *err,
                        size_t err_size);

/* ---- sources and contributions ---- */

/* The tensor that the layer reads as its source k: in the layer's own format. */
const struct ampk_tensor *amp_graph_source(const struct amp_graph *, int layer, int k);

/* The gradient that a layer contributes to its source k. Do not copy this struct: dx may point to
 * its scratch. */
struct amp_contribution {
    int layer, k;
    const struct ampk_tensor *dx; /* where to write the gradient; NULL: the source wants none */
    bool accumulate;              /* add to dx instead of overwriting it */
    uint32_t *watch;              /* the word that watches the source's delta */
    struct ampk_tensor scratch;   /* used as dx if the source's delta has another format */
};

/* False if the source wants no gradient; dx is NULL then. */
bool amp_contribution_begin(struct amp_graph *, int layer, int k, struct amp_contribution *);
/* Call when the gradient is written, wanted or not. Converts scratch into the source's delta. */
void amp_contribution_end(struct amp_graph *, const struct amp_contribution *);
/* ---- watch words ---- */

/* The word that watches the delta of source k; NULL: the source is the network's input. */
uint32_t *amp_graph_dx_watch(struct amp_graph *, int layer, int k);
/* The same for the dx of a convolution. NULL on a backend where watching costs another pass over
 * dx, if a value that is not finite shows up elsewhere anyway: then dx is the delta of a
 * convolution, whose bias gradient sums it (the DBIAS word). */
uint32_t *amp_graph_conv_dx_watch(struct amp_graph *, int layer, const struct ampk_tensor *dx);
/* Bytes of watch, loss_sums and grad_square together. */
size_t amp_graph_watch_bytes(const struct amp_graph *);
/* Clears them. */
void amp_graph_clear_watch(struct amp_graph *);
/* Notes which tensors of a layer are stored as FP16. */
void amp_graph_mark_fp16(struct amp_graph *, int layer);

/* ---- deltas that convolutions make themselves ---- */

/* Whether convolutions with a bias compute their dy themselves (kernels.h, conv_bias_backward). */
bool amp_graph_makes_dy(const struct amp_graph *);
/* The loss whose unscaled delta layer i, such a convolution, reads directly and multiplies by the
 * loss scale. The backward of that loss then writes layer i's delta only if somebody looks at
 * deltas. -1: no such loss. */
int amp_graph_loss_behind(const struct amp_graph *, int i);

/* ==== products.c: the matrix products of recurrent layers. Darknet's code runs these layers; it
 * calls amp_graph_product_forward and _backward (graph.h) for each product. The executor of
 * Darknet's layers calls the others ==== */

/* Makes what the layer's products need; nothing for any other layer. */
int amp_products_create(struct amp_graph *, int layer, char *err, size_t err_size);
void amp_products_free(struct amp_graph *, struct amp_node *);
/* Before Darknet's forward. */
void amp_products_begin(struct amp_graph *, int layer);
/* After Darknet's backward: the weight gradients, and the gradient of the layer's input, which is
 * added to delta (NULL: nobody wants it). */
void amp_products_finish(struct amp_graph *, int layer, float *delta);

/* ==== inspect.c: what observers of a pass see. Observers ask in graph.h; the passes call these
 * ==== */

size_t amp_graph_inspected_bytes(const struct amp_graph *);
/* Call when a pass begins. */
void amp_graph_begin_inspection(struct amp_graph *);
/* Call when backward is repeated: forgets the numbers of the deltas. */
void amp_graph_inspect_deltas_anew(struct amp_graph *);
/* Show a layer's output, or its weight gradient, to an observer. */
void amp_graph_look_at_output(struct amp_graph *, int layer);
void amp_graph_show_gradient(struct amp_graph *, int layer);
/* Tells the tracer, if there is one, and the profiler, that the layer's part of a pass begins or is
 * done. */
void amp_graph_report_tracer(const struct amp_graph *, int layer, bool backward, bool done);
/* Tell the profiler that a whole pass begins, or that the one that has begun is done. */
void amp_graph_begin_range(struct amp_graph *, const char *pass);
void amp_graph_end_range(struct amp_graph *);
/* True if somebody observes or inspects, so that deltas which are stored nowhere must be
 * computed. */
bool amp_graph_looked_at(const struct amp_graph *);
/* Shows the layer's delta to an observer: complete, and not used yet. */
void amp_graph_look_at_delta(struct amp_graph *, int layer);
/* Shows x, which has the layer's shape, to an observer. The passes do this for every stored
 * tensor. */
void amp_graph_show(struct amp_graph *, enum amp_seen_what, int layer, const struct ampk_tensor *x);

#endif
