/* Learning rates over a training: against PyTorch's schedulers, as they computed them
 * (schedule_table.h) and by their formulas. Which keys contradict
 * each other: ../input/verdicts/schedule.txt. */
#include "plugin/core/read/options.h"

#include <math.h>
#include <string.h>

#include "tests/rig/harness.h"

struct torch_row {
    int step;
    double rate, momentum;
};
#include "schedule_table.h"

static const double pi = 3.14159265358979323846, high = .01, low = .0001;

static const struct amp_schedule cosine = {AMP_POLICY_COSINE, 1000, .rate_min = .0001},
                                 sgdr = {AMP_POLICY_SGDR, 1000, .rate_min = .0001, .cycle = 90,
                                         .mult = 2},
                                 sgdr_even = {AMP_POLICY_SGDR, 1000, .rate_min = .0001, .cycle = 70,
                                              .mult = 1},
                                 onecycle = {AMP_POLICY_ONECYCLE, 1000, .momentum_min = .85},
                                 cyclic = {AMP_POLICY_CYCLIC, 1000, .rate_min = .0001, .step = 120};

static bool is_near(double x, double reference)
{
    return fabs(x - reference) <= 1e-6 * fabs(reference);
}

static void check_torch(const char *name, const struct amp_schedule *s, double momentum,
                        const struct torch_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t iteration = (size_t)rows[i].step + 1;
        double rate = amp_schedule_rate(s, high, iteration);
        double at = amp_schedule_momentum(s, momentum, iteration);
        if (!is_near(rate, rows[i].rate) || !is_near(at, rows[i].momentum))
            TEST_FAIL("%s, step %d: rate %.9g, momentum %.9g; PyTorch has %.9g, %.9g", name,
                      rows[i].step, rate, at, rows[i].rate, rows[i].momentum);
    }
}

#define CHECK_TORCH(name, momentum)                                                                \
    check_torch(#name, &(name), momentum, torch_##name, sizeof torch_##name / sizeof *torch_##name)

AMP_TEST(as_pytorch_has_them)
{
    CHECK_TORCH(cosine, .9);
    CHECK_TORCH(sgdr, .9);
    CHECK_TORCH(sgdr_even, .9);
    CHECK_TORCH(onecycle, .95);
    CHECK_TORCH(cyclic, .9);
}

/* ---- the formulas of PyTorch's documentation, at every step ---- */

static double annealed(double from, double to, double share)
{
    return to + (from - to) / 2 * (1 + cos(pi * share));
}

static double cosine_at(int step)
{
    return annealed(high, low, step / 1000.);
}

/* As a scheduler that is stepped does it: one counter, which restarts. */
static double sgdr_at(int step, int cycle, int mult)
{
    int now = 0;
    for (int i = 0; i < step; i++)
        if (++now == cycle) {
            now = 0;
            cycle *= mult;
        }
    return annealed(high, low, (double)now / cycle);
}

static double onecycle_at(int step, double from, double to, double end)
{
    double top = .3 * 1000 - 1;
    return step <= top ? annealed(from, to, step / top)
                       : annealed(to, end, (step - top) / (999 - top));
}

static double cyclic_at(int step)
{
    double cycle = floor(1 + step / 240.), x = fabs(step / 120. - 2 * cycle + 1);
    return low + (high - low) * fmax(0, 1 - x);
}

AMP_TEST(a_thousand_steps)
{
    for (int step = 0; step < 1000; step++) {
        size_t i = (size_t)step + 1;
        bool near =
            is_near(amp_schedule_rate(&cosine, high, i), cosine_at(step)) &&
            is_near(amp_schedule_rate(&sgdr, high, i), sgdr_at(step, 90, 2)) &&
            is_near(amp_schedule_rate(&sgdr_even, high, i), sgdr_at(step, 70, 1)) &&
            is_near(amp_schedule_rate(&onecycle, high, i),
                    onecycle_at(step, high / 25, high, high / 250000)) &&
            is_near(amp_schedule_momentum(&onecycle, .95, i), onecycle_at(step, .95, .85, .95)) &&
            is_near(amp_schedule_rate(&cyclic, high, i), cyclic_at(step));
        if (!near) TEST_FAIL("step %d", step);
    }
}

AMP_TEST(burn_in_is_darknets)
{
    struct amp_schedule s = cosine;
    s.burn_in = 100;
    s.power = 4;
    for (size_t i = 1; i < 100; i++)
        CHECK(is_near(amp_schedule_rate(&s, high, i), high * pow((double)i / 100, 4)));
    for (size_t i = 100; i <= 1000; i++)
        CHECK(amp_schedule_rate(&s, high, i) == amp_schedule_rate(&cosine, high, i));
}

/* Longer than planned, or very short: always a rate between the limits. */
AMP_TEST(outside_of_the_plan)
{
    CHECK(amp_schedule_rate(&cosine, high, 5000) == low);
    CHECK(is_near(amp_schedule_rate(&onecycle, high, 5000), high / 250000));
    for (int total = 1; total < 6; total++) {
        struct amp_schedule s = onecycle;
        s.total = total;
        for (size_t i = 0; i < 9; i++) {
            double rate = amp_schedule_rate(&s, high, i);
            CHECK(rate >= high / 250001 && rate <= high);
        }
    }
}

/* ---- keys ---- */

static char err[1024], notes[1024];
static struct amp_options o;

static int read_keys(const char *keys)
{
    char text[1024];
    err[0] = notes[0] = '\0';
    snprintf(text, sizeof text, "[net]\nmixed_precision=1\n%s", keys);
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(file != NULL);
    int status = amp_options_read(file, &o, notes, sizeof notes, err, sizeof err);
    amp_cfg_free(file);
    return status;
}

AMP_TEST(keys_are_read)
{
    CHECK_INT(
        read_keys("policy=sgdr\nmax_batches=700\nburn_in=30\npower=2\nlearning_rate_min=1e-4\n"
                  "sgdr_cycle=50\nsgdr_mult=3\n"),
        0);
    const struct amp_schedule *s = &o.schedule;
    CHECK(s->policy == AMP_POLICY_SGDR && s->total == 700 && s->burn_in == 30 && s->power == 2);
    CHECK(s->rate_min == 1e-4 && s->cycle == 50 && s->mult == 3);
    CHECK_STR(notes, "");
    CHECK_INT(read_keys("policy=steps\nsteps=1\nscales=1\n"), 0);
    CHECK(s->policy == AMP_POLICY_OF_DARKNET);
    CHECK(s->rate_min == .00001 && s->momentum_min == .85 && s->mult == 2 && s->cycle == 0);
    /* The default of a cycle is the whole run. */
    CHECK_INT(read_keys("policy=sgdr\nmax_batches=1000\nlearning_rate_min=1e-4\n"), 0);
    CHECK(amp_schedule_rate(s, high, 500) == amp_schedule_rate(&cosine, high, 500));
}

AMP_TEST(the_report_has_every_number)
{
    static const struct {
        struct amp_schedule s;
        const char *said;
        struct amp_rules rules;
    } reports[] = {
        {{.policy = AMP_POLICY_OF_DARKNET, .burn_in = 7}, "", {0}},
        {{.policy = AMP_POLICY_COSINE, .rate_min = 1e-5, .total = 500, .burn_in = 7},
         "learning rate: cosine, from 0.25 to 1e-05 in 500 iterations; the first 7 rise from 0\n",
         {0}},
        {{.policy = AMP_POLICY_SGDR, .rate_min = 1e-5, .total = 500, .mult = 3},
         "learning rate: sgdr, from 0.25 to 1e-05 in cycles of 500 iterations, each 3 times as "
         "long as the one before\n",
         {0}},
        {{.policy = AMP_POLICY_SGDR, .rate_min = 1e-5, .total = 500, .cycle = 40, .mult = 1},
         "learning rate: sgdr, from 0.25 to 1e-05 in cycles of 40 iterations, each 1 times as "
         "long as the one before\n",
         {0}},
        {{.policy = AMP_POLICY_CYCLIC, .rate_min = 1e-5, .step = 30},
         "learning rate: cyclic, between 1e-05 and 0.25, 30 iterations up and as many down\n",
         {0}},
        {{.policy = AMP_POLICY_ONECYCLE, .total = 500, .momentum_min = .75},
         "learning rate: onecycle, from 0.01 to 0.25 and to 1e-06 in 500 iterations, momentum from "
         "0.9 to 0.75 and back\n",
         {0}},
        {{.policy = AMP_POLICY_ONECYCLE, .total = 500, .momentum_min = .75},
         "learning rate: onecycle, from 0.01 to 0.25 and to 1e-06 in 500 iterations, B1 from 0.95 "
         "to 0.75 and back\n",
         {.optimizer = AMP_OPTIMIZER_ADAMW, .b1 = .95}},
        {{.policy = AMP_POLICY_ONECYCLE, .total = 500, .momentum_min = .75},
         "learning rate: onecycle, from 0.01 to 0.25 and to 1e-06 in 500 iterations, B1 from 0.8 "
         "to 0.75 and back\n",
         {.darknets_adam = true, .b1 = .8}}};
    for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) {
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        REQUIRE(f);
        amp_schedule_print(&reports[i].s, &reports[i].rules, .25, .9, f);
        fclose(f);
        CHECK_STR(text, reports[i].said);
        free(text);
    }
}

AMP_TEST_MAIN
