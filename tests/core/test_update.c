/* What becomes of the gradients of 100 steps, beside the same rules in double precision: PyTorch's
 * AdamW and clipping, LARS and LAMB by their papers, moving averages. The gradients are the run's
 * own, as every pass leaves them. And a linear layer that PyTorch has trained with its own
 * optimizers, clipping and averages (update_table.h). */
#include "tests/rig/harness.h"
#include "tests/rig/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CFG(keys)                                                                                  \
    "[net]\nmixed_precision=1\nbatch=4\nsubdivisions=2\nwidth=6\nheight=5\nchannels=3\n" keys      \
    "\n[convolutional]\nbatch_normalize=1\nfilters=6\nsize=3\npad=1\nactivation=leaky\n"           \
    "[convolutional]\nfilters=5\nsize=3\npad=1\nactivation=leaky\n"                                \
    "[connected]\noutput=4\nactivation=linear\n[cost]\n"
#define FP32 "amp_dtype=fp32\n"

enum { MOST_PARAMS = 8, IMAGES = 4 };

/* One run, and its arrays in double. */
struct run {
    struct rig *r;
    struct amp_update u;
    double *w[MOST_PARAMS], *g[MOST_PARAMS], *a[MOST_PARAMS], *b[MOST_PARAMS],
        *average[MOST_PARAMS];
};

static double *doubles(size_t n)
{
    double *x = calloc(n + 1, sizeof *x);
    REQUIRE(x);
    return x;
}

static uint64_t state;

/* The same weights in every run, unlike test_random. */
static uint64_t numbers(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state ^ state >> 29;
}

static struct run start(const char *cfg)
{
    state = 7;
    struct run run = {.r = rig_create(cfg, &ampk_cpu, numbers)};
    struct rig *r = run.r;
    REQUIRE(r && r->n_params <= MOST_PARAMS);
    run.u = (struct amp_update){.learning_rate = .01f,
                                .momentum = .9f,
                                .decay = .05f,
                                .b1 = .9f,
                                .b2 = .999f,
                                .eps = 1e-8f,
                                .batch = IMAGES};
    for (int i = 0; i < r->n_params; i++) {
        size_t n = r->params[i].n;
        run.w[i] = doubles(n), run.g[i] = doubles(n), run.average[i] = doubles(n);
        run.a[i] = doubles(n), run.b[i] = doubles(n);
        for (size_t k = 0; k < n; k++)
            run.w[i][k] = run.average[i][k] = (double)r->params[i].value[k];
    }
    return run;
}

static void end(struct run *run)
{
    for (int i = 0; i < run->r->n_params; i++) {
        free(run->w[i]), free(run->g[i]), free(run->average[i]);
        free(run->a[i]), free(run->b[i]);
    }
    rig_free(run->r);
}

/* Two passes, whose images depend on the step; run->g becomes the mean gradient, with PyTorch's
 * sign. */
static void run_passes(struct run *run, int step, float scale)
{
    struct rig *r = run->r;
    amp_graph_begin_step(r->graph);
    for (int i = 0; i < r->n_params; i++)
        memset(run->g[i], 0, r->params[i].n * sizeof(double));
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < r->net->batch * r->net->inputs; k++)
            r->input[k] = (float)sin(k + 100 * (2 * step + pass));
        rig_forward(r);
        rig_backward(r, scale);
        for (int i = 0; i < r->n_params; i++) {
            float *g = rig_gradient(r, i);
            for (size_t k = 0; k < r->params[i].n; k++)
                run->g[i][k] -= (double)g[k] / (double)scale / IMAGES;
            free(g);
        }
        amp_graph_accept_pass(r->graph, scale);
    }
}

static void run_update(struct run *run)
{
    struct rig *r = run->r;
    run->u.t++;
    run->u.grad_norm = amp_graph_grad_norm(r->graph);
    for (int i = 0; i < r->net->n; i++)
        amp_graph_set_due(r->graph, i);
    amp_graph_update(r->graph, &run->u);
}

/* Relative to the array's largest number. */
static void check_array(const char *what, int i, const float *x, const double *exact, size_t n,
                        double tolerance)
{
    double size = 0;
    for (size_t k = 0; k < n; k++)
        size = fmax(size, fabs(exact[k]));
    for (size_t k = 0; k < n; k++)
        if (!(fabs((double)x[k] - exact[k]) <= tolerance * size)) {
            TEST_FAIL("%s of param %d [%zu] is %.9g, expected %.9g; largest %g", what, i, k,
                      (double)x[k], exact[k], size);
            return;
        }
}

static double norm_of(const double *x, size_t n)
{
    double sum = 0;
    for (size_t k = 0; k < n; k++)
        sum += x[k] * x[k];
    return sqrt(sum);
}

/* ---- optimizers ---- */

typedef void rule(struct run *, int i, double decay);

/* torch.optim.AdamW, foreach=False: param.mul_(1 - lr * weight_decay), then Adam. */
static void adamw(struct run *run, int i, double decay)
{
    const struct amp_update *u = &run->u;
    double b1 = (double)u->b1, b2 = (double)u->b2, rate = (double)u->learning_rate;
    for (size_t k = 0; k < run->r->params[i].n; k++) {
        double g = run->g[i][k];
        run->w[i][k] *= 1 - rate * decay;
        run->a[i][k] = b1 * run->a[i][k] + (1 - b1) * g;
        run->b[i][k] = b2 * run->b[i][k] + (1 - b2) * g * g;
        double divisor = sqrt(run->b[i][k]) / sqrt(1 - pow(b2, u->t)) + (double)u->eps;
        run->w[i][k] -= rate / (1 - pow(b1, u->t)) * run->a[i][k] / divisor;
    }
}

/* Algorithm 1 of You, Gitman, Ginsburg 2017; weights only have a trust ratio. */
static void lars(struct run *run, int i, double decay)
{
    const struct amp_update *u = &run->u;
    size_t n = run->r->params[i].n;
    double w = norm_of(run->w[i], n), g = norm_of(run->g[i], n), local = 1;
    if (run->r->params[i].kind == AMP_PARAM_WEIGHTS) local = .001 * w / (g + decay * w);
    for (size_t k = 0; k < n; k++) {
        double d = run->g[i][k] + decay * run->w[i][k];
        run->a[i][k] = (double)u->momentum * run->a[i][k] + (double)u->learning_rate * local * d;
        run->w[i][k] -= run->a[i][k];
    }
}

/* Algorithm 2 of You et al. 2020 with phi(x) = x; weights only have a trust ratio. */
static void lamb(struct run *run, int i, double decay)
{
    const struct amp_update *u = &run->u;
    size_t n = run->r->params[i].n;
    double b1 = (double)u->b1, b2 = (double)u->b2, *step = doubles(n), ratio = 1;
    for (size_t k = 0; k < n; k++) {
        double g = run->g[i][k];
        run->a[i][k] = b1 * run->a[i][k] + (1 - b1) * g;
        run->b[i][k] = b2 * run->b[i][k] + (1 - b2) * g * g;
        double m = run->a[i][k] / (1 - pow(b1, u->t)), v = run->b[i][k] / (1 - pow(b2, u->t));
        step[k] = m / (sqrt(v) + (double)u->eps) + decay * run->w[i][k];
    }
    if (run->r->params[i].kind == AMP_PARAM_WEIGHTS)
        ratio = norm_of(run->w[i], n) / norm_of(step, n);
    for (size_t k = 0; k < n; k++)
        run->w[i][k] -= (double)u->learning_rate * ratio * step[k];
    free(step);
}

static void compare(const char *cfg, rule *exact, bool all_decay)
{
    struct run run = start(cfg);
    for (int step = 0; step < 100; step++) {
        run_passes(&run, step, 1);
        run_update(&run);
        for (int i = 0; i < run.r->n_params; i++) {
            const struct amp_param *p = &run.r->params[i];
            bool decays = all_decay || p->kind == AMP_PARAM_WEIGHTS;
            exact(&run, i, decays ? (double)run.u.decay : 0);
            check_array("value", i, p->value, run.w[i], p->n, 1e-5);
        }
    }
    end(&run);
}

AMP_TEST(adamw_is_pytorchs)
{
    compare(CFG(FP32 "optimizer=adamw"), adamw, false);
    compare(CFG(FP32 "optimizer=adamw\ndecay_bn=1"), adamw, true);
    compare(CFG("optimizer=adamw\namp_dtype=bf16"), adamw, false);
}

AMP_TEST(lars_is_its_papers)
{
    compare(CFG(FP32 "optimizer=lars"), lars, false);
    compare(CFG(FP32 "optimizer=lars\ndecay_bn=1"), lars, true);
}

AMP_TEST(lamb_is_its_papers)
{
    compare(CFG(FP32 "optimizer=lamb"), lamb, false);
    compare(CFG("optimizer=lamb\ndecay_bn=1"), lamb, true);
}

/* The largest change of a parameter of this kind that decay alone makes in one step. */
static double share_of_decay(const char *cfg, enum amp_param_kind kind)
{
    struct run with = start(cfg), without = start(cfg);
    double largest = 0;
    with.u.decay = .5f;
    without.u.decay = 0;
    run_passes(&with, 0, 64), run_update(&with);
    run_passes(&without, 0, 64), run_update(&without);
    for (int i = 0; i < with.r->n_params; i++)
        for (size_t k = 0; with.r->params[i].kind == kind && k < with.r->params[i].n; k++)
            largest = fmax(largest, fabs((double)with.r->params[i].value[k] -
                                         (double)without.r->params[i].value[k]));
    end(&with), end(&without);
    return largest;
}

/* decay_bn; without it as Darknet: its SGD decays weights only, its Adam all. */
AMP_TEST(decay_reaches_what_it_should)
{
    static const struct {
        const char *cfg;
        bool others;
    } cases[] = {{CFG(FP32), false},
                 {CFG(FP32 "decay_bn=0"), false},
                 {CFG(FP32 "decay_bn=1"), true},
                 {CFG(FP32 "optimizer=adam"), true},
                 {CFG(FP32 "optimizer=adam\ndecay_bn=0"), false},
                 {CFG(FP32 "optimizer=adam\ndecay_bn=1"), true},
                 {CFG(FP32 "optimizer=adamw"), false},
                 {CFG(FP32 "optimizer=adamw\ndecay_bn=1"), true},
                 {CFG(FP32 "optimizer=lars\ndecay_bn=0"), false},
                 {CFG(FP32 "optimizer=lamb"), false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(share_of_decay(cases[i].cfg, AMP_PARAM_WEIGHTS) > 0);
        CHECK_INT(share_of_decay(cases[i].cfg, AMP_PARAM_SCALES) > 0, cases[i].others);
        CHECK_INT(share_of_decay(cases[i].cfg, AMP_PARAM_BIASES) > 0, cases[i].others);
    }
}

/* ---- clipping ---- */

/* torch.nn.utils.clip_grad_norm_ and clip_grad_value_, then torch.optim.SGD without decay. From its
 * first step on momentum would add up what is rounded differently, so each step begins at the
 * run's. Returns whether it was made smaller. */
static bool clip_exactly(struct run *run, double norm, double value)
{
    double all = 0;
    for (int i = 0; i < run->r->n_params; i++)
        all += pow(norm_of(run->g[i], run->r->params[i].n), 2);
    double factor = norm > 0 ? fmin(1, norm / (sqrt(all) + 1e-6)) : 1;
    for (int i = 0; i < run->r->n_params; i++)
        for (size_t k = 0; k < run->r->params[i].n; k++) {
            double g = run->g[i][k] * factor;
            if (value > 0) g = fmax(-value, fmin(value, g));
            run->a[i][k] = -g * IMAGES * (double)run->u.momentum;
        }
    return factor < 1;
}

/* Clips by a share of what the first step has: some steps are clipped, some are not. */
static void check_clipping(double norm_share, double value_share)
{
    struct run run = start(CFG(FP32 "clip_grad_norm=1e9"));
    struct amp_rules *rules = &run.r->plan->rules;
    int clipped = 0, steps = 20;
    run.u.decay = 0;
    rules->clip_norm = 0;
    for (int step = 0; step < steps; step++) {
        run_passes(&run, step, 1024);
        if (step == 0) {
            double norm = amp_graph_grad_norm(run.r->graph), most = 0;
            for (size_t k = 0; k < run.r->params[0].n; k++)
                most = fmax(most, fabs(run.g[0][k]));
            rules->clip_norm = norm_share * norm / IMAGES;
            rules->clip_value = value_share * most;
        }
        for (int i = 0; i < run.r->n_params; i++)
            memset(run.r->params[i].update, 0, run.r->params[i].n * sizeof(float));
        run_update(&run);
        clipped += clip_exactly(&run, rules->clip_norm, rules->clip_value);
        for (int i = 0; i < run.r->n_params; i++)
            check_array("clipped gradient", i, run.r->params[i].update, run.a[i],
                        run.r->params[i].n, 1e-6);
    }
    CHECK_INT(run.r->kept->counts.clipped, clipped);
    CHECK((clipped > 0) == (norm_share > 0) && clipped < steps);
    end(&run);
}

AMP_TEST(clipping_is_pytorchs)
{
    check_clipping(.7, 0);
    check_clipping(0, .2);
}

/* Layers in FP32 make the same of every power of two, and so does clipping. */
AMP_TEST(the_loss_scale_has_no_influence)
{
    static const char *const cfgs[] = {
        CFG(FP32 "clip_grad_norm=.05"), CFG(FP32 "clip_grad_value=.001"),
        CFG(FP32 "clip_grad_norm=.05\noptimizer=lamb\nema_alpha=.9"), CFG(FP32 "optimizer=lars")};
    for (size_t c = 0; c < sizeof cfgs / sizeof *cfgs; c++) {
        struct run small = start(cfgs[c]), large = start(cfgs[c]);
        for (int step = 0; step < 4; step++) {
            run_passes(&small, step, 16), run_update(&small);
            run_passes(&large, step, 65536), run_update(&large);
        }
        CHECK(small.r->kept->counts.clipped == large.r->kept->counts.clipped);
        CHECK((small.r->kept->counts.clipped > 0) == (small.r->plan->rules.clip_norm > 0));
        for (int i = 0; i < small.r->n_params; i++) {
            size_t bytes = small.r->params[i].n * sizeof(float);
            CHECK(!memcmp(small.r->params[i].value, large.r->params[i].value, bytes));
        }
        end(&small), end(&large);
    }
}

/* ---- moving averages ---- */

static void follow(double *average, const float *value, size_t n, double d)
{
    for (size_t k = 0; k < n; k++)
        average[k] = d * average[k] + (1 - d) * (double)value[k];
}

AMP_TEST(averages_follow_parameters_and_statistics)
{
    struct run run = start(CFG("ema_alpha=.9\n"));
    const struct amp_kept *kept = run.r->kept;
    double *mean = doubles(run.r->rolling[0].n);
    for (size_t k = 0; k < run.r->rolling[0].n; k++)
        mean[k] = (double)run.r->rolling[0].value[k];
    for (int n = 1; n <= 100; n++) {
        double d = .9 * (1 - exp(-n / 2000.));
        run_passes(&run, n, 64);
        run_update(&run);
        for (int i = 0; i < run.r->n_params; i++) {
            const struct amp_param *p = &run.r->params[i];
            follow(run.average[i], p->value, p->n, d);
            check_array("average", i, kept->params[i].average, run.average[i], p->n, 1e-6);
        }
        follow(mean, run.r->rolling[0].value, run.r->rolling[0].n, d);
        check_array("average mean", 0, kept->averages[0], mean, run.r->rolling[0].n, 1e-6);
    }
    CHECK_INT(kept->counts.averaged, 100);
    free(mean);
    end(&run);
}

/* After long training the ramp is over; a weight that stays is its own average, to the bit. */
AMP_TEST(a_late_average)
{
    struct run run = start(CFG("ema_alpha=.9998\n"));
    const struct amp_param *p = &run.r->params[0];
    run.r->kept->counts.averaged = 99999;
    run.u.learning_rate = 0;
    for (int i = 0; i < 3; i++) {
        run_passes(&run, i, 64);
        run_update(&run);
    }
    CHECK(!memcmp(run.r->kept->params[0].average, p->value, p->n * sizeof(float)));
    p->value[3] += 1;
    float before = run.r->kept->params[0].average[3];
    run_passes(&run, 5, 64);
    run_update(&run);
    CHECK_NEAR(run.r->kept->params[0].average[3] - before, .0002, 1e-6);
    end(&run);
}

/* The averages stand in place of the weights and go back, to the bit. */
AMP_TEST(averages_change_places_with_weights)
{
    struct run run = start(CFG("ema_alpha=.9\n"));
    struct rig *r = run.r;
    for (int i = 0; i < 3; i++) {
        run_passes(&run, i, 64);
        run_update(&run);
    }
    struct amp_owned owned = {.params = r->params,
                              .rolling = r->rolling,
                              .n_params = r->n_params,
                              .n_rolling = r->n_rolling};
    float value = r->params[1].value[2], average = r->kept->params[1].average[2];
    float mean = r->rolling[0].value[1], average_mean = r->kept->averages[0][1];
    CHECK(value != average);
    CHECK_INT(amp_kept_swap_averages(r->kept, &owned), 0);
    CHECK(r->params[1].value[2] == average && r->kept->params[1].average[2] == value);
    CHECK(r->rolling[0].value[1] == average_mean && r->kept->averages[0][1] == mean);
    CHECK_INT(amp_kept_swap_averages(r->kept, &owned), 0);
    CHECK(r->params[1].value[2] == value && r->kept->params[1].average[2] == average);
    end(&run);
}

/* Whether the next pass computes with the weights that the list holds: a run that begins with them
 * gives the same bits. */
static void check_packed(struct run *run, const char *cfg)
{
    struct run other = start(cfg);
    const int last = run->r->net->n - 2; /* [cost] is behind it */
    for (int i = 0; i < run->r->n_params; i++)
        memcpy(other.r->params[i].value, run->r->params[i].value,
               run->r->params[i].n * sizeof(float));
    run_passes(run, 77, 64);
    run_passes(&other, 77, 64);
    CHECK(!memcmp(run->r->bindings[last].output, other.r->bindings[last].output,
                  (size_t)run->r->net->batch * (size_t)run->r->net->layers[last].outputs *
                      sizeof(float)));
    end(&other);
}

/* AlexeyAB's: a copy at max_batches / 2, then a constant share; 1000 iterations before the end the
 * weights become it. A skipped step leaves what was due to the next one. */
static void check_replaced(const char *cfg, bool skips)
{
    enum { FROM = 1005, UNTIL = 1010 };
    struct run run = start(cfg);
    const struct amp_kept *kept = run.r->kept;
    REQUIRE(kept);
    CHECK(!kept->averages[0]);
    for (int n = FROM - 2; n < UNTIL + 4; n++) {
        if (skips && (n == FROM || n == UNTIL - 2 || n == UNTIL)) continue;
        run_passes(&run, n, 64);
        run.u.iteration = (size_t)n;
        run_update(&run);
        int begun = FROM + skips, taken = UNTIL + skips;
        for (int i = 0; i < run.r->n_params; i++) {
            const struct amp_param *p = &run.r->params[i];
            const float *average = kept->params[i].average;
            if (n == begun) CHECK(!memcmp(average, p->value, p->n * sizeof(float)));
            if (n >= begun && n < taken) {
                follow(run.average[i], p->value, p->n, n == begun ? 0 : .9);
                check_array("average", i, average, run.average[i], p->n, 1e-6);
            }
            if (n > begun && n < taken) CHECK(memcmp(average, p->value, p->n * sizeof(float)));
            if (n == taken) {
                CHECK(!memcmp(average, p->value, p->n * sizeof(float)));
                check_array("weights", i, p->value, run.average[i], p->n, 1e-6);
            }
            if (n > taken) CHECK(memcmp(average, p->value, p->n * sizeof(float)));
        }
        int steps = skips && n >= UNTIL - 2 ? n - begun : n - begun + 1;
        CHECK_INT(kept->counts.averaged, n < begun || n >= taken ? 0 : steps);
        if (n == taken) check_packed(&run, cfg);
    }
    end(&run);
}

AMP_TEST(weights_become_the_average_by_the_forks_rule)
{
    static const char cfg[] = CFG("amp_dialect=fork\nmax_batches=2010\nema_alpha=.9\n");
    check_replaced(cfg, false);
    check_replaced(cfg, true);
}

/* ---- what PyTorch itself makes of a linear layer ---- */

/* As update_table.py has them; learning rate, momentum and the like are those of start(). */
enum {
    INPUTS = 5,
    OUTPUTS = 4,
    TRAINED = 3,
    STEPS = 20,
    EVERY = 5,
    VALUES = OUTPUTS * (INPUTS + 1)
};

struct torch_row {
    int step;
    double value[VALUES]; /* weights, biases */
};
#include "update_table.h"

#define LINEAR(keys)                                                                               \
    "[net]\nmixed_precision=1\nbatch=3\ninputs=5\n" FP32 keys                                      \
    "\n[connected]\noutput=4\nactivation=linear\n[cost]\n"

static void fill(float *x, int n, int seed, double size)
{
    for (int k = 0; k < n; k++)
        x[k] = (float)(size * sin(seed + 7 * k));
}

static struct run start_linear(const char *cfg)
{
    struct run run = start(cfg);
    run.u.batch = TRAINED;
    for (int i = 0; i < run.r->n_params; i++) {
        const struct amp_param *p = &run.r->params[i];
        fill(p->value, (int)p->n, p->kind == AMP_PARAM_WEIGHTS ? 1 : 2, .5);
        if (run.r->kept->params[i].average)
            memcpy(run.r->kept->params[i].average, p->value, p->n * sizeof(float));
    }
    return run;
}

static void train_linear(struct run *run, int step)
{
    struct rig *r = run->r;
    amp_graph_begin_step(r->graph);
    fill(r->input, TRAINED * INPUTS, 3 + step, 1);
    fill(r->truth[1], TRAINED * OUTPUTS, 4 + step, 1);
    rig_forward(r);
    rig_backward(r, 1);
    amp_graph_accept_pass(r->graph, 1);
    run_update(run);
}

/* Weights, then biases; of a run with averages those. */
static void check_row(const char *keys, const struct run *run, const struct torch_row *row)
{
    const struct rig *r = run->r;
    for (int i = 0; i < r->n_params; i++) {
        const struct amp_param *p = &r->params[i];
        const float *average = r->kept->params[i].average;
        bool weights = p->kind == AMP_PARAM_WEIGHTS;
        CHECK_INT(p->n, weights ? INPUTS * OUTPUTS : OUTPUTS);
        check_array(keys, i, average ? average : p->value,
                    row->value + (weights ? 0 : INPUTS * OUTPUTS), p->n, 1e-5);
    }
}

static void check_torch(const char *cfg, const struct torch_row *row, bool clips)
{
    struct run run = start_linear(cfg);
    CHECK_INT(run.r->n_params, 2);
    for (int step = 1; step <= STEPS; step++) {
        train_linear(&run, step);
        if (step % EVERY) continue;
        CHECK_INT(row->step, step);
        check_row(cfg, &run, row++);
    }
    CHECK((run.r->kept->counts.clipped > 0) == clips);
    end(&run);
}

AMP_TEST(a_linear_layer_learns_as_in_pytorch)
{
    check_torch(LINEAR(""), torch_sgd, false);
    check_torch(LINEAR("optimizer=adam"), torch_adam, false);
    check_torch(LINEAR("optimizer=adamw"), torch_adamw, false);
    check_torch(LINEAR("optimizer=adamw\ndecay_bn=1"), torch_adamw_all, false);
    check_torch(LINEAR("clip_grad_norm=.8"), torch_clip_norm, true);
    check_torch(LINEAR("clip_grad_value=.2"), torch_clip_value, false);
    check_torch(LINEAR("ema_alpha=.9"), torch_averages, false);
}

/* ---- keys ---- */

static void check_idle(const char *keys, const char *told)
{
    char text[300], err[300] = "", notes[300] = "";
    struct amp_options o;
    snprintf(text, sizeof text, "[net]\nmixed_precision=1\n%s", keys);
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    CHECK_INT(amp_options_read(file, &o, notes, sizeof notes, err, sizeof err), 0);
    CHECK_STR(notes, told);
    amp_cfg_free(file);
}

AMP_TEST(idle_keys_are_told)
{
    check_idle("optimizer=lars\nB1=.8\neps=1\n",
               "a.cfg:4: B1=.8: has no effect with optimizer=lars; likewise eps=1 (line 5)\n");
    check_idle("eps=.1\nB2=.9\nB1=.8\n",
               "a.cfg:5: B1=.8: has no effect with optimizer=sgd; likewise B2=.9 (line 4), eps=.1 "
               "(line 3)\n");
    check_idle("eps=.1\n", "a.cfg:3: eps=.1: has no effect with optimizer=sgd\n");
    check_idle("optimizer=lamb\nB1=.8\nB2=.9\neps=1\n", "");
    check_idle("adam=1\nB1=.8\nB2=.9\neps=1\n", "");
}

AMP_TEST_MAIN
