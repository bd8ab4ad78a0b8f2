/* When a run counts as diverged: losses of runs that were, and of many that were not. */
#include "tests/rig/harness.h"

#include "plugin/core/engine/guard.h"

/* A step is applied whose loss is finite. The iteration that ended the run, 0: none did. */
static int first_stop(struct amp_divergence *d, const double *losses, int n)
{
    for (int i = 0; i < n; i++)
        if (amp_divergence_add(d, (size_t)i + 1, losses[i], isfinite(losses[i]))) return i + 1;
    return 0;
}

/* ---- runs that diverged: losses of the toy set at a learning rate that is too high ---- */

static const double fp32_burn_in[] = {41.5, 21.3, 29.1, 8.71, 5.11,   3.8,   25.2,
                                      9.79, 5.54, 79.1, 603,  3.06e4, 1.9e9, 2.03e25};
static const double fp16_at_1[] = {41.5, NAN, NAN, NAN, 2.01e5, NAN, NAN, NAN, NAN, NAN,
                                   NAN,  NAN, NAN, NAN, NAN,    NAN, NAN, NAN, NAN, NAN};
static const double fp16_at_10[] = {41.5, NAN, NAN, NAN, NAN,    1.97e9, NAN, NAN, NAN,    NAN,
                                    NAN,  NAN, NAN, NAN, 2.02e5, NAN,    NAN, NAN, 3.57e20};
static const double fp16_at_100[] = {41.5, NAN, NAN, NAN, NAN, NAN, NAN, NAN,
                                     NAN,  NAN, NAN, NAN, NAN, NAN, NAN, NAN};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

AMP_TEST(recorded_runs_end_before_their_layers_have_left_fp16)
{
    struct amp_divergence one = {0}, ten = {0}, hundred = {0};
    CHECK_INT(first_stop(&one, fp16_at_1, COUNT(fp16_at_1)), 12);
    CHECK_INT(first_stop(&ten, fp16_at_10, COUNT(fp16_at_10)), 12);
    CHECK_INT(first_stop(&hundred, fp16_at_100, COUNT(fp16_at_100)), 11);
}

/* So soon that its arithmetic overflows first; nothing good may be overwritten before. */
AMP_TEST(a_run_is_suspect_from_its_first_loss_above_the_limit)
{
    struct amp_divergence d = {.burn_in = 10};
    for (int i = 0; i < COUNT(fp32_burn_in); i++) {
        CHECK(!amp_divergence_add(&d, (size_t)i + 1, fp32_burn_in[i], true));
        CHECK_INT(amp_divergence_suspect(&d), i >= 12);
    }
    char text[200];
    amp_divergence_describe(&d, text, sizeof text);
    CHECK_STR(text,
              "since iteration 13 the loss is not finite or above 1.667e+04: 3.06e+04 before, "
              "1.9e+09 then, 2.03e+25 now");
}

/* For a fault that is no matter of the losses. */
AMP_TEST(the_losses_so_far_are_told)
{
    struct amp_divergence d = {0};
    char text[200];
    amp_divergence_describe(&d, text, sizeof text);
    CHECK_STR(text, "there was no loss before");
    CHECK(!amp_divergence_add(&d, 7, 2.5, true));
    amp_divergence_describe(&d, text, sizeof text);
    CHECK_STR(text, "the last loss, of iteration 7, was 2.5");
    CHECK(!amp_divergence_add(&d, 8, NAN, true));
    amp_divergence_describe(&d, text, sizeof text);
    CHECK_SAYS(text, "since iteration 8 ");
    CHECK_SAYS(text, ": 2.5 before, not finite then, not finite now");
}

/* ---- the rule ---- */

/* A run that learnt: 1000 to 2 in `n` iterations. */
static void learn(struct amp_divergence *d, int n)
{
    for (int i = 0; i < n; i++)
        CHECK(!amp_divergence_add(d, (size_t)i + 1, 2 + 998 * exp(-i / 20.), true));
    CHECK(!amp_divergence_suspect(d));
}

AMP_TEST(a_loss_that_stays_above_the_limit_ends_the_run)
{
    struct amp_divergence d = {0};
    learn(&d, 500);
    int n = 0;
    while (n < 1000 && !amp_divergence_add(&d, (size_t)(501 + n), 1e5, true))
        n += amp_divergence_suspect(&d);
    CHECK_INT(n, 99);
    char text[200];
    amp_divergence_describe(&d, text, sizeof text);
    CHECK(strstr(text, "since iteration 501 ") && strstr(text, "2 before, 1e+05 then, 1e+05 now"));
}

AMP_TEST(a_loss_that_comes_back_clears_the_run)
{
    struct amp_divergence d = {0};
    learn(&d, 500);
    for (int i = 0; i < 99; i++)
        CHECK(!amp_divergence_add(&d, 501, 1e5, true));
    CHECK(!amp_divergence_add(&d, 600, 3, true) && !amp_divergence_suspect(&d));
    for (int i = 0; i < 99; i++)
        CHECK(!amp_divergence_add(&d, 601, 1e5, true));
}

AMP_TEST(ten_iterations_without_a_loss_end_the_run)
{
    for (int kind = 0; kind < 2; kind++) {
        struct amp_divergence d = {0};
        learn(&d, 500);
        for (int i = 0; i < 9; i++)
            CHECK(!amp_divergence_add(&d, 501, kind ? INFINITY : NAN, kind));
        CHECK(amp_divergence_suspect(&d));
        CHECK(amp_divergence_add(&d, 510, NAN, false));
        CHECK(amp_divergence_add(&d, 511, NAN, false));
    }
}

/* Weights from elsewhere that do not fit FP16: layer after layer leaves it before the first step.
 */
AMP_TEST(layers_may_leave_fp16_before_the_first_step)
{
    struct amp_divergence d = {0};
    for (int i = 0; i < 75; i++)
        CHECK(!amp_divergence_add(&d, (size_t)i + 1, NAN, false) && !amp_divergence_suspect(&d));
    learn(&d, 500);
}

/* Behind good steps each layer that leaves counts as one loss that is too high. */
AMP_TEST(layers_that_leave_fp16_one_after_another_end_the_run)
{
    struct amp_divergence d = {0};
    learn(&d, 500);
    for (int i = 0; i < 99; i++)
        CHECK(!amp_divergence_add_demotion(&d, 501) && amp_divergence_suspect(&d));
    CHECK(amp_divergence_add(&d, 502, 1e5, true)); /* one that is finite, as bad */
    CHECK(amp_divergence_add_demotion(&d, 503));
    char text[200];
    amp_divergence_describe(&d, text, sizeof text);
    CHECK_SAYS(text, "since iteration 501 ");
    CHECK_SAYS(text, ": 2 before, not finite then, not finite now");
}

/* A limit that is twice exceeded by every loss, not by one of 20. */
AMP_TEST(losses_a_little_above_the_limit_count_once_their_mean_is)
{
    struct amp_divergence d = {0};
    learn(&d, 1000);
    double highest = 0; /* of the start's means of 20: the first, as these losses only fall */
    for (int i = 0; i < AMP_DIVERGENCE_MEAN; i++)
        highest += (2 + 998 * exp(-i / 20.)) / AMP_DIVERGENCE_MEAN;
    CHECK_NEAR(highest, 648.76, .01);
    CHECK_NEAR(d.start_highest, highest, 1e-9);
    double limit = 3 * d.start_highest;
    int n = 0;
    while (n < 1000 && !amp_divergence_add(&d, 1001, 2 * limit, true))
        n++;
    CHECK_INT(n, 108); /* 9 until half of the 20 are above, and 99 that count before the last */
    CHECK_NEAR(d.limit, limit, 1e-9);
}

/* The start is 100 losses long, or burn_in: the limit after it comes from the next one on. */
AMP_TEST(the_start_ends_with_its_last_loss)
{
    for (int burn_in = 0; burn_in <= 150; burn_in += 50) {
        struct amp_divergence d = {.burn_in = burn_in};
        int start = burn_in < 100 ? 100 : burn_in;
        for (int i = 0; i < start; i++) {
            CHECK(!amp_divergence_add(&d, (size_t)i + 1, 10, true));
            CHECK_NEAR(d.lowest, 0, 0);
        }
        amp_divergence_add(&d, (size_t)start + 1, 10, true);
        CHECK_NEAR(d.limit, 1e4, 0); /* 1000 times the start's lowest mean */
        CHECK_NEAR(d.lowest, 10, 0);
        amp_divergence_add(&d, (size_t)start + 2, 10, true);
        CHECK_NEAR(d.limit, 1e3, 0); /* 100 times the lowest since */
    }
}

/* ---- runs that did not ---- */

static double noise(double sigma)
{
    double u = test_uniform(1e-12, 1), v = test_uniform(0, 1);
    return exp(sigma * sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

#define LONG 20000

/* The share of iterations at which such a run was suspect. */
static double check_never_stopped(const char *what, double (*loss)(int i), int burn_in)
{
    struct amp_divergence d = {.burn_in = burn_in};
    int suspect = 0;
    for (int i = 0; i < LONG; i++) {
        double x = loss(i);
        if (amp_divergence_add(&d, (size_t)i + 1, x, isfinite(x))) {
            TEST_FAIL("%s is stopped at iteration %d", what, i + 1);
            return 1;
        }
        suspect += amp_divergence_suspect(&d);
    }
    return (double)suspect / LONG;
}

/* From 1000s to 2, falling once more at two learning-rate steps. */
static double from_scratch(int i)
{
    double floor = i < 12000 ? 2 : i < 16000 ? 1 : .6;
    return (3000 * exp(-i / 40.) + 200 / (1 + i / 20.) + floor) * noise(.5);
}

/* A batch of one image. */
static double one_image(int i)
{
    return from_scratch(i) * noise(1.5);
}

/* Good weights, from which burn-in leads up before it leads down. */
static double fine_tuned(int i)
{
    return (.4 + 12 * exp(-pow((i - 900) / 400., 2)) + .2) * noise(.6);
}

/* Nine images of ten show nothing. */
static double mostly_empty(int i)
{
    (void)i;
    return test_uniform(0, 1) < .9 ? .001 * noise(.5) : 8 * noise(1);
}

/* Learnt by heart, until something new comes. */
static double by_heart(int i)
{
    double rare = test_uniform(0, 1) < .01 ? 1 : 0;
    return (2.3 * exp(-i / 300.) + 1e-4 + rare) * noise(1);
}

/* Warm restarts every 2000 iterations, back to near the start. */
static double with_restarts(int i)
{
    return (2 + 80 * exp(-(i % 2000) / 100.)) * noise(.7);
}

/* random=1: another size, 320 to 608, every 10 iterations. */
static double resized(int i)
{
    static double share = 1;
    if (i % 10 == 0) share = pow(test_uniform(320, 608) / 416, 2);
    return from_scratch(i) * share;
}

/* One batch in 500 is far off. */
static double with_spikes(int i)
{
    return test_uniform(0, 1) < .002 ? 1e6 : from_scratch(i);
}

/* Layers leave FP16 now and then, up to five in a row. */
static double with_demotions(int i)
{
    return i % 1000 < 5 ? NAN : from_scratch(i);
}

/* The same loss all the way: nothing is learnt, nothing blows up. */
static double flat(int i)
{
    (void)i;
    return 1e4 * noise(1);
}

AMP_TEST(layers_that_leave_fp16_one_after_the_other_end_no_run)
{
    struct amp_divergence d = {0};
    size_t i = 1;
    for (; i <= 200; i++)
        CHECK(!amp_divergence_add(&d, i, 10, true));
    for (; i <= 275; i++)
        CHECK(!amp_divergence_add_demotion(&d, i) && amp_divergence_suspect(&d));
    CHECK(!amp_divergence_add(&d, i, 11, true) && !amp_divergence_suspect(&d));
}

AMP_TEST(runs_that_do_not_diverge_are_never_stopped)
{
    static const struct {
        const char *what;
        double (*loss)(int i);
        double suspect; /* allowed share of iterations */
    } runs[] = {{"from scratch", from_scratch, 0},
                {"one image", one_image, 0},
                {"fine-tuned", fine_tuned, 0},
                {"mostly empty", mostly_empty, .02},
                {"by heart", by_heart, 0},
                {"with restarts", with_restarts, 0},
                {"resized", resized, 0},
                {"with spikes", with_spikes, .003},
                {"with demotions", with_demotions, .006},
                {"flat", flat, 0}};
    for (int k = 0; k < COUNT(runs); k++)
        for (int round = 0; round < 20; round++)
            for (int burn_in = 0; burn_in <= 1000; burn_in += 1000) {
                double suspect = check_never_stopped(runs[k].what, runs[k].loss, burn_in);
                if (suspect > runs[k].suspect)
                    TEST_FAIL("%s, round %d: suspect at %.3g of the iterations", runs[k].what,
                              round, suspect);
            }
}

AMP_TEST_MAIN
