/* Decides whether what a network has computed can be used: weights that are finite may still be too
 * large, as those of a training that has diverged. It must not know who uses it.
 *
 * A later layer may hide what overflowed in an earlier one, as a logistic makes 1 of infinity. So
 * every layer is looked at whose output is on the host.
 */
#include "outputs.h"

#include "amp_observe.h"
#include "fail.h"
#include "interposed.h"
#include "session.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

static atomic_bool refused; /* amp_refuse_bad_outputs */

void amp_refuse_bad_outputs(void)
{
    refused = true;
}

static bool is_result(const network *net, int i)
{
    const layer *l = &net->layers[i];
    bool head = l->type == YOLO || l->type == REGION || l->type == DETECTION;
    return head || l->output == net->output;
}

int amp_outputs_check(const network *net, char *err, size_t err_size)
{
    bool all = *AMP_USE(gpu_index) < 0 && !amp_session_of(net->layers);
    for (int i = 0; i < net->n; i++) {
        const layer *l = &net->layers[i];
        size_t n = (size_t)l->outputs * (size_t)l->batch;
        if (!l->output || l->type == COST || !(all || is_result(net, i))) continue;
        for (size_t k = 0; k < n; k++) {
            if (isfinite(l->output[k])) continue;
            snprintf(err, err_size,
                     "output %zu of layer %d is %g: the weights do not give finite results", k, i,
                     (double)l->output[k]);
            return -1;
        }
    }
    return 0;
}

void amp_outputs_require(const network *net)
{
    char err[200];
    if (refused && amp_outputs_check(net, err, sizeof err)) amp_fail(err);
}
