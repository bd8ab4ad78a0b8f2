/* Maps the names of sections to types of layers. It must not know what a layer is. */
#include "layer_types.h"

#include "text.h"

#include <stdio.h>
#include <string.h>

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
