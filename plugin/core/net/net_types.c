/* Maps names to activations and says what follows from a layer's type. It must not know which types
 * have an executor (layers.c) or how a cfg is read. */

#include <string.h>
#include <strings.h>

#include "plugin/core/read/text.h"
#include "net.h"

/* In the order of enum ampk_activation. */
static const char *const activation_names[AMPK_ACTIVATIONS] = {
    "logistic", "relu",  "relie", "linear",  "ramp",  "tanh", "plse", "leaky",
    "elu",      "loggy", "stair", "hardtan", "lhtan", "selu", "mish", "swish"};

const char *amp_activation_name(enum ampk_activation activation)
{
    return activation < AMPK_ACTIVATIONS ? activation_names[activation] : "unknown";
}

bool amp_activation_from_name(const char *name, enum amp_dialect dialect,
                              enum ampk_activation *activation)
{
    int known = dialect == AMP_DIALECT_STOCK ? AMPK_STOCK_ACTIVATIONS : AMPK_ACTIVATIONS;
    for (int i = 0; i < known; i++) {
        if (strcmp(name, activation_names[i])) continue;
        *activation = (enum ampk_activation)i;
        return true;
    }
    return false;
}

const char *amp_activation_nearest_name(const char *name)
{
    if (!strcasecmp(name, "SiLU")) return "swish"; /* as PyTorch calls it; selu is another */
    return amp_nearest_word(name, activation_names, AMPK_ACTIVATIONS);
}

bool amp_layer_is_matrix(const struct amp_layer_desc *l)
{
    return l->type == AMP_CONVOLUTIONAL || l->type == AMP_DECONVOLUTIONAL || l->type == AMP_LOCAL ||
           l->type == AMP_CONNECTED;
}

bool amp_layer_learns(const struct amp_layer_desc *l)
{
    return l->n_weights && !l->freeze;
}

bool amp_layer_is_recurrent(const struct amp_layer_desc *l)
{
    return l->type == AMP_RNN || l->type == AMP_GRU || l->type == AMP_LSTM || l->type == AMP_CRNN;
}

bool amp_layer_is_loss(const struct amp_layer_desc *l)
{
    switch (l->type) {
    case AMP_YOLO:
    case AMP_REGION:
    case AMP_DETECTION:
    case AMP_COST:
    case AMP_LOGISTIC:
    case AMP_ISEG:
        return true;
    case AMP_SOFTMAX:
        return !l->noloss;
    default:
        return false;
    }
}

bool amp_layer_is_head(const struct amp_layer_desc *l)
{
    return l->type == AMP_YOLO || l->type == AMP_REGION || l->type == AMP_DETECTION;
}

/* Layers inside that have biases of their own. */
static size_t nested_layers(const struct amp_layer_desc *l)
{
    switch (l->type) {
    case AMP_RNN:
    case AMP_CRNN:
        return 3;
    case AMP_GRU:
        return 6;
    case AMP_LSTM:
        return 8;
    default:
        return 1;
    }
}

int amp_layer_matrices(const struct amp_layer_desc *l, struct amp_matrix list[AMP_MOST_MATRICES])
{
    if (!amp_layer_is_recurrent(l)) return 0;
    bool images = l->type == AMP_CRNN, three = images || l->type == AMP_RNN;
    int n = (int)nested_layers(l), state = images ? l->hidden : l->outputs;
    for (int k = 0; k < n; k++) {
        /* rnn, crnn: input, self, output. gru, lstm: for each gate one of the input, one of the
         * state. */
        bool reads_input = three ? k == 0 : k % 2 == 0;
        list[k] =
            (struct amp_matrix){.inputs = state, .outputs = state, .reads_input = reads_input};
        if (reads_input) list[k].inputs = images ? l->c : l->inputs;
        if (images && k == n - 1) list[k].outputs = l->filters;
    }
    return n;
}

static size_t biases(const struct amp_layer_desc *l)
{
    bool by_filters = l->type == AMP_CONVOLUTIONAL || l->type == AMP_DECONVOLUTIONAL;
    return nested_layers(l) * (size_t)(by_filters ? l->filters : l->outputs);
}

size_t amp_layer_parameters(const struct amp_layer_desc *l)
{
    if (!l->n_weights) return 0;
    return l->n_weights + biases(l) * (l->batch_normalize ? 2 : 1);
}

size_t amp_layer_statistics(const struct amp_layer_desc *l)
{
    if (l->type == AMP_BATCHNORM) return 2 * (size_t)l->out_c;
    return l->n_weights && l->batch_normalize ? 2 * biases(l) : 0;
}
