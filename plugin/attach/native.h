/* Runs layers with Darknet's own code, and lists what Darknet owns of every layer, nested layers
 * included: master weights, momentum, Adam moments, and what moves from pass to pass. */
#ifndef AMP_NATIVE_H
#define AMP_NATIVE_H

#include "darknet.h"
#include "plugin/core/engine/graph.h"

/* Darknet's own entries of one layer before attaching. If a GPU computes, these are the entries
 * that end in _gpu. */
struct amp_saved {
    void (*forward)(layer, network);
    void (*backward)(layer, network);
    void (*update)(layer, update_args);
    float *delta;
    const void *identity; /* of a layer with an update: amp_session_identity */
    const float *weights; /* the master weights, NULL: none */
    size_t n_weights;
};

/* Lists what Darknet owns of the network; free with amp_native_free_list. saved: per layer; NULL:
 * the network is as it was parsed. device: Darknet computes on a GPU, and all pointers are to its
 * memory. */
struct amp_owned amp_native_list(const network *net, const struct amp_saved *saved, bool device);
void amp_native_free_list(struct amp_owned *);

/* The layers that hold the weights: l itself, or those nested in a recurrent one; returns how
 * many. */
enum { AMP_MOST_PARTS = AMP_MOST_MATRICES };
int amp_native_parts(layer *l, layer *parts[AMP_MOST_PARTS]);

/* Allocates arrays that the layer's CPU code uses in training but Darknet makes for a GPU only.
 * free_layer frees them. */
void amp_native_complete(layer *);

/* Darknet's forward on a private copy of the layer. view: the network as the hook got it. */
void amp_native_forward(layer *l, const struct amp_saved *saved, bool device, network view,
                        float *input, bool train);
/* Darknet's backward on a private copy. Deltas are times scale; weight gradients land in the
 * params' grad instead of Darknet's momentum. */
void amp_native_backward(layer *l, const struct amp_saved *saved, bool device, network view,
                         float *input, float *delta, float scale, const struct amp_param *params,
                         int n_params);

/* Multiplies gradients that Darknet keeps from one call to another: the one that an LSTM carries
 * into the backward of the next pass, and the one that an l2norm on a device makes in forward. They
 * are kept unscaled, since the loss scale may have changed by then. Call it with scale before a
 * backward, with 1 / scale after it. */
void amp_native_scale_kept(layer *l, bool device, const struct ampk_backend *,
                           struct ampk_context *, float factor);

#ifdef GPU
/* For constrain_gpu: the limit that keeps what Darknet's backward meant, with deltas times the loss
 * scale. */
float amp_native_limit(float limit);
#endif

#endif
