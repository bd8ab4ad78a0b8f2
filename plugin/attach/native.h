/* Runs layers with Darknet's own code, and lists what Darknet owns of every layer: master weights,
 * momentum, Adam moments, what moves from pass to pass, nested layers included. */
#ifndef AMP_NATIVE_H
#define AMP_NATIVE_H

#include "darknet.h"
#include "plugin/core/graph.h"

/* Darknet's own entries of one layer, as they were before attaching; of the side that computes. */
struct amp_saved {
    void (*forward)(layer, network);
    void (*backward)(layer, network);
    void (*update)(layer, update_args);
    float *delta;
    const void *identity; /* of a layer with an update: see amp_session_identity (sessions.h) */
    const float *weights; /* the master weights, NULL: none */
    size_t n_weights;
};

/* What Darknet owns of the network; free with amp_native_free_list. saved: per layer; NULL: it is
 * as it was parsed. device: Darknet computes on a GPU, and all pointers are to its memory. */
struct amp_owned amp_native_list(const network *net, const struct amp_saved *saved, bool device);
void amp_native_free_list(struct amp_owned *);

/* Allocates the arrays that the layer's CPU code uses in training, which Darknet makes for a GPU
 * only. free_layer frees them. */
void amp_native_complete(layer *);

/* Darknet's forward on a private copy of the layer. view: the network as the hook got it. */
void amp_native_forward(layer *l, const struct amp_saved *saved, bool device, network view,
                        float *input, bool train);
/* The same for backward, whose deltas are times scale; weight gradients land in the params' grad
 * instead of Darknet's momentum. */
void amp_native_backward(layer *l, const struct amp_saved *saved, bool device, network view,
                         float *input, float *delta, float scale, const struct amp_param *params,
                         int n_params);

/* The gradient that an LSTM carries into the backward of the next pass, and the one that an l2norm
 * on a device makes in forward, are kept unscaled, since the loss scale may be another by then:
 * times scale before a backward, divided by it after. */
void amp_native_scale_kept(layer *l, bool device, const struct ampk_backend *,
                           struct ampk_context *, float factor);

#endif
