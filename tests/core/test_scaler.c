/* The loss scale's rules, one by one, and random event sequences against an independent model. */
#include "plugin/core/engine/guard.h"

#include "tests/rig/harness.h"

static struct amp_scaler s;

/* keys: lines below mixed_precision=1 */
static struct amp_options options_of(const char *keys)
{
    char text[1024], err[512] = "";
    struct amp_options o;
    snprintf(text, sizeof text, "[net]\nmixed_precision=1\n%s\n[cost]\n", keys);
    struct amp_cfg_file *cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(cfg);
    if (amp_options_read(cfg, &o, NULL, 0, err, sizeof err)) TEST_FAIL("%s", err);
    amp_options_settle_dtype(&o, false, false);
    amp_cfg_free(cfg);
    return o;
}

static void start(const char *keys)
{
    struct amp_options o = options_of(keys);
    amp_scaler_init(&s, &o, 5000);
}

static enum amp_verdict step_with(double largest)
{
    amp_scaler_pass(&s, largest);
    return amp_scaler_step(&s, true, false);
}

/* Its gradients leave room for any scale. */
static enum amp_verdict clean_step(void)
{
    return step_with(0);
}

/* A step given up because of the scale. */
static enum amp_verdict failed_step(void)
{
    while (amp_scaler_overflow(&s, 0) == AMP_VERDICT_RETRY)
        ;
    return amp_scaler_step(&s, false, true);
}

static int window_for(int max_batches)
{
    struct amp_options o = options_of("");
    amp_scaler_init(&s, &o, max_batches);
    return s.window;
}

AMP_TEST(defaults)
{
    start("");
    CHECK(s.dynamic && s.retry && s.searching);
    CHECK_NEAR(s.scale, 16777216, 0);
    CHECK_NEAR(s.min, 1, 0);
    CHECK_NEAR(s.growth, 2, 0);
    CHECK_NEAR(s.backoff, 0.5, 0);
    CHECK_INT(s.tracker + s.tries + s.floor_skips, 0);
}

AMP_TEST(the_default_window_is_a_fiftieth_of_the_run_within_20_and_2000)
{
    CHECK_INT(window_for(0), 20);
    CHECK_INT(window_for(999), 20);
    CHECK_INT(window_for(1049), 20);
    CHECK_INT(window_for(1050), 21);
    CHECK_INT(window_for(50000), 1000);
    CHECK_INT(window_for(100000), 2000);
    CHECK_INT(window_for(500200), 2000);
    struct amp_options o = options_of("loss_scale_window=7");
    amp_scaler_init(&s, &o, 500200);
    CHECK_INT(s.window, 7);
}

AMP_TEST(grows_after_a_window_of_clean_steps)
{
    start("loss_scale_init=8\nloss_scale_window=3");
    clean_step();
    clean_step();
    CHECK_NEAR(s.scale, 8, 0);
    CHECK_INT(s.tracker, 2);
    CHECK_INT(clean_step(), AMP_VERDICT_RETRY);
    CHECK_NEAR(s.scale, 16, 0);
    CHECK_INT(s.tracker, 0);
    CHECK_INT(s.grown, 1);
    for (int i = 0; i < 3; i++)
        clean_step();
    CHECK_NEAR(s.scale, 32, 0);
    CHECK_INT(s.applied, 6);
}

AMP_TEST(a_window_of_one_grows_at_every_clean_step)
{
    start("loss_scale_init=1\nloss_scale_window=1\nloss_scale_growth=4");
    for (int i = 1; i <= 12; i++) {
        clean_step();
        CHECK_NEAR(s.scale, ldexp(1, 2 * i), 0);
    }
}

AMP_TEST(an_overflow_restarts_the_window)
{
    start("loss_scale_init=64\nloss_scale_window=3");
    clean_step();
    clean_step();
    CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_RETRY);
    CHECK_NEAR(s.scale, 32, 0);
    CHECK_INT(s.tracker, 0);
    clean_step(); /* the step in which it fell does not count */
    CHECK_INT(s.tracker, 0);
    clean_step();
    clean_step();
    CHECK_NEAR(s.scale, 32, 0);
    clean_step();
    CHECK_NEAR(s.scale, 64, 0);
}

AMP_TEST(only_steps_that_fit_at_the_next_scale_count_for_the_window)
{
    for (int growth = 2; growth <= 4; growth += 2) {
        char keys[100];
        snprintf(keys, sizeof keys, "loss_scale_init=64\nloss_scale_window=3\nloss_scale_growth=%d",
                 growth);
        start(keys);
        double most = 65504. / growth;
        for (int i = 0; i < 10; i++)
            CHECK_INT(step_with(nextafter(most, INFINITY)), AMP_VERDICT_RETRY);
        CHECK_NEAR(s.scale, 64, 0);
        step_with(most);
        step_with(most);
        CHECK_INT(s.tracker, 2);
        step_with(65504); /* begins anew */
        CHECK_INT(s.tracker, 0);
        amp_scaler_pass(&s, 65504); /* one pass of a step is enough */
        amp_scaler_pass(&s, most);
        amp_scaler_step(&s, true, false);
        CHECK_INT(s.tracker, 0);
        for (int i = 0; i < 3; i++) {
            CHECK_NEAR(s.scale, 64, 0);
            step_with(most);
        }
        CHECK_NEAR(s.scale, 64 * growth, 0);
        CHECK_INT(s.backed_off, 0);
    }
}

/* The ceiling may be nearer than the growth. */
AMP_TEST(the_next_scale_is_at_most_the_ceiling)
{
    start("loss_scale_init=32\nloss_scale_max=64\nloss_scale_window=1\nloss_scale_growth=4");
    step_with(40000);
    CHECK_NEAR(s.scale, 32, 0);
    step_with(30000);
    CHECK_NEAR(s.scale, 64, 0);
}

AMP_TEST(an_overflow_at_the_floor_restarts_the_window_too)
{
    start("loss_scale_init=1\nloss_scale_window=3");
    clean_step();
    clean_step();
    failed_step();
    clean_step();
    clean_step();
    CHECK_NEAR(s.scale, 1, 0);
    clean_step();
    CHECK_NEAR(s.scale, 2, 0);
}

AMP_TEST(two_clean_steps_with_a_window_of_two_then_an_overflow)
{
    start("loss_scale_init=128\nloss_scale_window=2\nloss_scale_backoff=0.25");
    clean_step();
    CHECK_INT(s.tracker, 1);
    clean_step();
    CHECK_INT(s.tracker, 0);
    CHECK_NEAR(s.scale, 256, 0);
    amp_scaler_overflow(&s, 0);
    CHECK_NEAR(s.scale, 64, 0);
    CHECK_INT(s.tracker, 0);
}

AMP_TEST(four_skips_halve_four_times)
{
    start("loss_scale_init=256\namp_on_overflow=skip");
    for (int i = 0; i < 4; i++)
        CHECK_INT(failed_step(), AMP_VERDICT_SKIP);
    CHECK_NEAR(s.scale, 16, 0);
    CHECK_INT(s.skipped, 4);
    CHECK_INT(s.backed_off, 4);
    CHECK_INT(s.redone, 0);
}

AMP_TEST(never_above_the_ceiling)
{
    start("loss_scale_init=8388608\nloss_scale_window=1");
    clean_step();
    CHECK_NEAR(s.scale, 16777216, 0);
    for (int i = 0; i < 100; i++)
        clean_step();
    CHECK_NEAR(s.scale, 16777216, 0);
    CHECK_INT(s.grown, 1);
    start("loss_scale_max=8\nloss_scale_init=4\nloss_scale_window=1\nloss_scale_growth=4");
    clean_step();
    CHECK_NEAR(s.scale, 8, 0);
    CHECK_INT(s.tracker, 0);
}

AMP_TEST(never_below_the_floor)
{
    start("loss_scale_min=4\nloss_scale_init=8\nloss_scale_backoff=0.25\namp_on_overflow=skip");
    failed_step();
    CHECK_NEAR(s.scale, 4, 0);
    failed_step();
    CHECK_NEAR(s.scale, 4, 0);
    CHECK_INT(s.backed_off, 1);
}

AMP_TEST(at_the_floor_there_is_nothing_to_retry)
{
    start("loss_scale_init=1");
    CHECK_INT(amp_scaler_overflow(&s, 1e30), AMP_VERDICT_SKIP);
    CHECK_NEAR(s.scale, 1, 0);
    CHECK_INT(s.redone, 0);
}

AMP_TEST(a_pass_is_redone_four_times_then_the_step_is_given_up)
{
    start("loss_scale_init=1024");
    for (int i = 1; i <= AMP_SCALER_RETRIES; i++) {
        CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_RETRY);
        CHECK_NEAR(s.scale, ldexp(1024, -i), 0);
    }
    CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_SKIP);
    CHECK_NEAR(s.scale, 32, 0); /* lowered for the next step */
    CHECK_INT(amp_scaler_step(&s, false, true), AMP_VERDICT_SKIP);
    CHECK_INT(s.redone, 4);
    CHECK_INT(s.skipped, 1);
    CHECK_INT(s.applied, 0);
    CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_RETRY); /* a new step, new tries */
}

AMP_TEST(every_subdivision_has_its_own_retries)
{
    start("loss_scale_init=16777216");
    for (int subdivision = 0; subdivision < 3; subdivision++) {
        for (int i = 0; i < AMP_SCALER_RETRIES; i++)
            CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_RETRY);
        amp_scaler_pass(&s, 0);
    }
    CHECK_NEAR(s.scale, 4096, 0);
    CHECK_INT(amp_scaler_step(&s, true, false), AMP_VERDICT_RETRY);
    CHECK_INT(s.applied, 1);
    CHECK_INT(s.redone, 12);
}

AMP_TEST(skip_policy_never_retries)
{
    start("loss_scale_init=1024\namp_on_overflow=skip");
    CHECK(!s.retry);
    CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_SKIP);
    CHECK_NEAR(s.scale, 512, 0);
}

/* ---- start-up search ---- */

AMP_TEST(the_search_starts_at_the_ceiling_and_may_take_as_long_as_it_needs)
{
    start("");
    for (int i = 1; i <= 24; i++) {
        CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_RETRY);
        CHECK_NEAR(s.scale, ldexp(1, 24 - i), 0);
    }
    CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_SKIP);
    CHECK_NEAR(s.scale, 1, 0);
    start("loss_scale_max=4096");
    CHECK_NEAR(s.scale, 4096, 0);
}

AMP_TEST(the_search_jumps_by_the_refused_magnitude)
{
    start("");
    CHECK_INT(amp_scaler_overflow(&s, 65504.0 * 1024), AMP_VERDICT_RETRY);
    CHECK_NEAR(s.scale, 16384, 0);
    start("");
    amp_scaler_overflow(&s, 65504.0 * 1025); /* 2^-10 would still be refused */
    CHECK_NEAR(s.scale, 8192, 0);
    start("");
    amp_scaler_overflow(&s, 65520); /* never by less than one step */
    CHECK_NEAR(s.scale, 8388608, 0);
    start("");
    amp_scaler_overflow(&s, INFINITY); /* tells nothing */
    CHECK_NEAR(s.scale, 8388608, 0);
    start("");
    amp_scaler_overflow(&s, NAN);
    CHECK_NEAR(s.scale, 8388608, 0);
    start("");
    amp_scaler_overflow(&s, 3e38); /* not below the floor */
    CHECK_NEAR(s.scale, 1, 0);
}

AMP_TEST(after_the_search_a_magnitude_does_not_jump)
{
    start("");
    clean_step();
    CHECK(!s.searching);
    amp_scaler_overflow(&s, 65504.0 * 1024);
    CHECK_NEAR(s.scale, 8388608, 0);
}

AMP_TEST(an_initial_scale_means_no_search)
{
    start("loss_scale_init=4096");
    CHECK(!s.searching);
    CHECK_NEAR(s.scale, 4096, 0);
    amp_scaler_overflow(&s, 65504.0 * 1024);
    CHECK_NEAR(s.scale, 2048, 0);
}

AMP_TEST(a_search_without_replay_skips_steps_but_jumps)
{
    start("amp_on_overflow=skip");
    CHECK(s.searching);
    CHECK_INT(amp_scaler_overflow(&s, 65504.0 * 64), AMP_VERDICT_SKIP);
    CHECK_NEAR(s.scale, 262144, 0);
    CHECK_INT(amp_scaler_step(&s, false, true), AMP_VERDICT_SKIP);
    CHECK(s.searching);
    CHECK_INT(amp_scaler_overflow(&s, 65504.0 * 64), AMP_VERDICT_SKIP);
    CHECK_NEAR(s.scale, 4096, 0);
    CHECK_INT(amp_scaler_step(&s, false, true), AMP_VERDICT_SKIP);
    clean_step();
    CHECK(!s.searching);
    CHECK_INT(s.skipped, 2);
    CHECK_INT(s.redone, 0);
}

AMP_TEST(a_bad_image_in_the_first_step_does_not_end_the_search)
{
    start("");
    CHECK_INT(amp_scaler_step(&s, false, false), AMP_VERDICT_SKIP);
    CHECK(s.searching);
    CHECK_NEAR(s.scale, 16777216, 0);
}

AMP_TEST(the_first_clean_pass_ends_the_search_even_inside_a_step)
{
    start("");
    amp_scaler_overflow(&s, 65504.0 * 65536);
    amp_scaler_pass(&s, 0);
    CHECK(!s.searching);
    CHECK_NEAR(s.scale, 256, 0);
    for (int i = 0; i < AMP_SCALER_RETRIES; i++)
        CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_RETRY);
    CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_SKIP);
}

/* ---- the floor ---- */

AMP_TEST(ten_steps_skipped_in_a_row_at_the_floor_stop)
{
    start("loss_scale_init=1");
    for (int i = 1; i < AMP_SCALER_FLOOR_STOP; i++)
        CHECK_INT(failed_step(), AMP_VERDICT_SKIP);
    CHECK_INT(failed_step(), AMP_VERDICT_STOP);
}

AMP_TEST(a_clean_step_resets_the_floor_counter)
{
    start("loss_scale_init=1");
    for (int i = 0; i < 9; i++)
        failed_step();
    CHECK_INT(s.floor_skips, 9);
    clean_step();
    CHECK_INT(s.floor_skips, 0);
    for (int i = 0; i < 9; i++)
        CHECK_INT(failed_step(), AMP_VERDICT_SKIP);
    CHECK_INT(failed_step(), AMP_VERDICT_STOP);
}

AMP_TEST(skips_on_the_way_down_are_not_counted_at_the_floor)
{
    start("loss_scale_init=8\namp_on_overflow=skip");
    for (int i = 0; i < 3; i++) {
        CHECK_INT(failed_step(), AMP_VERDICT_SKIP); /* at 8, 4, 2 */
        CHECK_INT(s.floor_skips, 0);
    }
    CHECK_NEAR(s.scale, 1, 0);
    for (int i = 1; i < AMP_SCALER_FLOOR_STOP; i++)
        CHECK_INT(failed_step(), AMP_VERDICT_SKIP);
    CHECK_INT(failed_step(), AMP_VERDICT_STOP);
}

/* An overflow at the floor, and then the step is given up for another reason: a bad image in a
 * later pass, or a layer that leaves FP16. The scale is not to blame, and the count begins anew. */
AMP_TEST(a_step_given_up_for_another_reason_is_not_counted_at_the_floor)
{
    start("loss_scale_init=1");
    for (int i = 0; i < 50; i++) {
        CHECK_INT(amp_scaler_overflow(&s, 0), AMP_VERDICT_SKIP);
        CHECK(s.at_floor);
        CHECK_INT(amp_scaler_step(&s, false, false), AMP_VERDICT_SKIP);
        CHECK_INT(s.floor_skips, 0);
    }
    for (int i = 1; i < AMP_SCALER_FLOOR_STOP; i++)
        CHECK_INT(failed_step(), AMP_VERDICT_SKIP);
    amp_scaler_overflow(&s, 0);
    CHECK_INT(amp_scaler_step(&s, false, false), AMP_VERDICT_SKIP);
    CHECK_INT(s.floor_skips, 0);
    CHECK_INT(failed_step(), AMP_VERDICT_SKIP);
}

AMP_TEST(bad_images_never_stop_the_run)
{
    start("loss_scale_init=1");
    for (int i = 0; i < 50; i++)
        CHECK_INT(amp_scaler_step(&s, false, false), AMP_VERDICT_SKIP);
    CHECK_INT(s.skipped, 50);
    CHECK_NEAR(s.scale, 1, 0);
}

AMP_TEST(a_skip_that_is_not_the_scales_fault_leaves_scale_and_window_alone)
{
    start("loss_scale_init=64\nloss_scale_window=3");
    clean_step();
    clean_step();
    amp_scaler_step(&s, false, false);
    CHECK_INT(s.tracker, 2);
    CHECK_NEAR(s.scale, 64, 0);
    clean_step();
    CHECK_NEAR(s.scale, 128, 0);
}

/* ---- static scale, and dtypes without one ---- */

AMP_TEST(a_static_scale_never_changes)
{
    start("loss_scale=128");
    CHECK(!s.dynamic && !s.searching && !s.retry);
    for (int i = 0; i < 5000; i++)
        clean_step();
    CHECK_NEAR(s.scale, 128, 0);
    for (int i = 1; i < AMP_SCALER_FLOOR_STOP; i++) {
        CHECK_INT(amp_scaler_overflow(&s, 1e9), AMP_VERDICT_SKIP);
        CHECK_INT(amp_scaler_step(&s, false, true), AMP_VERDICT_SKIP);
        CHECK_NEAR(s.scale, 128, 0);
    }
    CHECK_INT(amp_scaler_overflow(&s, 1e9), AMP_VERDICT_SKIP);
    CHECK_INT(amp_scaler_step(&s, false, true), AMP_VERDICT_STOP); /* nothing can change it */
    CHECK_INT(s.grown + s.backed_off + s.redone, 0);
}

AMP_TEST(a_static_scale_is_rounded_down_to_a_power_of_two)
{
    start("loss_scale=1000");
    CHECK_NEAR(s.scale, 512, 0);
}

AMP_TEST(other_dtypes_have_scale_one_and_skip_at_an_overflow)
{
    static const char *const keys[] = {"amp_dtype=bf16", "amp_dtype=tf32", "amp_dtype=fp32",
                                       "amp_dtype=fp32\nloss_scale=128",
                                       "amp_dtype=bf16\nloss_scale_init=4096"};
    for (int i = 0; i < 5; i++) {
        start(keys[i]);
        CHECK(!s.dynamic && !s.searching);
        for (int j = 0; j < 100; j++)
            clean_step();
        CHECK_NEAR(s.scale, 1, 0);
        CHECK_INT(failed_step(), AMP_VERDICT_SKIP);
        CHECK_NEAR(s.scale, 1, 0);
        CHECK_INT(s.skipped, 1);
    }
}

/* ---- random events ---- */

/* The rules once more, as a list of what happened instead of counters. */
struct model {
    int exponent, low, high, growth, backoff, window, since_change, tries, stuck_in_a_row;
    bool fixed, replay, search, held, stuck;
};

static struct model model_of(const struct amp_options *o)
{
    bool fixed = o->dtype != AMP_DTYPE_FP16 || !o->loss_scale_dynamic;
    struct model m = {.low = ilogb(o->loss_scale_min),
                      .high = ilogb(o->loss_scale_max),
                      .growth = ilogb(o->loss_scale_growth),
                      .backoff = -ilogb(o->loss_scale_backoff),
                      .window = o->loss_scale_window,
                      .fixed = fixed,
                      .replay = !fixed && o->on_overflow == AMP_OVERFLOW_RETRY,
                      .search = !fixed && o->loss_scale_init == 0};
    m.exponent = o->dtype != AMP_DTYPE_FP16 ? 0
                 : !o->loss_scale_dynamic   ? ilogb(o->loss_scale)
                 : o->loss_scale_init > 0   ? ilogb(o->loss_scale_init)
                                            : m.high;
    return m;
}

static enum amp_verdict model_overflow(struct model *m, double amax)
{
    int down = m->backoff, before = m->exponent;
    m->stuck = m->fixed || m->exponent == m->low;
    m->since_change = 0;
    m->held = true;
    if (m->stuck) return AMP_VERDICT_SKIP;
    if (m->search && amax > 65504 && isfinite(amax))
        while (ldexp(amax, -down) > 65504)
            down++;
    m->exponent = before - down < m->low ? m->low : before - down;
    if (!m->replay || (!m->search && m->tries == 4)) return AMP_VERDICT_SKIP;
    m->tries++;
    return AMP_VERDICT_RETRY;
}

static void model_pass(struct model *m, double largest)
{
    m->tries = 0;
    m->search = false;
    int up = m->exponent + m->growth > m->high ? m->high - m->exponent : m->growth;
    if (m->fixed || ldexp(largest, up) <= 65504) return;
    m->since_change = 0;
    m->held = true;
}

static enum amp_verdict model_step(struct model *m, bool applied, bool scale)
{
    bool held = m->held, stuck = m->stuck && scale && !applied;
    m->tries = 0;
    m->held = m->stuck = false;
    m->stuck_in_a_row = stuck ? m->stuck_in_a_row + 1 : 0;
    if (!applied) return m->stuck_in_a_row >= 10 ? AMP_VERDICT_STOP : AMP_VERDICT_SKIP;
    if (m->fixed || held) return AMP_VERDICT_RETRY;
    if (++m->since_change >= m->window) {
        m->since_change = 0;
        m->exponent = m->exponent + m->growth > m->high ? m->high : m->exponent + m->growth;
    }
    return AMP_VERDICT_RETRY;
}

static void check_state(const struct model *m)
{
    int exponent;
    CHECK_NEAR(s.scale, ldexp(1, m->exponent), 0);
    CHECK(frexp(s.scale, &exponent) == 0.5 && isfinite(s.scale));
    CHECK_INT(s.searching, m->search);
    CHECK_INT(s.floor_skips, m->stuck_in_a_row);
    if (!m->fixed) CHECK_INT(s.tracker, m->since_change);
}

/* One subdivision: overflows until it is clean or given up. True: clean. */
static bool random_pass(struct model *m, double overflow_rate)
{
    while (test_uniform(0, 1) < overflow_rate) {
        double amax = test_random() % 3 ? 0 : exp2(test_uniform(10, 60));
        enum amp_verdict expected = model_overflow(m, amax), actual = amp_scaler_overflow(&s, amax);
        CHECK_INT(actual, expected);
        check_state(m);
        if (actual != AMP_VERDICT_RETRY) return false;
    }
    double largest = test_random() % 4 ? 0 : test_uniform(0, 65504);
    amp_scaler_pass(&s, largest);
    model_pass(m, largest);
    check_state(m);
    return true;
}

static void random_step(struct model *m, double overflow_rate)
{
    bool scale = true, clean = true;
    for (int i = (int)(test_random() % 3); clean && i >= 0; i--)
        clean = random_pass(m, overflow_rate);
    if (clean && test_random() % 20 == 0) clean = scale = false; /* a bad image */
    CHECK_INT(amp_scaler_step(&s, clean, scale), model_step(m, clean, scale));
    check_state(m);
}

static void random_keys(char *keys, size_t size)
{
    int low = (int)(test_random() % 6), high = low + (int)(test_random() % (25 - (unsigned)low));
    int init = low + (int)(test_random() % (unsigned)(high - low + 1));
    char line[64] = "";
    if (test_random() % 2) snprintf(line, sizeof line, "loss_scale_init=%d\n", 1 << init);
    snprintf(keys, size,
             "loss_scale_min=%d\nloss_scale_max=%d\n%sloss_scale_growth=%d\nloss_scale_backoff=%s\n"
             "loss_scale_window=%d\namp_on_overflow=%s\namp_dtype=%s",
             1 << low, 1 << high, line, test_random() % 2 ? 2 : 4,
             test_random() % 2 ? "0.5" : "0.25", (int)(test_random() % 6) + 1,
             test_random() % 4 ? "retry" : "skip", test_random() % 8 ? "fp16" : "bf16");
    if (test_random() % 8 == 0) snprintf(keys, size, "loss_scale=%d", 1 << init);
}

/* Between two steps; the model does not notice. */
static void stop_and_resume(const struct amp_options *o)
{
    struct amp_scaler stopped = s;
    amp_scaler_init(&s, o, 0);
    amp_scaler_resume(&s, &stopped);
}

AMP_TEST(resuming_keeps_to_the_settings_of_the_new_run)
{
    start("loss_scale_init=1024\nloss_scale_window=100");
    for (int i = 0; i < 7; i++)
        clean_step();
    struct amp_scaler stopped = s;
    start("loss_scale_max=256\nloss_scale_window=50");
    amp_scaler_resume(&s, &stopped);
    CHECK_NEAR(s.scale, 256, 0);
    CHECK_INT(s.window, 50);
    CHECK_INT(s.tracker, 7);
    CHECK_INT(s.applied, 7);
    CHECK(!s.searching);
    start("loss_scale_min=4096");
    amp_scaler_resume(&s, &stopped);
    CHECK_NEAR(s.scale, 4096, 0);
    start("loss_scale=64");
    amp_scaler_resume(&s, &stopped);
    CHECK_NEAR(s.scale, 64, 0);
    CHECK_INT(s.applied, 7);
    stopped = s;
    start("");
    amp_scaler_resume(&s, &stopped);
    CHECK(s.searching);
    CHECK_NEAR(s.scale, 16777216, 0);
}

/* Also with a scale that is fixed now. */
AMP_TEST(resuming_goes_on_counting)
{
    const struct amp_scaler stopped = {.dynamic = true,
                                       .reduced = true,
                                       .scale = 64,
                                       .redone = 1,
                                       .skipped = 2,
                                       .applied = 3,
                                       .grown = 4,
                                       .backed_off = 5,
                                       .floor_skips = 6,
                                       .tracker = 7};
    for (int fixed = 0; fixed < 2; fixed++) {
        start(fixed ? "loss_scale=8" : "");
        amp_scaler_resume(&s, &stopped);
        CHECK(s.redone == 1 && s.skipped == 2 && s.applied == 3 && s.grown == 4);
        CHECK(s.backed_off == 5 && s.floor_skips == 6);
        CHECK_INT(s.tracker, fixed ? 0 : 7);
        CHECK_NEAR(s.scale, fixed ? 8 : 64, 0);
    }
}

AMP_TEST(random_events_follow_the_rules)
{
    for (int round = 0; round < 300; round++) {
        char keys[512];
        random_keys(keys, sizeof keys);
        struct amp_options o = options_of(keys);
        struct model m = model_of(&o);
        if (!m.window) m.window = 20;
        amp_scaler_init(&s, &o, 0);
        check_state(&m);
        double overflow_rate = test_uniform(0, 0.9);
        for (int step = 0; step < 200; step++) {
            random_step(&m, overflow_rate);
            if (test_random() % 20 == 0) stop_and_resume(&o);
        }
        if (test_failures) TEST_FAIL("round %d:\n%s", round, keys);
        REQUIRE(!test_failures);
    }
}

AMP_TEST_MAIN
