/* Decides what the twin is, the second network that is measured while the first one trains, and
 * which weights it is given. It must not know when it is measured (evaluation.c). */
#include "evaluation.h"

#include <stdio.h>
#include <string.h>

#include "amp_observe.h"
#include "network.h"

#include "plugin/core/read/cfg.h"

#ifdef GPU
#include "batchnorm_layer.h"
#include "connected_layer.h"
#include "convolutional_layer.h"
#include "local_layer.h"
#endif

/* A layer without such an array (NULL on either side) has nothing to copy. */
static void copy(float *to, const float *from, int n)
{
    if (to && from) memcpy(to, from, (size_t)n * sizeof *to);
}

static void copy_normalization(layer *to, const layer *from, int channels)
{
    if (!from->batch_normalize && from->type != BATCHNORM) return;
    copy(to->scales, from->scales, channels);
    copy(to->rolling_mean, from->rolling_mean, channels);
    copy(to->rolling_variance, from->rolling_variance, channels);
}

static bool copy_layer(layer *to, const layer *from)
{
    switch (from->type) {
    case CONVOLUTIONAL:
    case DECONVOLUTIONAL:
        copy(to->weights, from->weights, from->nweights);
        copy(to->biases, from->biases, from->n);
        copy_normalization(to, from, from->n);
        return true;
    case CONNECTED:
        copy(to->weights, from->weights, from->outputs * from->inputs);
        copy(to->biases, from->biases, from->outputs);
        copy_normalization(to, from, from->outputs);
        return true;
    case BATCHNORM:
        copy_normalization(to, from, from->c);
        return true;
    case LOCAL:
        copy(to->weights, from->weights,
             from->out_w * from->out_h * from->size * from->size * from->c * from->n);
        copy(to->biases, from->biases, from->outputs);
        return true;
    case RNN:
    case GRU:
    case LSTM:
    case CRNN:
        return false;
    default:
        return true; /* no weights */
    }
}

#ifdef GPU
/* On a GPU the host arrays may be old, so weights are pulled before the copy and pushed after
 * it. */
static void pull(layer l)
{
    if (l.type == CONVOLUTIONAL || l.type == DECONVOLUTIONAL) pull_convolutional_layer(l);
    if (l.type == CONNECTED) pull_connected_layer(l);
    if (l.type == BATCHNORM) pull_batchnorm_layer(l);
    if (l.type == LOCAL) pull_local_layer(l);
}

static void push(layer l)
{
    if (l.type == CONVOLUTIONAL || l.type == DECONVOLUTIONAL) push_convolutional_layer(l);
    if (l.type == CONNECTED) push_connected_layer(l);
    if (l.type == BATCHNORM) push_batchnorm_layer(l);
    if (l.type == LOCAL) push_local_layer(l);
}
#else
static void pull(layer l)
{
    (void)l;
}

static void push(layer l)
{
    (void)l;
}
#endif

void amp_twin_take_weights(network *twin, network *from)
{
    amp_follow_dtype(twin, from);
    for (int i = 0; i < from->n; i++) {
        if (gpu_index >= 0) pull(from->layers[i]);
        copy_layer(&twin->layers[i], &from->layers[i]);
        if (gpu_index >= 0) push(twin->layers[i]);
    }
    amp_weights_written(twin);
}

/* Copies each layer to itself: true for every type that copy_layer knows. */
static int check_layers(network *net, char *err, size_t err_size)
{
    for (int i = 0; i < net->n; i++) {
        layer l = net->layers[i], same = l;
        if (copy_layer(&same, &l)) continue;
        snprintf(err, err_size,
                 "layer %d (%s): nets with recurrent layers are not evaluated while "
                 "they train",
                 i, get_layer_string(l.type));
        return -1;
    }
    return 0;
}

int amp_twin_create(const char *cfg_path, network **twin, char *err, size_t err_size)
{
    /* One image at a time; no seed, so that the twin draws nothing from the training's streams; no
     * log, so that only training writes one; no amp_sync_bn, which has a say in subdivisions. */
    static const struct amp_cfg_key keys[] = {
        {"batch", "1", 0},          {"subdivisions", "1", 0}, {"time_steps", "1", 0},
        {"seed", NULL, 0},          {"amp_log", NULL, 0},     {"amp_log_layers", NULL, 0},
        {"amp_log_noise", NULL, 0}, {"amp_sync_bn", NULL, 0}};
    struct amp_cfg_variant variant;
    struct amp_cfg_file *cfg = amp_cfg_read(cfg_path, err, err_size);
    *twin = NULL;
    if (cfg &&
        !amp_cfg_variant_open(&variant, cfg, keys, sizeof keys / sizeof *keys, err, err_size)) {
        *twin = parse_network_cfg(variant.path);
        amp_cfg_variant_close(&variant);
    }
    amp_cfg_free(cfg);
    return *twin ? check_layers(*twin, err, err_size) : -1;
}
