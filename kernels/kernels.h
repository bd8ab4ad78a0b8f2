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
 *  - Storage may be FP16, BF16 or FP32; arithmetic is FP32. An operand of a convolution is first
 *    rounded to the compute type of the plan (FP16: exactly what a Tensor Core reads), products are
 *    summed in FP32.
 *  - Rounding to storage is to nearest even, once, at the store. A finite FP32 value that is too
 *    large for FP16 becomes inf there; `amax` tells.
 *  - `amax` (may be NULL) points to a word that is raised to the largest |v| among the FP32 values
 *    about to be stored, as IEEE-754 bits without the sign: unsigned order is then the order of
 *    magnitude, with inf and NaN above every finite value. Operations only ever raise it.
 *    Where a library stores a convolution's result itself, amax may be of the rounded values, as
 *    that of what is stored already is; what FP16 cannot hold is then 65520, the smallest magnitude
 *    that becomes inf there.
 *  - `accumulate` true: dst += result, computed in FP32 and rounded once. False: dst is overwritten
 *    and its old contents (even NaN) do not matter.
 *  - Inputs and outputs must not overlap, except where "may alias" is said.
 *  - Results do not depend on the number of threads: every sum is split in a way given by shapes
 *    alone.
 *  - Operations cannot fail after creation; create functions return NULL with the reason in err.
 *  - A device backend runs operations in call order on its own stream; `read` waits for them.
 */
#ifndef AMPK_KERNELS_H
#define AMPK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ampk_dtype { AMPK_FP32, AMPK_FP16, AMPK_BF16 };

/* Magnitudes as amax has them: inf, and 65520, the smallest that FP16 rounds to inf. */
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

/* Image i starts image_stride elements after image i-1, so that a tensor can be a part of a flat
 * concatenation. Images are dense inside, but for a slice: some channels of a wider NHWC tensor,
 * where pixels start `pitch` elements apart. Operations take slices where they say so. */
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
    bool forward_only; /* no backward call will come: keep no weights and no gradient for it */
    bool biased;       /* conv_bias_forward will be called: have what it needs from the start */
};

struct ampk_context; /* a backend's threads, streams, workspace */
struct ampk_conv;    /* one convolution: plans, rounded weights and their gradient in the backend's
                        own layout */
struct ampk_recording; /* operations to be run again */

/* Whose batch-norm, the FP32 build's that ours stands in for: x_hat = (x-mean) * forward factor.
 *                        forward factor            variance of a training batch
 *   Darknet on the CPU   1 / (sqrt(variance)+1e-6)   unbiased (count-1)
 *   Darknet on the GPU   1 / sqrt(variance+1e-5)     unbiased
 *   cuDNN                1 / sqrt(variance+1e-5)     biased (count)
 * In all three the rolling variance takes up the unbiased one, inference normalizes with the same
 * forward factor, and backward differentiates 1/sqrt(variance+1e-5) and the biased variance, which
 * is the true derivative with cuDNN's only. */
enum ampk_bn_rule { AMPK_BN_DARKNET_CPU, AMPK_BN_DARKNET_GPU, AMPK_BN_CUDNN };

/* Batch-norm of one layer; arrays of c floats. */
struct ampk_batchnorm {
    const float *scale, *bias;    /* gamma, beta */
    const float *mean, *variance; /* of this batch when training, else the rolling ones */
    enum ampk_bn_rule rule;
};

/* What a training pass leaves of a layer's values for batch-norm; arrays of c floats. mean and
 * variance: of this batch, overwritten. rolling = .99*rolling + .01*batch for both. amax watches
 * the rolling statistics, where what is not finite would stay for good. */
struct ampk_bn_statistics {
    float *mean, *variance;
    float *rolling_mean, *rolling_variance;
    enum ampk_bn_rule rule;
    uint32_t *amax;
};

/* What batch-norm's backward sums up, where a convolution's data gradient takes that along: y is
 * batch-norm's input, and the convolution's is what bn_act_forward made of it. */
struct ampk_gradient_sums {
    const struct ampk_tensor *y;
    const struct ampk_batchnorm *bn;
    enum ampk_activation activation; /* that conv_sums_gradients was asked with */
    float *sums; /* of g, then of g * (y - mean), 2c floats at a multiple of 16 bytes */
};

/* The gradient that comes back to a layer with batch-norm and an activation of two slopes, and by
 * that the operation that takes it on: with argmax bn_act_pool_backward (d: gradient at the
 * maxima), with sums bn_backward_summed (d: its g), with neither bn_act_backward. */
struct ampk_layer_gradient {
    const struct ampk_tensor *y; /* batch-norm's input */
    const struct ampk_batchnorm *bn;
    enum ampk_activation activation;
    const struct ampk_tensor *d;
    const void *argmax; /* NULL: none */
    const float *sums;  /* NULL: none */
};

/* The gradient at the output of a convolution with bias and activation, factor * d; and where its
 * bias's goes. */
struct ampk_bias_gradient {
    const struct ampk_tensor *out, *d; /* as bias_act_backward has them */
    enum ampk_activation activation;
    float factor;
    float *dbias;
    uint32_t *dy_amax, *db_amax;
};

/* One array of master weights and what updates it; n floats each. */
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

/* Where a convolution's weight gradient goes: dst, float [k][c/groups][kh][kw]; NULL: nowhere, amax
 * alone is raised. */
struct ampk_weight_gradient {
    struct ampk_conv *conv;
    float *dst;
    uint32_t *amax;
};

/* The weights of a convolution and what updates them. param.grad NULL: by the convolution's own
 * gradient, or with unscale 0 by none (0). amax is of what they become. */
struct ampk_weight_update {
    struct ampk_conv *conv;
    struct ampk_param param;
    uint32_t *amax;
};

/* Random numbers of 32 bits that follow from key and counter alone (philox.h): number i is word
 * i % 4 of what the counter, its first word raised by i / 4, becomes under the key. */
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
 * in backend memory like every array here. The formulas are those of Darknet's GPU code, which are
 * its CPU code's but for what the CPU code has wrong: region's softmax tree and backward, the sign
 * of a smooth L1 cost, wgan, label smoothing. Two things follow neither: `spatial` softmax is over
 * the channels of each location, and a masked cost leaves its input alone.
 *
 * delta: Darknet's sign (downhill), at the head's INPUT: what its backward adds to its source's
 * delta, so region's logistics and a cost's scale are already in it.
 *
 * A truth whose centre is outside of the grid, and a class that does not exist, are left out;
 * Darknet would write somewhere. */

enum { AMPK_MOST_TRUTHS = 1000 }; /* of an image; Darknet's yolo has room for 90, region for 30 */

/* What a head reports of a pass: sums over the batch. All but cost: yolo's and region's statistics,
 * the counts as whole numbers. */
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

/* In a reason: that is it. */
#define AMPK_NO_MEMORY "out of memory"

struct ampk_backend {
    const char *name;
    /* A library stores what convolutions leave, and its amax takes another pass over it: not to be
     * asked for where bn_act_forward can tell (y_amax), or a later sum shows what is not finite. */
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
    /* Operations between begin and end are recorded instead of run; play runs them all at once,
     * with the arguments they were recorded with. For devices where starting an operation takes
     * longer than many an operation. False or NULL: not now, and nothing has been run; callers ask
     * again for the next pass, and a backend that has given up answers false to begin. The four
     * functions are NULL where a backend never can. */
    bool (*record_begin)(struct ampk_context *);
    struct ampk_recording *(*record_end)(struct ampk_context *);
    void (*record_play)(struct ampk_context *, struct ampk_recording *);
    void (*record_free)(struct ampk_context *, struct ampk_recording *);
    /* read also waits, of 0 bytes too. */
    void (*read)(struct ampk_context *, void *host, const void *src, size_t bytes);
    void (*write)(struct ampk_context *, void *dst, const void *host, size_t bytes);
    void (*fill_zero)(struct ampk_context *, void *dst, size_t bytes);

    /* dst (+)= src, between any dtypes, layouts and slices; same n and c*h*w. If h*w differ both
     * are taken as flat in NCHW order (c = c*h*w, h = w = 1). */
    void (*convert)(struct ampk_context *, const struct ampk_tensor *src,
                    const struct ampk_tensor *dst, bool accumulate, uint32_t *amax);

    /* ---- convolution and inner product ----
     * conv_create: NULL with the reason in err; it holds AMPK_NO_MEMORY where it is that. */
    struct ampk_conv *(*conv_create)(struct ampk_context *, const struct ampk_conv_shape *,
                                     char *err, size_t err_size);
    void (*conv_destroy)(struct ampk_context *, struct ampk_conv *);
    /* Why a convolution runs without Tensor Cores although its compute type is for them, in words
     * that last; NULL, or no such function: there is nothing to say. */
    const char *(*conv_note)(const struct ampk_conv *);
    /* Every convolution of a list takes new weights; must precede forward after every change. */
    void (*conv_set_weights)(struct ampk_context *, const struct ampk_new_weights *, int count);
    /* y = conv(x), NHWC, not activated; and its statistics, unless NULL: those of bn_statistics. Or
     * where the library that computes y sums it (CUDA, FP16), from FP32 sums of y and y^2
     * themselves, of y as stored or before it was rounded. Each rounding of such a sum changes the
     * variance by about 2^-24 * (1 + mean^2 / variance) of itself; all of them over n values by no
     * more than 2^-21 * sqrt(n) times as much as that bracket, or the library's sums are not used.
     */
    void (*conv_forward)(struct ampk_context *, struct ampk_conv *, const struct ampk_tensor *x,
                         const struct ampk_tensor *y, const struct ampk_bn_statistics *,
                         uint32_t *amax);
    /* y = activation(conv(x) + bias); y of any dtype and layout (detection heads: FP32 NCHW). */
    void (*conv_bias_forward)(struct ampk_context *, struct ampk_conv *,
                              const struct ampk_tensor *x, const float *bias, enum ampk_activation,
                              const struct ampk_tensor *y, uint32_t *amax);
    /* dx (NULL: not wanted) (+)= dgrad(dy), NHWC; wgrad(x, dy) stays with the convolution until its
     * next backward. dy is NHWC; it is rounded to the compute type first. */
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
    /* For every convolution of a list: dst (+)= factor * its weight gradient; amax is of the
     * gradient itself, inf what 16 bits did not hold. No dst overlaps another. */
    void (*conv_weight_gradients)(struct ampk_context *, const struct ampk_weight_gradient *,
                                  int count, float factor, bool accumulate);
    /* For every convolution of a list conv_weight_gradients, update_sgd and conv_set_weights, to
     * the bit, in one pass over its weights, which conv_set_weights has set once. No array overlaps
     * another. This and the next are NULL where a backend gains nothing by it. */
    void (*conv_update_sgd)(struct ampk_context *, const struct ampk_weight_update *, int count,
                            float momentum);
    /* The same with update_adam. */
    void (*conv_update_adam)(struct ampk_context *, const struct ampk_weight_update *, int count,
                             float b1, float b2, float eps, int t);

    /* ---- batch-norm and activation ---- */
    /* Statistics of y (NHWC) AS STORED, each channel's over n,h,w. Sums are FP32, of y - shift and
     * its square: with the rolling mean as shift, as it was before, the variance is free of
     * cancellation. (conv_forward may take them from other sums.) */
    void (*bn_statistics)(struct ampk_context *, const struct ampk_tensor *y,
                          const struct ampk_bn_statistics *);
    /* out = activation(scale * x_hat(y) + bias) + add; add (NULL: nothing), a residual, and out of
     * any dtype and layout; out may be a slice. y_amax is of y as it is stored. */
    void (*bn_act_forward)(struct ampk_context *, const struct ampk_tensor *y,
                           const struct ampk_batchnorm *, enum ampk_activation,
                           const struct ampk_tensor *add, const struct ampk_tensor *out,
                           uint32_t *y_amax, uint32_t *amax);
    /* d: gradient at out (any dtype, layout), and at add if there was one. dy (may alias d when
     * dtype and layout agree): gradient at y. dscale, dbias: c floats, overwritten; db_amax watches
     * both. The activation's gradient: where it is one of two slopes, by the sign of what forward
     * put into it, found again from y by the same arithmetic, and out is not read (NULL will do);
     * else at out, what bn_act_forward made of y with the same parameters and without add, a slice
     * perhaps. */
    void (*bn_act_backward)(struct ampk_context *, const struct ampk_tensor *y,
                            const struct ampk_tensor *out, const struct ampk_batchnorm *,
                            enum ampk_activation, const struct ampk_tensor *d,
                            const struct ampk_tensor *dy, float *dscale, float *dbias,
                            uint32_t *dy_amax, uint32_t *db_amax);
    /* What is left of bn_act_backward after conv_backward_summed. dy may alias g. */
    void (*bn_backward_summed)(struct ampk_context *, const struct ampk_tensor *y,
                               const struct ampk_batchnorm *, const struct ampk_tensor *g,
                               const float *sums, const struct ampk_tensor *dy, float *dscale,
                               float *dbias, uint32_t *dy_amax, uint32_t *db_amax);
    /* What bn_act_forward makes of y in y's dtype (amax is of that) and maxpool_forward of it, with
     * an activation of two slopes and windows of 2 x 2 by 2 that begin at the corner: out's h and w
     * are y's halved, rounded either way. y, out, d, dy dense NHWC of one dtype, argmax
     * maxpool_forward's. */
    void (*bn_act_pool_forward)(struct ampk_context *, const struct ampk_tensor *y,
                                const struct ampk_batchnorm *, enum ampk_activation,
                                const struct ampk_tensor *out, void *argmax, uint32_t *y_amax,
                                uint32_t *amax);
    /* What bn_act_backward makes of maxpool_backward's dx; d: gradient at the maxima. */
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

    /* ---- layers without weights; x, y, dx, dy NHWC of one dtype unless said ---- */
    /* Darknet's maxpool: window starts at i*stride - pad/2, outside is -FLT_MAX; y's h and w are
     * given. y and dy may be slices. argmax: one byte-sized or wider slot per output element; bytes
     * needed from maxpool_index_bytes. */
    size_t (*maxpool_index_bytes)(const struct ampk_tensor *y, int size);
    void (*maxpool_forward)(struct ampk_context *, const struct ampk_tensor *x, int size,
                            int stride, int pad, const struct ampk_tensor *y, void *argmax);
    void (*maxpool_backward)(struct ampk_context *, const struct ampk_tensor *dy,
                             const void *argmax, int size, int stride, int pad,
                             const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);
    /* Nearest neighbour by an integer stride, times scale. reverse: y is smaller, sums of stride x
     * stride cells. x and y may be slices. */
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
    /* Every element into [-limit, limit]; NaN stays. x is no slice. NULL: on a device only. */
    void (*clip)(struct ampk_context *, const struct ampk_tensor *x, float limit);
    /* keep[i] = number i of the draw / 2^32 < probability ? 0 : 1, exactly; probability in [0, 1),
     * n at most 2^34: from there on the numbers are the first ones again. */
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
    /* sum += factor * g: unscales one pass's gradient into the accumulator. */
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

    /* ---- losses; NULL: Darknet's own code computes them. amax is of what is written, delta_amax
     * of delta ---- */
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
