/* The executors and the plan's memory at work, without Darknet: gradients of random nets against
 * finite differences, every consumer's contribution, replay, loss scale, storage formats. */
#include "tests/harness.h"
#include "tests/random_net.h"
#include "tests/train/rig.h"

#include "kernels/reference/operations.h"

static char text[RANDOM_NET_SIZE];

static struct rig *make(const char *cfg, const struct ampk_backend *backend)
{
    struct rig *r = rig_create(cfg, backend, test_random);
    REQUIRE(r);
    return r;
}

/* ---- a reference whose batch-norm is differentiable as Darknet differentiates it ---- */

/* Darknet's batch-norm normalizes with the unbiased variance and 1e-6 beside the root, and takes
 * the gradient of the form with the biased variance and 1e-5 under the root. Finite differences
 * want one form: the latter. */
static void biased_statistics(struct ampk_context *context, int c, const float *sums,
                              const float *shift, size_t count, float *mean, float *variance)
{
    ampk_ref_bn_statistics(context, c, sums, shift, count, mean, variance);
    for (int i = 0; i < c; i++)
        variance[i] = (float)(variance[i] * ((double)count - 1) / (double)count);
}

static void forward_under_root(struct ampk_context *context, const struct ampk_tensor *y,
                               const struct ampk_batchnorm *bn, enum ampk_activation activation,
                               const struct ampk_tensor *out, uint32_t *amax)
{
    float *variance = malloc((size_t)y->c * sizeof *variance);
    REQUIRE(variance);
    struct ampk_batchnorm other = *bn;
    other.variance = variance;
    for (int i = 0; i < y->c; i++)
        variance[i] = (float)pow(sqrt(bn->variance[i] + 1e-5) - 1e-6, 2);
    ampk_ref_bn_act_forward(context, y, &other, activation, out, amax);
    free(variance);
}

static void backward_under_root(struct ampk_context *context, const struct ampk_tensor *y,
                                const struct ampk_tensor *out, const struct ampk_batchnorm *bn,
                                enum ampk_activation activation, const struct ampk_tensor *d,
                                const struct ampk_tensor *dy, float *dscale, float *dbias,
                                uint32_t *dy_amax)
{
    ampk_ref_bn_act_backward(context, y, out, bn, activation, d, dy, dscale, dbias, dy_amax);
    for (int i = 0; i < y->c; i++)
        dscale[i] *= (float)((sqrt(bn->variance[i]) + 1e-6) / sqrt(bn->variance[i] + 1e-5));
}

static const struct ampk_backend *differentiable(void)
{
    static struct ampk_backend backend;
    backend = ampk_reference;
    backend.bn_statistics = biased_statistics;
    backend.bn_act_forward = forward_under_root;
    backend.bn_act_backward = backward_under_root;
    return &backend;
}

/* ---- finite differences ---- */

/* What is compared: the gradient of one value, Darknet's sign (downhill). */
struct probe {
    struct rig *r;
    float *value; /* a weight or bias, or NULL: element i of layer's output */
    int layer;
    size_t i;
};

static double loss_at(const struct probe *p, float h)
{
    float before = p->value ? *p->value : 0;
    if (p->value) *p->value = before + h;
    rig_forward_nudged(p->r, p->value ? -1 : p->layer, p->i, p->value ? 0 : h);
    if (p->value) *p->value = before;
    return p->r->loss;
}

static int checked, skipped; /* samples of the running test */

/* Storage is FP32, so a step must be large against rounding and small against curvature and kinks
 * (leaky, maxpool, a batch-norm channel that is nearly constant): the difference must come right at
 * one of five steps. At a kink one side must be right. Where nothing is right, but no two steps nor
 * the two sides agree with each other either (equal values under several maxpools, noise), the
 * sample is skipped and counted.
 *
 * Tolerance: 1 % of the tensor's largest gradient for curvature, and rounding: eight times what the
 * rounding of the losses' inputs alone does to the loss, for all the layers before them. */
static void check_gradient(const struct probe *p, double gradient, double largest, const char *what)
{
    double here = loss_at(p, 0), noise = 8 * sqrt(p->r->loss_rounding), found[5];
    bool smooth = false;
    checked++;
    for (int k = 0; k < 5; k++) {
        float h = ldexpf(1, -7 - 2 * k);
        double right = (here - loss_at(p, h)) / h, left = (loss_at(p, -h) - here) / h;
        double tolerance = .01 * largest + 1e-5 + noise / h;
        found[k] = (left + right) / 2;
        if (fabs(found[k] - gradient) <= tolerance || fabs(left - gradient) <= tolerance ||
            fabs(right - gradient) <= tolerance)
            return;
        smooth |= k && fabs(found[k] - found[k - 1]) <= .0025 * largest &&
                  fabs(left - right) <= 2 * tolerance;
    }
    skipped += !smooth;
    if (!smooth) return;
    TEST_FAIL("%s of layer %d, element %zu: %.6g, finite differences %.6g %.6g %.6g %.6g %.6g "
              "(largest of the tensor %.3g)",
              what, p->layer, p->i, gradient, found[0], found[1], found[2], found[3], found[4],
              largest);
}

static double largest_of(const double *x, size_t n, size_t *where)
{
    double largest = 0;
    *where = 0;
    for (size_t i = 0; i < n; i++)
        if (fabs(x[i]) > largest) largest = fabs(x[i]), *where = i;
    return largest;
}

/* The largest and three others. */
static void check_samples(struct probe p, const double *gradients, size_t n, float *values,
                          const char *what)
{
    size_t where;
    double largest = largest_of(gradients, n, &where);
    for (int k = 0; k < 4; k++) {
        p.i = k ? test_random() % n : where;
        p.value = values ? &values[p.i] : NULL;
        check_gradient(&p, gradients[p.i], largest, what);
    }
}

static void check_params(struct rig *r)
{
    static const char *const names[] = {"weights", "biases", "scales"};
    for (int i = r->n_params - 1; i >= 0 && !test_failures; i--) {
        const struct amp_param *p = &r->graph->params[i];
        if (p->layer < r->plan->first_backward) continue;
        double *gradients = malloc(p->n * sizeof *gradients);
        REQUIRE(gradients);
        for (size_t k = 0; k < p->n; k++)
            gradients[k] = (double)p->grad[k];
        struct probe probe = {.r = r, .layer = p->layer};
        check_samples(probe, gradients, p->n, p->value, names[p->kind]);
        free(gradients);
    }
}

/* Runs backward and keeps every layer's complete delta, as its own backward finds it. */
static double **backward_keeping_deltas(struct rig *r, float scale)
{
    double **deltas = calloc((size_t)r->net->n, sizeof *deltas);
    REQUIRE(deltas);
    amp_graph_begin_backward(r->graph, scale);
    for (int i = r->net->n - 1; i >= r->plan->first_backward; i--) {
        const struct amp_node *node = &r->graph->nodes[i];
        if (node->delta.data && !node->plan->delta_from_nobody) deltas[i] = rig_load(&node->delta);
        amp_graph_backward(r->graph, i);
    }
    return deltas;
}

static void free_deltas(struct rig *r, double **deltas)
{
    for (int i = 0; i < r->net->n; i++)
        free(deltas[i]);
    free(deltas);
}

/* From the end: the first wrong layer is the culprit. A loss layer's own part of its delta is not
 * the gradient of its output; what it hands to its source contains both. */
static void check_deltas(struct rig *r, double **deltas)
{
    for (int i = r->net->n - 1; i >= 0 && !test_failures; i--) {
        if (!deltas[i] || r->plan->layers[i].loss) continue;
        struct probe probe = {.r = r, .layer = i};
        check_samples(probe, deltas[i], rig_count(&r->graph->nodes[i].out), NULL, "delta");
    }
}

static void check_net(struct rig *r)
{
    rig_forward(r);
    double **deltas = backward_keeping_deltas(r, 1);
    check_deltas(r, deltas);
    check_params(r);
    free_deltas(r, deltas);
}

/* Darknet's gradient of a shortcut of different shapes is right for alpha=1 only, and batch-norm
 * over a handful of values is mostly rounding. */
static bool is_differentiable(const struct amp_net_desc *net)
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

static struct rig *make_differentiable(unsigned features, int layers)
{
    for (;;) {
        random_net(text, "mixed_precision=1\namp_dtype=fp32", features, layers);
        struct rig *r = make(text, differentiable());
        if (is_differentiable(r->net)) return r;
        rig_free(r);
    }
}

static void check_random_nets(unsigned features, int rounds, int layers)
{
    checked = skipped = 0;
    for (int round = 0; round < rounds; round++) {
        struct rig *r = make_differentiable(features, layers);
        check_net(r);
        rig_free(r);
        if (test_failures) fprintf(stderr, "round %d:\n%s\n", round, text);
        REQUIRE(!test_failures);
    }
    CHECK(skipped * 20 < checked);
    printf("%d of %d samples are at a kink\n", skipped, checked);
}

AMP_TEST(convolutions_against_finite_differences)
{
    check_random_nets(0, 6, 4);
}

AMP_TEST(batch_norm_against_finite_differences)
{
    check_random_nets(NET_BATCHNORM, 6, 4);
}

AMP_TEST(shapes_against_finite_differences)
{
    check_random_nets(NET_SHAPES, 12, 10);
}

AMP_TEST(darknets_layers_in_the_middle_against_finite_differences)
{
    check_random_nets(NET_SHAPES | NET_NATIVE | NET_HEADS, 12, 10);
}

AMP_TEST(everything_against_finite_differences)
{
    check_random_nets(NET_EVERYTHING, 20, 14);
}

AMP_TEST_MAIN
