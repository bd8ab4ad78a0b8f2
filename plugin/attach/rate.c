/* Decides when Darknet gets another learning rate. It must not know how one is computed
 * (core/read/schedule.c).
 *
 * Darknet computes its rate inside network.c, where no call can be caught. But a constant rate is
 * simply net->learning_rate, so that is set before each pass, with a burn_in of 0. Darknet then
 * also prints the true rate, whichever way the plugin was attached. */

#include "rate.h"

#include "option_list.h"
#include "plugin/core/read/schedule.h"

#include <string.h>

/* The network's own values are read at the first training pass, not earlier: a trainer may
 * set learning_rate after parsing. */
static void keep_own(struct amp_session *s)
{
    const network *net = s->net;
    if (s->own_rate.kept) return;
    s->own_rate.kept = true;
    s->own_rate.learning_rate = net->learning_rate;
    s->own_rate.momentum = net->momentum;
    s->own_rate.b1 = net->B1;
    s->own_rate.burn_in = net->burn_in;
}

void amp_rate_hand(struct amp_session *s)
{
    const struct amp_schedule *schedule = &s->options.schedule;
    network *net = s->net;
    if (schedule->policy == AMP_POLICY_OF_DARKNET) return;
    keep_own(s);
    size_t iteration = amp_iterations_in(net, *net->seen - 1) + 1;
    net->burn_in = 0;
    net->learning_rate = (float)amp_schedule_rate(schedule, s->own_rate.learning_rate, iteration);
    net->momentum = (float)amp_schedule_momentum(schedule, s->own_rate.momentum, iteration);
    /* 0: the optimizer is none of Adam's kind. */
    if (s->own_rate.b1 > 0)
        net->B1 = (float)amp_schedule_momentum(schedule, s->own_rate.b1, iteration);
}

void amp_rate_put_back(struct amp_session *s)
{
    network *net = s->net;
    if (!s->own_rate.kept) return;
    net->learning_rate = s->own_rate.learning_rate;
    net->momentum = s->own_rate.momentum;
    net->B1 = s->own_rate.b1;
    net->burn_in = s->own_rate.burn_in;
    s->own_rate.kept = false;
}

/* The first of two equal keys counts, as for Darknet. */
static const char *value_of(const list *options, const char *key)
{
    for (const node *n = options->front; n; n = n->next) {
        const kvp *pair = n->val;
        if (!strcmp(pair->key, key)) return pair->val;
    }
    return "";
}

static bool is_mixed(const list *options)
{
    return !strcmp(value_of(options, "mixed_precision"), "1");
}

char *amp_rate_policy(const list *options, char *value)
{
    static char constant[] = "constant";
    bool ours = amp_policy_from_word(value) != AMP_POLICY_OF_DARKNET;
    return ours && is_mixed(options) ? constant : value;
}
