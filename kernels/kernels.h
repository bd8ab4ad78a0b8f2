/* The contract between executors and backends.
 *
 * A backend is one constant table of functions (struct ampk_backend). There are three: `cpu`
 * (oneDNN and vector code), `cuda`, and `reference` (double precision, slow, for tests only).
 * Executors call nothing but this table, so tests can compare each operation of a backend with the
 * same operation of the reference.
 *
 * Rules that hold for every operation
 *  - Tensors are described by struct ampk_tensor. Shapes are logical (n, c, h, w) whatever the
 *    layout; strides, pitches and array lengths count elements, sizes of memory count bytes.
 *  - Storage is FP16, BF16 or FP32; arithmetic is FP32. A convolution first rounds its operands to
 *    the compute type of its shape (FP16: exactly what a Tensor Core reads). It sums the products
 *    in FP32.
 *  - An operation rounds its result once, to nearest even, when it stores the result. A finite
 *    FP32 value that is too large for FP16 becomes inf; `amax` shows it.
 *  - `amax` points to a word. The operation raises that word to the largest |v| among the FP32
 *    values that it is about to store. NULL: the caller does not want to know. The word holds
 *    IEEE-754 bits without the sign, so comparing words as unsigned numbers compares magnitudes,
 *    with inf and NaN above every finite value. No operation lowers the word.
 *    Exception: where a library stores a convolution's result itself, amax may see the rounded
 *    values. A value that FP16 cannot hold then counts as 65520, the smallest magnitude that FP16
 *    rounds to inf.
 *  - `accumulate` true: dst += result, computed in FP32 and rounded once. False: the operation
 *    overwrites dst, and the old contents do not matter, not even NaN.
 *  - Inputs and outputs do not overlap, unless the operation says "may alias".
 *  - Results do not depend on the number of threads: shapes alone decide how a sum is split.
 *  - Only creating and allocating can fail. They return NULL and write the reason to err. Create
 *    functions reserve the memory that later operations need.
 *  - A device backend runs operations in call order on its own stream; `read` waits for them. */
#ifndef AMPK_KERNELS_H
#define AMPK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ampk_dtype { AMPK_FP32, AMPK_FP16, AMPK_BF16 };

/* Two magnitudes in the form of amax: inf, and 65520, the smallest magnitude that FP16 rounds to
 * inf. */
#define AMPK_INF_BITS           0x7f800000u
#define AMPK_FP16_OVERFLOW_BITS 0x477ff000u

/* The type to which a convolution rounds its operands. TF32 has 10 mantissa bits and the range of
 * FP32, and is stored as FP32. */
enum ampk_compute { AMPK_COMPUTE_FP32, AMPK_COMPUTE_TF32, AMPK_COMPUTE_FP16, AMPK_COMPUTE_BF16 };

/* The order of elements in memory; the last letter changes fastest. */
enum ampk_layout { AMPK_NHWC, AMPK_NCHW };

/* Darknet's activations, in the order of its enum ACTIVATION (activations.h), then two of
 * AlexeyAB's Darknet. The formulas are Darknet's. As in Darknet, gradients are functions of the
 * activation's output; only those of mish and swish are functions of its input, which the output
 * does not tell. For these two every `out` below that a gradient is taken at is the activation's
 * input. */
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
    AMPK_MISH,
    AMPK_SWISH,
    AMPK_ACTIVATIONS,
    AMPK_STOCK_ACTIVATIONS = AMPK_MISH /* those before it are Darknet's own */
};

/* Image i starts image_stride elements after image i-1, so a tensor can be a part of a flat
 * concatenation. Each image is dense, with one exception: a slice. A slice is a run of channels of
 * a wider NHWC tensor; its pixels start `pitch` elements apart. Only operations that say so take
 * slices. */
struct ampk_tensor {
    void *data;
    enum ampk_dtype dtype;
    enum ampk_layout layout;
    int n, c, h, w;
    size_t image_stride; /* elements; >= pitch*h*w */
    int pitch;           /* elements; >= c; 0: c */
};

/* Convolution of an n x c x h x w input with k filters of (c/groups) x kh x kw. The output is
 * n x k x oh x ow with oh = (h+2*pad-kh)/stride+1, and ow likewise. A connected layer is the case
 * kh=h, kw=w, pad=0: Darknet stores its weights as [k][c][h][w], too.
 *
 * transposed (Darknet's [deconvolutional]): input and output change places. The operations below
 * read an x of n x k x oh x ow and write a y of n x c x h x w, by the sums that are the data
 * gradient of the convolution, with the same weights; bias and statistics have c channels. dx has
 * x's shape and dy has y's. Fusions with another layer are for the convolution alone: backends
 * answer false if asked about them. */
struct ampk_conv_shape {
    int n, c, h, w;
    int k, kh, kw, stride, pad, groups;
    enum ampk_compute compute;
    bool forward_only; /* backward is never called: keep no weights and no gradient for it */
    bool biased;       /* conv_bias_forward will be called: reserve what it needs */
    bool transposed;
};

struct ampk_context; /* a backend's threads, streams, workspace */
struct ampk_conv;    /* one convolution: plans, rounded weights and their gradient in the backend's
                        own layout */
struct ampk_recording; /* recorded operations, to be run again */

/* Darknet has three variants of batch-norm, and the way it was built selects one. We follow the
 * build that we replace. x_hat = (x-mean) * forward factor.
 *                          forward factor            variance of a training batch
 *     Darknet on the CPU   1 / (sqrt(variance)+1e-6)   unbiased (count-1)
 *     Darknet on the GPU   1 / sqrt(variance+1e-5)     unbiased
 *     cuDNN                1 / sqrt(variance+1e-5)     biased (count)
 * The second is also that of AlexeyAB's Darknet on the CPU. All three add the unbiased variance to
 * the rolling one and normalize with the same forward factor at inference. All three differentiate
 * 1/sqrt(variance+1e-5) and the biased variance in backward. That is the true derivative of cuDNN's
 * variant only. */
enum ampk_bn_rule { AMPK_BN_DARKNET_CPU, AMPK_BN_DARKNET_GPU, AMPK_BN_CUDNN };

/* Statistics of a layer's values in a training pass; each array has c floats. The operation
 * overwrites mean and variance with those of this batch, and updates rolling = .99*rolling +
 * .01*batch for both. amax watches the rolling statistics, because an inf or NaN there would stay
 * for the rest of the training. */
struct ampk_bn_statistics {
    float *mean, *variance;
    float *rolling_mean, *rolling_variance;
    enum ampk_bn_rule rule;
    uint32_t *amax;
};

/* Other processes that run batch-norm of the same layer at the same time, over as many values each:
 * all of them together are the batch. mean replaces n floats, backend memory, by their means over
 * the processes, the same bits in each. By zeros it makes constants of the statistics. */
struct ampk_bn_peers {
    void (*mean)(void *user, float *x, size_t n);
    void *user;
};

/* Batch-norm of one layer. Each array has c floats, one per channel. */
struct ampk_batchnorm {
    const float *scale, *bias;    /* gamma, beta */
    const float *mean, *variance; /* of this batch in training, else the rolling ones */
    enum ampk_bn_rule rule;
    /* For backward; NULL: none. It goes on with the means over the processes of its sums of g and
     * of g * (y - mean): dy is then that of the whole batch, and so are dscale and dbias when the
     * processes' are added up. Nothing is recorded then, unless mean calls only the backend. */
    const struct ampk_bn_peers *peers;
};

/* The gradient that comes back to a layer with batch-norm and an activation of two slopes. With
 * argmax bn_act_pool_backward goes on, and d is the gradient at the maxima; else bn_act_backward.
 */
struct ampk_layer_gradient {
    const struct ampk_tensor *y; /* batch-norm's input */
    const struct ampk_batchnorm *bn;
    enum ampk_activation activation;
    const struct ampk_tensor *d;
    const void *argmax; /* NULL: none */
};

/* The gradient at the output of a convolution with bias and activation: factor * d. The gradient
 * of the bias goes to dbias, c floats. */
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
    float *update;     /* SGD, LARS: the momentum; for SGD it is Darknet's weight_updates */
    float *m, *v;      /* Adam, AdamW: its moments */
    float *average;    /* the moving average of value; NULL: none */
    const float *grad; /* the gradient of the rule times 1 / unscale */
    size_t n;
    float unscale;
    float rate, decay;
    float clip;   /* > 0: clamp value to +-clip */
    float *trust; /* one number, a factor on the rate (trust_ratios); NULL: 1 */
};

enum ampk_optimizer { AMPK_SGD, AMPK_LARS, AMPK_ADAM, AMPK_ADAMW };

/* How an update turns gradients into steps, the same for all arrays of a list. g is unscale * grad,
 * kept within +-limit; like Darknet's gradients it points downhill, so steps are added.
 *
 *   SGD    Darknet's update_convolutional_layer: update += g; update -= decay * value (if not 0);
 *          value += rate * update; update *= momentum. Without fused multiply-add, so that the
 *          bits are Darknet's. g is a sum over images, rate = lr / images, decay = wd * images.
 *   LARS   You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks",
 *          algorithm 1: update += rate * trust * (g - decay * value); value += update;
 *          update *= momentum
 *   Adam   Kingma, Ba 2015, "Adam", algorithm 1, as Darknet's adam_update_gpu has it, on
 *          g - decay * value
 *   AdamW  Loshchilov, Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2, as
 *          PyTorch has it: value += rate * trust * (Adam's direction of g - decay * value). With
 *          trust it is LAMB: You et al. 2020, "Large Batch Optimization for Deep Learning",
 *          algorithm 2
 *
 * Then value is clamped to +-clip, and average += average_rest * (value - average). */
struct ampk_rule {
    enum ampk_optimizer optimizer;
    float momentum;     /* SGD, LARS */
    float b1, b2, eps;  /* Adam, AdamW */
    int t;              /* their count of steps, from 1 */
    float limit;        /* 0: none */
    float average_rest; /* share of the new value in moving averages */
};

/* LARS's trust coefficient, as its authors chose it. */
#define AMPK_LARS_TRUST .001f

/* New master weights of a convolution, float [k][c/groups][kh][kw]. */
struct ampk_new_weights {
    struct ampk_conv *conv;
    const float *weights;
    uint32_t *amax;
};

/* The destination of a convolution's weight gradient: dst, float [k][c/groups][kh][kw]. dst NULL:
 * store nothing, only raise amax. */
struct ampk_weight_gradient {
    struct ampk_conv *conv;
    float *dst;
    uint32_t *amax;
};

/* What counts for the norm of a step's gradients beside a list of weight gradients: n others of the
 * same pass, FP32, 16-byte aligned. sums and others_sum: what will take these gradients times
 * factor, for the list's as the dst of another one; they are only read, and count as 0 unless
 * accumulate. NULL, both: the pass is the step's only one. */
struct ampk_gradient_squares {
    const float *others;
    size_t n; /* below 2^31 */
    const struct ampk_weight_gradient *sums;
    float *others_sum;
    float factor;
    bool accumulate;
    float *square;
};

/* A convolution's weights and their update. If param.grad is NULL, the gradient is the one that
 * the convolution keeps from its last backward, or 0 if unscale is 0. amax is that of the new
 * weights. */
struct ampk_weight_update {
    struct ampk_conv *conv;
    struct ampk_param param;
    uint32_t *amax;
};

/* 32-bit random numbers that depend on key and counter alone (philox.h). To get number i, add i /
 * 4 to the first word of the counter, mix the counter with the key, and take word i % 4 of the
 * result. */
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
 * A head's input, output and delta are dense FP32 NCHW of n images. truth is Darknet's net.truth,
 * in backend memory like every array here. The formulas are those of Darknet's GPU code.
 * Darknet's CPU code has the same formulas with errors: in region's softmax tree and backward, the
 * sign of a smooth L1 cost, wgan, and label smoothing. We differ from both in two ways: `spatial`
 * softmax is over the channels of each location, and a masked cost does not change its input.
 *
 * delta has Darknet's sign (downhill). It is the gradient at the head's INPUT, exactly what the
 * head's backward adds to its source's delta: it includes the derivative of region's logistics and
 * a cost's scale.
 *
 * Heads skip a truth whose centre is outside of the grid, and a class that does not exist. Darknet
 * would write outside of its arrays there. */

enum { AMPK_MOST_TRUTHS = 1000 }; /* per image; Darknet's yolo has room for 90, region for 30 */

/* A head's report of a pass: sums over the batch. yolo and region fill the first nine, the other
 * losses only cost. The counts are whole numbers. A yolo head with rules also fills the last two:
 * giou beside iou, and of the squares of delta those of the boxes' places and sizes. */
struct ampk_loss_sums {
    float cost;
    float iou, category, object, any_object, recall, recall75;
    float count, category_count;
    float giou, box_squares;
};

/* How a box is drawn to a truth: by the squared errors of its coordinates, or by the gradient of
 * how much the two overlap (yolo_box.h). */
enum ampk_box_loss { AMPK_BOX_MSE, AMPK_BOX_IOU, AMPK_BOX_GIOU, AMPK_BOX_DIOU, AMPK_BOX_CIOU };

/* The rules of AlexeyAB's Darknet for a yolo head's loss, CPU and GPU alike. A p is a class's
 * output, o objectness, m the multiplier of a truth's class (1 without multipliers); every delta
 * points downhill.
 *
 *   Every box is judged: delta of o is obj_normalizer * (0 - o), and 0 if the box overlaps a truth
 *   by more than ignore_thresh and the output of any of its classes is above .25. With
 *   objectness_smooth it is then what is larger, obj_normalizer * (overlap - o) or as before. A box
 *   that overlaps a truth by more than truth_thresh, if that is below 1, is drawn to it as below,
 *   o without m; with objectness_smooth o and the class go to the overlap's square instead of 1.
 *   Truths, in order: each goes to the box whose anchor fits its shape best, and to all others of
 *   the same cell whose anchors fit by more than iou_thresh. There delta of o becomes m *
 *   obj_normalizer * (1 - o), with objectness_smooth only if it is 0 or denormal; the box's delta
 *   grows by iou_normalizer * m * the gradient, each coordinate of an IoU kind within +-max_delta;
 *   and classes are drawn. If the truth's class has a delta already, from another truth, it alone
 *   is drawn again, to m * (1 - p).
 *   With iou_thresh below 1 a box's delta is in the end divided by the number of its classes whose
 *   delta is above 0.
 *
 * The cost of AMPK_BOX_MSE is the sum of the squares of delta. That of the others is iou_normalizer
 * times the mean of 1 - iou (AMPK_BOX_GIOU: 1 - giou) over the truths' boxes, plus obj_normalizer
 * times the squares of all deltas but those of places and sizes. A truth whose label is not below
 * `classes` before the map is skipped. Objectness that is not finite counts as 0 in an image with a
 * truth. */
struct ampk_yolo_rules {
    enum ampk_box_loss box_loss;
    enum ampk_box_loss iou_thresh_kind; /* MSE, DIOU: as IOU, since the centres are the same */
    float iou_thresh;                   /* 1 and above: off */
    float iou_normalizer, obj_normalizer;
    float cls_normalizer; /* on the truth's class, only together with multipliers */
    float max_delta;      /* FLT_MAX: off */
    float label_smooth_eps;
    bool focal_loss;
    bool objectness_smooth;
    const float *class_multipliers; /* [classes]; NULL: none */
};

/* The yolo head. Each cell of the grid has `boxes` boxes, each of 4 coordinates, objectness and
 * `classes` class scores, as channels of the input in that order. */
struct ampk_yolo_head {
    int boxes, anchors, classes;
    const float *anchor_sizes; /* 2 * anchors, in pixels of the network's input */
    const int *mask;           /* [boxes] the anchor of each box; NULL: box i has anchor i */
    const int *map;            /* [map_size] from a label's class to the head's class; NULL: none */
    int map_size;
    float ignore_thresh, truth_thresh;
    int net_w, net_h;
    int truths;      /* room of an image's truth, 5 floats each: x, y, w, h, class; x = 0 ends it */
    int truths_used; /* Darknet's max: the loss reads so many of them */
    /* The centre's output becomes scale_x_y * p - (scale_x_y - 1) / 2; 0 counts as 1. */
    float scale_x_y;
    /* The input has been through a logistic already, and a box's side is 4 * p^2 anchors. */
    bool new_coords;
    /* For the loss: NULL: Darknet's own rules, without new_coords. The struct lies in the host's
     * memory and is read before the operation returns. */
    const struct ampk_yolo_rules *rules;
};

/* A hierarchy of classes, as Darknet's tree; parent[i] < i, and -1 at the root. */
struct ampk_tree {
    int classes, groups; /* classes 0: no tree */
    const int *parent, *group, *group_offset, *group_size;
};

/* The region head. Each cell has `boxes` boxes, each of `coords` coordinates (4, then masks),
 * objectness and `classes` class scores. */
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

/* Softmax of x as n rows of c*h*w values: over each of `groups` equal parts of a row, over the
 * groups of a tree, or (spatial) over the channels of each location. */
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

/* If the reason of a failure contains this text, memory ran out. Callers then name the setting to
 * lower. */
#define AMPK_NO_MEMORY "out of memory"

/* Places in the order of operations between which time is taken. */
enum ampk_mark {
    AMPK_MARK_FORWARD,
    AMPK_MARK_FORWARD_DONE,
    AMPK_MARK_UPDATE,
    AMPK_MARK_UPDATE_DONE,
    AMPK_MARKS
};

struct ampk_backend {
    const char *name;
    /* True where a library stores the results of convolutions: their amax then costs another pass
     * over them. Do not ask for that amax where bn_act_forward can tell it (y_amax), or where a
     * later sum shows that something is not finite. */
    bool watching_costs;

    /* Whether this machine multiplies BF16 faster than FP32. NULL: not asked, the backend
     * multiplies FP16. */
    bool (*multiplies_bf16)(void);
    /* threads: 0 = all that OpenMP would use. */
    struct ampk_context *(*context_create)(int threads, char *err, size_t err_size);
    void (*context_destroy)(struct ampk_context *);

    /* Memory that operations can use: 64-byte aligned, contents undefined. NULL if none is left. */
    void *(*alloc)(struct ampk_context *, size_t bytes);
    void (*free)(struct ampk_context *, void *);
    /* Bytes that alloc could still give, 0 if unknown. The function is NULL if memory is the
     * host's. */
    size_t (*free_bytes)(struct ampk_context *);
    /* used: bytes that alloc has given and free has not taken back. reserved: of the device, all
     * that is taken, also by others: the caller's arrays, libraries, other programs. NULL as
     * free_bytes. */
    void (*memory)(struct ampk_context *, size_t *used, size_t *reserved);
    /* Times on the device. mark notes when all operations so far are done; marked_seconds waits for
     * a mark and the next one of the enum, and tells the seconds between them. NULL where
     * operations are done when they return. */
    void (*mark)(struct ampk_context *, enum ampk_mark);
    double (*marked_seconds)(struct ampk_context *, enum ampk_mark begin);
    /* Order our stream with the caller's own work on the device (Darknet: the default stream).
     * acquire: operations called from now on see what the caller started before. release: the
     * caller's later work sees our operations. */
    void (*acquire)(struct ampk_context *);
    void (*release)(struct ampk_context *);
    /* For a library that works on this memory by itself (NCCL). stream: that of the operations, a
     * cudaStream_t. beside: another one, the same at every call; what it gets from now on waits for
     * all operations so far, and operations go on beside it. NULL: there is none. done: 1 if all
     * that such a stream was given is done, 0 if not yet, -1 if something failed; it does not wait.
     * card: the name of this GPU among those of its host. All NULL, as free_bytes. */
    void *(*stream)(struct ampk_context *);
    void *(*beside)(struct ampk_context *);
    int (*done)(struct ampk_context *, void *stream);
    void (*card)(struct ampk_context *, char *name, size_t size);
    /* Between begin and end, operations are recorded instead of run. play runs all of them, with
     * the arguments they were recorded with. Recording serves devices where starting a short
     * operation takes longer than the operation itself. False or NULL: it failed this time and
     * nothing was run; callers ask again in the next pass. A backend that has given up returns
     * false from begin. The four functions are NULL in a backend that cannot record. */
    bool (*record_begin)(struct ampk_context *);
    struct ampk_recording *(*record_end)(struct ampk_context *);
    void (*record_play)(struct ampk_context *, struct ampk_recording *);
    void (*record_free)(struct ampk_context *, struct ampk_recording *);
    /* For profilers: what is called between begin and end, which may be nested, belongs to a layer
     * of a pass, or to the whole pass if layer is -1. The texts must live until begin returns. Both
     * are NULL in a backend that no profiler asks. */
    void (*range_begin)(struct ampk_context *, const char *pass, int layer, const char *type);
    void (*range_end)(struct ampk_context *);
    /* read waits for all operations, even when bytes is 0. */
    void (*read)(struct ampk_context *, void *host, const void *src, size_t bytes);
    void (*write)(struct ampk_context *, void *dst, const void *host, size_t bytes);
    void (*fill_zero)(struct ampk_context *, void *dst, size_t bytes);

    /* dst (+)= src, between any dtypes, layouts and slices. n and c*h*w are equal in both. If h*w
     * differ, both are read as flat arrays in NCHW order (c = c*h*w, h = w = 1). */
    void (*convert)(struct ampk_context *, const struct ampk_tensor *src,
                    const struct ampk_tensor *dst, bool accumulate, uint32_t *amax);

    /* ---- convolution and inner product ----
     * conv_create returns NULL with the reason in err; the reason contains AMPK_NO_MEMORY if
     * memory ran out. */
    struct ampk_conv *(*conv_create)(struct ampk_context *, const struct ampk_conv_shape *,
                                     char *err, size_t err_size);
    void (*conv_destroy)(struct ampk_context *, struct ampk_conv *);
    /* Bytes that conv_create takes for this shape, without work memory, which all convolutions
     * share. NULL: not known. */
    size_t (*conv_bytes)(const struct ampk_conv_shape *);
    /* Bytes of work memory that it takes for its weights and their gradient, about. NULL: none that
     * grows with the weights. */
    size_t (*conv_work_bytes)(const struct ampk_conv_shape *);
    /* Says why a convolution runs without Tensor Cores although its compute type is one of theirs.
     * The text is never freed. NULL: nothing to say; a backend may lack the function. */
    const char *(*conv_note)(const struct ampk_conv *);
    /* Gives every convolution of a list new weights. Call it after every change, before forward.
     * They stay where they are: a convolution may read them in each of its passes, and raise amax
     * only then. */
    void (*conv_set_weights)(struct ampk_context *, const struct ampk_new_weights *, int count);
    /* y = conv(x), NHWC, without activation. If statistics is not NULL, it gets the statistics of
     * y as bn_statistics computes them. */
    void (*conv_forward)(struct ampk_context *, struct ampk_conv *, const struct ampk_tensor *x,
                         const struct ampk_tensor *y, const struct ampk_bn_statistics *,
                         uint32_t *amax);
    /* y = activation(conv(x) + bias), with bias of k floats; y of any dtype and layout (detection
     * heads: FP32 NCHW). */
    void (*conv_bias_forward)(struct ampk_context *, struct ampk_conv *,
                              const struct ampk_tensor *x, const float *bias, enum ampk_activation,
                              const struct ampk_tensor *y, uint32_t *amax);
    /* dx (+)= dgrad(dy), NHWC. dx NULL: the caller does not want it. The convolution keeps
     * wgrad(x, dy) until its next backward with an x. x NULL: dx alone. dy is NHWC; the convolution
     * rounds it to the compute type first. */
    void (*conv_backward)(struct ampk_context *, struct ampk_conv *, const struct ampk_tensor *x,
                          const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                          bool accumulate, uint32_t *dx_amax);
    /* Whether conv_bn_backward takes such tensors. Ask once, after creation, with the tensors of
     * every later call; the function does not read their contents or bn. Both functions are NULL in
     * a backend without this fusion. */
    bool (*conv_takes_gradient)(struct ampk_context *, struct ampk_conv *,
                                const struct ampk_tensor *x, const struct ampk_layer_gradient *);
    /* Fused: the batch-norm backward that the gradient selects (struct ampk_layer_gradient), where
     * y is this convolution's output, then the weight gradient of conv_backward, without dx. Each
     * dy is rounded to y's type, but never stored. */
    void (*conv_bn_backward)(struct ampk_context *, struct ampk_conv *, const struct ampk_tensor *x,
                             const struct ampk_layer_gradient *, float *dscale, float *dbias,
                             uint32_t *dy_amax, uint32_t *db_amax);
    /* Fused: bias_act_backward of factor * d, then conv_backward of its dy. dy: memory that the
     * backend may use for that gradient. NULL in a backend without this fusion. */
    void (*conv_bias_backward)(struct ampk_context *, struct ampk_conv *,
                               const struct ampk_tensor *x, const struct ampk_bias_gradient *,
                               const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                               bool accumulate, uint32_t *dx_amax);
    /* From now on the convolution keeps its weight gradient there, float [k][c/groups][kh][kw], in
     * place of memory of its own. NULL in a backend whose layout is another. */
    void (*conv_keep_gradient)(struct ampk_context *, struct ampk_conv *, float *at);
    /* For every convolution of a list: dst (+)= factor * its weight gradient. amax is that of the
     * gradient before the factor; a value that 16 bits could not hold counts as inf. No dst
     * overlaps another. */
    void (*conv_weight_gradients)(struct ampk_context *, const struct ampk_weight_gradient *,
                                  int count, float factor, bool accumulate);
    /* Fused: conv_weight_gradients with factor 1, and *square = the sum of the squares, each in
     * FP32, of all gradients; where there are sums, of what the sums would become. With sums the
     * list stores nothing. Same bits every time. NULL in a backend that gains nothing by it. */
    void (*conv_gradient_squares)(struct ampk_context *, const struct ampk_weight_gradient *,
                                  int count, const struct ampk_gradient_squares *);
    /* Fused, for every convolution of a list: conv_weight_gradients, update and conv_set_weights,
     * with the same bits, in one pass over the weights. The caller has called conv_set_weights
     * before. No array overlaps another. NULL in a backend that gains nothing by it. */
    void (*conv_update)(struct ampk_context *, const struct ampk_rule *,
                        const struct ampk_weight_update *, int count);

    /* ---- batch-norm and activation ---- */
    /* Statistics of every channel of y (NHWC) over n, h and w, of y AS STORED. The sums are FP32,
     * of y - shift and its square. shift is the rolling mean from before this call: sums about a
     * value near the mean lose nothing to cancellation in the variance. */
    void (*bn_statistics)(struct ampk_context *, const struct ampk_tensor *y,
                          const struct ampk_bn_statistics *);
    /* out = activation(scale * x_hat(y) + bias) + add. add is a residual (NULL: none). add and out
     * have any dtype and layout; out may be a slice. y_amax is that of y as stored. */
    void (*bn_act_forward)(struct ampk_context *, const struct ampk_tensor *y,
                           const struct ampk_batchnorm *, enum ampk_activation,
                           const struct ampk_tensor *add, const struct ampk_tensor *out,
                           uint32_t *y_amax, uint32_t *amax);
    /* d: the gradient at out (any dtype and layout, perhaps a slice), and also at add if there was
     * one. dy: the gradient at y; it may alias d when dtype and layout agree and d is dense. dscale
     * and dbias: c floats, overwritten; db_amax watches both. If ampk_recomputes_input is true of
     * the activation, backward computes the activation's input again from y as forward did, does
     * not read out, and out may be NULL. For any other activation, backward takes the gradient at
     * out: the result of bn_act_forward on y with the same parameters and without add; it may be a
     * slice. */
    void (*bn_act_backward)(struct ampk_context *, const struct ampk_tensor *y,
                            const struct ampk_tensor *out, const struct ampk_batchnorm *,
                            enum ampk_activation, const struct ampk_tensor *d,
                            const struct ampk_tensor *dy, float *dscale, float *dbias,
                            uint32_t *dy_amax, uint32_t *db_amax);
    /* Fused: bn_act_forward of y to y's dtype, then maxpool_forward. amax is that of the result in
     * between. The activation has two slopes. Windows are 2 x 2 by 2 and begin at the corner:
     * out's h and w are half of y's, rounded either way. y, out, d and dy are dense NHWC of one
     * dtype; argmax has the format of maxpool_forward. */
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
     * rounding. out and d may be slices. */
    void (*bias_act_backward)(struct ampk_context *, const struct ampk_tensor *out,
                              enum ampk_activation, const struct ampk_tensor *d,
                              const struct ampk_tensor *dy, float *dbias, uint32_t *dy_amax,
                              uint32_t *db_amax);

    /* ---- layers without weights; x, y, dx, dy are NHWC of one dtype unless stated ---- */
    /* Darknet's maxpool: window i starts at i*stride - pad/2, and every value outside of x is
     * -FLT_MAX. The caller gives y's h and w. y and dy may be slices. argmax has a slot of one
     * byte or more for each output element; maxpool_index_bytes returns the bytes of all slots. */
    size_t (*maxpool_index_bytes)(const struct ampk_tensor *y, int size);
    void (*maxpool_forward)(struct ampk_context *, const struct ampk_tensor *x, int size,
                            int stride, int pad, const struct ampk_tensor *y, void *argmax);
    void (*maxpool_backward)(struct ampk_context *, const struct ampk_tensor *dy,
                             const void *argmax, int size, int stride, int pad,
                             const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);
    /* Nearest neighbour by an integer stride, times scale. reverse: y is the smaller tensor and
     * gets the sums of stride x stride cells. x and y may be slices. */
    void (*upsample)(struct ampk_context *, const struct ampk_tensor *x, int stride, float scale,
                     bool reverse, const struct ampk_tensor *y, bool accumulate, uint32_t *amax);
    /* out = activation(x + ...) as Darknet's shortcut_cpu. Where the smaller of the two shapes has
     * a cell, the sum is alpha*x + beta*add, sampled by integer strides; elsewhere it is x. add
     * may have another shape than x. */
    void (*shortcut_forward)(struct ampk_context *, const struct ampk_tensor *x,
                             const struct ampk_tensor *add, float alpha, float beta,
                             enum ampk_activation, const struct ampk_tensor *out, uint32_t *amax);
    /* g = d*activation'(out); dx (+)= alpha*g; dadd (+)= beta*g at the cells that forward read. As
     * in Darknet, dx gets alpha*g everywhere. Either of dx and dadd may be NULL. */
    void (*shortcut_backward)(struct ampk_context *, const struct ampk_tensor *out,
                              const struct ampk_tensor *d, float alpha, float beta,
                              enum ampk_activation, const struct ampk_tensor *dx,
                              bool dx_accumulate, const struct ampk_tensor *dadd,
                              bool dadd_accumulate, uint32_t *dx_amax, uint32_t *dadd_amax);
    /* Darknet's reorg_cpu or flatten on logical NCHW indices: a permutation of the elements of
     * each image. w, h, c and forward (0 or 1) are the arguments of reorg_cpu. src and dst may be
     * slices. */
    void (*reorg)(struct ampk_context *, const struct ampk_tensor *src, int w, int h, int c,
                  int stride, int forward, const struct ampk_tensor *dst, bool accumulate,
                  uint32_t *amax);
    void (*flatten)(struct ampk_context *, const struct ampk_tensor *src, int size, int layers,
                    int forward, const struct ampk_tensor *dst, bool accumulate, uint32_t *amax);
    /* Darknet's im2col: pixel (h, w) of y is what the window of side `size` there sees of x. y is
     * n x c*size*size x oh x ow; its channel (k*size + i)*size + j is channel k of x's pixel
     * (h*stride - pad + i, w*stride - pad + j), 0 outside of x. That is the order of a filter's
     * weights. y has x's dtype; both are dense. */
    void (*unfold)(struct ampk_context *, const struct ampk_tensor *x, int size, int stride,
                   int pad, const struct ampk_tensor *y);
    /* dx (+)= the gradient of unfold: each pixel gets the sum over the windows that see it. */
    void (*fold)(struct ampk_context *, const struct ampk_tensor *dy, int size, int stride, int pad,
                 const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);
    /* y is n x c x 1 x 1: the mean of each channel of an image. */
    void (*avgpool_forward)(struct ampk_context *, const struct ampk_tensor *x,
                            const struct ampk_tensor *y, uint32_t *amax);
    void (*avgpool_backward)(struct ampk_context *, const struct ampk_tensor *dy,
                             const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);
    /* y (+)= keep[i] ? scale*x : 0. keep has one byte per element, dense, in NCHW order of x.
     * Backward is the same call on the deltas. y may alias x when not accumulating. */
    void (*dropout)(struct ampk_context *, const struct ampk_tensor *x, const uint8_t *keep,
                    float scale, const struct ampk_tensor *y, bool accumulate, uint32_t *amax);
    /* Clips every element to [-limit, limit]; NaN stays. x is no slice. NULL in backends that run
     * on the host: Darknet clips on devices only. */
    void (*clip)(struct ampk_context *, const struct ampk_tensor *x, float limit);
    /* keep[i] = number i of the draw / 2^32 < probability ? 0 : 1, exactly. probability is in [0,
     * 1). n is at most 2^34, because the numbers repeat after that. */
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
    /* All copies of a list. No dst overlaps another array of the list. */
    void (*copy_many)(struct ampk_context *, const struct ampk_span *, int count);
    /* Updates every array of a list by the rule. */
    void (*update)(struct ampk_context *, const struct ampk_rule *, const struct ampk_param *,
                   int count);
    /* Writes the trust of every array that has one; call it before update. LARS: AMPK_LARS_TRUST *
     * |value| / (|g| + decay * |value|). AdamW (LAMB): |value| / |direction - decay * value|. 1 if
     * |value| or the divisor is 0. Norms are L2. Reads what update reads, and grad is not NULL. */
    void (*trust_ratios)(struct ampk_context *, const struct ampk_rule *, const struct ampk_param *,
                         int count);
    /* dst += rest * (src - dst) for every span of a list: moving averages. */
    void (*average_many)(struct ampk_context *, const struct ampk_span *, int count, float rest);

    /* ---- for the log ---- */
    /* Raises *amax as everywhere, and adds the number of zero elements to *zeros. x may be a
     * slice. */
    void (*inspect)(struct ampk_context *, const struct ampk_tensor *x, uint32_t *amax,
                    uint32_t *zeros);
    /* *sum = sum of the squares, each in FP32. (Where conv_gradient_squares is not NULL, only
     * gradients that other processes have added to need this.) */
    void (*sum_squares)(struct ampk_context *, const float *x, size_t n, float *sum);

    /* ---- losses ----
     * A function is NULL where Darknet's own code computes the loss. amax is that of out,
     * delta_amax that of delta. */
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
    /* delta = truth - out. The cost sums -log(out) where truth is not 0. masked: skip elements
     * where truth is AMPK_TRUTH_UNKNOWN. */
    void (*softmax_loss)(struct ampk_context *, const struct ampk_tensor *out, const float *truth,
                         bool masked, float *delta, struct ampk_loss_sums *, uint32_t *delta_amax);
    /* The same for a logistic output. The cost sums -t*log(p + 1e-7) - (1-t)*log(1-p + 1e-7). */
    void (*logistic_loss)(struct ampk_context *, const struct ampk_tensor *out, const float *truth,
                          float *delta, struct ampk_loss_sums *, uint32_t *delta_amax);
    /* out: the error of every element. The cost is their sum. */
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

/* Whether the activation is x where x > 0, else slope*x: a sign tells its gradient. */
static inline bool ampk_is_two_slopes(enum ampk_activation a)
{
    return a == AMPK_LINEAR || a == AMPK_LEAKY || a == AMPK_RELU || a == AMPK_RELIE;
}

/* Whether the gradient is a function of the activation's input. */
static inline bool ampk_is_gradient_of_input(enum ampk_activation a)
{
    return a == AMPK_MISH || a == AMPK_SWISH;
}

/* Whether bn_act_backward computes the activation's input again from batch-norm's, so that nothing
 * of the activation has to be kept for it. */
static inline bool ampk_recomputes_input(enum ampk_activation a)
{
    return ampk_is_two_slopes(a) || ampk_is_gradient_of_input(a);
}

/* Bytes of one element. */
static inline size_t ampk_dtype_bytes(enum ampk_dtype t)
{
    return t == AMPK_FP32 ? 4 : 2;
}

static inline const char *ampk_dtype_name(enum ampk_dtype t)
{
    return t == AMPK_FP16 ? "fp16" : t == AMPK_BF16 ? "bf16" : "fp32";
}

/* Elements from one pixel of an NHWC tensor to the next. */
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

/* Unsigned comparison works because inf and NaN have the largest bits of all magnitudes. */
static inline bool ampk_amax_is_finite(uint32_t amax)
{
    return amax < AMPK_INF_BITS;
}

#endif
