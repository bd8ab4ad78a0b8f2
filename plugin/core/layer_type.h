/* Types of layers and activations: their names in a cfg, and the properties that follow from a type
 * alone. */
#ifndef AMP_LAYER_TYPE_H
#define AMP_LAYER_TYPE_H

#include <stdbool.h>

#include "kernels/kernels.h"

struct amp_layer_desc;

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

const char *amp_layer_type_name(enum amp_layer_type);
/* name: with its brackets. AMP_BLANK: this Darknet has no such layer. */
enum amp_layer_type amp_layer_type_from_name(const char *name);
/* The layer that a misspelt name, with its brackets, was probably meant to be; without brackets.
 * NULL: none is near. */
const char *amp_layer_nearest_name(const char *name);
const char *amp_activation_name(enum ampk_activation); /* for tests */
/* False if this Darknet does not know the name. */
bool amp_activation_from_name(const char *name, enum ampk_activation *);

/* True for layers whose forward creates the delta that backward starts from: yolo, region,
 * detection, cost, softmax with loss, logistic, iseg. */
bool amp_layer_is_loss(const struct amp_layer_desc *);
/* A detection head, whose labels are boxes: yolo, region, detection. */
bool amp_layer_is_head(const struct amp_layer_desc *);
/* Computes a matrix product: convolutional or connected. */
bool amp_layer_is_matrix(const struct amp_layer_desc *);
/* Keeps state from one time step to the next: rnn, gru, lstm, crnn. */
bool amp_layer_is_recurrent(const struct amp_layer_desc *);

#endif
