/* Learning rates over a training: against PyTorch's schedulers, as they computed them
 * (schedule_table.h) and by their formulas, and what contradicts what. */
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

static void check_refused(const char *keys, const char *message)
{
    CHECK_INT(read_keys(keys), -1);
    CHECK_STR(err, message);
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

AMP_TEST(idle_keys_are_told)
{
    CHECK_INT(read_keys("policy=steps\nsteps=1\nscales=1\nsgdr_mult=2\n"), 0);
    CHECK_STR(notes, "a.cfg:6: sgdr_mult=2: has no effect with policy=steps\n");
    CHECK_INT(read_keys("policy=onecycle\nmax_batches=9\nlearning_rate_min=0\n"), 0);
    CHECK_STR(notes, "a.cfg:5: learning_rate_min=0: has no effect with policy=onecycle\n");
    CHECK_INT(read_keys("momentum_min=.5\n"), 0);
    CHECK_STR(notes, "a.cfg:3: momentum_min=.5: has no effect with policy=constant\n");
    CHECK_INT(read_keys("policy=cosine\nmax_batches=9\nsteps=4,5\nscales=.1,.1\n"), 0);
    CHECK_STR(notes,
              "a.cfg:5: steps=4,5: has no effect with policy=cosine; likewise scales=.1,.1 (line "
              "6)\n");
    CHECK_INT(read_keys("policy=cyclic\ncyclic_step=9\ngamma=.9\n"), 0);
    CHECK_STR(notes, "a.cfg:5: gamma=.9: has no effect with policy=cyclic\n");
    /* Darknet's own policies: each reads some of these. */
    static const struct {
        const char *keys, *idle, *others;
    } darknets[] = {
        {"policy=step\nstep=4\nscale=.1\nsteps=4,5\nscales=.1,.1\n", "6: steps=4,5",
         "; likewise scales=.1,.1 (line 7)"},
        {"policy=step\nstep=4\nscale=.1\n", NULL, ""},
        {"policy=step\ngamma=.9\n", "4: gamma=.9", ""},
        {"policy=steps\nsteps=4\nscales=.1\nstep=4\n", "6: step=4", ""},
        {"policy=constant\nscales=.1\n", "4: scales=.1", ""},
        {"steps=4\nscales=.1\n", "3: steps=4", "; likewise scales=.1 (line 4)"},
        {"cyclic_step=2\ngamma=.9\nscale=.1\nsgdr_mult=3\n", "6: sgdr_mult=3",
         "; likewise cyclic_step=2 (line 3), scale=.1 (line 5), gamma=.9 (line 4)"},
        {"policy=exp\ngamma=.9\n", NULL, ""},
        {"policy=exp\nstep=4\n", "4: step=4", ""},
        {"policy=sigmoid\ngamma=.1\nstep=4\n", NULL, ""},
        {"policy=sigmoid\nscale=.1\n", "4: scale=.1", ""},
        {"policy=poly\npower=4\n", NULL, ""},
        {"policy=poly\nsteps=4\n", "4: steps=4", ""},
        {"policy=random\npower=4\n", NULL, ""},
        {"policy=random\ngamma=1\n", "4: gamma=1", ""},
        {"policy=steps\nsteps=4\nscales=.1\npower=4\n", "6: power=4", ""},
        {"policy=steps\nsteps=4\nscales=.1\npower=4\nburn_in=2\n", NULL, ""},
    };
    for (size_t i = 0; i < sizeof darknets / sizeof *darknets; i++) {
        char said[200] = "";
        const char *word = strstr(darknets[i].keys, "policy=");
        word = word ? word + 7 : "constant";
        if (darknets[i].idle)
            snprintf(said, sizeof said, "a.cfg:%s: has no effect with policy=%.*s%s\n",
                     darknets[i].idle, (int)strcspn(word, "\n"), word, darknets[i].others);
        CHECK_INT(read_keys(darknets[i].keys), 0);
        CHECK_STR(notes, said);
    }
}

AMP_TEST(a_policy_without_its_purpose_is_told)
{
    static const struct {
        const char *keys, *told;
    } cases[] = {
        {"policy=sgdr\nmax_batches=9\nsgdr_cycle=8\n", ""},
        {"policy=sgdr\nmax_batches=9\n", ""},
        {"policy=sgdr\nsgdr_cycle=9\n", ""},
        {"policy=sgdr\nmax_batches=9\nsgdr_cycle=9\n",
         "a.cfg:5: sgdr_cycle=9: max_batches=9 ends the training before the rate begins again; "
         "allowed for that: 1 to 8\n"},
        {"policy=sgdr\nmax_batches=9\nsgdr_cycle=70\n",
         "a.cfg:5: sgdr_cycle=70: max_batches=9 ends the training before the rate begins again; "
         "allowed for that: 1 to 8\n"},
        {"policy=cyclic\ncyclic_step=4\nlearning_rate=.01\nlearning_rate_min=1e-2\n",
         "a.cfg:6: learning_rate_min=1e-2: lowest and highest rate are both 0.01, so the rate does "
         "not change; allowed for that: learning_rate above learning_rate_min\n"},
        {"policy=cyclic\ncyclic_step=4\nlearning_rate=.01\nlearning_rate_min=.00999\n", ""},
        {"policy=cosine\nmax_batches=9\nlearning_rate=.00001\n",
         "a.cfg:5: learning_rate=.00001: lowest and highest rate are both 1e-05, so the rate does "
         "not change; allowed for that: learning_rate above learning_rate_min\n"},
        {"policy=cyclic\nmax_batches=9\ncyclic_step=9\n", ""},
        {"policy=cyclic\nmax_batches=9\ncyclic_step=10\n",
         "a.cfg:5: cyclic_step=10: max_batches=9 ends the training before the rate has reached "
         "learning_rate; allowed for that: 1 to 9\n"},
        /* onecycle has no lowest rate of the cfg's. */
        {"policy=onecycle\nmax_batches=9\nlearning_rate=.00001\n", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(read_keys(cases[i].keys), 0);
        CHECK_STR(notes, cases[i].told);
    }
}

AMP_TEST(contradictions_are_refused)
{
    check_refused("policy=onecycle\nmax_batches=9\nburn_in=100\n",
                  "a.cfg:5: burn_in=100: allowed: none with policy=onecycle, which begins with a "
                  "small rate itself");
    check_refused("policy=onecycle\nmax_batches=9\nmomentum=.8\n",
                  "a.cfg:5: momentum=.8: allowed with policy=onecycle: at least momentum_min, "
                  "which is 0.85 without a key");
    check_refused("policy=onecycle\nmax_batches=9\nadam=1\nmomentum_min=.95\n",
                  "a.cfg:6: momentum_min=.95: allowed: 0 to B1, which is 0.9");
    check_refused("policy=onecycle\nmax_batches=9\noptimizer=adamw\nB1=.5\n",
                  "a.cfg:6: B1=.5: allowed with policy=onecycle: at least momentum_min, which is "
                  "0.85 without a key");
    check_refused("policy=cosine\nmax_batches=9\nlearning_rate=1e-6\n",
                  "a.cfg:5: learning_rate=1e-6: allowed with policy=cosine: at least "
                  "learning_rate_min, which is 1e-05 without a key");
    check_refused("policy=cosine\nmax_batches=9\nlearning_rate=.001\nlearning_rate_min=.01\n",
                  "a.cfg:6: learning_rate_min=.01: allowed: 0 to learning_rate, which is 0.001");
    check_refused("policy=cosine\n", "a.cfg:3: policy=cosine: needs max_batches=, at least 1");
    check_refused("policy=sgdr\n", "a.cfg:3: policy=sgdr: needs max_batches=, at least 1");
    check_refused("policy=cyclic\n",
                  "a.cfg:3: policy=cyclic: needs cyclic_step=, the iterations from the lowest to "
                  "the highest rate (Smith 2017: those of 2 to 10 epochs)");
    check_refused("policy=sgdr\nsgdr_cycle=0\n",
                  "a.cfg:4: sgdr_cycle=0: allowed: a whole number, 1 to 1000000000");
    check_refused("policy=cyclic\nlearning_rate_min=-1\n",
                  "a.cfg:4: learning_rate_min=-1: allowed: 0 to 1");
    check_refused("policy=cyclic\ncyclic_step=many\n",
                  "a.cfg:4: cyclic_step=many: allowed: a whole number, 1 to 1000000000");
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
