/* The chart of a run: bounded, taken up by the run that goes on, and nobody else's file. */
#include "tests/rig/harness.h"
#include "tests/rig/files.h"

#include "plugin/app/axis.h"
#include "plugin/app/chart.h"

#include <math.h>
#include <sys/stat.h>

static char err[9000];

static struct amp_chart_setup setup_of(size_t total)
{
    return (struct amp_chart_setup){.title = "a <net> & more",
                                    .figures = {"mAP@0.5", "mAP@[.5:.95]"},
                                    .total = total,
                                    .burn_in = total / 10,
                                    .mark = {total / 2},
                                    .factor = {.1},
                                    .n_marks = 1};
}

static struct amp_chart *open_chart(size_t total, bool resumed)
{
    struct amp_chart_setup setup = setup_of(total);
    return amp_chart_open(scratch("c.svg"), &setup, resumed, err, sizeof err);
}

static void run(struct amp_chart *c, size_t from, size_t to, size_t map_every)
{
    for (size_t i = from; i <= to; i++) {
        double loss = 1 + 100. / (double)i + test_uniform(0, 1);
        amp_chart_add_loss(c, i, loss, loss, exp2((double)(8 + i % 3)));
        if (i % map_every == 0) amp_chart_add_map(c, i, test_uniform(0, 1), test_uniform(0, .5));
    }
}

static void save(struct amp_chart *c, size_t iteration)
{
    struct amp_chart_state s = {iteration, 1.5, 1.4, .001, .5, .6, iteration / 2, 3661};
    CHECK_INT(amp_chart_write(c, &s, err, sizeof err), 0);
}

static char *text(void)
{
    char *all = calloc(1, 1 << 20);
    REQUIRE(all && scratch_read("c.svg", all, (1 << 20) - 1) >= 0);
    return all;
}

static bool says(const char *what)
{
    char *all = text();
    bool found = strstr(all, what);
    free(all);
    return found;
}

AMP_TEST(stays_small)
{
    struct stat info;
    struct amp_chart *c = open_chart(500200, false);
    REQUIRE(c);
    run(c, 1, 500200, 100);
    save(c, 500200);
    REQUIRE(!stat(scratch("c.svg"), &info));
    CHECK(info.st_size > 20000 && info.st_size < 200000);
    CHECK(says("iteration 500200 of 500200 (100.0 %), 1:01:01 left"));
    CHECK(says("a &lt;net&gt; &amp; more"));
    amp_chart_free(c);
}

/* What is read back and written again is the same file. */
AMP_TEST(is_taken_up)
{
    struct amp_chart *c = open_chart(1000, false);
    REQUIRE(c);
    run(c, 1, 600, 50);
    save(c, 600);
    amp_chart_free(c);
    char *before = text();
    c = open_chart(1000, true);
    REQUIRE(c);
    save(c, 600);
    char *after = text();
    CHECK_STR(after, before);
    amp_chart_free(c);
    free(before);
    free(after);
}

/* Iterations that are run again replace what an earlier run saw of them. */
AMP_TEST(goes_on_from_where_it_starts)
{
    struct amp_chart *c = open_chart(100, false);
    REQUIRE(c);
    run(c, 1, 60, 20);
    save(c, 60);
    CHECK(says("\nloss 50 ") && says("\nmap 60 "));
    amp_chart_free(c);
    c = open_chart(100, true);
    REQUIRE(c);
    amp_chart_add_loss(c, 40, .5, .5, 8);
    save(c, 40);
    CHECK(says("\nloss 39 ") && says("\nmap 20 "));
    CHECK(says("\nloss 40 0.5 0.5 0.5 8\n")); /* not joined with the earlier run's */
    CHECK(!says("\nloss 50 ") && !says("\nmap 40 "));
    CHECK(amp_chart_seconds_left(c, 40, 5) < 0);
    CHECK_NEAR(amp_chart_seconds_left(c, 44, 10), 10 / 4. * (100 - 44), 1e-9);
    CHECK(amp_chart_seconds_left(c, 100, 10) == 0 && amp_chart_seconds_left(c, 101, 10) == 0);
    amp_chart_free(c);
}

AMP_TEST(a_new_run_starts_anew)
{
    struct amp_chart *c = open_chart(100, false);
    REQUIRE(c);
    run(c, 1, 60, 20);
    save(c, 60);
    amp_chart_free(c);
    c = open_chart(100, false);
    REQUIRE(c);
    run(c, 1, 2, 1000);
    save(c, 2);
    CHECK(says("\nloss 2 ") && !says("\nloss 3 "));
    amp_chart_free(c);
}

AMP_TEST(leaves_other_files_alone)
{
    scratch_write("c.svg", "<svg>mine</svg>\n", 16);
    CHECK(!open_chart(100, false));
    CHECK(strstr(err, "c.svg") && strstr(err, "is no chart"));
    CHECK(says("mine"));
    struct amp_chart_setup setup = setup_of(10);
    CHECK(!amp_chart_open(scratch("no/such/c.svg"), &setup, false, err, sizeof err));
    CHECK(strstr(err, "no/such/c.svg"));
    CHECK(!amp_chart_open(scratch(""), &setup, false, err, sizeof err));
    CHECK(strstr(err, "irectory") != NULL);
}

/* Also if only its last byte is refused, when it is closed. */
AMP_TEST(a_full_disk_leaves_the_chart_that_was_there)
{
    struct amp_chart_state state = {60, 1.5, 1.4, .001, .5, .6, 30, 3661};
    struct stat info;
    scratch_empty();
    struct amp_chart *c = open_chart(100, false);
    REQUIRE(c);
    run(c, 1, 60, 20);
    save(c, 60);
    REQUIRE(!stat(scratch("c.svg"), &info));
    char *before = text();
    for (int less = 0; less < 2; less++) {
        limit_files((rlim_t)info.st_size - (rlim_t)less);
        CHECK_INT(amp_chart_write(c, &state, err, sizeof err), -less);
        limit_files(RLIM_INFINITY);
        CHECK(says(before));
        CHECK_INT(scratch_count(), 1);
    }
    CHECK_SAYS(err, "/c.svg: cannot be written: File too large");
    amp_chart_free(c);
    free(before);
}

/* Neither is an axis possible for nothing, nor for what is not finite. */
/* Two iterations share a place. The frame reaches from 78 to 1030 across and from 452 up to 96,
 * which is 1.1 times the largest loss. */
AMP_TEST(curves_are_where_their_values_are)
{
    char band[200], curve[200], best[200];
    const size_t total = 2 * AMP_CHART_POINTS;
    const double left = 78 + 952 * 2. / (double)total, right = 78 + 952 * 4. / (double)total;
    const double up[] = {0, 452 - 356 * 1 / 3.3, 452 - 356 * 2 / 3.3, 452 - 356 * 3 / 3.3};
    unlink(scratch("c.svg"));
    struct amp_chart *c = open_chart(total, false);
    REQUIRE(c);
    for (size_t i = 1; i <= 4; i++)
        amp_chart_add_loss(c, i, i % 2 ? 1 : 3, 2, 8);
    amp_chart_add_map(c, 4, .5, .25);
    save(c, 4);
    snprintf(band, sizeof band, "class=\"band\" d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1fL%.1f %.1fZ\"",
             left, up[3], right, up[3], right, up[1], left, up[1]);
    snprintf(curve, sizeof curve, "d=\"M%.1f %.1fL%.1f %.1f\"", left, up[2], right, up[2]);
    snprintf(best, sizeof best, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"", right, 452 - 356 * .5);
    if (!says(band) || !says(curve) || !says(best))
        TEST_FAIL("no %s or %s or %s", band, curve, best);
    amp_chart_free(c);
}

/* Of 800 iterations 80 are burn-in, and the rate steps at 400; a scale of 8. The best mAP is of
 * iteration 2. */
AMP_TEST(words_and_marks)
{
    static const char *const said[] = {
        ">iteration 4 of 800 (0.5 %), 1:01:01 left</text>",
        ">loss 1.5, average 1.4</text>",
        ">learning rate 0.001</text>",
        "width=\"1100\" height=\"624\" viewBox=\"0 0 1100 624\"",
        ">mAP@0.5 50.00 %, best 60.00 % at iteration 2; thin: mAP@[.5:.95]</text>",
        "<rect x=\"78\" y=\"96\" width=\"95.2\" ",
        "<path class=\"mark\" d=\"M554.0 96V",
        "<text x=\"558.0\" y=\"110\" class=\"small\">rate x 0.1</text>",
        "<circle cx=\"80.4\" cy=\"238.4\" r=\"6\" ",
        "<text x=\"90.4\" y=\"230.4\" class=\"map\">best 60.0 %</text>",
        ">2^3</text>",
        "x=\"316.0\" y=\"584\" class=\"mid\">200</text>",
        "x=\"1038\" y=\"384.8\" class=\"map\">20 %</text>",
        "y=\"391.3\" class=\"end loss\">0.2</text>",
    };
    unlink(scratch("c.svg"));
    struct amp_chart *c = open_chart(800, false);
    REQUIRE(c);
    for (size_t i = 1; i <= 4; i++)
        amp_chart_add_loss(c, i, 1, 1, 8);
    amp_chart_add_map(c, 4, .5, .25);
    save(c, 4);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (!says(said[i])) TEST_FAIL("no %s", said[i]);
    amp_chart_free(c);
}

/* Only a linear axis begins at 0. */
AMP_TEST(beyond_a_factor_of_ten_the_axis_is_logarithmic)
{
    for (int beyond = 0; beyond < 2; beyond++) {
        unlink(scratch("c.svg"));
        struct amp_chart *c = open_chart(100, false);
        REQUIRE(c);
        for (size_t i = 1; i <= 2; i++) {
            double loss = i == 1 ? 1 : beyond ? 10.5 : 9.5;
            amp_chart_add_loss(c, i, loss, loss, 0);
        }
        save(c, 2);
        CHECK_INT(says(" class=\"end loss\">0</text>"), !beyond);
        amp_chart_free(c);
    }
}

AMP_TEST(a_loss_far_out_leaves_room_for_the_others)
{
    struct amp_chart *c = open_chart(100, false);
    REQUIRE(c);
    for (size_t i = 1; i <= 3; i++)
        amp_chart_add_loss(c, i, i == 2 ? 5000 : 10, 10, 0);
    save(c, 3);
    CHECK(says(" class=\"end loss\">0</text>") && says(" class=\"end loss\">40</text>"));
    CHECK(!says(" class=\"end loss\">50</text>"));
    amp_chart_free(c);
}

/* Numbers from the first grid line to the last, and no other, each at its place. */
static void check_grid(struct amp_axis a, const char *const *labels)
{
    char *text = NULL, line[200];
    size_t size = 0;
    int n = 0;
    FILE *f = open_memstream(&text, &size);
    REQUIRE(f);
    amp_axis_write(f, &a);
    fclose(f);
    for (; labels[n]; n++) {
        double y = amp_axis_place(&a, atof(labels[n]));
        snprintf(line, sizeof line,
                 "M78 %.1fH1030\"/><text x=\"70\" y=\"%.1f\" class=\"end loss\">%s<", y, y + 4,
                 labels[n]);
        if (!strstr(text, line)) TEST_FAIL("no %s in %s", line, text);
    }
    for (const char *p = text; (p = strstr(p, "<text")); p++)
        n--;
    CHECK_INT(n, 0);
    free(text);
}

AMP_TEST(the_grid_reaches_both_ends_of_an_axis)
{
    check_grid((struct amp_axis){0, 12, BOTTOM, TOP, false},
               (const char *[]){"0", "2", "4", "6", "8", "10", "12", NULL});
    check_grid((struct amp_axis){0, 6, BOTTOM, TOP, false},
               (const char *[]){"0", "1", "2", "3", "4", "5", "6", NULL});
    check_grid((struct amp_axis){2, 1000, BOTTOM, TOP, true},
               (const char *[]){"2", "5", "10", "20", "50", "100", "200", "500", "1000", NULL});
    check_grid((struct amp_axis){1, 50, BOTTOM, TOP, true},
               (const char *[]){"1", "2", "5", "10", "20", "50", NULL});
    check_grid((struct amp_axis){1, 10000, BOTTOM, TOP, true},
               (const char *[]){"1", "10", "100", "1000", "10000", NULL});
}

/* All that is drawn, in its order, with one of each kind. An iteration is 9.52 wide. The second
 * mark's label is lower, the best mAP's text is to the left of its dot. The loss axis reaches to
 * 1.1 times 4, the scale's from 4 to 128. */
AMP_TEST(a_whole_picture)
{
    static const char drawn[] =
        "<rect width=\"1100\" height=\"624\" fill=\"#fff\"/>\n"
        "<text x=\"78\" y=\"34\" class=\"title\">a</text>\n"
        "<text x=\"1030\" y=\"34\" class=\"end\">iteration 4 of 100 (4.0 %), 0:59:59 left</text>\n"
        "<text x=\"78\" y=\"58\" class=\"loss\">loss 3.5, average 2.5</text><text x=\"1030\" "
        "y=\"58\" class=\"end\">learning rate 0.01</text>\n"
        "<text x=\"78\" y=\"78\" class=\"map\">mAP@0.5 75.00 %, best 87.50 % at iteration 99; "
        "thin: mAP@[.5:.95]</text>\n"
        "<rect x=\"78\" y=\"96\" width=\"95.2\" height=\"470\" fill=\"#f3f1ea\"/><text x=\"82\" "
        "y=\"110\" class=\"small\">burn-in</text>\n"
        "<path class=\"grid\" d=\"M78.0 96V566\"/><text x=\"78.0\" y=\"584\" "
        "class=\"mid\">0</text>\n"
        "<path class=\"grid\" d=\"M173.2 96V566\"/><text x=\"173.2\" y=\"584\" "
        "class=\"mid\">10</text>\n"
        "<path class=\"grid\" d=\"M268.4 96V566\"/><text x=\"268.4\" y=\"584\" "
        "class=\"mid\">20</text>\n"
        "<path class=\"grid\" d=\"M363.6 96V566\"/><text x=\"363.6\" y=\"584\" "
        "class=\"mid\">30</text>\n"
        "<path class=\"grid\" d=\"M458.8 96V566\"/><text x=\"458.8\" y=\"584\" "
        "class=\"mid\">40</text>\n"
        "<path class=\"grid\" d=\"M554.0 96V566\"/><text x=\"554.0\" y=\"584\" "
        "class=\"mid\">50</text>\n"
        "<path class=\"grid\" d=\"M649.2 96V566\"/><text x=\"649.2\" y=\"584\" "
        "class=\"mid\">60</text>\n"
        "<path class=\"grid\" d=\"M744.4 96V566\"/><text x=\"744.4\" y=\"584\" "
        "class=\"mid\">70</text>\n"
        "<path class=\"grid\" d=\"M839.6 96V566\"/><text x=\"839.6\" y=\"584\" "
        "class=\"mid\">80</text>\n"
        "<path class=\"grid\" d=\"M934.8 96V566\"/><text x=\"934.8\" y=\"584\" "
        "class=\"mid\">90</text>\n"
        "<path class=\"grid\" d=\"M1030.0 96V566\"/><text x=\"1030.0\" y=\"584\" "
        "class=\"mid\">100</text>\n"
        "<text x=\"554\" y=\"606\" class=\"mid\">iteration</text>\n"
        "<path class=\"grid\" d=\"M78 452.0H1030\"/><text x=\"70\" y=\"456.0\" class=\"end "
        "loss\">0</text>\n"
        "<path class=\"grid\" d=\"M78 411.5H1030\"/><text x=\"70\" y=\"415.5\" class=\"end "
        "loss\">0.5</text>\n"
        "<path class=\"grid\" d=\"M78 371.1H1030\"/><text x=\"70\" y=\"375.1\" class=\"end "
        "loss\">1</text>\n"
        "<path class=\"grid\" d=\"M78 330.6H1030\"/><text x=\"70\" y=\"334.6\" class=\"end "
        "loss\">1.5</text>\n"
        "<path class=\"grid\" d=\"M78 290.2H1030\"/><text x=\"70\" y=\"294.2\" class=\"end "
        "loss\">2</text>\n"
        "<path class=\"grid\" d=\"M78 249.7H1030\"/><text x=\"70\" y=\"253.7\" class=\"end "
        "loss\">2.5</text>\n"
        "<path class=\"grid\" d=\"M78 209.3H1030\"/><text x=\"70\" y=\"213.3\" class=\"end "
        "loss\">3</text>\n"
        "<path class=\"grid\" d=\"M78 168.8H1030\"/><text x=\"70\" y=\"172.8\" class=\"end "
        "loss\">3.5</text>\n"
        "<path class=\"grid\" d=\"M78 128.4H1030\"/><text x=\"70\" y=\"132.4\" class=\"end "
        "loss\">4</text>\n"
        "<path class=\"mark\" d=\"M458.8 96V566\"/><text x=\"462.8\" y=\"110\" "
        "class=\"small\">rate x 0.1</text>\n"
        "<path class=\"mark\" d=\"M506.4 96V566\"/><text x=\"510.4\" y=\"124\" "
        "class=\"small\">rate x 0.5</text>\n"
        "<path class=\"mark\" d=\"M934.8 96V566\"/><text x=\"938.8\" y=\"110\" "
        "class=\"small\">rate x 10</text>\n"
        "<text x=\"1038\" y=\"456.0\" class=\"map\">0 %</text>\n"
        "<text x=\"1038\" y=\"384.8\" class=\"map\">20 %</text>\n"
        "<text x=\"1038\" y=\"313.6\" class=\"map\">40 %</text>\n"
        "<text x=\"1038\" y=\"242.4\" class=\"map\">60 %</text>\n"
        "<text x=\"1038\" y=\"171.2\" class=\"map\">80 %</text>\n"
        "<text x=\"1038\" y=\"100.0\" class=\"map\">100 %</text>\n"
        "<rect class=\"frame\" x=\"78\" y=\"96\" width=\"952\" height=\"356\"/>\n"
        "<path class=\"band\" d=\"M87.5 128.4L97.0 290.2L116.1 371.1L116.1 371.1L97.0 290.2L87.5 "
        "128.4Z\"/>\n"
        "<path class=\"curve loss-curve\" d=\"M87.5 209.3L97.0 290.2L116.1 249.7\"/>\n"
        "<path class=\"curve map-curve\" d=\"M97.0 363.0L116.1 274.0\"/>\n"
        "<path class=\"curve map50-curve\" d=\"M97.0 274.0L116.1 185.0\"/>\n"
        "<circle cx=\"97.0\" cy=\"274.0\" r=\"2.5\" fill=\"#c1272d\"/>\n"
        "<circle cx=\"116.1\" cy=\"185.0\" r=\"2.5\" fill=\"#c1272d\"/>\n"
        "<circle cx=\"1020.5\" cy=\"140.5\" r=\"6\" fill=\"none\" stroke=\"#c1272d\" "
        "stroke-width=\"1.6\"/><text x=\"1010.5\" y=\"132.5\" class=\"map end\">best 87.5 "
        "%</text>\n"
        "<rect class=\"frame\" x=\"78\" y=\"486\" width=\"952\" height=\"80\"/>\n"
        "<text x=\"70\" y=\"554.0\" class=\"end scale\">2^3</text>\n"
        "<text x=\"70\" y=\"522.0\" class=\"end scale\">2^5</text>\n"
        "<text x=\"84\" y=\"480\" class=\"scale\">loss scale</text>\n"
        "<path class=\"curve scale-curve\" d=\"M87.5 550.0H97.0V502.0H116.1V534.0\"/>\n"
        "</svg>\n";
    struct amp_chart_setup setup = {.title = "a",
                                    .figures = {"mAP@0.5", "mAP@[.5:.95]"},
                                    .total = 100,
                                    .burn_in = 10,
                                    .mark = {40, 45, 90},
                                    .factor = {.1, .5, 10},
                                    .n_marks = 3};
    struct amp_chart_state state = {4, 3.5, 2.5, .01, .75, .875, 99, 3599};
    unlink(scratch("c.svg"));
    struct amp_chart *c = amp_chart_open(scratch("c.svg"), &setup, false, err, sizeof err);
    REQUIRE(c);
    amp_chart_add_loss(c, 1, 4, 3, 8);
    amp_chart_add_loss(c, 2, 2, 2, 64);
    amp_chart_add_map(c, 2, .5, .25);
    amp_chart_add_loss(c, 4, 1, 2.5, 16);
    amp_chart_add_map(c, 4, .75, .5);
    CHECK_INT(amp_chart_write(c, &state, err, sizeof err), 0);
    char *all = text(), *style = strstr(all, "</style>\n");
    REQUIRE(style);
    CHECK_STR(style + strlen("</style>\n"), drawn);
    free(all);
    amp_chart_free(c);
}

AMP_TEST(odd_values)
{
    unlink(scratch("c.svg"));
    struct amp_chart *c = open_chart(100, false);
    REQUIRE(c);
    save(c, 0);
    CHECK(!says("nan") && !says("inf"));
    CHECK(says(" class=\"end loss\">0.8</text>") &&
          says("M78 96.0H1030\"/><text x=\"70\" y=\"100.0\" class=\"end loss\">1<"));
    CHECK(!says("loss scale") && !says("2^") && !says("%</text>\n<text x=\"1038"));
    amp_chart_add_loss(c, 1, NAN, NAN, 0);
    amp_chart_add_loss(c, 2, INFINITY, 1, 0);
    amp_chart_add_loss(c, 3, 0, 0, 0);
    amp_chart_add_loss(c, 4, -1, 2, 0);
    amp_chart_add_map(c, 4, NAN, NAN);
    save(c, 4);
    CHECK(!says("nan") && !says("inf") && !says("loss 1 "));
    struct amp_chart_state lost = {5, NAN, NAN, .001, NAN, NAN, 0, -1};
    CHECK_INT(amp_chart_write(c, &lost, err, sizeof err), 0);
    CHECK(says("class=\"loss\">loss lost, average unknown</text>") && !says("nan"));
    CHECK(says("height=\"510\" viewBox=\"0 0 1100 510\"")); /* without a curve of the scale */
    amp_chart_free(c);
}

AMP_TEST_MAIN
