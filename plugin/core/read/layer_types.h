/* The sections of a cfg that are layers: their names and types. */
#ifndef AMP_LAYER_TYPES_H
#define AMP_LAYER_TYPES_H

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

#endif
