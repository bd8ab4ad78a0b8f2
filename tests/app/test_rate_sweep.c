/* A sweep over losses whose best rate is known: gradient descent on a x^2 / 2, which is fastest at
 * a rate of 1 / a and grows from 2 / a on. And what is suggested where the loss never falls. */
#include "plugin/app/rate_sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rig/harness.h"

/* Descends from x = 1, by gradients that are off as if batches differed; so are the losses. */
static struct amp_sweep descend(double a, int most, double noise)
{
    struct amp_sweep s;
    double x = 1;
    bool on = true;
    REQUIRE(amp_sweep_init(&s, most) == 0);
    while (on) {
        double rate = amp_sweep_rate(&s), random = (double)(test_random() % 2001) / 1000 - 1;
        x -= rate * a * (x + .1 * noise * random);
        on = amp_sweep_add(&s, (a * x * x / 2 + .001 * a) * (1 + noise * random));
    }
    return s;
}

AMP_TEST(rates_grow_by_one_factor)
{
    struct amp_sweep s;
    REQUIRE(amp_sweep_init(&s, 61) == 0);
    for (int i = 0; i < 61; i++) {
        CHECK_NEAR(amp_sweep_rate(&s), 1e-6 * pow(10, i / 10.), 1e-12 * pow(10, i / 10. - 6) * 1e6);
        CHECK_INT(amp_sweep_add(&s, 1), i < 60);
    }
    CHECK(!s.diverged && s.n == 61);
    amp_sweep_free(&s);
}

/* Losses and their smoothing again, from their definition, up to the end of the sweep. */
AMP_TEST(every_point_of_a_parabola)
{
    const double a = 40;
    struct amp_sweep s = descend(a, 100, 0);
    double x = 1, least = INFINITY, suggestion = 0;
    for (int i = 0; i < s.n; i++) {
        double rate = 1e-6 * pow(1e6, i / 99.), sum = 0, weights = 0;
        x *= 1 - rate * a;
        CHECK_NEAR(s.points[i].rate, rate, 1e-12 * rate);
        CHECK_NEAR(s.points[i].loss, a * x * x / 2 + .001 * a, 1e-9 * a);
        for (int k = 0; k <= i; k++) {
            sum += s.points[k].loss * pow(.9, i - k);
            weights += pow(.9, i - k);
        }
        CHECK_NEAR(s.points[i].smoothed, sum / weights, 1e-9 * sum);
        if (s.points[i].smoothed < least) {
            least = s.points[i].smoothed;
            suggestion = rate / 10;
        }
        CHECK_INT(s.points[i].smoothed > 4 * least, i == s.n - 1);
    }
    CHECK(s.diverged && s.points[s.n - 1].rate > 2 / a);
    CHECK(amp_sweep_suggestion(&s) <= suggestion && amp_sweep_suggestion(&s) > .9 * suggestion);
    amp_sweep_free(&s);
}

/* Whatever the curvature: a step that is stable and makes good way. */
AMP_TEST(the_suggestion_follows_the_optimum)
{
    for (int i = 0; i < 200; i++) {
        double a = pow(10, 1.5 + (double)(test_random() % 2501) / 1000); /* 30 to 10^4 */
        struct amp_sweep s = descend(a, 60 + (int)(test_random() % 200), i % 2 ? .3 : .1);
        double rate = amp_sweep_suggestion(&s), best = 1 / a;
        CHECK(s.diverged);
        if (!(rate > best / 20 && rate < best))
            TEST_FAIL("curvature %g: suggested %g, the best rate is %g", a, rate, best);
        amp_sweep_free(&s);
    }
}

AMP_TEST(a_loss_that_never_falls)
{
    struct amp_sweep s;
    REQUIRE(amp_sweep_init(&s, 50) == 0);
    for (int i = 0; amp_sweep_add(&s, pow(1.1, i)); i++)
        ;
    CHECK(s.diverged && amp_sweep_suggestion(&s) == 0);
    amp_sweep_free(&s);
}

AMP_TEST(a_loss_that_is_not_finite_ends_it)
{
    struct amp_sweep s;
    REQUIRE(amp_sweep_init(&s, 50) == 0);
    CHECK(amp_sweep_add(&s, 2) && amp_sweep_add(&s, 1));
    CHECK(!amp_sweep_add(&s, NAN));
    CHECK(s.diverged && s.n == 2 && s.best == 1);
    amp_sweep_free(&s);
}

AMP_TEST(suggestions_have_two_digits_and_are_never_larger)
{
    struct amp_sweep s;
    for (int most = 20; most < 200; most += 7) {
        REQUIRE(amp_sweep_init(&s, most) == 0);
        for (int i = 0; amp_sweep_add(&s, most - i); i++)
            ;
        CHECK(!s.diverged && s.best == most - 1); /* it falls to the end */
        CHECK_NEAR(amp_sweep_suggestion(&s), .1, 1e-9);
        amp_sweep_free(&s);
    }
}

/* ---- the report ---- */

/* Three points, of which number `best` has the smallest smoothed loss. */
static char *report_of(int best, bool json)
{
    struct amp_sweep_point points[] = {{1e-6, 5, 4.5}, {1e-3, 2, 2.5}, {.1, 20, 12}};
    struct amp_sweep s = {.most = 100, .points = points, .n = 3, .best = best, .diverged = best};
    struct amp_rate_result r = {
        .data = "a.data", .cfg = "a.cfg", .images = 4, .cfg_rate = .01, .sweep = &s};
    char *text = NULL;
    size_t size = 0;
    if (best) r.weights = "a.weights", r.cfg_line = 7;
    FILE *f = open_memstream(&text, &size);
    REQUIRE(f);
    (json ? amp_rate_print_json : amp_rate_print)(&r, f);
    fclose(f);
    return text;
}

AMP_TEST(every_number_of_the_report)
{
    static const struct {
        int best;
        bool json;
        const char *said;
    } reports[] = {
        {1, false,
         "\namp lr-find: a.cfg, a.weights, 3 iterations of 4 images\nsmoothed loss: 4.5 at rate "
         "1e-06, smallest 2.5 at 0.001; beyond 0.1 it grew too large, and the sweep ended\n\n"
         "In line 7 of a.cfg, in place of 0.01:\n\n    learning_rate=0.0001\n"},
        {0, false,
         "\namp lr-find: a.cfg, random weights, 3 iterations of 4 images\nsmoothed loss: 4.5 at "
         "rate 1e-06, smallest 4.5 at 1e-06; it never grew to 4 times that\n\nThe loss did not "
         "fall at any rate, so none is suggested. `darknet amp check` looks for a cause.\n"},
        {2, false, "\n\nIn line 7 of a.cfg, in place of 0.01:\n\n    learning_rate=0.01\n"},
        {1, true,
         "{\"data\": \"a.data\", \"cfg\": \"a.cfg\", \"weights\": \"a.weights\", "
         "\"images_per_iteration\": 4, \"diverged\": true, \"best_rate\": 0.001, "
         "\"suggested_rate\": 0.0001, \"line\": 7,\n \"points\": [\n  {\"rate\": 1e-06, "
         "\"loss\": 5, \"smoothed\": 4.5},\n  {\"rate\": 0.001, \"loss\": 2, \"smoothed\": "
         "2.5},\n  {\"rate\": 0.1, \"loss\": 20, \"smoothed\": 12}]}\n"},
        {0, true,
         "{\"data\": \"a.data\", \"cfg\": \"a.cfg\", \"weights\": null, "
         "\"images_per_iteration\": 4, \"diverged\": false, \"best_rate\": 1e-06, "
         "\"suggested_rate\": null, \"line\": null,"}};
    for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) {
        char *text = report_of(reports[i].best, reports[i].json);
        CHECK_SAYS(text, reports[i].said);
        free(text);
    }
}

/* ---- the picture ---- */

AMP_TEST(the_picture_has_every_loss)
{
    char *text = NULL;
    size_t size = 0;
    struct amp_sweep s = descend(40, 100, .1);
    const struct amp_rate_result r = {.cfg = "a.cfg", .images = 4, .sweep = &s};
    FILE *f = open_memstream(&text, &size);
    REQUIRE(f);
    amp_rate_draw(&r, f);
    fclose(f);
    int dots = 0;
    for (const char *at = text; (at = strstr(at, "<circle")); at++)
        dots++;
    CHECK_INT(dots, s.n);
    CHECK(strstr(text, AMP_RATE_PICTURE) && strstr(text, "suggested 0.0") &&
          strstr(text, "</svg>"));
    CHECK(!strstr(text, "nan") && !strstr(text, "inf"));
    free(text);
    amp_sweep_free(&s);
}

AMP_TEST_MAIN
