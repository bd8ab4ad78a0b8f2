/* The contract between executors and backends.
 *
 * A backend is one constant table of functions (struct ampk_backend). There are three: `cpu`
 * (oneDNN + vector code), `cuda`, and `reference` (double precision, slow, tests only).
 * Executors call nothing else, so a backend can be tried against the reference operation by
 * operation.
 *
 * Rules that hold for every operation
 *  - Tensors are described by struct ampk_tensor; shapes are logical (n, c, h, w) whatever the
 *    layout.
 *  - Storage is FP16, BF16 or FP32; arithmetic is FP32. A convolution first rounds its operands to
 *    the compute type of its shape (FP16: exactly what a Tensor Core reads) and sums the products
 *    in FP32.
 *  - Results are rounded once, to nearest even, when they are stored. A finite FP32 value that is
 *    too large for FP16 becomes inf; `amax` shows it.
 *  - `amax` points to a word that an operation raises to the largest |v| among the FP32 values that
 *    it is about to store; NULL: nobody wants to know. The word holds IEEE-754 bits without the
 *    sign, so that unsigned order is the order of magnitude, with inf and NaN above every finite
 *    value. No operation lowers it.
 *    Exception: where a library stores a convolution's result itself, amax may see the rounded
 *    values. What FP16 cannot hold then counts as 65520, the smallest magnitude that FP16 rounds to
 *    inf.
 *  - `accumulate` true: dst += result, computed in FP32 and rounded once. False: dst is
 * overwritten, and its old contents do not matter, not even NaN.
 *  - Inputs and outputs do not overlap, unless the operation says "may alias".
 *  - Results do not depend on the number of threads: shapes alone decide how a sum is split.
 *  - Only creating and allocating can fail: that returns NULL, with the reason in err. Create
 *    functions reserve what later operations need.
 *  - A device backend runs operations in call order on its own stream; `read` waits for them.
 */
#ifndef AMPK_KERNELS_H
#define AMPK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ampk_dtype { AMPK_FP32, AMPK_FP16, AMPK_BF16 };

/* Magnitudes as amax holds them: inf, and 65520, the smallest that FP16 rounds to inf. */
#define AMPK_INF_BITS           0x7f800000u
#define AMPK_FP16_OVERFLOW_BITS 0x477ff000u

/* What a convolution rounds its operands to. TF32: 10 mantissa bits, FP32 range; stored as FP32. */
enum ampk_compute { AMPK_COMPUTE_FP32, AMPK_COMPUTE_TF32, AMPK_COMPUTE_FP16, AMPK_COMPUTE_BF16 };

enum ampk_layout { AMPK_NHWC, AMPK_NCHW };

/* Darknet's activations, same order as its enum ACTIVATION (activations.h); formulas are Darknet's,
 * gradients are functions of the activation's output, as there. */
enum ampk_activation {
    AMPK_LOGISTIC,
    AMPK_RELU,
    AMPK_RELIE,
    AMPK_LINEAR,
    AMPK_RAMP,
    AMPK_TANH,
    AMPK_PLSE,
    AMPK_LEAKY,
    AMPK_ELU,
    AMPK_LOGGY,
    AMPK_STAIR,
    AMPK_HARDTAN,
    AMPK_LHTAN,
    AMPK_SELU,
    AMPK_ACTIVATIONS
};

/* Image i starts image_stride elements after image i-1, so that a tensor can be part of a flat
 * concatenation. An image is dense, except in a slice: that is some channels of a wider NHWC
 * tensor, whose pixels start `pitch` elements apart. Only operations that say so take slices. */
struct ampk_tensor {
    void *data;
    enum ampk_dtype dtype;
    enum ampk_layout layout;
    int n, c, h, w;
    size_t image_stride; /* >= pitch*h*w */
    int pitch;           /* >= c; 0: c */
};

/* Convolution of an n x c x h x w input with k filters of (c/groups) x kh x kw; out h =
 * (h+2*pad-kh)/stride+1. A connected layer is the case kh=h, kw=w, pad=0: its weights are
 * [k][c][h][w] in Darknet too. */
struct ampk_conv_shape {
    int n, c, h, w;
    int k, kh, kw, stride, pad, groups;
    enum ampk_compute compute;
    bool forward_only; /* backward is never called: keep no weights and no gradient for it */
    bool biased;       /* conv_bias_forward will be called: reserve what it needs */
};

struct ampk_context; /* a backend's threads, streams, workspace */
struct ampk_conv;    /* one convolution: plans, rounded weights and their gradient in the backend's
                        own layout */
struct ampk_recording; /* operations to be run again */

/* Darknet has three variants of batch-norm, one for each way to build it; ours follows the build
 * that it replaces. x_hat = (x-mean) * forward factor.
 *                        forward factor            variance of a training batch
 *   Darknet on the CPU   1 / (sqrt(variance)+1e-6)   unbiased (count-1)
 *   Darknet on the GPU   1 / sqrt(variance+1e-5)     unbiased
 *   cuDNN                1 / sqrt(variance+1e-5)     biased (count)
 * All three add the unbiased variance to the rolling one and normalize with the same forward factor
 * at inference. All three differentiate 1/sqrt(variance+1e-5) and the biased variance in backward,
 * which is the true derivative of cuDNN's variant only. */
enum ampk_bn_rule { AMPK_BN_DARKNET_CPU, AMPK_BN_DARKNET_GPU, AMPK_BN_CUDNN };

/* Batch-norm of one layer; arrays of c floats. */
struct ampk_batchnorm {
    const float *scale, *bias;    /* gamma, beta */
    const float *mean, *variance; /* of this batch when training, else the rolling ones */
    enum ampk_bn_rule rule;
};

/* Statistics of a layer's values in a training pass; arrays of c floats. mean and variance are
 * those of this batch and are overwritten. rolling = .99*rolling + .01*batch for both. amax watches
 * the rolling statistics: an inf or NaN there would stay for the rest of the training. */
struct ampk_bn_statistics {
    float *mean, *variance;
    float *rolling_mean, *rolling_variance;
    enum ampk_bn_rule rule;
    uint32_t *amax;
};

/* The sums of batch-norm's backward, for a convolution whose data gradient computes them on the
 * way. y is batch-norm's input; the convolution's input is what bn_act_forward made of y. */
struct ampk_gradient_sums {
    const struct ampk_tensor *y;
    const struct ampk_batchnorm *bn;
    enum ampk_activation activation; /* the one that conv_sums_gradients was asked about */
    float *sums; /* of g, then of g * (y - mean), 2c floats at a multiple of 16 bytes */
};

/* The gradient that comes back to a layer with batch-norm and an activation of two slopes. It
 * selects the operation that continues: with argmax bn_act_pool_backward (d: gradient at the
 * maxima), with sums bn_backward_summed (d: its g), with neither bn_act_backward. */
struct ampk_layer_gradient {
    const struct ampk_tensor *y; /* batch-norm's input */
    const struct ampk_batchnorm *bn;
    enum ampk_activation activation;
    const struct ampk_tensor *d;
    const void *argmax; /* NULL: none */
    const float *sums;  /* NULL: none */
};

/* The gradient at the output of a convolution with bias and activation is factor * d; the gradient
 * of the bias goes to dbias. */
struct ampk_bias_gradient {
    const struct ampk_tensor *out, *d; /* as bias_act_backward has them */
    enum ampk_activation activation;
    float factor;
    float *dbias;
    uint32_t *dy_amax, *db_amax;
};

/* One array of master weights and the arrays that its update reads and writes; n floats each. */
struct ampk_param {
    float *value;
    float *update;     /* SGD: Darknet's weight_updates, the momentum */
    float *m, *v;      /* Adam: its moments */
    const float *grad; /* times 1 / unscale, a power of two */
    size_t n;
    float unscale;
    float rate, decay_batch; /* decay times batch */
    float clip;              /* > 0: value is clamped to +-clip */
};

/* New master weights of a convolution, float [k][c/groups][kh][kw]. */
struct ampk_new_weights {
    struct ampk_conv *conv;
    const float *weights;
    uint32_t *amax;
};

/* The destination of a convolution's weight gradient: dst, float [k][c/groups][kh][kw]. NULL: the
 * gradient goes nowhere, only amax is raised. */
struct ampk_weight_gradient {
    struct ampk_conv *conv;
    float *dst;
    uint32_t *amax;
};

/* A convolution's weights and their update. param.grad NULL: the convolution's own gradient updates
 * them; with unscale 0, a gradient of 0 does. amax is that of the new weights. */
struct ampk_weight_update {
    struct ampk_conv *conv;
    struct ampk_param param;
    uint32_t *amax;
};

/* Random numbers of 32 bits that key and counter alone decide (philox.h). For number i, the first
 * word of the counter is raised by i / 4 and the counter mixed with the key; word i % 4 of the
 * result is the number. */
struct ampk_draw {
    uint32_t key[2], counter[4];
};

/* A copy of n floats. */
struct ampk_span {
    float *dst;
    const float *src;
    size_t n;
};

/* ---- losses of FP32 heads ----
 *
 * A head's input, output and delta are dense FP32 NCHW of n images; truth is Darknet's net.truth,
 * in backend memory like every array here. The formulas are those of Darknet's GPU code. Its CPU
 * code has the same, with errors: in region's softmax tree and backward, the sign of a smooth L1
 * cost, wgan, and label smoothing. Two things differ from both: `spatial` softmax is over the
 * channels of each location, and a masked cost does not change its input.
 *
 * delta has Darknet's sign (downhill) and is the gradient at the head's INPUT: exactly what the
 * head's backward adds to its source's delta. Region's logistics and a cost's scale are in it.
 *
 * A truth whose centre is outside of the grid, and a class that does not exist, are skipped;
 * Darknet would write outside of its arrays. */

enum { AMPK_MOST_TRUTHS = 1000 }; /* of an image; Darknet's yolo has room for 90, region for 30 */

/* A head's report of a pass: sums over the batch. Everything but cost is for yolo and region; the
 * counts are whole numbers. */
struct ampk_loss_sums {
    float cost;
    float iou, category, object, any_object, recall, recall75;
    float count, category_count;
};

/* Per cell `boxes` boxes of 4 coordinates, objectness and classes. */
struct ampk_yolo_head {
    int boxes, anchors, classes;
    const float *anchor_sizes; /* 2 * anchors, in pixels of the network's input */
    const int *mask;           /* boxes: the anchor of each; NULL: i is i's */
    const int *map;            /* map_size: label's class to head's class; NULL: none */
    int map_size;
    float ignore_thresh, truth_thresh;
    int net_w, net_h;
    int truths;      /* an image's truth has room for so many of x, y, w, h, class; x = 0 ends it */
    int truths_used; /* Darknet's max: how many are looked at */
};

/* A hierarchy of classes, as Darknet's tree; parent[i] < i, -1 at the root. */
struct ampk_tree {
    int classes, groups; /* classes 0: there is none */
    const int *parent, *group, *group_offset, *group_size;
};

/* Per cell `boxes` boxes of `coords` coordinates (4, then masks), objectness and classes. */
struct ampk_region_head {
    int boxes, classes, coords;
    const float *anchor_sizes; /* 2 * boxes, in cells */
    const int *map;
    int map_size;
    struct ampk_tree tree;
    bool softmax, background, bias_match, rescore;
    float thresh, coord_scale, object_scale, noobject_scale, class_scale;
    int mask_scale; /* Darknet cuts it to a whole number */
    bool warm_up;   /* fewer than 12800 images seen: boxes are drawn to their anchors */
    int truths;     /* room of an image's truth: coords numbers and a class each */
};

/* Of x as n rows of c*h*w values: over `groups` equal parts of each, over the groups of a tree, or
 * (spatial) over the channels of each location. */
struct ampk_softmax {
    int groups;
    bool spatial;
    float temperature;
    struct ampk_tree tree;
};

/* Darknet's enum COST_TYPE, in its order. */
enum ampk_cost_type {
    AMPK_COST_SSE,
    AMPK_COST_MASKED,
    AMPK_COST_L1,
    AMPK_COST_SEG,
    AMPK_COST_SMOOTH,
    AMPK_COST_WGAN
};

#define AMPK_TRUTH_UNKNOWN (-1234.f) /* Darknet's SECRET_NUM: no gradient there */

struct ampk_cost {
    enum ampk_cost_type type;
    float scale;
    float noobject_scale; /* seg: times this where truth is 0 */
    float threshold;      /* not 0: deltas smaller than this / (c*h*w) are 0 */
    float smooth;         /* truth becomes (1-smooth) * truth + smooth / (c*h*w) */
};

/* A reason that contains this says that memory ended; callers then name what to lower. */
#define AMPK_NO_MEMORY "out of memory"

struct ampk_backend {
    const char *name;
    /* A library stores the results of convolutions, so that their amax costs another pass over
     * them. Do not ask for it where bn_act_forward can tell (y_amax), or where a later sum shows
     * what is not finite. */
    bool watching_costs;

    /* threads: 0 = all that OpenMP would use. */
    struct ampk_context *(*context_create)(int threads, char *err, size_t err_size);
    void (*context_destroy)(struct ampk_context *);

    /* Memory that operations can use, 64-byte aligned, contents undefined; NULL when there is none
     * left. */
    void *(*alloc)(struct ampk_context *, size_t bytes);
    void (*free)(struct ampk_context *, void *);
    /* Bytes that alloc could still give, 0 if unknown; NULL: the host's memory. */
    size_t (*free_bytes)(struct ampk_context *);
    /* Order with what the caller itself runs on the device (Darknet: the default stream). acquire:
     * operations called from now on see what the caller started before; release: the reverse. */
    void (*acquire)(struct ampk_context *);
    void (*release)(struct ampk_context *);
    /* Operations between begin and end are recorded instead of run; play runs all of them, with the
     * arguments that they were recorded with. This is for devices where starting a short operation
     * takes longer than the operation. False or NULL: it failed this time and nothing was run;
     * callers ask again in the next pass. A backend that has given up returns false from begin. The
     * four functions are NULL in a backend that cannot record. */
    bool (*record_begin)(struct ampk_context *);
    struct ampk_recording *(*record_end)(struct ampk_context *);
    void (*record_play)(struct ampk_context *, struct ampk_recording *);
    void (*record_free)(struct ampk_context *, struct ampk_recording *);
    /* read also waits, of 0 bytes too. */
    void (*read)(struct ampk_context *, void *host, const void *src, size_t bytes);
    void (*write)(struct ampk_context *, void *dst, const void *host, size_t bytes);
    void (*fill_zero)(struct ampk_context *, void *dst, size_t bytes);

    /* dst (+)= src, between any dtypes, layouts and slices; n and c*h*w are the same. If h*w
     * differ, both are read as flat arrays in NCHW order (c = c*h*w, h = w = 1). */
    void (*convert)(struct ampk_context *, const struct ampk_tensor *src,
                    const struct ampk_tensor *dst, bool accumulate, uint32_t *amax);

    /* ---- convolution and inner product ----
     * conv_create: NULL with the reason in err, which contains AMPK_NO_MEMORY if memory ended. */
    struct ampk_conv *(*conv_create)(struct ampk_context *, const struct ampk_conv_shape *,
                                     char *err, size_t err_size);
    void (*conv_destroy)(struct ampk_context *, struct ampk_conv *);
    /* Says why a convolution runs without Tensor Cores although its compute type is for them; the
     * text is never freed. NULL, or no such function: there is nothing to say. */
    const char *(*conv_note)(const struct ampk_conv *);
    /* Gives every convolution of a list new weights. Call it after every change, before forward. */
    void (*conv_set_weights)(struct ampk_context *, const struct ampk_new_weights *, int count);
    /* y = conv(x), NHWC, not activated; and its statistics, unless NULL, as bn_statistics computes
     * them. Exception: where the library that computes y also sums it (CUDA, FP16), they come from
     * FP32 sums of y and y^2 themselves, of y as stored or before it was rounded. Each rounding of
     * such a sum changes the variance by about 2^-24 * (1 + mean^2 / variance) of itself. If all
     * roundings over n values change it by more than 2^-21 * sqrt(n) times that bracket, the
     * library's sums are not used. */
    void (*conv_forward)(struct ampk_context *, struct ampk_conv *, const struct ampk_tensor *x,
                         const struct ampk_tensor *y, const struct ampk_bn_statistics *,
                         uint32_t *amax);
    /* y = activation(conv(x) + bias); y of any dtype and layout (detection heads: FP32 NCHW). */
    void (*conv_bias_forward)(struct ampk_context *, struct ampk_conv *,
                              const struct ampk_tensor *x, const float *bias, enum ampk_activation,
                              const struct ampk_tensor *y, uint32_t *amax);
    /* dx (+)= dgrad(dy), NHWC; NULL: nobody wants dx. The convolution keeps wgrad(x, dy) until its
     * next backward. dy is NHWC and is rounded to the compute type first. */
    void (*conv_backward)(struct ampk_context *, struct ampk_conv *, const struct ampk_tensor *x,
                          const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                          bool accumulate, uint32_t *dx_amax);
    /* Whether this convolution's data gradient and the batch-norm backward of the layer before it
     * (with this activation) are computed faster by conv_backward_summed and bn_backward_summed
     * than by conv_backward and bn_act_backward. Asked once, after creation; it may take a while.
     * All three are NULL where a backend has no such fusion. */
    bool (*conv_sums_gradients)(struct ampk_context *, struct ampk_conv *, enum ampk_activation);
    /* Fused: conv_backward, whose epilogue multiplies dx by the activation's gradient in the layer
     * before. Instead of dx it stores g, the gradient at that layer's batch-norm output, rounded
     * once, and its sums: FP32, of g as stored or before it was rounded. The activation's slope
     * follows the sign of its input in forward, but for the last roundings of that. y, x and g:
     * dense NHWC in the convolution's type of operands, at multiples of 16 bytes. */
    void (*conv_backward_summed)(struct ampk_context *, struct ampk_conv *,
                                 const struct ampk_tensor *x, const struct ampk_tensor *dy,
                                 const struct ampk_tensor *g, const struct ampk_gradient_sums *);
    /* Whether conv_bn_backward takes such tensors and is the faster way. Asked once, after
     * creation, with the tensors of every later call; their contents, bn and sums are not looked
     * at. It may take a while. Both are NULL where a backend has no such fusion. */
    bool (*conv_takes_gradient)(struct ampk_context *, struct ampk_conv *,
                                const struct ampk_tensor *x, const struct ampk_layer_gradient *);
    /* Fused: the batch-norm backward that the gradient selects (struct ampk_layer_gradient), y
     * being this convolution's output, then the weight gradient of conv_backward, without dx. Each
     * dy is rounded to y's type, but never stored. */
    void (*conv_bn_backward)(struct ampk_context *, struct ampk_conv *, const struct ampk_tensor *x,
                             const struct ampk_layer_gradient *, float *dscale, float *dbias,
                             uint32_t *dy_amax, uint32_t *db_amax);
    /* Fused: bias_act_backward of factor * d, then conv_backward of its dy; with sums (not NULL)
     * conv_backward_summed instead, whose g goes to dx. dy: memory that the backend may use for
     * that gradient. NULL where a backend has no such fusion. */
    void (*conv_bias_backward)(struct ampk_context *, struct ampk_conv *,
                               const struct ampk_tensor *x, const struct ampk_bias_gradient *,
                               const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                               bool accumulate, const struct ampk_gradient_sums *,
                               uint32_t *dx_amax);
    /* For every convolution of a list: dst (+)= factor * its weight gradient. amax is that of the
     * gradient itself; what 16 bits could not hold counts as inf. No dst overlaps another. */
    void (*conv_weight_gradients)(struct ampk_context *, const struct ampk_weight_gradient *,
                                  int count, float factor, bool accumulate);
    /* Fused, for every convolution of a list: conv_weight_gradients, update_sgd and
     * conv_set_weights, with the same bits, in one pass over the weights. conv_set_weights has been
     * called before. No array overlaps another. This and the next are NULL where a backend gains
     * nothing by it. */
    void (*conv_update_sgd)(struct ampk_context *, const struct ampk_weight_update *, int count,
                            float momentum);
    /* The same with update_adam. */
    void (*conv_update_adam)(struct ampk_context *, const struct ampk_weight_update *, int count,
                             float b1, float b2, float eps, int t);

    /* ---- batch-norm and activation ---- */
    /* Statistics of every channel of y (NHWC) over n,h,w, of y AS STORED. Sums are FP32, of
     * y - shift and its square, where shift is the rolling mean from before this call: sums about a
     * value near the mean lose nothing to cancellation in the variance. (conv_forward may use other
     * sums.) */
    void (*bn_statistics)(struct ampk_context *, const struct ampk_tensor *y,
                          const struct ampk_bn_statistics *);
    /* out = activation(scale * x_hat(y) + bias) + add. add is a residual (NULL: none); add and out
     * have any dtype and layout; out may be a slice. y_amax is that of y as stored. */
    void (*bn_act_forward)(struct ampk_context *, const struct ampk_tensor *y,
                           const struct ampk_batchnorm *, enum ampk_activation,
                           const struct ampk_tensor *add, const struct ampk_tensor *out,
                           uint32_t *y_amax, uint32_t *amax);
    /* d: gradient at out (any dtype, layout), and at add if there was one. dy: gradient at y; it
     * may alias d when dtype and layout agree. dscale, dbias: c floats, overwritten; db_amax
     * watches both. An activation of two slopes has its gradient chosen by the sign of its input,
     * which is computed again from y as forward did; out is then not read and may be NULL. The
     * gradient of any other activation is taken at out: what bn_act_forward made of y with the same
     * parameters and without add; it may be a slice. */
    void (*bn_act_backward)(struct ampk_context *, const struct ampk_tensor *y,
                            const struct ampk_tensor *out, const struct ampk_batchnorm *,
                            enum ampk_activation, const struct ampk_tensor *d,
                            const struct ampk_tensor *dy, float *dscale, float *dbias,
                            uint32_t *dy_amax, uint32_t *db_amax);
    /* The rest of bn_act_backward after conv_backward_summed. dy may alias g. */
    void (*bn_backward_summed)(struct ampk_context *, const struct ampk_tensor *y,
                               const struct ampk_batchnorm *, const struct ampk_tensor *g,
                               const float *sums, const struct ampk_tensor *dy, float *dscale,
                               float *dbias, uint32_t *dy_amax, uint32_t *db_amax);
    /* Fused: bn_act_forward of y to y's dtype, then maxpool_forward. amax is that of the result in
     * between. The activation has two slopes; windows are 2 x 2 by 2 and begin at the corner: out's
     * h and w are half of y's, rounded either way. y, out, d and dy are dense NHWC of one dtype;
     * argmax is maxpool_forward's. */
    void (*bn_act_pool_forward)(struct ampk_context *, const struct ampk_tensor *y,
                                const struct ampk_batchnorm *, enum ampk_activation,
                                const struct ampk_tensor *out, void *argmax, uint32_t *y_amax,
                                uint32_t *amax);
    /* Fused: maxpool_backward, then bn_act_backward. d: gradient at the maxima. */
    void (*bn_act_pool_backward)(struct ampk_context *, const struct ampk_tensor *y,
                                 const struct ampk_batchnorm *, enum ampk_activation,
                                 const struct ampk_tensor *d, const void *argmax,
                                 const struct ampk_tensor *dy, float *dscale, float *dbias,
                                 uint32_t *dy_amax, uint32_t *db_amax);
    /* bn_act_backward without batch-norm: dy = d * activation'(out), dbias[c] = sum of dy before
     * rounding. */
    void (*bias_act_backward)(struct ampk_context *, const struct ampk_tensor *out,
                              enum ampk_activation, const struct ampk_tensor *d,
                              const struct ampk_tensor *dy, float *dbias, uint32_t *dy_amax,
                              uint32_t *db_amax);

    /* ---- layers without weights; x, y, dx, dy are NHWC of one dtype unless stated ---- */
    /* Darknet's maxpool: window i starts at i*stride - pad/2, and every value outside of x is
     * -FLT_MAX; the caller gives y's h and w. y and dy may be slices. argmax has a slot of one byte
     * or more for each output element; maxpool_index_bytes says how many bytes in all. */
    size_t (*maxpool_index_bytes)(const struct ampk_tensor *y, int size);
    void (*maxpool_forward)(struct ampk_context *, const struct ampk_tensor *x, int size,
                            int stride, int pad, const struct ampk_tensor *y, void *argmax);
    void (*maxpool_backward)(struct ampk_context *, const struct ampk_tensor *dy,
                             const void *argmax, int size, int stride, int pad,
                             const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);
    /* Nearest neighbour by an integer stride, times scale. reverse: y is the smaller one, and gets
     * the sums of stride x stride cells. x and y may be slices. */
    void (*upsample)(struct ampk_context *, const struct ampk_tensor *x, int stride, float scale,
                     bool reverse, const struct ampk_tensor *y, bool accumulate, uint32_t *amax);
    /* out = activation(x + ...) as Darknet's shortcut_cpu: where the smaller of the two shapes has
     * a cell, alpha*x + beta*add (sampled by integer strides), elsewhere x. add may have another
     * shape than x. */
    void (*shortcut_forward)(struct ampk_context *, const struct ampk_tensor *x,
                             const struct ampk_tensor *add, float alpha, float beta,
                             enum ampk_activation, const struct ampk_tensor *out, uint32_t *amax);
    /* g = d*activation'(out); dx (+)= alpha*g; dadd (+)= beta*g at the cells forward read. As
     * Darknet, dx gets alpha*g everywhere. Either of dx, dadd may be NULL. */
    void (*shortcut_backward)(struct ampk_context *, const struct ampk_tensor *out,
                              const struct ampk_tensor *d, float alpha, float beta,
                              enum ampk_activation, const struct ampk_tensor *dx,
                              bool dx_accumulate, const struct ampk_tensor *dadd,
                              bool dadd_accumulate, uint32_t *dx_amax, uint32_t *dadd_amax);
    /* Darknet's reorg_cpu on logical NCHW indices (w,h,c are those of reorg_cpu's arguments);
     * forward 0/1 as there; or flatten. A permutation of the elements of each image; src and dst
     * may be slices. */
    void (*reorg)(struct ampk_context *, const struct ampk_tensor *src, int w, int h, int c,
                  int stride, int forward, const struct ampk_tensor *dst, bool accumulate,
                  uint32_t *amax);
    void (*flatten)(struct ampk_context *, const struct ampk_tensor *src, int size, int layers,
                    int forward, const struct ampk_tensor *dst, bool accumulate, uint32_t *amax);
    void (*avgpool_forward)(struct ampk_context *, const struct ampk_tensor *x,
                            const struct ampk_tensor *y, uint32_t *amax);
    void (*avgpool_backward)(struct ampk_context *, const struct ampk_tensor *dy,
                             const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);
    /* y (+)= keep[i] ? scale*x : 0; keep has one byte per element in NCHW order of x, dense.
     * Backward is the same call on the deltas. y may alias x when not accumulating. */
    void (*dropout)(struct ampk_context *, const struct ampk_tensor *x, const uint8_t *keep,
                    float scale, const struct ampk_tensor *y, bool accumulate, uint32_t *amax);
    /* Clips every element to [-limit, limit]; NaN stays. x is no slice. NULL in backends that run
     * on the host: Darknet clips on devices only. */
    void (*clip)(struct ampk_context *, const struct ampk_tensor *x, float limit);
    /* keep[i] = number i of the draw / 2^32 < probability ? 0 : 1, exactly; probability in [0, 1),
     * n is at most 2^34, after which the numbers repeat. */
    void (*dropout_draw)(struct ampk_context *, const struct ampk_draw *, float probability,
                         uint8_t *keep, size_t n);
    void (*activation_forward)(struct ampk_context *, const struct ampk_tensor *x,
                               enum ampk_activation, const struct ampk_tensor *y, uint32_t *amax);
    void (*activation_backward)(struct ampk_context *, const struct ampk_tensor *out,
                                enum ampk_activation, const struct ampk_tensor *d,
                                const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);

    /* ---- flat FP32 arrays: losses, gradients, optimizer ---- */
    void (*amax)(struct ampk_context *, const float *x, size_t n, uint32_t *amax);
    void (*scale)(struct ampk_context *, float *x, size_t n, float factor);
    /* sum += factor * g: adds one pass's gradient, unscaled, to the sum of a step. */
    void (*accumulate)(struct ampk_context *, const float *g, size_t n, float factor, float *sum);
    /* All copies of a list; no dst overlaps another array of it. */
    void (*copy_many)(struct ampk_context *, const struct ampk_span *, int count);
    /* Darknet's update_convolutional_layer for every array of a list, same operations in the same
     * order without fused multiply-add: update += unscale*grad; update -= decay_batch*value (if not
     * 0); value += rate*update; update *= momentum; clip. rate = lr/batch. */
    void (*update_sgd)(struct ampk_context *, const struct ampk_param *, int count, float momentum);
    /* Darknet's adam_update_gpu (Kingma and Ba 2015, algorithm 1) on gradient sums; t counts
     * from 1. */
    void (*update_adam)(struct ampk_context *, const struct ampk_param *, int count, float b1,
                        float b2, float eps, int t);

    /* ---- for the log ---- */
    /* Raises *amax as everywhere, and adds to *zeros how many of the elements are zero. x may be a
     * slice. */
    void (*inspect)(struct ampk_context *, const struct ampk_tensor *x, uint32_t *amax,
                    uint32_t *zeros);
    /* *sum = sum of the squares, each in FP32. */
    void (*sum_squares)(struct ampk_context *, const float *x, size_t n, float *sum);

    /* ---- losses; NULL: Darknet's own code computes them. amax is that of out, delta_amax that of
     * delta ---- */
    void (*yolo_forward)(struct ampk_context *, const struct ampk_yolo_head *,
                         const struct ampk_tensor *x, const struct ampk_tensor *out,
                         uint32_t *amax);
    void (*yolo_loss)(struct ampk_context *, const struct ampk_yolo_head *,
                      const struct ampk_tensor *out, const float *truth, float *delta,
                      struct ampk_loss_sums *, uint32_t *delta_amax);
    void (*region_forward)(struct ampk_context *, const struct ampk_region_head *,
                           const struct ampk_tensor *x, const struct ampk_tensor *out,
                           uint32_t *amax);
    void (*region_loss)(struct ampk_context *, const struct ampk_region_head *,
                        const struct ampk_tensor *out, const float *truth, float *delta,
                        struct ampk_loss_sums *, uint32_t *delta_amax);
    void (*softmax_forward)(struct ampk_context *, const struct ampk_softmax *,
                            const struct ampk_tensor *x, const struct ampk_tensor *out,
                            uint32_t *amax);
    /* delta = truth - out; cost: -log(out) where truth is not 0. masked: nothing where truth is
     * AMPK_TRUTH_UNKNOWN. */
    void (*softmax_loss)(struct ampk_context *, const struct ampk_tensor *out, const float *truth,
                         bool masked, float *delta, struct ampk_loss_sums *, uint32_t *delta_amax);
    /* The same of a logistic output: cost -t*log(p + 1e-7) - (1-t)*log(1-p + 1e-7). */
    void (*logistic_loss)(struct ampk_context *, const struct ampk_tensor *out, const float *truth,
                          float *delta, struct ampk_loss_sums *, uint32_t *delta_amax);
    /* out: the error of every element, whose sum is the cost. */
    void (*cost_loss)(struct ampk_context *, const struct ampk_cost *, const struct ampk_tensor *x,
                      const float *truth, const struct ampk_tensor *out, float *delta,
                      struct ampk_loss_sums *, uint32_t *amax, uint32_t *delta_amax);
    /* dx (+)= scale * delta. */
    void (*loss_backward)(struct ampk_context *, const float *delta, size_t n, float scale,
                          float *dx, bool accumulate, uint32_t *amax);
};

#ifdef __cplusplus
extern "C" {
#endif
extern const struct ampk_backend ampk_cpu;       /* kernels/cpu */
extern const struct ampk_backend ampk_cuda;      /* kernels/cuda; in builds with CUDA, and tests */
extern const struct ampk_backend ampk_reference; /* kernels/reference, tests only */
#ifdef __cplusplus
}
#endif

/* Whether the activation is x where x > 0, else slope*x. */
static inline bool ampk_is_two_slopes(enum ampk_activation a)
{
    return a == AMPK_LINEAR || a == AMPK_LEAKY || a == AMPK_RELU || a == AMPK_RELIE;
}

static inline size_t ampk_dtype_bytes(enum ampk_dtype t)
{
    return t == AMPK_FP32 ? 4 : 2;
}

static inline const char *ampk_dtype_name(enum ampk_dtype t)
{
    return t == AMPK_FP16 ? "fp16" : t == AMPK_BF16 ? "bf16" : "fp32";
}

/* From one pixel of an NHWC tensor to the next. */
static inline int ampk_pitch(const struct ampk_tensor *t)
{
    return t->pitch ? t->pitch : t->c;
}

/* Channels [first, first + c) of an NHWC tensor. */
static inline struct ampk_tensor ampk_slice(const struct ampk_tensor *t, int first, int c)
{
    struct ampk_tensor slice = *t;
    if (t->data) slice.data = (char *)t->data + (size_t)first * ampk_dtype_bytes(t->dtype);
    slice.c = c;
    slice.pitch = ampk_pitch(t);
    return slice;
}

static inline bool ampk_amax_is_finite(uint32_t amax)
{
    return amax < AMPK_INF_BITS;
}

#endif
