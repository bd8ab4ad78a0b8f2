/* Rigs of drawn nets, and everything that a backward pass leaves, to compare two ways of one net.
 */
#ifndef AMP_TEST_GRAPH_RIG_H
#define AMP_TEST_GRAPH_RIG_H

#include "tests/rig/harness.h"
#include "tests/rig/random_net.h"
#include "tests/rig/rig.h"
#include "plugin/core/engine/layers.h"

#include "kernels/reference/operations.h"

static char text[RANDOM_NET_SIZE];

static inline struct rig *make(const char *cfg, const struct ampk_backend *backend)
{
    struct rig *r = rig_create(cfg, backend, test_random);
    REQUIRE(r);
    return r;
}

/* The same; half of the nets have mish and swish in layers that may have them. */
static inline struct rig *make_with_mish(const char *cfg, const struct ampk_backend *backend)
{
    struct rig *r = make(cfg, backend);
    if (random_below(2) && random_mish(r->net)) REQUIRE(rig_plan_again(r) == 0);
    return r;
}

/* Darknet's gradient of a shortcut of different shapes is right for alpha=1 only, and batch-norm
 * over a handful of values is mostly rounding. */
static inline bool is_differentiable(const struct amp_net_desc *net)
{
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        bool same = l->w == l->out_w && l->h == l->out_h && l->c == l->out_c;
        if (l->type == AMP_SHORTCUT && l->alpha != 1 && !same) return false;
        if (l->n_weights && l->batch_normalize && net->batch * l->out_w * l->out_h < 6)
            return false;
    }
    return true;
}

static inline void draw_differentiable(const char *keys, unsigned features, int layers)
{
    char err[1024];
    bool good = false;
    while (!good) {
        random_net(text, keys, features, layers);
        struct amp_cfg_file *cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
        struct amp_net_desc *net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
        REQUIRE(net);
        good = is_differentiable(net);
        amp_net_desc_free(net);
        amp_cfg_free(cfg);
    }
}

#define FP32_NET(size, layers)                                                                     \
    "[net]\nmixed_precision=1\namp_dtype=fp32\nbatch=3\nchannels=4\nwidth=" #size                  \
    "\nheight=" #size "\n" layers
#define CONV(filters, size, stride)                                                                \
    "[convolutional]\nbatch_normalize=1\npad=1\nactivation=leaky\nfilters=" #filters               \
    "\nsize=" #size "\nstride=" #stride "\n"
#define HALVE "[maxpool]\nsize=2\nstride=2\n"

/* Routes of a part of their sources, without keys for mixed precision: a block of yolov4-tiny,
 * whose source reads later routes first; sources that they hand the first gradient to; a source
 * that is there twice, and a part of a part; another format than the source's; beside a route that
 * passes its source on. */
#define GROUPED_ROUTE(layers, groups, id)                                                          \
    "[route]\nlayers=" layers "\ngroups=" #groups "\ngroup_id=" #id "\n"
#define GROUPED_NET(layers)                                                                        \
    "[net]\namp_dialect=fork\nbatch=3\nchannels=4\nwidth=8\nheight=8\n" layers CONV(3, 3,          \
                                                                                    1) "[cost]\n"
// clang-format off
static const char *const grouped_nets[] = {
    GROUPED_NET(CONV(8, 3, 1) GROUPED_ROUTE("-1", 2, 1) CONV(4, 3, 1) CONV(4, 3, 1)
                "[route]\nlayers=-1,-2\n" CONV(8, 1, 1) "[route]\nlayers=-6,-1\n" HALVE),
    GROUPED_NET(CONV(6, 3, 1) CONV(6, 3, 1) GROUPED_ROUTE("-1,-2", 3, 1)),
    GROUPED_NET(CONV(8, 3, 1) GROUPED_ROUTE("-1,-1", 2, 0) GROUPED_ROUTE("-1", 4, 3)
                CONV(8, 3, 1) "[shortcut]\nfrom=0\n"),
    GROUPED_NET(CONV(8, 3, 1) CONV(6, 3, 1) GROUPED_ROUTE("-1,0", 2, 1) "mixed_precision=0\n"
                CONV(4, 3, 1) "[route]\nlayers=-1,0\n"),
    GROUPED_NET(CONV(8, 3, 1) "[route]\nlayers=-1\n" GROUPED_ROUTE("-1", 2, 1)
                "[upsample]\n" HALVE "[route]\nlayers=-1,1\n"),
};
// clang-format on
enum { GROUPED_NETS = sizeof grouped_nets / sizeof *grouped_nets };

/* Runs backward and keeps every layer's complete delta, as its own backward finds it. */
static inline double **backward_keeping_deltas(struct rig *r, float scale)
{
    double **deltas = calloc((size_t)r->net->n, sizeof *deltas);
    REQUIRE(deltas);
    amp_graph_begin_backward(r->graph, scale);
    for (int i = r->net->n - 1; i >= r->plan->first_backward; i--) {
        const struct amp_node *node = &r->graph->nodes[i];
        bool stored = node->plan->backward && node->delta.data;
        if (stored && !node->plan->delta_from_nobody) {
            rig_disturb(r, &node->delta);
            deltas[i] = rig_load(&node->delta);
        }
        amp_graph_backward(r->graph, i);
    }
    return deltas;
}

static inline void free_deltas(struct rig *r, double **deltas)
{
    for (int i = 0; i < r->net->n; i++)
        free(deltas[i]);
    free(deltas);
}

/* ---- one net, two ways ---- */

static const struct ampk_backend *const backends[] = {&ampk_reference, &ampk_cpu};
#define N_BACKENDS 2

/* Everything that a backward pass leaves: gradients of all weights, then the deltas of all layers.
 */
struct result {
    size_t n_gradients;
    float *gradients;
    int n_layers;
    size_t *n_delta;
    double **deltas;
};

static inline struct result run_backward(struct rig *r, float scale)
{
    struct result result = {.n_gradients = r->graph->n_gradients, .n_layers = r->net->n};
    result.deltas = backward_keeping_deltas(r, scale);
    result.n_delta = calloc((size_t)r->net->n, sizeof *result.n_delta);
    result.gradients = malloc((result.n_gradients + 1) * sizeof *result.gradients);
    REQUIRE(result.n_delta && result.gradients);
    if (result.n_gradients)
        memcpy(result.gradients, r->graph->gradients, result.n_gradients * sizeof(float));
    for (int i = 0; i < r->net->n; i++)
        if (result.deltas[i]) result.n_delta[i] = rig_count(&r->graph->nodes[i].delta);
    return result;
}

static inline void free_result(struct result *r)
{
    for (int i = 0; i < r->n_layers; i++)
        free(r->deltas[i]);
    free(r->deltas);
    free(r->n_delta);
    free(r->gradients);
}

/* Bitwise, a's divided by scale. */
static inline void check_same(const struct result *a, double scale, const struct result *b,
                              const char *what)
{
    size_t different = 0;
    for (size_t i = 0; i < a->n_gradients; i++)
        different += !((double)a->gradients[i] / scale == (double)b->gradients[i]);
    if (different) TEST_FAIL("%s: %zu of %zu gradients", what, different, a->n_gradients);
    for (int l = 0; l < a->n_layers; l++) {
        different = 0;
        for (size_t i = 0; i < a->n_delta[l]; i++)
            different += !(a->deltas[l][i] / scale == b->deltas[l][i]);
        if (different) TEST_FAIL("%s: %zu deltas of layer %d", what, different, l);
    }
}

/* |a/scale - b| / |b| over n values, as Euclidean norms; 0 where both are nothing. */
static inline double distance(const double *a, double scale, const double *b, size_t n)
{
    double apart = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        apart += pow(a[i] / scale - b[i], 2);
        size += b[i] * b[i];
    }
    return size > 0 ? sqrt(apart / size) : apart;
}

static inline double gradients_apart(const struct result *a, double scale, const struct result *b)
{
    size_t n = a->n_gradients;
    double *x = malloc((n + 1) * sizeof *x), *y = malloc((n + 1) * sizeof *y);
    REQUIRE(x && y);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)a->gradients[i], y[i] = (double)b->gradients[i];
    double apart = distance(x, scale, y, n);
    free(x);
    free(y);
    return apart;
}

/* Of the worst layer. */
static inline double deltas_apart(const struct result *a, double scale, const struct result *b)
{
    double worst = 0;
    for (int l = 0; l < a->n_layers; l++) {
        size_t n = a->n_delta[l];
        double apart = n ? distance(a->deltas[l], scale, b->deltas[l], n) : 0;
        if (!(apart <= worst)) worst = apart;
    }
    return worst;
}

static inline void stop_at_failure(const char *cfg)
{
    if (test_failures) fprintf(stderr, "%s\n", cfg);
    REQUIRE(!test_failures);
}

#endif
