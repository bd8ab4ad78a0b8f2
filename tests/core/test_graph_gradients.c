/* Gradients and deltas of the executors, without Darknet, against finite differences: random nets
 * and chosen ones. */
#include "graph_rig.h"

/* ---- a reference whose batch-norm is differentiable as Darknet differentiates it: cuDNN's ---- */

/* Finite differences want a forward pass that backward is the derivative of: cuDNN's. */
static void biased_conv_forward(struct ampk_context *context, struct ampk_conv *conv,
                                const struct ampk_tensor *x, const struct ampk_tensor *y,
                                const struct ampk_bn_statistics *statistics, uint32_t *amax)
{
    struct ampk_bn_statistics other = {0};
    if (statistics) other = *statistics;
    other.rule = AMPK_BN_CUDNN;
    ampk_ref_conv_forward(context, conv, x, y, statistics ? &other : NULL, amax);
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
    backend.conv_takes_gradient = NULL; /* dy is that of the operations above */
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
static struct grouped_routes grouped;

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

static void check_random_nets(unsigned features, int rounds, int layers)
{
    checked = skipped = 0;
    for (int round = 0; round < rounds; round++) {
        draw_differentiable("mixed_precision=1\namp_dtype=fp32", features, layers);
        struct rig *r = make(text, differentiable());
        check_net(r);
        random_count_grouped(r->net, r->plan, &grouped);
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

AMP_TEST(grouped_routes_against_finite_differences)
{
    grouped = (struct grouped_routes){0, 0};
    check_random_nets(NET_EVERYTHING | NET_FREEZE | NET_GROUPED, 8, 14);
    checked = skipped = 0;
    for (int i = 0; i < GROUPED_NETS; i++) {
        const char *rest = strchr(grouped_nets[i], '\n') + 1; /* after [net] */
        snprintf(text, sizeof text, "[net]\nmixed_precision=1\namp_dtype=fp32\n%s", rest);
        struct rig *r = make(text, differentiable());
        check_net(r);
        random_count_grouped(r->net, r->plan, &grouped);
        rig_free(r);
        stop_at_failure(text);
    }
    printf("%d gradients of grouped routes come first, %d later\n", grouped.first, grouped.later);
    CHECK(grouped.first >= 4 && grouped.later >= 5 && skipped * 20 < checked); /* of the chosen */
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

// clang-format off
static const char residual[] =
    FP32_NET(8, CONV(6, 3, 1) CONV(4, 1, 1) CONV(6, 3, 1) "[shortcut]\nfrom=-3\n"
             CONV(4, 1, 1) CONV(6, 3, 1) "freeze=1\n" "[shortcut]\nfrom=-3\n"
             CONV(4, 3, 1) "freeze=1\n" CONV(3, 3, 1) "[cost]\n");
// clang-format on

/* Layers with mish or swish by what the plan makes of them. */
struct curves {
    int all, summed, frozen;
};

static void count_curves(const struct rig *r, struct curves *n)
{
    for (int i = 0; i < r->net->n; i++) {
        const struct amp_plan_layer *p = &r->plan->layers[i];
        if (!p->backward || !ampk_is_gradient_of_input(r->net->layers[i].activation)) continue;
        n->all++;
        n->summed += amp_plan_writes(r->plan, i) != i;
        n->frozen += p->frozen;
    }
}

static void check_with_mish(const char *cfg, struct curves *n)
{
    struct rig *r = make(cfg, differentiable());
    random_mish(r->net);
    REQUIRE(rig_plan_again(r) == 0);
    check_net(r);
    count_curves(r, n);
    rig_free(r);
    stop_at_failure(cfg);
}

AMP_TEST(mish_and_swish_against_finite_differences)
{
    struct curves n = {0, 0, 0};
    checked = skipped = 0;
    for (int round = 0; round < 20; round++) {
        draw_differentiable("mixed_precision=1\namp_dtype=fp32", NET_EVERYTHING | NET_FREEZE, 12);
        check_with_mish(text, &n);
        check_with_mish(residual, &n);
    }
    CHECK(skipped * 20 < checked && n.all > 40 && n.summed > 5 && n.frozen > 3);
    printf("%d of %d samples are at a kink; %d layers, %d with a sum, %d frozen\n", skipped,
           checked, n.all, n.summed, n.frozen);
}

/* ---- chosen nets ---- */

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
    for (int a = 0; a < AMPK_STOCK_ACTIVATIONS; a++)
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

AMP_TEST_MAIN
