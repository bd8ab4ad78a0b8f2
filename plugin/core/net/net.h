/* The description of a net: every layer's type, shapes and sources, computed from the cfg's text
 * alone.
 *
 * No Darknet, no allocation of weights or activations. Shapes follow the make_*_layer and parse_*
 * functions of Darknet. Counts are per image unless said otherwise. Sources are layer indices; -1
 * is the network's input. */
#ifndef AMP_NET_H
#define AMP_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/core/read/cfg.h"
#include "plugin/core/read/complaints.h"
#include "plugin/core/read/key_table.h"
#include "kernels/kernels.h"

/* ---- activations ---- */

const char *amp_activation_name(enum ampk_activation); /* for tests */
/* False if this Darknet does not know the name. */
bool amp_activation_from_name(const char *name, enum amp_dialect, enum ampk_activation *);
/* The one that a misspelt name was probably meant to be; NULL: none is near. */
const char *amp_activation_nearest_name(const char *name);

/* ---- losses ---- */

/* In the order of the words of iou_loss= and nms_kind=. */
enum amp_box_loss { AMP_BOX_MSE, AMP_BOX_IOU, AMP_BOX_GIOU, AMP_BOX_DIOU, AMP_BOX_CIOU };
enum amp_box_nms { AMP_BOX_NMS_DEFAULT, AMP_BOX_NMS_GREEDY, AMP_BOX_NMS_DIOU };

/* What the two Darknets do differently in a [yolo] head, as numbers. Stock's are those in brackets:
 * it does not read the keys. */
struct amp_yolo_desc {
    bool own_rules;             /* the loss follows these numbers; false: stock's own rules */
    enum amp_box_loss box_loss; /* (mse) */
    float iou_normalizer, obj_normalizer; /* factors of box and objectness deltas (1) */
    float cls_normalizer;                 /* of classes with multipliers (1) */
    float max_delta;                      /* limit of a box delta and of multipliers (0: none) */
    float iou_thresh; /* a truth's other anchors are trained above this shape IoU (1: none are) */
    enum amp_box_loss iou_thresh_kind; /* (iou) */
    float scale_x_y;                   /* x, y are s x - (s - 1) / 2 (1) */
    bool new_coords;           /* the layer before has applied the logistic function (false) */
    float label_smooth_eps;    /* (0) */
    bool focal_loss;           /* (false) */
    bool objectness_smooth;    /* (false) */
    float *class_multipliers;  /* of each class (NULL) */
    enum amp_box_nms nms_kind; /* (default) */
    float beta_nms;
    /* How images are loaded; the last head's count. */
    float jitter, resize, random;
};

struct amp_loss_desc {
    struct amp_yolo_desc yolo;

    /* yolo, region */
    int n_anchors;       /* anchors; 2 numbers each */
    float *anchor_sizes; /* .5 for those that the cfg lacks */
    int *mask;           /* yolo: the anchor of each box; NULL: box i has anchor i */
    const char *map;     /* file that maps a label's class to the head's; NULL: none */
    bool softmax, background, bias_match, rescore;
    float ignore_thresh, truth_thresh, thresh;
    float coord_scale, object_scale, noobject_scale, class_scale;
    int mask_scale;

    const char *tree; /* file with a class tree, of region and softmax; NULL: none */

    /* softmax */
    int groups;
    bool spatial;
    float temperature;

    struct ampk_cost cost;
};

/* ---- layers and the net ---- */

/* Labels of an image that stock makes room for in net.truth, whatever max= says
 * (make_region_layer, make_yolo_layer). A [detection] has yolo's. */
enum { AMP_REGION_TRUTHS = 30, AMP_YOLO_TRUTHS = 90 };
enum { AMP_LABEL_FLOATS = 5 }; /* x, y, w, h, class */

struct amp_layer_desc {
    enum amp_layer_type type;
    const char *type_name; /* as written in the cfg, with brackets; owned by the cfg */
    int line;              /* of the section in the cfg */
    int w, h, c, inputs;
    int out_w, out_h, out_c, outputs; /* out_w/h/c are 0 if Darknet leaves no image shape */
    int n_sources, *sources;
    int filters, size, stride, pad, groups; /* pad: in cells, as Darknet's l.pad */
    int group_id; /* route: the part of each source that it reads, of `groups` */
    bool batch_normalize, binary, xnor, reverse, flatten;
    bool smooth; /* convolutional: on a GPU Darknet adds a term to the delta that smooths the output
                  */
    enum ampk_activation activation;
    int extra;               /* reorg */
    int hidden;              /* crnn: hidden filters */
    float alpha, beta;       /* shortcut */
    float scale;             /* upsample */
    float probability;       /* dropout */
    bool noloss;             /* softmax */
    int classes, num, total; /* heads: boxes per cell, anchors */
    int coords, max_boxes, random;
    int truths;                /* labels of an image that its Darknet has room for */
    struct amp_loss_desc loss; /* zeros if the layer cannot have a loss */
    bool truth;                /* the layers after it take its output as their truth */
    bool stopbackward, onlyforward, dontload, dontsave, dontloadscales;
    int stop_until; /* backward ends here in so many first iterations */
    int numload;
    float learning_rate_scale;
    int override;        /* mixed_precision of this section: 1, 0, or -1 */
    bool freeze;         /* its parameters and statistics never change */
    bool recompute;      /* backward computes its tensors again */
    size_t n_weights;    /* floats, nested layers included */
    double forward_flop; /* 2 per multiply-add, convolution and matrix products only */
};

/* True for layers whose forward creates the delta that backward starts from: yolo, region,
 * detection, cost, softmax with loss, logistic, iseg. */
bool amp_layer_is_loss(const struct amp_layer_desc *);
/* A detection head, whose labels are boxes: yolo, region, detection. */
bool amp_layer_is_head(const struct amp_layer_desc *);
/* Computes a matrix product that executors make a convolution of: convolutional, deconvolutional,
 * local or connected. */
bool amp_layer_is_matrix(const struct amp_layer_desc *);
/* Its weights are trained where backward comes to it. */
bool amp_layer_learns(const struct amp_layer_desc *);
/* Keeps state from one time step to the next: rnn, gru, lstm, crnn. */
bool amp_layer_is_recurrent(const struct amp_layer_desc *);

/* A matrix inside a recurrent layer. */
struct amp_matrix {
    int inputs, outputs; /* crnn: channels of a 3x3 convolution */
    bool reads_input;    /* the layer's input; else a state */
};
enum { AMP_MOST_MATRICES = 8 };
/* Lists the matrices of a recurrent layer in the order of its parameters (attach/native.c) and
 * returns how many; 0 for any other layer. */
int amp_layer_matrices(const struct amp_layer_desc *, struct amp_matrix list[AMP_MOST_MATRICES]);

/* Floats of its weights, biases and scales, and of its running statistics, nested layers
 * included. */
size_t amp_layer_parameters(const struct amp_layer_desc *);
size_t amp_layer_statistics(const struct amp_layer_desc *);

struct amp_net_desc {
    const char *cfg_path;
    int n;
    struct amp_layer_desc *layers;
    int batch; /* images in one pass: Darknet's net->batch (cfg batch / subdivisions * time_steps)
                */
    int subdivisions, time_steps, max_batches, burn_in;
    bool auto_subdivisions; /* the cfg has subdivisions=auto: one image in a pass, until
                               amp_need_settle (need.h) finds what fits */
    int w, h, c, inputs;
    bool adam;
    float clip;
    enum amp_dialect dialect;   /* whose rules the numbers follow */
    const char *dialect_reason; /* why not stock's; owned by the cfg */
    bool bn_under_root; /* batch-norm divides by sqrt(variance + 1e-5) on every device; false: as
                           stock's build does (kernels.h, ampk_bn_rule) */
    /* How a detector's images are loaded. */
    bool flip, letter_box, mosaic, mosaic_bound;
    int mixup;                         /* the fork's number for the way to mix */
    int drawn_step;                    /* random=: sizes are multiples of this */
    int drawn_least[2], drawn_most[2]; /* the least and the largest width and height */
};

/* Describes the net of a cfg. Refuses whatever Darknet would crash on or compute out of bounds: bad
 * values (cfg_checks.h), sizes, windows, workspaces, and counts past 2^31. strict: also refuses
 * whatever this Darknet would silently replace (an unknown layer type or activation, `groups` on a
 * route). The cfg's dialect (dialect.h) says whose defaults and layers hold. w, h: 0 = from the
 * cfg, else as after resize_network(w, h). The cfg must outlive the result. NULL with "file:line:
 * ..." in err. */
struct amp_net_desc *amp_net_describe(const struct amp_cfg_file *, int w, int h, bool strict,
                                      char *err, size_t err_size);
void amp_net_desc_free(struct amp_net_desc *);
/* Of the last layer that is no [cost], as Darknet's net->outputs. */
int amp_net_outputs(const struct amp_net_desc *);
/* Whether it ends in a [yolo] of the fork's rules, which decides how images are loaded. */
bool amp_net_has_forks_head(const struct amp_net_desc *);
/* Whether a detector's pictures are stretched to the network's size, where stock keeps their
 * aspect. */
bool amp_net_stretches(const struct amp_net_desc *);
/* Sizes that random= of the last layer draws: the next after *w and *h, which begin with 0. False
 * behind the largest; also if none are drawn. */
bool amp_net_next_size(const struct amp_net_desc *, int *w, int *h);
/* 0, or -1 and err names a key of the other Darknets that can be planned, but not trained. */
int amp_net_check_dialect(const struct amp_cfg_file *, const struct amp_net_desc *, char *err,
                          size_t err_size);
/* Where backward ends in this iteration, counted from 0, by keys that hold for the first ones only:
 * sets stopbackward of layers. True if that has changed. */
bool amp_net_stop(struct amp_net_desc *, size_t iteration);
/* Writes the members of an object: what inference computes, from which weights. bn_under_root: as
 * the description has it, or the device asks for it. */
struct amp_json;
void amp_net_write_json(const struct amp_net_desc *, const struct amp_cfg_file *,
                        bool bn_under_root, struct amp_json *);

/* ---- a layer as the convolution that executors and libraries make of it ---- */

struct amp_image_shape {
    int c, h, w;
};

/* Shape of layer i's output (-1: of the network's input); {values, 1, 1} if Darknet leaves no image
 * shape. */
struct amp_image_shape amp_output_shape(const struct amp_net_desc *, int i);

/* Layer i, a matrix layer (amp_layer_is_matrix), as a convolution over a pass's batch. The window
 * of a connected layer is the whole image that it reads; a [deconvolutional] is transposed. Of a
 * [local] the batch is one image, whose pixels are the batch's images. Each place is a group: its
 * channels are what its window sees (kernels.h, unfold), so the weights are Darknet's. The caller
 * sets compute, forward_only and biased. */
struct ampk_conv_shape amp_conv_shape(const struct amp_net_desc *, int i);

/* ==== for the files that describe a cfg ==== */
/* net.c over net_layers.c over net_shapes.c over net_losses.c; net_dialect.c beside them. */

#define AMP_MAX_ELEMENTS INT32_MAX
/* The largest size, count or stride. */
#define AMP_MAX_INTEGER 1000000

/* State that goes from layer to layer, as in Darknet's parse_network_cfg. */
struct describer {
    struct amp_complaints complaints;
    const struct amp_cfg_section *section;
    enum amp_layer_type type; /* of the section */
    struct amp_net_desc *net;
    int index, w, h, c, inputs;
    bool strict;
    bool sizes_differ; /* a [route] joins images of different sizes, which is the fault */
};

/* What the section says, or the default of the cfg's dialect. */
static inline int amp_desc_int(const struct describer *d, const char *key)
{
    return amp_key_int(d->section, d->type, d->net->dialect, key);
}

static inline float amp_desc_float(const struct describer *d, const char *key)
{
    return (float)amp_key_float(d->section, d->type, d->net->dialect, key);
}

static inline const char *amp_desc_string(const struct describer *d, const char *key)
{
    return amp_key_string(d->section, d->type, d->net->dialect, key);
}

/* ---- net_losses.c ---- */

/* *out = a * b * c; -1 if a factor is below 0 or the product too large. */
int amp_desc_product(struct describer *, int64_t a, int64_t b, int64_t c, int *out);
/* Refuses absurd sizes, counts and strides with -1, before anything is computed from them. */
int amp_desc_check_integers(struct describer *);

/* Describes a [yolo], [region], [detection] or [iseg]. */
int amp_describe_head(struct describer *, struct amp_layer_desc *);
/* Fills l->loss of a layer that has a loss. */
int amp_describe_loss(struct describer *, struct amp_layer_desc *);
void amp_loss_desc_free(struct amp_loss_desc *);

/* ---- net_dialect.c: what follows from the rules of either Darknet ---- */

/* 0 if the key's value is positive, else -1. */
int amp_desc_positive(struct describer *, const char *key, int value);

/* Fills l->loss.yolo. */
int amp_describe_yolo(struct describer *, struct amp_layer_desc *);
/* How images are loaded, from [net]. */
int amp_describe_loading(struct describer *);
/* What can be said when all layers are described: rooms for labels, drawn sizes, layers that
 * stopbackward=1 freezes. */
void amp_describe_whole(struct describer *);
/* Says why an activation or a layer of the fork's is refused; always -1. */
int amp_fail_fork_activation(struct describer *, const char *name);
int amp_fail_fork_layer(struct describer *, const char *lost);

/* ---- net_shapes.c ---- */

/* Reads activation=. */
int amp_desc_activation(struct describer *, struct amp_layer_desc *);
/* Sets the output's shape; -1 if it would be empty or too large. */
int amp_desc_output(struct describer *, struct amp_layer_desc *, int64_t w, int64_t h, int64_t c);
/* -1 if the layer before gives no image. */
int amp_desc_need_image(struct describer *);
/* Describes a layer without weights. */
int amp_describe_shape(struct describer *, struct amp_layer_desc *);

/* ---- net_layers.c ---- */

/* Describes the layer of d->section; the layers before it must be described already. */
int amp_describe_layer(struct describer *, struct amp_layer_desc *);

#endif
