/* Moving averages, clipping and optimizers in training through Darknet: what is redone counts once,
 * what is skipped leaves no trace, and a run goes on from its files. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "plugin/core/read/schedule.h"
#include "plugin/include/amp.h"

static const char *const features[] = {
    MIXED "ema_alpha=0.9\n",
    MIXED "optimizer=lamb\nema_alpha=0.99\nclip_grad_norm=0.5\n",
    MIXED "optimizer=adamw\nclip_grad_value=0.01\ndecay_bn=1\n",
    MIXED "optimizer=lars\n",
    MIXED "adam=1\nema_alpha=0.5\nclip_grad_norm=0.5\namp_dtype=bf16\n",
    MIXED "clip_grad_norm=0.01\n",
};
enum { FEATURES = sizeof features / sizeof *features };

static struct amp_session *session(const network *net)
{
    return amp_session_of(net->layers);
}

static struct amp_counts counts(const network *net)
{
    struct amp_kept *kept = session(net)->kept;
    return kept ? kept->counts : (struct amp_counts){0, 0};
}

static void check_counts(const network *one, const network *two)
{
    CHECK(counts(one).averaged == counts(two).averaged);
    CHECK(counts(one).clipped == counts(two).clipped);
}

AMP_TEST(a_skipped_step_leaves_no_trace)
{
    for (int k = 0; k < FEATURES; k++) {
        const char *layers = both_nets[k % 2];
        network *net = parse(features[k], layers), *other = parse(features[k], layers);
        steps(net, 2);
        steps(other, 2);
        bad_step(net);
        CHECK_SAME(net, other);
        CHECK_INT(session(net)->step.scaler.skipped, 1);
        check_counts(net, other);
        *net->seen = *other->seen; /* for the same images */
        steps(net, 2);
        steps(other, 2);
        CHECK_SAME(net, other);
        check_counts(net, other);
        free_network(net);
        free_network(other);
    }
}

AMP_TEST(steps_whose_gradients_are_smaller_are_not_clipped)
{
    static const char *const limits[] = {MIXED "clip_grad_norm=1e-6\n",
                                         MIXED "clip_grad_norm=1e9\n"};
    for (int k = 0; k < 2; k++) {
        network *net = parse(limits[k], CLASSIFIER);
        steps(net, 3);
        CHECK(session(net)->step.scaler.applied > 0);
        CHECK_INT(counts(net).clipped, k ? 0 : session(net)->step.scaler.applied);
        free_network(net);
    }
}

/* One image that the others' weights know nothing of makes gradients of its own size. */
AMP_TEST(a_norm_whose_square_is_too_large_is_told_once)
{
    const char *const layers = "[connected]\noutput=5\nactivation=linear\n[cost]\ntype=L1\n";
    network *net = parse(MIXED "amp_dtype=fp32\nclip_grad_norm=1\n", layers);
    float before[5];
    listen_to(net);
    memcpy(before, net->layers[0].biases, sizeof before);
    for (int step = 0; step < 3; step++)
        for (int i = 0; i < net->subdivisions; i++) {
            load_images(net, (unsigned)*net->seen);
            for (int k = 0; k < net->inputs; k++)
                net->input[k] = step == 1 ? .5f : 1e20f;
            train_network_datum(net);
            if (step == 0) CHECK(!memcmp(net->layers[0].biases, before, sizeof before));
        }
    CHECK_INT(session(net)->step.scaler.applied, 3);
    CHECK_INT(counts(net).clipped, 3);
    CHECK_INT(count(said(net), "iteration 1: the gradients' norm is so large"), 1);
    CHECK_INT(count(said(net), "the gradients' norm"), 1);
    CHECK(memcmp(net->layers[0].biases, before, sizeof before));
    stop_listening(net);
    free_network(net);
}

/* ---- the averages of a network, in double ---- */

struct averages {
    int n;
    double *x[128];
};

static struct amp_owned lists(const network *net)
{
    struct amp_owned own = amp_native_list(net, NULL, false);
    REQUIRE(own.n_params + own.n_rolling <= 128);
    amp_kept_enter(session(net)->kept, &own);
    return own;
}

static double *as_doubles(const float *x, size_t n)
{
    double *copy = calloc(n + 1, sizeof *copy);
    REQUIRE(copy);
    for (size_t k = 0; k < n; k++)
        copy[k] = (double)x[k];
    return copy;
}

/* They begin with the values. */
static struct averages begin_averages(const network *net)
{
    struct averages a = {0};
    struct amp_owned own = lists(net);
    for (int i = 0; i < own.n_params; i++)
        a.x[a.n++] = as_doubles(own.params[i].value, own.params[i].n);
    for (int i = 0; i < own.n_rolling; i++)
        a.x[a.n++] = as_doubles(own.rolling[i].value, own.rolling[i].n);
    amp_native_free_list(&own);
    return a;
}

static void end_averages(struct averages *a)
{
    for (int i = 0; i < a->n; i++)
        free(a->x[i]);
}

static void follow(double *x, const float *value, const float *average, size_t n, double d)
{
    double size = 0;
    REQUIRE(average);
    for (size_t k = 0; k < n; k++) {
        x[k] = d * x[k] + (1 - d) * (double)value[k];
        size = fmax(size, fabs(x[k]));
    }
    for (size_t k = 0; k < n; k++)
        CHECK_NEAR(average[k], x[k], 1e-6 * size);
}

static void follow_all(struct averages *a, const network *net, double d)
{
    struct amp_owned own = lists(net);
    for (int i = 0; i < own.n_params; i++)
        follow(a->x[i], own.params[i].value, own.params[i].average, own.params[i].n, d);
    for (int i = 0; i < own.n_rolling; i++)
        follow(a->x[own.n_params + i], own.rolling[i].value, own.rolling[i].average,
               own.rolling[i].n, d);
    amp_native_free_list(&own);
}

/* The search for a scale skips steps and repeats passes; an image that is not finite skips one. */
AMP_TEST(a_redone_pass_counts_once)
{
    network *net = parse(MIXED "ema_alpha=0.9\nloss_scale_init=16777216\n", DETECTOR);
    struct averages a = begin_averages(net);
    const struct amp_scaler *scaler = &session(net)->step.scaler;
    for (int i = 0, n = 1; i < 10; i++) {
        if (i == 5) bad_step(net);
        steps(net, 1);
        CHECK_INT(counts(net).averaged, scaler->applied);
        if (scaler->applied < n) continue;
        follow_all(&a, net, .9 * (1 - exp(-n / 2000.)));
        n++;
    }
    CHECK(scaler->redone > 0 && scaler->skipped > 1 && scaler->applied > 3);
    end_averages(&a);
    free_network(net);
}

/* ---- Darknet's Adam under both names ---- */

AMP_TEST(optimizer_adam_is_adam_1)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse(MIXED "optimizer=adam\n", layers);
        network *other = parse(MIXED "adam=1\n", layers);
        steps(net, 3);
        steps(other, 3);
        CHECK_SAME(net, other);
        free_network(net);
        free_network(other);
    }
}

/* ---- what Darknet is handed ---- */

/* Over a whole run of policy=onecycle, in which rate, momentum and B1 each start from their own. */
AMP_TEST(onecycle_moves_rate_momentum_and_b1_each_from_its_own)
{
    enum { TOTAL = 10 };
    network *net = parse(MIXED "policy=onecycle\nmax_batches=10\nmomentum_min=0.5\n"
                               "momentum=0.95\nadam=1\nB1=0.8\n",
                         CLASSIFIER);
    const struct amp_schedule *s = &session(net)->options.schedule;
    for (size_t i = 1; i <= TOTAL; i++) {
        steps(net, 1);
        CHECK_NEAR(net->learning_rate, amp_schedule_rate(s, .01, i), 1e-8);
        CHECK_NEAR(net->momentum, amp_schedule_momentum(s, .95, i), 1e-6);
        CHECK_NEAR(net->B1, amp_schedule_momentum(s, .8, i), 1e-6);
    }
    amp_detach(net);
    CHECK_NEAR(net->learning_rate, .01, 1e-8);
    CHECK_NEAR(net->momentum, .95, 1e-6);
    CHECK_NEAR(net->B1, .8, 1e-6);
    free_network(net);
    /* An optimizer without moments has no B1 to move. */
    net = parse(MIXED "policy=onecycle\nmax_batches=10\n", CLASSIFIER);
    steps(net, 2);
    CHECK(net->B1 == 0);
    free_network(net);
}

/* ---- files ---- */

static void check_resumed(const char *keys, const char *layers)
{
    network *straight = parse(keys, layers), *stopped = parse(keys, layers);
    steps(straight, 4);
    steps(stopped, 2);
    save(stopped, "a.backup");
    CHECK(exists("a_ema.weights") == (strstr(keys, "ema_alpha") != NULL));
    network *resumed = parse(keys, layers);
    load(resumed, "a.backup");
    steps(resumed, 2);
    steps(stopped, 2); /* saving leaves no trace */
    CHECK_SAME(stopped, straight);
    CHECK_SAME(resumed, straight);
    check_counts(stopped, straight);
    check_counts(resumed, straight);
    free_network(straight);
    free_network(stopped);
    free_network(resumed);
    scratch_empty();
}

AMP_TEST(a_run_goes_on_from_its_files)
{
    for (int k = 0; k < FEATURES; k++)
        check_resumed(features[k], both_nets[k % 2]);
}

/* Where Darknet alone divides by zero. */
AMP_TEST(weights_of_deconvolutions_load_without_mixed_precision_too)
{
    network *net = parse("", CLASSIFIER), *other = parse("", CLASSIFIER);
    steps(net, 1);
    save(net, "a.weights");
    load(other, "a.weights");
    CHECK(distance(other, net, "weights") == 0);
    CHECK(distance(other, net, "running statistics") == 0);
    free_network(net);
    free_network(other);
    scratch_empty();
}

/* Weights that are loaded in the middle of a run: moments and averages begin anew with them. */
AMP_TEST(other_weights_begin_anew)
{
    network *first = parse(features[1], DETECTOR), *net = parse(features[1], DETECTOR);
    steps(first, 2);
    save(first, "a.backup");
    unlink(scratch("a.backup.amp"));
    steps(net, 3);
    load(net, "a.backup");
    CHECK(counts(net).averaged == 0 && counts(net).clipped == 0);
    struct amp_owned own = lists(net);
    for (int i = 0; i < own.n_params; i++) {
        const struct amp_param *p = &own.params[i];
        CHECK(!memcmp(p->average, p->value, p->n * sizeof(float)));
        for (size_t k = 0; k < p->n; k++)
            CHECK(p->m[k] == 0 && p->v[k] == 0);
    }
    amp_native_free_list(&own);
    free_network(first);
    free_network(net);
    scratch_empty();
}

static void check_is_average(const network *net, const network *trained)
{
    struct amp_owned own = amp_native_list(net, NULL, false), averages = lists(trained);
    for (int i = 0; i < own.n_params; i++)
        CHECK(!memcmp(own.params[i].value, averages.params[i].average,
                      own.params[i].n * sizeof(float)));
    for (int i = 0; i < own.n_rolling; i++)
        CHECK(!memcmp(own.rolling[i].value, averages.rolling[i].average,
                      own.rolling[i].n * sizeof(float)));
    amp_native_free_list(&own);
    amp_native_free_list(&averages);
}

/* What is saved as the average, and what a twin gets, is the average; the run goes on as without.
 */
AMP_TEST(averages_are_given_out)
{
    char err[200];
    network *net = parse(features[0], DETECTOR), *twin = parse(features[0], DETECTOR);
    network *plain = parse("", DETECTOR);
    steps(net, 3);
    network *before = parse(features[0], DETECTOR);
    steps(before, 3);
    CHECK_INT(amp_copy_averages(twin, net), 1);
    check_is_average(twin, net);
    CHECK_INT(amp_save_averages(net, scratch("best.weights"), err, sizeof err), 0);
    load_weights(plain, (char *)scratch("best.weights"));
    check_is_average(plain, net);
    CHECK(!exists("best.weights.amp"));
    CHECK_SAME(net, before);
    steps(net, 2);
    steps(before, 2);
    CHECK_SAME(net, before);
    CHECK_INT(amp_copy_averages(twin, plain), 0);
    CHECK_INT(amp_save_averages(plain, scratch("none.weights"), err, sizeof err), -1);
    CHECK_SAYS(err, "has no moving average");
    free_network(net);
    free_network(twin);
    free_network(plain);
    free_network(before);
    scratch_empty();
}

/* Without the keys nothing is kept, and sidecars have the version of before. */
AMP_TEST(nothing_is_kept_without_the_keys)
{
    char bytes[16384];
    network *net = parse(MIXED, DETECTOR);
    steps(net, 1);
    CHECK(!session(net)->kept);
    save(net, "a.backup");
    CHECK(scratch_read("a.backup.amp", bytes, sizeof bytes) > 8 && bytes[8] == 2);
    free_network(net);
    scratch_empty();
}

AMP_TEST_MAIN
