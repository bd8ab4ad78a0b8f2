/* Decides when an iteration begins and ends, as seen from outside, and refuses batches that the
 * network has no room for. It must not know how a batch is loaded (batches.c).
 *
 * A training loop, which is Darknet's own, trains on a batch (train_network), prints, saves, and
 * frees the batch (free_data). Only the last of these comes after the save, so it is the end. */

#include "iterations.h"

#include "amp.h"
#include "plugin/attach/fail.h"

#include <stdio.h>

static struct {
    amp_iteration_function *call;
    void *user;
} listener;

static _Thread_local const network *training;
static _Thread_local struct {
    network *net; /* NULL: nothing was trained since */
    float loss;
} trained;

void amp_on_iteration(amp_iteration_function *call, void *user)
{
    listener.call = call;
    listener.user = user;
}

/* Darknet copies what was loaded into the network's arrays by the loaded sizes, whatever room there
 * is: too many numbers overrun the heap, too few train on what lay there before. */
static void check_sizes(const network *net, data d)
{
    char message[400];
    if (d.X.cols != net->inputs) {
        snprintf(message, sizeof message,
                 "each loaded image has %d numbers, the network reads %d (width=%d, height=%d, "
                 "channels=%d): nothing is trained. Darknet loads images of 3 channels, a "
                 "classifier's as squares of `width`: change width, height or channels",
                 d.X.cols, net->inputs, net->w, net->h, net->c);
        amp_fail(message);
    }
    if (d.y.cols != net->truths) {
        snprintf(message, sizeof message,
                 "the truths of each loaded image are %d numbers, the network's last layer takes "
                 "%d: nothing is trained. Of a classifier, `classes` of the data file and the "
                 "outputs of the last layer must be the same",
                 d.y.cols, net->truths);
        amp_fail(message);
    }
}

void amp_iteration_begins(const network *net, data d)
{
    check_sizes(net, d);
    training = net;
}

const network *amp_iteration_trains(void)
{
    return training;
}

void amp_iteration_trained(network *net, float loss)
{
    training = NULL;
    trained.net = net;
    trained.loss = loss;
}

bool amp_iteration_is_trained(void)
{
    return trained.net;
}

/* Cleared before the call: the listener may free batches of its own. */
bool amp_iteration_ended(void)
{
    network *net = trained.net;
    trained.net = NULL;
    if (net && listener.call) listener.call(net, trained.loss, listener.user);
    return net;
}
