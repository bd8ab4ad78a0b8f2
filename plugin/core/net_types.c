/* Maps names to types and says what follows from a type. It must not know which types have an
 * executor (layers.c) or how a cfg is read. */

#include <stdio.h>
#include <string.h>

#include "text.h"
#include "net.h"

/* Darknet takes long and short names. The long one comes first: amp_layer_type_name finds that
 * one. */
static const struct {
    const char *name;
    enum amp_layer_type type;
} type_names[] = {
    {"convolutional", AMP_CONVOLUTIONAL},
    {"conv", AMP_CONVOLUTIONAL},
    {"deconvolutional", AMP_DECONVOLUTIONAL},
    {"deconv", AMP_DECONVOLUTIONAL},
    {"connected", AMP_CONNECTED},
    {"conn", AMP_CONNECTED},
    {"maxpool", AMP_MAXPOOL},
    {"max", AMP_MAXPOOL},
    {"softmax", AMP_SOFTMAX},
    {"soft", AMP_SOFTMAX},
    {"detection", AMP_DETECTION},
    {"dropout", AMP_DROPOUT},
    {"crop", AMP_CROP},
    {"route", AMP_ROUTE},
    {"cost", AMP_COST},
    {"normalization", AMP_NORMALIZATION},
    {"lrn", AMP_NORMALIZATION},
    {"avgpool", AMP_AVGPOOL},
    {"avg", AMP_AVGPOOL},
    {"local", AMP_LOCAL},
    {"shortcut", AMP_SHORTCUT},
    {"activation", AMP_ACTIVATION},
    {"rnn", AMP_RNN},
    {"gru", AMP_GRU},
    {"lstm", AMP_LSTM},
    {"crnn", AMP_CRNN},
    {"batchnorm", AMP_BATCHNORM},
    {"region", AMP_REGION},
    {"yolo", AMP_YOLO},
    {"iseg", AMP_ISEG},
    {"reorg", AMP_REORG},
    {"upsample", AMP_UPSAMPLE},
    {"logistic", AMP_LOGISTIC},
    {"l2norm", AMP_L2NORM},
};
#define N_TYPE_NAMES (sizeof type_names / sizeof type_names[0])

/* In the order of enum ampk_activation. */
static const char *const activation_names[AMPK_ACTIVATIONS] = {
    "logistic", "relu", "relie", "linear", "ramp",    "tanh",  "plse",
    "leaky",    "elu",  "loggy", "stair",  "hardtan", "lhtan", "selu"};

enum amp_layer_type amp_layer_type_from_name(const char *name)
{
    /* Without the brackets. A shorter name wraps around, and matches no row. */
    size_t inside = strlen(name) - 2;
    for (size_t i = 0; name[0] == '[' && i < N_TYPE_NAMES; i++)
        if (strlen(type_names[i].name) == inside && !strncmp(name + 1, type_names[i].name, inside))
            return type_names[i].type;
    return AMP_BLANK;
}

const char *amp_layer_nearest_name(const char *name)
{
    char word[AMP_WORDS_FAR_APART];
    const char *known[N_TYPE_NAMES];
    for (size_t i = 0; i < N_TYPE_NAMES; i++)
        known[i] = type_names[i].name;
    snprintf(word, sizeof word, "%s", name + 1);
    word[strcspn(word, "]")] = '\0';
    return amp_nearest_word(word, known, N_TYPE_NAMES);
}

const char *amp_layer_type_name(enum amp_layer_type type)
{
    for (size_t i = 0; i < N_TYPE_NAMES; i++)
        if (type_names[i].type == type) return type_names[i].name;
    return "unknown";
}

const char *amp_activation_name(enum ampk_activation activation)
{
    return activation < AMPK_ACTIVATIONS ? activation_names[activation] : "unknown";
}

bool amp_activation_from_name(const char *name, enum ampk_activation *activation)
{
    for (int i = 0; i < AMPK_ACTIVATIONS; i++) {
        if (strcmp(name, activation_names[i])) continue;
        *activation = (enum ampk_activation)i;
        return true;
    }
    return false;
}

const char *amp_activation_nearest_name(const char *name)
{
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

int amp_net_check_shared(const struct amp_net_desc *net, char *err, size_t err_size)
{
    for (int i = 0; i < net->n; i++) {
        if (!amp_layer_is_recurrent(&net->layers[i])) continue;
        snprintf(err, err_size,
                 "%s: layer %d (%s) hands its state from one pass to the next; several processes "
                 "cannot train that: start it without mpirun or srun",
                 net->cfg_path, i, amp_layer_type_name(net->layers[i].type));
        return -1;
    }
    return 0;
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
