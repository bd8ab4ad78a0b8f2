/* The executors and the plan's memory at work, without Darknet: gradients of random nets against
 * finite differences, every consumer's contribution, replay, loss scale, storage formats. */
#include "tests/rig/harness.h"
#include "tests/rig/random_net.h"
#include "tests/rig/rig.h"
#include "plugin/core/layers.h"

#include "kernels/reference/operations.h"

static char text[RANDOM_NET_SIZE];

static struct rig *make(const char *cfg, const struct ampk_backend *backend)
{
    struct rig *r = rig_create(cfg, backend, test_random);
    REQUIRE(r);
    return r;
}

/* ---- a reference whose batch-norm is differentiable as Darknet differentiates it: cuDNN's ---- */

/* Finite differences want a forward pass that backward is the derivative of: cuDNN's. */
static const float *biased_conv_forward(struct ampk_context *context, struct ampk_conv *conv,
                                        const struct ampk_tensor *x, const struct ampk_tensor *y,
                                        const struct ampk_bn_statistics *statistics, uint32_t *amax)
{
    struct ampk_bn_statistics other = {0};
    if (statistics) other = *statistics;
    other.rule = AMPK_BN_CUDNN;
    return ampk_ref_conv_forward(context, conv, x, y, statistics ? &other : NULL, amax);
}

static struct ampk_batchnorm as_cudnn(const struct ampk_batchnorm *bn)
{
    struct ampk_batchnorm other = *bn;
    other.rule = AMPK_BN_CUDNN;
    return other;
}

static void forward_under_root(struct ampk_context *context, const struct ampk_tensor *y,
                               const struct ampk_batchnorm *bn, enum ampk_activation activation,
                               const struct ampk_tensor *add, const struct ampk_tensor *out,
                               uint32_t *y_amax, uint32_t *amax)
{
    struct ampk_batchnorm other = as_cudnn(bn);
    ampk_ref_bn_act_forward(context, y, &other, activation, add, out, y_amax, amax);
}

static void backward_under_root(struct ampk_context *context, const struct ampk_tensor *y,
                                const struct ampk_tensor *out, const struct ampk_batchnorm *bn,
                                enum ampk_activation activation, const struct ampk_tensor *d,
                                const struct ampk_tensor *dy, float *dscale, float *dbias,
                                uint32_t *dy_amax, uint32_t *db_amax)
{
    struct ampk_batchnorm other = as_cudnn(bn);
    ampk_ref_bn_act_backward(context, y, out, &other, activation, d, dy, dscale, dbias, dy_amax,
                             db_amax);
}

static void pool_forward_under_root(struct ampk_context *context, const struct ampk_tensor *y,
                                    const struct ampk_batchnorm *bn,
                                    enum ampk_activation activation, const struct ampk_tensor *out,
                                    void *argmax, uint32_t *y_amax, uint32_t *amax)
{
    struct ampk_batchnorm other = as_cudnn(bn);
    ampk_ref_bn_act_pool_forward(context, y, &other, activation, out, argmax, y_amax, amax);
}

static void pool_backward_under_root(struct ampk_context *context, const struct ampk_tensor *y,
                                     const struct ampk_batchnorm *bn,
                                     enum ampk_activation activation, const struct ampk_tensor *d,
                                     const void *argmax, const struct ampk_tensor *dy,
                                     float *dscale, float *dbias, uint32_t *dy_amax,
                                     uint32_t *db_amax)
{
    struct ampk_batchnorm other = as_cudnn(bn);
    ampk_ref_bn_act_pool_backward(context, y, &other, activation, d, argmax, dy, dscale, dbias,
                                  dy_amax, db_amax);
}

static const struct ampk_backend *differentiable(void)
{
    static struct ampk_backend backend;
    backend = ampk_reference;
    backend.conv_forward = biased_conv_forward;
    backend.bn_act_forward = forward_under_root;
    backend.bn_act_backward = backward_under_root;
    backend.bn_act_pool_forward = pool_forward_under_root;
    backend.bn_act_pool_backward = pool_backward_under_root;
    backend.conv_sums_gradients = NULL; /* the sums are those of the operations above */
    backend.conv_takes_gradient = NULL; /* and so is dy */
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
        const struct amp_plan_layer *l = &r->plan->layers[p->layer];
        if (!l->backward || l->frozen) continue;
        double *gradients = malloc(p->n * sizeof *gradients);
        float *found = rig_gradient(r, i);
        REQUIRE(gradients);
        for (size_t k = 0; k < p->n; k++)
            gradients[k] = (double)found[k];
        free(found);
        struct probe probe = {.r = r, .layer = p->layer};
        check_samples(probe, gradients, p->n, p->value, names[p->kind]);
        free(gradients);
    }
}

/* Runs backward and keeps every layer's complete delta, as its own backward finds it; but what
 * another convolution has made of it. */
static double **backward_keeping_deltas(struct rig *r, float scale)
{
    double **deltas = calloc((size_t)r->net->n, sizeof *deltas);
    REQUIRE(deltas);
    amp_graph_begin_backward(r->graph, scale);
    for (int i = r->net->n - 1; i >= r->plan->first_backward; i--) {
        const struct amp_node *node = &r->graph->nodes[i];
        bool stored = node->plan->backward && node->delta.data && !node->gradient_sums;
        if (stored && !node->plan->delta_from_nobody) deltas[i] = rig_load(&node->delta);
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

static void draw_differentiable(const char *keys, unsigned features, int layers)
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

static void check_random_nets(unsigned features, int rounds, int layers)
{
    checked = skipped = 0;
    for (int round = 0; round < rounds; round++) {
        draw_differentiable("mixed_precision=1\namp_dtype=fp32", features, layers);
        struct rig *r = make(text, differentiable());
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

/* Also: a frozen layer's statistics rest, and it leaves no gradient. */
static void check_frozen(struct rig *r)
{
    for (int i = 0; i < r->n_params; i++) {
        const struct amp_param *p = &r->graph->params[i];
        if (!r->plan->layers[p->layer].frozen) continue;
        bool weights = p->kind == AMP_PARAM_WEIGHTS;
        CHECK(weights ? !p->grad && !p->sum : p->grad != NULL);
        for (size_t k = 0; !weights && k < p->n; k++)
            CHECK(p->grad[k] == 0);
    }
    const float *start = r->rolling_start;
    for (int i = 0; i < r->n_rolling; start += r->rolling[i++].n)
        if (r->plan->layers[r->rolling[i].layer].frozen)
            CHECK(!memcmp(r->rolling[i].value, start, r->rolling[i].n * sizeof *start));
}

AMP_TEST(frozen_layers_against_finite_differences)
{
    int passing = 0;
    checked = skipped = 0;
    for (int round = 0; round < 20; round++) {
        draw_differentiable("mixed_precision=1\namp_dtype=fp32", NET_EVERYTHING | NET_FREEZE, 12);
        struct rig *r = make(text, differentiable());
        check_net(r);
        rig_forward(r);
        rig_backward(r, 1);
        check_frozen(r);
        for (int i = 0; i < r->net->n; i++)
            passing += r->plan->layers[i].frozen && r->plan->layers[i].backward;
        rig_free(r);
        if (test_failures) fprintf(stderr, "round %d:\n%s\n", round, text);
        REQUIRE(!test_failures);
    }
    CHECK(skipped * 20 < checked && passing > 5);
    printf("%d of %d samples are at a kink; %d frozen layers pass gradients on\n", skipped, checked,
           passing);
}

AMP_TEST(everything_against_finite_differences)
{
    check_random_nets(NET_EVERYTHING, 20, 14);
}

/* ---- chosen nets ---- */

#define FP32_NET(size, layers)                                                                     \
    "[net]\nmixed_precision=1\namp_dtype=fp32\nbatch=3\nchannels=4\nwidth=" #size                  \
    "\nheight=" #size "\n" layers
#define CONV(filters, size, stride)                                                                \
    "[convolutional]\nbatch_normalize=1\npad=1\nactivation=leaky\nfilters=" #filters               \
    "\nsize=" #size "\nstride=" #stride "\n"
#define HALVE "[maxpool]\nsize=2\nstride=2\n"
#define HEAD                                                                                       \
    "[convolutional]\nsize=1\nfilters=7\nactivation=linear\n[yolo]\nmask=0\nclasses=2\nnum=2\n"

/* A backbone with residual blocks, two heads, routes back to where both have read. */
// clang-format off
#define YOLOV3_LIKE                                                                                \
    CONV(6, 3, 1) CONV(8, 3, 2) CONV(4, 1, 1) CONV(8, 3, 1) "[shortcut]\nfrom=-3\n"                \
    CONV(12, 3, 2) CONV(6, 1, 1) CONV(12, 3, 1) "[shortcut]\nfrom=-3\n"                            \
    CONV(8, 1, 1) CONV(10, 3, 1) HEAD                                                              \
    "[route]\nlayers=-4\n" CONV(4, 1, 1) "[upsample]\nstride=2\n[route]\nlayers=-1,4\n"           \
    CONV(6, 1, 1) HEAD
// clang-format on

static const char *const chosen[] = {
    FP32_NET(12, YOLOV3_LIKE),
    FP32_NET(8, "[crop]\ncrop_width=6\ncrop_height=6\n" CONV(4, 3, 1) "[cost]\n"),
    FP32_NET(8, CONV(4, 3, 1) "[route]\nlayers=0,0\n" CONV(4, 3, 1) "[cost]\n"),
    FP32_NET(8,
             CONV(4, 3, 1) CONV(6, 3, 2) "[shortcut]\nfrom=0\nbeta=.5\n" CONV(3, 3, 1) "[cost]\n"),
    FP32_NET(8,
             CONV(6, 3, 2) CONV(4, 3, 1) "[upsample]\n[shortcut]\nfrom=0\nactivation=relu\n" CONV(
                 3, 3, 1) "[cost]\n"),
    FP32_NET(8, CONV(4, 3, 1)
                    CONV(6, 3, 1) "[shortcut]\nfrom=0\nalpha=1\nbeta=2\nactivation=tanh\n[cost]\n"),
    FP32_NET(8, CONV(4, 3, 1) "[maxpool]\nstride=2\n[route]\nlayers=0,1\n"
                              "[connected]\noutput=9\nactivation=tanh\n[cost]\n"),
    FP32_NET(
        8, CONV(4, 3, 1) "[reorg]\nstride=2\n" CONV(8, 3, 1) "[reorg]\nstride=2\nreverse=1\n" CONV(
               4, 3,
               1) "[reorg]\nstride=1\nflatten=1\n" CONV(3, 3,
                                                        1) "[reorg]\nstride=1\nflatten=1\nreverse="
                                                           "1\n[reorg]\nstride=1\nextra=5\n"
                                                           "[connected]\noutput=5\n[cost]\n"),
    FP32_NET(8, CONV(4, 3, 1) CONV(4, 3, 1) "[dropout]\n" CONV(
                    4, 3, 1) "[route]\nlayers=1,2,3\n" CONV(3, 3, 1) "[avgpool]\n[cost]\n"),
    "[net]\nmixed_precision=1\namp_dtype=fp32\nbatch=8\ninputs=20\n"
    "[connected]\noutput=12\nactivation=leaky\nbatch_normalize=1\n[dropout]\nprobability=.3\n"
    "[connected]\noutput=9\nactivation=elu\nbatch_normalize=1\n[connected]\noutput=5\n"
    "activation=linear\n[softmax]\nnoloss=1\n[connected]\noutput=4\n[cost]\n",
    FP32_NET(8, CONV(4, 3, 1) "[batchnorm]\n" CONV(
                    4, 3, 1) "[shortcut]\nfrom=1\n[lrn]\n"
                             "[shortcut]\nfrom=0\n[l2norm]\n" CONV(
                                 3, 3, 1) "[shortcut]\nfrom=-3\n" CONV(2, 3, 1) "[cost]\n"),
    FP32_NET(8,
             CONV(4, 3, 1) "[lrn]\n[route]\nlayers=0,1\n[batchnorm]\n[route]\nlayers=0,3,1\n" HEAD
                           "[shortcut]\nfrom=5\n" CONV(3, 3, 1) "[cost]\n"),
    FP32_NET(8, CONV(4, 3, 1) CONV(4, 3, 1) "stopbackward=1\n" CONV(
                    4, 3, 1) "[route]\nlayers=0,2\n" CONV(3, 3, 1) "[cost]\n"),
    FP32_NET(6, "[maxpool]\nsize=3\nstride=1\n" CONV(3, 3, 1) "[cost]\n"),
    FP32_NET(9, CONV(4, 3, 1) HALVE "" CONV(6, 3, 1) HALVE "padding=0\n" CONV(3, 3, 1) "[cost]\n"),
    FP32_NET(7, CONV(4, 3, 1) HALVE "[route]\nlayers=1,1\n" CONV(4, 1, 1) HALVE
             "[shortcut]\nfrom=2\n[cost]\n"),
    FP32_NET(8,
             CONV(4, 3, 1) CONV(4, 3, 1) "stopbackward=1\n" HALVE CONV(3, 3, 1) HALVE "[cost]\n"),
    FP32_NET(6, "[upsample]\n" CONV(3, 3, 2) "[cost]\n"),
    FP32_NET(6, CONV(8, 3,
                     1) "[convolutional]\nfilters=6\nsize=3\ngroups=2\npad=1\nstride=2\n"
                        "activation=logistic\n[convolutional]\nfilters=6\nsize=3\ngroups=6\npad=1\n"
                        "activation=selu\nbatch_normalize=1\n[cost]\n"),
    "[net]\nmixed_precision=1\namp_dtype=fp32\nbatch=6\ntime_steps=3\ninputs=7\n"
    "[rnn]\noutput=6\n[connected]\noutput=5\nactivation=tanh\n[gru]\noutput=5\n"
    "[lstm]\noutput=4\n[connected]\noutput=3\nactivation=linear\n[cost]\n",
    "[net]\nmixed_precision=1\namp_dtype=fp32\nbatch=2\ntime_steps=3\nchannels=3\nwidth=5\n"
    "height=6\n[convolutional]\nfilters=3\nsize=5\npad=1\nactivation=tanh\n[crnn]\nhidden_filters="
    "2\noutput_filters=3\n[crnn]\nhidden_filters=4\n"
    "output_filters=2\n[cost]\n",
};
#define N_CHOSEN (sizeof chosen / sizeof *chosen)

AMP_TEST(chosen_nets_against_finite_differences)
{
    checked = skipped = 0;
    for (size_t i = 0; i < N_CHOSEN; i++) {
        struct rig *r = make(chosen[i], differentiable());
        check_net(r);
        rig_free(r);
        if (test_failures) fprintf(stderr, "%s\n", chosen[i]);
        REQUIRE(!test_failures);
    }
    CHECK(skipped * 20 < checked);
}

AMP_TEST(every_activation_against_finite_differences)
{
    static const char *const layers[] = {
        "[convolutional]\nfilters=5\nsize=3\npad=1\nactivation=%s\n[cost]\n",
        "[convolutional]\nfilters=5\nsize=3\npad=1\nbatch_normalize=1\nactivation=%s\n[cost]\n",
        "[connected]\noutput=9\nactivation=%s\n[cost]\n",
        "[convolutional]\nfilters=5\nsize=3\nactivation=linear\n[activation]\nactivation=%s\n"
        "[cost]\n",
        "[convolutional]\nfilters=4\nsize=3\npad=1\nactivation=linear\n"
        "[convolutional]\nfilters=4\nsize=3\npad=1\nactivation=linear\n"
        "[shortcut]\nfrom=0\nactivation=%s\n[cost]\n"};
    checked = skipped = 0;
    for (int a = 0; a < AMPK_ACTIVATIONS; a++)
        for (int k = 0; k < 5; k++) {
            const char *name = amp_activation_name((enum ampk_activation)a);
            int used = snprintf(text, sizeof text,
                                "[net]\nmixed_precision=1\namp_dtype=fp32\nbatch=2\nwidth=6\n"
                                "height=6\nchannels=4\n");
            for (const char *p = layers[k]; *p; p++) {
                if (*p != '%') {
                    text[used++] = *p;
                    continue;
                }
                used += snprintf(text + used, sizeof text - (size_t)used, "%s", name);
                p++;
            }
            text[used] = 0;
            struct rig *r = make(text, differentiable());
            check_net(r);
            rig_free(r);
            if (test_failures) fprintf(stderr, "%s\n", text);
            REQUIRE(!test_failures);
        }
    CHECK(skipped * 20 < checked);
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

static struct result run_backward(struct rig *r, float scale)
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

static void free_result(struct result *r)
{
    for (int i = 0; i < r->n_layers; i++)
        free(r->deltas[i]);
    free(r->deltas);
    free(r->n_delta);
    free(r->gradients);
}

/* Bitwise, a's divided by scale. */
static void check_same(const struct result *a, double scale, const struct result *b,
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
static double distance(const double *a, double scale, const double *b, size_t n)
{
    double apart = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        apart += pow(a[i] / scale - b[i], 2);
        size += b[i] * b[i];
    }
    return size > 0 ? sqrt(apart / size) : apart;
}

static double gradients_apart(const struct result *a, double scale, const struct result *b)
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
static double deltas_apart(const struct result *a, double scale, const struct result *b)
{
    double worst = 0;
    for (int l = 0; l < a->n_layers; l++) {
        size_t n = a->n_delta[l];
        double apart = n ? distance(a->deltas[l], scale, b->deltas[l], n) : 0;
        if (!(apart <= worst)) worst = apart;
    }
    return worst;
}

static void stop_at_failure(const char *cfg)
{
    if (test_failures) fprintf(stderr, "%s\n", cfg);
    REQUIRE(!test_failures);
}

/* A backward pass may run again on the same forward, also after one that overflowed. */
static void check_replay(const char *cfg, const struct ampk_backend *backend, float scale)
{
    struct rig *r = make(cfg, backend);
    rig_forward(r);
    struct result first = run_backward(r, scale), again = run_backward(r, scale);
    check_same(&again, 1, &first, "second backward");
    free_result(&again);
    rig_backward(r, INFINITY);
    CHECK_INT(amp_graph_fault(r->graph, true).class, AMP_FAULT_BACKWARD);
    again = run_backward(r, scale);
    check_same(&again, 1, &first, "backward after an overflow");
    free_result(&again);
    free_result(&first);
    rig_free(r);
    stop_at_failure(cfg);
}

AMP_TEST(a_replayed_backward_gives_the_same_gradients)
{
    static const char *const keys[] = {"mixed_precision=1", "mixed_precision=1\namp_dtype=bf16",
                                       "mixed_precision=1\namp_dtype=fp32"};
    for (int round = 0; round < 12; round++)
        for (int k = 0; k < N_BACKENDS; k++) {
            random_net(text, keys[round % 3], NET_EVERYTHING & ~NET_STOPBACKWARD, 12);
            check_replay(text, backends[k], round % 3 ? 1 : 16);
        }
}

AMP_TEST(in_fp32_a_power_of_two_changes_nothing)
{
    for (int round = 0; round < 12; round++)
        for (int k = 0; k < N_BACKENDS; k++) {
            random_net(text, "mixed_precision=1\namp_dtype=fp32", NET_EVERYTHING, 12);
            struct rig *r = make(text, backends[k]);
            rig_forward(r);
            struct result one = run_backward(r, 1);
            for (int exponent = 1; exponent <= 24; exponent += 1 + random_below(8)) {
                struct result scaled = run_backward(r, ldexpf(1, exponent));
                check_same(&scaled, ldexp(1, exponent), &one, "scaled");
                free_result(&scaled);
            }
            free_result(&one);
            rig_free(r);
            stop_at_failure(text);
        }
}

/* Where watching a convolution's data gradient would cost, it is left to the sums: the same faults.
 */
AMP_TEST(faults_of_unwatched_deltas_are_the_same)
{
    static const char *const dtypes[] = {"fp16", "fp16", "bf16"};
    struct ampk_backend unwatched = ampk_cpu;
    unwatched.watching_costs = true;
    int faults = 0, unseen = 0;
    for (int round = 0; round < 40; round++) {
        char keys[100];
        snprintf(keys, sizeof keys, "mixed_precision=1\namp_dtype=%s", dtypes[round % 3]);
        random_net(text, keys, NET_EVERYTHING, 14);
        struct amp_fault found[2];
        for (int k = 0; k < 2; k++) {
            uint64_t state = test_random_state;
            struct rig *r = make(text, k ? &unwatched : &ampk_cpu);
            rig_forward(r);
            rig_backward(r, ldexpf(1, round % 3 == 2 ? 126 : 14 + round % 10));
            found[k] = amp_graph_fault(r->graph, true);
            for (int i = 0; k && i < r->net->n; i++) {
                int s = r->plan->layers[i].sources ? r->plan->layers[i].sources[0] : -1;
                unseen += s >= 0 && r->graph->nodes[i].conv &&
                          !amp_graph_conv_dx_watch(r->graph, i, &r->graph->nodes[s].delta);
            }
            rig_free(r);
            if (!k) test_random_state = state;
        }
        CHECK_INT(found[1].class, found[0].class);
        if (round % 3 < 2) { /* in BF16 the sum is told */
            CHECK_INT(found[1].layer, found[0].layer);
            CHECK_INT(found[1].tensor, found[0].tensor);
        }
        faults += found[0].class == AMP_FAULT_BACKWARD && found[0].tensor == AMP_WATCH_DELTA;
        stop_at_failure(text);
    }
    CHECK(faults > 5);
    CHECK(unseen > 20);
}

/* ---- batch-norm's sums in the next convolution's data gradient ---- */

#define SUMMED(activation)                                                                         \
    "[net]\nmixed_precision=1\nbatch=3\nchannels=4\nwidth=7\nheight=6\n" NORMALIZED(8, activation) \
        NORMALIZED(16, activation) NORMALIZED(                                                     \
            5,                                                                                     \
            activation) "[convolutional]\nsize=3\npad=1\nfilters=3\nactivation=linear\n[cost]\n"
#define NORMALIZED(filters, activation)                                                            \
    "[convolutional]\nbatch_normalize=1\npad=1\nsize=3\nfilters=" #filters                         \
    "\nactivation=" activation "\n"

static const struct ampk_backend *summing_nothing(void)
{
    static struct ampk_backend backend;
    backend = ampk_reference;
    backend.conv_sums_gradients = NULL;
    return &backend;
}

static void check_summed(const struct rig *r, bool expected)
{
    for (int i = 0; i < 3; i++)
        CHECK_INT(r->graph->nodes[i].gradient_sums != NULL, expected);
    CHECK(!r->graph->nodes[3].gradient_sums);
}

/* But that g is rounded to FP16 in place of the delta, and summed before that. */
AMP_TEST(summed_along_or_by_itself_is_the_same)
{
    static const char *const nets[] = {SUMMED("leaky"), SUMMED("relu"), SUMMED("linear")};
    for (int i = 0; i < 3; i++) {
        uint64_t state = test_random_state;
        struct rig *a = make(nets[i], &ampk_reference);
        test_random_state = state;
        struct rig *b = make(nets[i], summing_nothing());
        check_summed(a, true);
        check_summed(b, false);
        rig_forward(a);
        rig_forward(b);
        struct result x = run_backward(a, 8), y = run_backward(b, 8);
        CHECK_NEAR(gradients_apart(&x, 1, &y), 0, 2e-3);
        free_result(&x);
        free_result(&y);
        rig_free(a);
        rig_free(b);
        stop_at_failure(nets[i]);
    }
}

/* What a data gradient leaves for batch-norm, with one value spoilt. */
static struct {
    bool in_sums;
    size_t at; /* in g, or in the sums */
    float value;
} spoilt;

static void sum_and_spoil(struct ampk_context *ctx, struct ampk_conv *conv,
                          const struct ampk_tensor *x, const struct ampk_tensor *dy,
                          const struct ampk_tensor *g, const struct ampk_gradient_sums *sums)
{
    ampk_reference.conv_backward_summed(ctx, conv, x, dy, g, sums);
    if (spoilt.in_sums)
        sums->sums[spoilt.at] = spoilt.value;
    else
        ((uint16_t *)g->data)[spoilt.at] = isnan(spoilt.value) ? 0x7e00 : 0x7c00;
}

AMP_TEST(what_is_not_finite_in_summed_gradients_is_found)
{
    struct ampk_backend backend = ampk_reference;
    backend.conv_backward_summed = sum_and_spoil;
    for (int i = 0; i < 12; i++) {
        spoilt.in_sums = i % 3 > 0;
        spoilt.at = i % 3 < 2 ? 3 : 5 + 3; /* of the last layer's 5 channels: the second sum */
        spoilt.value = i / 3 % 2 ? NAN : INFINITY;
        backend.watching_costs = i >= 6;
        struct rig *r = make(SUMMED("relu"), &backend);
        check_summed(r, true);
        rig_forward(r);
        rig_backward(r, 8);
        struct amp_fault fault = amp_graph_fault(r->graph, true);
        CHECK_INT(fault.class, AMP_FAULT_BACKWARD);
        CHECK_INT(fault.layer, 2); /* backward, it comes first */
        rig_free(r);
        stop_at_failure(SUMMED("relu"));
    }
}

/* With linear activations g is the delta: what FP16 refuses of it is found where it is without. */
AMP_TEST(faults_of_summed_gradients_are_the_same)
{
    struct ampk_backend summing = ampk_reference;
    summing.watching_costs = true;
    int faults = 0;
    for (int round = 0; round < 30; round++) {
        struct amp_fault found[2];
        uint64_t state = test_random_state;
        for (int k = 0; k < 2; k++) {
            test_random_state = state;
            struct rig *r = make(SUMMED("linear"), k ? &summing : summing_nothing());
            check_summed(r, k);
            const struct amp_param *last = r->graph->nodes[3].weights;
            for (size_t i = 0; i < last->n; i++) /* deltas before it are the largest */
                last->value[i] *= 32;
            rig_forward(r);
            rig_backward(r, ldexpf(1, 4 + round % 10));
            found[k] = amp_graph_fault(r->graph, true);
            CHECK_INT(amp_graph_refused(r->graph) > 65504, found[k].class == AMP_FAULT_BACKWARD);
            rig_free(r);
        }
        CHECK_INT(found[1].class, found[0].class);
        CHECK_INT(found[1].layer, found[0].layer);
        CHECK_INT(found[1].tensor, found[0].tensor);
        faults += found[0].tensor == AMP_WATCH_DELTA && found[0].layer < 3;
        stop_at_failure(SUMMED("linear"));
    }
    CHECK(faults > 5);
}

/* Makes the weights of a convolution before batch-norm as large as FP16 takes. */
static void enlarge_weights(struct rig *r)
{
    int start = random_below(r->net->n);
    for (int k = 0; k < r->net->n; k++) {
        const struct amp_node *node = &r->graph->nodes[(start + k) % r->net->n];
        if (!node->conv || !node->desc->batch_normalize) continue;
        float most = 0;
        for (size_t i = 0; i < node->weights->n; i++)
            most = fmaxf(most, fabsf(node->weights->value[i]));
        for (size_t i = 0; i < node->weights->n; i++)
            node->weights->value[i] *= 60000 / most;
        return;
    }
}

/* Where a convolution's output is watched by batch-norm: the same faults. */
AMP_TEST(faults_of_outputs_that_are_watched_late_are_the_same)
{
    struct ampk_backend late = ampk_cpu;
    late.watching_costs = true;
    int faults = 0;
    for (int round = 0; round < 40; round++) {
        random_net(text, "mixed_precision=1\namp_dtype=fp16", NET_EVERYTHING, 14);
        struct amp_fault found[2];
        uint64_t state = test_random_state;
        for (int k = 0; k < 2; k++) {
            test_random_state = state;
            struct rig *r = make(text, k ? &late : &ampk_cpu);
            enlarge_weights(r);
            rig_forward(r);
            found[k] = amp_graph_fault(r->graph, false);
            rig_free(r);
        }
        CHECK_INT(found[1].class, found[0].class);
        CHECK_INT(found[1].layer, found[0].layer);
        CHECK_INT(found[1].tensor, found[0].tensor);
        faults += found[0].class == AMP_FAULT_FORWARD && found[0].tensor == AMP_WATCH_Y;
        stop_at_failure(text);
    }
    CHECK(faults > 5);
}

/* Every layer forced to FP32 storage one by one is the same as amp_dtype=fp32. */
AMP_TEST(forcing_every_layer_to_fp32_is_the_fp32_plan)
{
    for (int round = 0; round < 5; round++) {
        random_net(text, "mixed_precision=1\namp_dtype=fp32", NET_BATCHNORM | NET_SHAPES, 8);
        char forced[2 * RANDOM_NET_SIZE] = "";
        size_t used = 0;
        for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
            size_t length = strcspn(line, "\n") + 1;
            if (!strncmp(line, "amp_dtype", 9)) continue;
            bool layer = line[0] == '[' && strncmp(line, "[net]", 5);
            used += (size_t)snprintf(forced + used, sizeof forced - used, "%.*s%s", (int)length,
                                     line, layer ? "mixed_precision=0\n" : "");
        }
        uint64_t state = test_random_state;
        struct rig *a = make(text, &ampk_cpu);
        test_random_state = state;
        struct rig *b = make(forced, &ampk_cpu);
        rig_forward(a);
        rig_forward(b);
        struct result x = run_backward(a, 1), y = run_backward(b, 1);
        check_same(&x, 1, &y, "forced");
        free_result(&x);
        free_result(&y);
        rig_free(a);
        rig_free(b);
        stop_at_failure(forced);
    }
}

/* Layers before a route that the last of them write into; and the same nets with a dropout that
 * drops nothing in between, after which the route copies. */
#define DROP_NOTHING "[dropout]\nprobability=0\n"
#define POOL(size)   "[maxpool]\nstride=1\nsize=" #size "\n"
#define ELU          "[convolutional]\nbatch_normalize=1\nfilters=11\nactivation=elu\n"
#define INTO(before, layers)                                                                       \
    {                                                                                              \
        before "[route]\nlayers=" layers "\n", before DROP_NOTHING "[route]\nlayers=" layers "\n"  \
    }
// clang-format off
static const char *const into_routes[][2] = {
    INTO(CONV(8, 3, 1) "[maxpool]\nstride=2\n[upsample]\nscale=.7\n", "-1,0"),
    INTO(CONV(3, 3, 1) "[maxpool]\nstride=2\n[upsample]\n", "0,-1"),
    INTO(CONV(8, 3, 1) POOL(5), "-1,0"),
    INTO(CONV(8, 3, 1) CONV(5, 3, 1), "0,-1"),
    INTO(CONV(8, 3, 1) ELU, "-1,0"),
    INTO(CONV(8, 3, 1) CONV(8, 3, 2) "[route]\nlayers=0\n[reorg]\nstride=2\n", "-1,1"),
    INTO(CONV(8, 3, 1) CONV(16, 3, 1) "stopbackward=1\n[maxpool]\nsize=2\nstride=2\n[upsample]\n", "-1,1"),
    {CONV(8, 3, 1) POOL(5) "[route]\nlayers=0\n" POOL(3) "[route]\nlayers=-1,-3,0\n",
     CONV(8, 3, 1) POOL(5) DROP_NOTHING "[route]\nlayers=0\n" POOL(3) DROP_NOTHING
         "[route]\nlayers=-1,-4,0\n"},
};
// clang-format on
#define N_INTO_ROUTES (sizeof into_routes / sizeof *into_routes)

/* The gradients of the last layers' net with, or without, the dropout. */
static struct rig *run_into_route(const char *layers, const struct ampk_backend *backend,
                                  const char *dtype, int *slices)
{
    snprintf(text, sizeof text,
             "[net]\nmixed_precision=1\namp_dtype=%s\nbatch=3\nwidth=12\nheight=12\nchannels=3\n"
             "%s" CONV(7, 3, 1) "[cost]\n",
             dtype, layers);
    struct rig *r = make(text, backend);
    *slices = 0;
    for (int i = 0; i < r->net->n; i++)
        *slices += r->plan->layers[i].route >= 0;
    rig_forward(r);
    rig_backward(r, 8);
    return r;
}

AMP_TEST(a_slice_of_a_route_changes_nothing)
{
    static const char *const dtypes[] = {"fp16", "bf16", "fp32"};
    for (size_t i = 0; i < 3 * N_BACKENDS * N_INTO_ROUTES; i++) {
        const struct ampk_backend *backend = backends[i % N_BACKENDS];
        const char *dtype = dtypes[i / N_BACKENDS % 3];
        const char *const *layers = into_routes[i / N_BACKENDS / 3];
        uint64_t state = test_random_state;
        int slices, copied;
        struct rig *a = run_into_route(layers[0], backend, dtype, &slices);
        test_random_state = state;
        struct rig *b = run_into_route(layers[1], backend, dtype, &copied);
        CHECK(slices > copied);
        CHECK(a->loss == b->loss);
        REQUIRE(a->graph->n_gradients == b->graph->n_gradients);
        CHECK(!memcmp(a->graph->gradients, b->graph->gradients,
                      a->graph->n_gradients * sizeof(float)));
        rig_free(a);
        rig_free(b);
        stop_at_failure(text);
    }
}

/* ---- fused pools ---- */

#define POOLED(size, between)                                                                      \
    "[net]\nmixed_precision=1\nbatch=3\nchannels=4\nwidth=" #size "\nheight=" #size                \
    "\n" CONV(20, 3, 1) between HALVE CONV(9, 3, 1) between HALVE CONV(3, 3, 1) "[cost]\n"
#define NOTHING_DROPPED "[dropout]\nprobability=0\n"

/* What a pool makes does not depend on whether the convolution before it does it: a dropout that
 * drops nothing stands between them. On the CPU batch-norm's sums are in another order. */
AMP_TEST(a_fused_pool_is_the_pool)
{
    static const char *const nets[][2] = {{POOLED(8, ""), POOLED(8, NOTHING_DROPPED)},
                                          {POOLED(15, ""), POOLED(15, NOTHING_DROPPED)}};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < N_BACKENDS; k++) {
            uint64_t state = test_random_state;
            struct rig *a = make(nets[i][0], backends[k]);
            test_random_state = state;
            struct rig *b = make(nets[i][1], backends[k]);
            CHECK(a->plan->layers[1].fused && a->plan->layers[3].fused);
            CHECK(!b->plan->layers[2].fused && !b->plan->layers[5].fused);
            rig_forward(a);
            rig_forward(b);
            CHECK_NEAR(a->loss, b->loss, 0);
            struct result x = run_backward(a, 8), y = run_backward(b, 8);
            CHECK_NEAR(gradients_apart(&x, 1, &y), 0, k == 0 ? 0 : 1e-3);
            free_result(&x);
            free_result(&y);
            rig_free(a);
            rig_free(b);
            stop_at_failure(nets[i][0]);
        }
}

/* ---- batch-norm's backward and the first weight gradient in one ---- */

static const struct ampk_backend *one_by_one(void)
{
    static struct ampk_backend backend;
    backend = ampk_reference;
    backend.conv_takes_gradient = NULL;
    return &backend;
}

/* The first layer alone, or what learns first. */
static void check_fuses_weight_gradient(const struct rig *r, int expected)
{
    for (int i = 0; i < r->net->n; i++)
        CHECK_INT(r->graph->nodes[i].fuses_weight_gradient, i == expected);
}

AMP_TEST(at_once_or_one_by_one_is_the_same)
{
    static const struct {
        const char *cfg;
        int layer; /* -1: none */
    } nets[] = {
        {SUMMED("leaky"), 0},
        {POOLED(15, ""), 0},
        {POOLED(15, NOTHING_DROPPED), 0},
        {"[net]\nmixed_precision=1\nbatch=3\nchannels=4\nwidth=7\nheight=6\n" NORMALIZED(8, "leaky")
             NORMALIZED(8, "leaky\nstopbackward=1") NORMALIZED(5, "relu") "[cost]\n",
         2},
        {"[net]\nmixed_precision=1\nbatch=3\nchannels=4\nwidth=7\nheight=6\n" NORMALIZED(
             8, "logistic") NORMALIZED(8, "leaky") "[cost]\n",
         -1},
    };
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        uint64_t state = test_random_state;
        struct rig *a = make(nets[i].cfg, &ampk_reference);
        test_random_state = state;
        struct rig *b = make(nets[i].cfg, one_by_one());
        check_fuses_weight_gradient(a, nets[i].layer);
        check_fuses_weight_gradient(b, -1);
        rig_forward(a);
        rig_forward(b);
        struct result x = run_backward(a, 8), y = run_backward(b, 8);
        CHECK_NEAR(gradients_apart(&x, 1, &y), 0, 0);
        CHECK(
            !memcmp(a->graph->watch, b->graph->watch, (size_t)a->net->n * sizeof *a->graph->watch));
        free_result(&x);
        free_result(&y);
        rig_free(a);
        rig_free(b);
        stop_at_failure(nets[i].cfg);
    }
}

/* What is seen of a layer's output and delta. */
struct watched {
    int layer;
    size_t n[AMP_SEEN];
    float *values[AMP_SEEN];
};

static void look_at(const struct amp_seen *seen, void *user)
{
    struct watched *w = user;
    if (seen->layer != w->layer || seen->what == AMP_SEEN_GRADIENT) return;
    CHECK_STR(seen->format, "fp16");
    CHECK(!w->values[seen->what]);
    w->n[seen->what] = seen->n;
    w->values[seen->what] = malloc(seen->n * sizeof(float));
    REQUIRE(w->values[seen->what]);
    memcpy(w->values[seen->what], seen->values, seen->n * sizeof(float));
}

static struct watched watch_first_layer(const char *cfg, uint64_t state)
{
    test_random_state = state;
    struct rig *r = make(cfg, &ampk_reference);
    struct watched w = {.layer = 0};
    amp_graph_observe(r->graph, look_at, &w);
    rig_forward(r);
    rig_backward(r, 8);
    rig_free(r);
    return w;
}

AMP_TEST(what_a_fused_pool_leaves_out_is_seen_all_the_same)
{
    uint64_t state = test_random_state;
    struct watched fused = watch_first_layer(POOLED(15, ""), state);
    struct watched apart = watch_first_layer(POOLED(15, NOTHING_DROPPED), state);
    for (int what = AMP_SEEN_OUT; what <= AMP_SEEN_DELTA; what++) {
        REQUIRE(fused.n[what] == 3 * 20 * 15 * 15 && apart.n[what] == fused.n[what]);
        size_t different = 0;
        for (size_t i = 0; i < fused.n[what]; i++)
            different += !(fused.values[what][i] == apart.values[what][i]);
        CHECK_INT(different, 0);
        free(fused.values[what]);
        free(apart.values[what]);
    }
}

/* The largest of a layer's delta, and its zeros. */
static void inspected_delta(struct rig *r, int layer, uint32_t seen[2])
{
    enum { LAYERS = 8 };
    uint32_t rows[AMP_INSPECTED][LAYERS], *at[AMP_INSPECTED];
    REQUIRE(r->net->n <= LAYERS);
    for (int i = 0; i < AMP_INSPECTED; i++)
        at[i] = rows[i];
    amp_graph_inspected(r->graph, at);
    seen[0] = rows[AMP_INSPECTED_DELTA_MAX][layer];
    seen[1] = rows[AMP_INSPECTED_DELTA_ZEROS][layer];
}

/* The delta that a convolution goes on from, and stores nothing of. */
AMP_TEST(a_delta_that_is_summed_along_is_seen_all_the_same)
{
    uint64_t state = test_random_state;
    struct watched watched[2];
    uint32_t inspected[2][2], alone[2][2];
    for (int k = 0; k < 2; k++) {
        const struct ampk_backend *backend = k ? &ampk_reference : summing_nothing();
        test_random_state = state;
        struct rig *r = make(SUMMED("leaky"), backend);
        check_summed(r, k);
        watched[k] = (struct watched){.layer = 2};
        amp_graph_observe(r->graph, look_at, &watched[k]);
        amp_graph_inspect(r->graph, true);
        rig_forward(r);
        rig_backward(r, 8);
        float *seen = rig_gradient(r, 0);
        inspected_delta(r, 2, inspected[k]);
        amp_graph_observe(r->graph, NULL, NULL);
        rig_forward(r);
        rig_backward(r, 8);
        inspected_delta(r, 2, alone[k]); /* as the log does */
        amp_graph_inspect(r->graph, false);
        rig_forward(r);
        rig_backward(r, 8);
        float *unseen = rig_gradient(r, 0);
        for (size_t i = 0; i < r->params[0].n; i++)
            CHECK(seen[i] == unseen[i]); /* looking changes nothing */
        free(seen);
        free(unseen);
        rig_free(r);
    }
    CHECK(inspected[0][0] > 0 && inspected[1][0] == inspected[0][0]);
    CHECK_INT(inspected[1][1], inspected[0][1]);
    CHECK(alone[0][0] > 0 && alone[1][0] == alone[0][0]);
    CHECK_INT(alone[1][1], alone[0][1]);
    const struct watched *a = &watched[0], *b = &watched[1];
    REQUIRE(a->n[AMP_SEEN_DELTA] == 3 * 5 * 7 * 6 && b->n[AMP_SEEN_DELTA] == a->n[AMP_SEEN_DELTA]);
    for (size_t i = 0; i < a->n[AMP_SEEN_DELTA]; i++)
        CHECK(a->values[AMP_SEEN_DELTA][i] == b->values[AMP_SEEN_DELTA][i]);
    for (int k = 0; k < 2; k++)
        for (int what = AMP_SEEN_OUT; what <= AMP_SEEN_DELTA; what++)
            free(watched[k].values[what]);
}

/* ---- executors ---- */

/* Darknet's code would run such a layer, with tensors that are not Darknet's. */
AMP_TEST(a_layer_that_no_executor_runs_is_refused)
{
    struct rig *r = make(FP32_NET(8, CONV(4, 3, 1) "[lrn]\n[cost]\n"), &ampk_reference);
    r->plan->layers[1].ours = true;
    CHECK_INT(rig_make_graph(r, false), -1);
    CHECK_STR(r->err, "layer 1 (normalization): the plan has an executor for it, there is none");
    rig_free(r);
}

/* ---- memory ---- */

/* All buffers apart: nothing can overwrite anything. */
static void lay_out_apart(struct amp_plan *plan)
{
    size_t end = 0;
    for (int i = 0; i < plan->n_buffers; i++) {
        plan->buffers[i].offset = end;
        end += (plan->buffers[i].bytes + AMP_ARENA_ALIGN - 1) / AMP_ARENA_ALIGN * AMP_ARENA_ALIGN;
    }
    plan->arena_bytes = end;
}

/* Old contents must not matter; all bits set is NaN in every format. */
static void poison_arena(struct rig *r)
{
    memset(r->graph->arena, 0xff, r->plan->arena_bytes);
}

AMP_TEST(sharing_memory_changes_nothing)
{
    static const char *const keys[] = {"mixed_precision=1", "mixed_precision=1\namp_dtype=fp32"};
    for (int round = 0; round < 30; round++) {
        random_net(text, keys[round % 2], NET_EVERYTHING, random_from(4, 20));
        struct rig *r = make(text, &ampk_cpu);
        for (int pass = 0; pass < 2; pass++) {
            poison_arena(r);
            rig_forward(r);
            rig_backward(r, 1);
        }
        struct result shared = run_backward(r, 1);
        double loss = r->loss;
        lay_out_apart(r->plan);
        REQUIRE(rig_make_graph(r, false) == 0);
        poison_arena(r);
        rig_forward(r);
        struct result apart = run_backward(r, 1);
        CHECK_NEAR(loss, r->loss, 0);
        check_same(&shared, 1, &apart, "shared memory");
        free_result(&shared);
        free_result(&apart);
        rig_free(r);
        stop_at_failure(text);
    }
}

/* Fewer buffers, the same outputs. */
AMP_TEST(the_inference_plan_gives_the_training_plans_outputs)
{
    for (int round = 0; round < 20; round++) {
        random_net(text, "mixed_precision=1", NET_EVERYTHING, 12);
        struct rig *r = make(text, &ampk_cpu);
        int last = r->net->n - 2; /* before the cost layer: FP32 in Darknet's output */
        size_t n = (size_t)r->net->batch * (size_t)r->net->layers[last].outputs;
        float *output = malloc(n * sizeof *output);
        REQUIRE(output);
        for (int pass = 0; pass < 2; pass++) {
            poison_arena(r);
            amp_graph_begin(r->graph, r->input, NULL, false);
            for (int i = 0; i < r->net->n; i++)
                amp_graph_forward(r->graph, i);
            if (pass == 0) memcpy(output, r->bindings[last].output, n * sizeof *output);
            if (pass == 1) CHECK(!memcmp(output, r->bindings[last].output, n * sizeof *output));
            amp_plan_free(r->plan);
            r->plan = amp_plan_make(r->net, &r->options, amp_layers_ours(NULL), NULL, false, r->err,
                                    sizeof r->err);
            REQUIRE(r->plan && rig_make_graph(r, false) == 0);
        }
        free(output);
        rig_free(r);
        stop_at_failure(text);
    }
}

/* The words of an inference are its own: a training pass after it packs the weights again, and says
 * of weights that are not finite that they are what is wrong. Nobody has told the graph of them. */
AMP_TEST(weights_that_went_bad_before_an_inference_are_found_after_it)
{
    random_net(text, "mixed_precision=1", NET_EVERYTHING, 12);
    struct rig *r = make(text, &ampk_cpu);
    int conv = -1;
    rig_forward(r);
    CHECK_INT(amp_graph_fault(r->graph, false).class, AMP_FAULT_NONE);
    for (int i = 0; i < r->n_params && conv < 0; i++)
        if (r->params[i].kind == AMP_PARAM_WEIGHTS && r->graph->nodes[r->params[i].layer].conv) {
            conv = r->params[i].layer;
            r->params[i].value[0] = INFINITY;
        }
    REQUIRE(conv >= 0);
    for (int train = 0; train < 2; train++) {
        amp_graph_begin(r->graph, r->input, NULL, train);
        for (int i = 0; i < r->net->n; i++)
            amp_graph_forward(r->graph, i);
    }
    struct amp_fault fault = amp_graph_fault(r->graph, false);
    CHECK_INT(fault.class, AMP_FAULT_DIVERGED);
    CHECK_INT(fault.tensor, AMP_WATCH_WEIGHTS);
    CHECK_INT(fault.layer, conv);
    rig_free(r);
}

/* ---- the same net on two backends, or in two dtypes ---- */

struct twins {
    const char *keys;
    const struct ampk_backend *backend;
    double scale;
};

struct apart {
    double gradients, deltas; /* relative, see distance() */
};

/* layers: a cfg with an empty line of keys. */
static struct apart run_twins(const char *layers, struct twins ours, struct twins exact)
{
    static char cfg[2][RANDOM_NET_SIZE + 200];
    const char *rest = strchr(layers, '\n') + 1; /* after [net] */
    uint64_t state = test_random_state;
    snprintf(cfg[0], sizeof cfg[0], "[net]\nmixed_precision=1\n%s\n%s", ours.keys, rest);
    snprintf(cfg[1], sizeof cfg[1], "[net]\nmixed_precision=1\n%s\n%s", exact.keys, rest);
    struct rig *a = make(cfg[0], ours.backend);
    test_random_state = state;
    struct rig *b = make(cfg[1], exact.backend);
    rig_forward(a);
    rig_forward(b);
    struct result x = run_backward(a, (float)ours.scale), y = run_backward(b, 1);
    CHECK_INT(amp_graph_fault(a->graph, true).class, AMP_FAULT_NONE);
    struct apart apart = {gradients_apart(&x, ours.scale, &y), deltas_apart(&x, ours.scale, &y)};
    free_result(&x);
    free_result(&y);
    rig_free(a);
    rig_free(b);
    stop_at_failure(cfg[0]);
    return apart;
}

/* 1e-3: sums of FP32 in another order, magnified by batch-norm; a lost contribution is 0.1 to 1. */
AMP_TEST(the_cpu_backend_gives_every_delta_of_the_reference)
{
    struct twins ours = {"amp_dtype=fp32", &ampk_cpu, 1},
                 exact = {"amp_dtype=fp32", &ampk_reference, 1};
    for (int round = 0; round < 20; round++) {
        draw_differentiable("", NET_EVERYTHING, 12);
        struct apart apart = run_twins(text, ours, exact);
        CHECK_NEAR(apart.gradients, 0, 1e-3);
        CHECK_NEAR(apart.deltas, 0, 1e-3);
        stop_at_failure(text);
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A single net may be far off, where rounding decides a kink of an early layer; most must not be.
 * unit: the dtype's rounding, 2^-11 or 2^-8. A net of a dozen layers comes out two of them off in
 * the median. */
static void check_dtype(const char *key, double unit, double scale)
{
    enum { ROUNDS = 60 };
    struct twins ours = {key, &ampk_cpu, scale}, exact = {"amp_dtype=fp32", &ampk_cpu, 1};
    double gradients[ROUNDS], deltas[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        draw_differentiable("", NET_EVERYTHING, 12);
        struct apart apart = run_twins(text, ours, exact);
        gradients[round] = apart.gradients;
        deltas[round] = apart.deltas;
    }
    qsort(gradients, ROUNDS, sizeof(double), ascending);
    qsort(deltas, ROUNDS, sizeof(double), ascending);
    CHECK_NEAR(gradients[ROUNDS / 2], 0, 4 * unit);
    CHECK_NEAR(deltas[ROUNDS / 2], 0, 8 * unit);
    CHECK_NEAR(gradients[ROUNDS * 8 / 10], 0, 32 * unit);
    CHECK_NEAR(deltas[ROUNDS * 8 / 10], 0, 64 * unit);
    CHECK(gradients[ROUNDS - 1] > 0); /* it did something */
}

AMP_TEST(fp16_is_close_to_fp32)
{
    check_dtype("amp_dtype=fp16", 0x1p-11, 8);
}

AMP_TEST(tf32_is_close_to_fp32)
{
    check_dtype("amp_dtype=tf32", 0x1p-11, 1);
}

AMP_TEST(bf16_is_close_to_fp32)
{
    check_dtype("amp_dtype=bf16", 0x1p-8, 1);
}

AMP_TEST_MAIN
