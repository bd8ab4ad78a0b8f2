/* What a cfg describes: every layer's type, shapes and sources, computed from the text alone.
 *
 * No Darknet, no allocation of weights or activations. Shapes follow the make_*_layer and parse_*
 * functions of Darknet. Counts are per image unless said. Sources are layer indices; -1 is the
 * network's input.
 */
#ifndef AMP_NET_DESC_H
#define AMP_NET_DESC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cfg_file.h"
#include "kernels/kernels.h"
#include "loss_desc.h"

/* Same order as Darknet's LAYER_TYPE. */
enum amp_layer_type {
    AMP_CONVOLUTIONAL,
    AMP_DECONVOLUTIONAL,
    AMP_CONNECTED,
    AMP_MAXPOOL,
    AMP_SOFTMAX,
    AMP_DETECTION,
    AMP_DROPOUT,
    AMP_CROP,
    AMP_ROUTE,
    AMP_COST,
    AMP_NORMALIZATION,
    AMP_AVGPOOL,
    AMP_LOCAL,
    AMP_SHORTCUT,
    AMP_ACTIVATION,
    AMP_RNN,
    AMP_GRU,
    AMP_LSTM,
    AMP_CRNN,
    AMP_BATCHNORM,
    AMP_NETWORK,
    AMP_XNOR,
    AMP_REGION,
    AMP_YOLO,
    AMP_ISEG,
    AMP_REORG,
    AMP_UPSAMPLE,
    AMP_LOGISTIC,
    AMP_L2NORM,
    AMP_BLANK
};

/* Boxes of an image that Darknet makes room for in net.truth, whatever max= says, and its defaults
 * of max= (make_region_layer, make_yolo_layer, parser.c). A [detection] has yolo's default. */
enum { AMP_REGION_TRUTHS = 30, AMP_YOLO_TRUTHS = 90 };

struct amp_layer_desc {
    enum amp_layer_type type;
    const char *type_name; /* as written in the cfg, with brackets; owned by the cfg */
    int line;              /* of the section in the cfg */
    int w, h, c, inputs;
    int out_w, out_h, out_c, outputs; /* out_w/h/c may be 0 where Darknet leaves no image shape */
    int n_sources, *sources;
    int filters, size, stride, pad, groups; /* pad: in cells, as Darknet's l.pad */
    bool batch_normalize, binary, xnor, reverse, flatten;
    enum ampk_activation activation;
    int extra;               /* reorg */
    int hidden;              /* crnn: hidden filters */
    float alpha, beta;       /* shortcut */
    float scale;             /* upsample */
    float probability;       /* dropout */
    bool noloss;             /* softmax */
    int classes, num, total; /* heads: boxes per cell, anchors */
    int coords, max_boxes, random;
    struct amp_loss_desc loss; /* of a layer that can have one, else zeros */
    bool truth;                /* its output is the truth of the layers after it */
    bool stopbackward, onlyforward, dontload, dontsave, dontloadscales;
    int numload;
    float learning_rate_scale;
    int override;        /* mixed_precision of this section: 1, 0, or -1 */
    size_t n_weights;    /* floats, nested layers included */
    double forward_flop; /* 2 per multiply-add, convolution and matrix products only */
};

struct amp_net_desc {
    const char *cfg_path;
    int n;
    struct amp_layer_desc *layers;
    int batch; /* images in one pass: Darknet's net->batch (cfg batch / subdivisions * time_steps)
                */
    int subdivisions, time_steps, max_batches, burn_in;
    int w, h, c, inputs;
    bool adam;
    float clip;
};

/* Refuses what Darknet would crash on or compute out of bounds: bad values (cfg_values.h), sizes,
 * windows, workspaces, and counts past 2^31. strict: also refuse what this Darknet would silently
 * replace by something else (unknown layer type or activation, `groups` on a route). w, h: 0 = from
 * the cfg, else as after resize_network(w, h). The cfg must outlive the result. NULL with
 * "file:line: ..." in err. */
struct amp_net_desc *amp_net_describe(const struct amp_cfg_file *, int w, int h, bool strict,
                                      char *err, size_t err_size);
void amp_net_desc_free(struct amp_net_desc *);

const char *amp_layer_type_name(enum amp_layer_type);
const char *amp_activation_name(enum ampk_activation); /* for tests */

/* True for layers whose own forward creates a delta: yolo, region, detection, cost, softmax with
 * loss, logistic, iseg. */
bool amp_layer_is_loss(const struct amp_layer_desc *);
/* Gives boxes: yolo, region, detection. */
bool amp_layer_is_head(const struct amp_layer_desc *);
/* A matrix product: convolutional or connected. */
bool amp_layer_is_matrix(const struct amp_layer_desc *);
/* Has a state from one time step to the next: rnn, gru, lstm, crnn. */
bool amp_layer_is_recurrent(const struct amp_layer_desc *);

#endif
