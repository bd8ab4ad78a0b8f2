/* Decides which of Darknet's device arrays stay without memory under a plan. It must not know how
 * memory is withheld (deferred.c). An array that is wrongly called unused is a crash in Darknet's
 * kernels, so everything that is not surely unused is committed. */

#include "device_arrays.h"

#include "backend.h"
#include "deferred.h"
#include "run.h"
#include "upload.h"

#include <stdio.h>
#include <stdlib.h>

/* Sizes of the weights of the network that this thread parses: arrays of these sizes are needed for
 * sure. Freed when deferring stops. */
static __thread size_t *weight_sizes;

void amp_session_defer(const struct amp_session *s)
{
    if (!s->options.mixed_precision || !amp_darknet_on_device()) return;
    weight_sizes = amp_allocate((size_t)s->desc->n, sizeof *weight_sizes);
    for (int i = 0; i < s->desc->n; i++)
        weight_sizes[i] = s->desc->layers[i].n_weights;
    amp_deferred_begin(s, weight_sizes, s->desc->n);
}

void amp_session_stop_deferring(void)
{
    amp_deferred_end();
    free(weight_sizes);
    weight_sizes = NULL;
}

/* Only these types of Darknet's use the network's workspace; ours have their own. */
static bool uses_workspace(const struct amp_session *s)
{
    for (int i = 0; i < s->net->n; i++) {
        LAYER_TYPE t = s->net->layers[i].type;
        if (!s->plan->layers[i].ours &&
            (t == CONVOLUTIONAL || t == DECONVOLUTIONAL || t == LOCAL || t == CRNN))
            return true;
    }
    return false;
}

/* Lists what no code touches while this plan runs, and commits the rest. Runs again with every
 * plan: a layer that leaves FP16 may go back to Darknet's code. */
void amp_session_commit(struct amp_session *s)
{
    enum { PER_LAYER = 6 };
    int n = 0;
    size_t short_of;
    char message[300];
    if (!s->device) return;
    void **unused = amp_allocate((size_t)s->net->n * PER_LAYER + 1, sizeof *unused);
    for (int i = 0; i < s->net->n; i++) {
        const layer *l = &s->net->layers[i];
        const struct amp_plan_layer *p = &s->plan->layers[i];
        if (!p->ours || l->type == DROPOUT)
            continue; /* Darknet's dropout has no arrays of its own: they are the layer's before */
        void *own[PER_LAYER] = {s->saved[i].delta, l->x_gpu,    l->x_norm_gpu,
                                l->indexes_gpu,    l->rand_gpu, l->output_gpu};
        bool border = p->out == AMP_FORMAT_BORDER || p->border_copy;
        /* output_gpu is last: a border's output is where Darknet reads it, so it is used. */
        for (int k = 0; k < PER_LAYER - border; k++)
            unused[n++] = own[k];
    }
    if (!uses_workspace(s)) unused[n++] = s->net->workspace;
    if (amp_deferred_commit(s, unused, n, &short_of)) {
        snprintf(
            message, sizeof message,
            "no device memory for %.1f MiB that Darknet's own layers need at %dx%d (%d images in a "
            "pass); lower batch or raise subdivisions",
            (double)short_of / (1 << 20), s->net->w, s->net->h, s->net->batch);
        amp_give_up(s, message);
    }
    free(unused);
}

void amp_session_pin(const struct amp_session *s)
{
    if (s->device) amp_upload_pin(s->net);
}

void amp_session_unpin(const struct amp_session *s)
{
    if (s->device) amp_upload_unpin(s->net);
}

/* Detached, Darknet uses every array. */
void amp_session_commit_all(const struct amp_session *s)
{
    size_t short_of;
    if (amp_deferred_commit(s, NULL, 0, &short_of))
        amp_fail("no device memory for the FP32 arrays that Darknet needs without the plugin");
}
