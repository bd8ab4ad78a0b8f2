/* The end of an iteration, as seen from outside of a training loop that is Darknet's own: it trains
 * on a batch (train_network), prints and saves, and frees the batch (free_data, loader.c). */

#include "iteration.h"

#include "amp.h"
#include "gpus.h"
#include "sessions.h"
#include "symbols.h"

static struct {
    amp_iteration_function *call;
    void *user;
} listener;

static _Thread_local struct {
    network *net; /* NULL: nothing was trained since */
    float loss;
} trained;

static _Thread_local const network *training;

const network *amp_iteration_trains(void)
{
    return training;
}

void amp_on_iteration(amp_iteration_function *call, void *user)
{
    listener.call = call;
    listener.user = user;
}

void amp_iteration_trained(network *net, float loss)
{
    trained.net = net;
    trained.loss = loss;
}

void amp_iteration_ended(void)
{
    network *net = trained.net;
    trained.net = NULL;
    if (net && listener.call) listener.call(net, trained.loss, listener.user);
}

AMP_INTERPOSE(float, train_network, (network * net, data d))
{
    training = net;
    amp_gpus_enter(net);
    amp_gpus_begin_iteration(net);
    float loss = AMP_REAL(train_network)(net, d);
    amp_gpus_leave(net);
    training = NULL;
    amp_iteration_trained(net, loss);
    return loss;
}

double amp_loss_scale(const network *net)
{
    const struct amp_session *s = amp_session_of(net->layers);
    return s ? s->step.scaler.scale : 0;
}

void amp_log_evaluation(const network *net, const struct amp_evaluation *e)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s) amp_log_add_evaluation(&s->log, e->iteration, e->map50, e->map75, e->map, e->seconds);
}
