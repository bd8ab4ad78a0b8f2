/* Who listens for ends of iterations hears each once: when the batch that was trained on is freed.
 */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "plugin/include/amp.h"

#include "matrix.h"

static int heard;
static const network *whose;

static void hear(network *net, float loss, void *user)
{
    (void)user;
    CHECK(isfinite(loss));
    heard++;
    whose = net;
}

static data make_batch(const network *net)
{
    int images = net->batch * net->subdivisions;
    data d = {.X = make_matrix(images, net->inputs), .y = make_matrix(images, net->truths)};
    for (int i = 0; i < images; i++) {
        fill(d.X.vals[i], (size_t)net->inputs, (unsigned)i + 1);
        fill(d.y.vals[i], (size_t)net->truths, (unsigned)i + 1);
    }
    return d;
}

AMP_TEST(every_iteration_ends_once)
{
    const char *keys[] = {"", MIXED};
    amp_on_iteration(hear, NULL);
    for (int k = 0; k < 2; k++) {
        network *net = parse(keys[k], CLASSIFIER);
        data first = make_batch(net), other = make_batch(net);
        heard = 0;
        train_network(net, first);
        CHECK_INT(heard, 0);
        free_data(first);
        CHECK(heard == 1 && whose == net);
        free_data(other); /* nobody trained on it */
        CHECK_INT(heard, 1);
        free_network(net);
    }
    amp_on_iteration(NULL, NULL);
}

AMP_TEST_MAIN
