/* Decides what to advise if memory does not hold a network: which batch and subdivisions fit, as
 * far as the free bytes are known. It must not know who asked for the memory, nor what it is for.
 */
#include "plan.h"

#include <stdio.h>

/* For messages only. */
static double mib(size_t bytes)
{
    return (double)bytes / (1 << 20);
}

static int largest_layer(const struct amp_net_desc *net)
{
    int largest = 0;
    for (int i = 1; i < net->n; i++)
        if (net->layers[i].outputs > net->layers[largest].outputs) largest = i;
    return largest;
}

/* Bytes that grow with the images of a pass: activations, and the losses' unscaled deltas. */
static size_t bytes_of_pass(const struct amp_net_desc *net, const struct amp_plan *plan)
{
    size_t bytes = plan->arena_bytes;
    for (int i = 0; i < net->n && plan->train; i++)
        if (plan->layers[i].loss)
            bytes += (size_t)net->batch * (size_t)net->layers[i].outputs * sizeof(float);
    return bytes;
}

/* Images of a pass that fit beside the gradients. Those take at most 4 bytes per weight twice: in
 * the convolutions, and where the update reads. */
static int images_that_fit(const struct amp_net_desc *net, const struct amp_plan *plan, size_t left)
{
    size_t gradients = 0;
    for (int i = 0; i < net->n; i++)
        gradients += net->layers[i].n_weights * 2 * sizeof(float);
    /* Inference has no gradients. */
    if (!plan->train) gradients = 0;
    if (left <= gradients) return 0;
    double share = (double)(left - gradients) / (double)bytes_of_pass(net, plan);
    return share < 1 ? (int)(share * net->batch) : net->batch;
}

/* The fewest subdivisions that divide the step evenly into passes of at most so many images. */
static int subdivisions_for(int images_of_step, int images_of_pass)
{
    int n = 1;
    while (images_of_step % n || images_of_step / n > images_of_pass)
        n++;
    return n;
}

static void advise(const struct amp_net_desc *net, int fit, char *text, size_t size)
{
    int all = net->batch * net->subdivisions;
    char enough[50];
    snprintf(enough, sizeof enough, "enough for %d", fit);
    if (fit >= net->batch) { /* the free memory is in pieces, or somebody else has taken it by now,
                                or work memory needs it */
        snprintf(enough, sizeof enough, "which is just too little");
        fit = net->batch - 1;
    }
    if (fit < 1)
        snprintf(text, size, "too little for one image; lower width and height");
    else if (net->subdivisions < 1 || net->time_steps > 1)
        snprintf(text, size, "%s; lower batch", enough);
    else
        snprintf(text, size, "%s; set batch=%d, subdivisions=%d", enough, all,
                 subdivisions_for(all, fit));
}

void amp_no_memory(const struct amp_net_desc *net, const struct amp_plan *plan, const char *what,
                   size_t left, char *err, size_t err_size)
{
    int i = largest_layer(net);
    const struct amp_layer_desc *l = &net->layers[i];
    char advice[200] = "lower batch or raise subdivisions";
    if (left) advise(net, images_that_fit(net, plan, left), advice, sizeof advice);
    int n = snprintf(err, err_size,
                     "no memory for %s (%d images of %dx%d in a pass, %.1f MiB of activations; the "
                     "largest output is that of layer %d (%s), %dx%dx%d): ",
                     what, net->batch, net->w, net->h, mib(plan->arena_bytes), i,
                     amp_layer_type_name(l->type), l->out_w, l->out_h, l->out_c);
    if (n < 0 || (size_t)n >= err_size) return;
    if (left)
        snprintf(err + n, err_size - (size_t)n, "%.1f MiB are free, %s", mib(left), advice);
    else
        snprintf(err + n, err_size - (size_t)n, "%s", advice);
}
