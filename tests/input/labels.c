/* Label files: what is read and refused in them. Their paths: ../core/test_label_path.c. */

#include <unistd.h>

#include "tests/rig/harness.h"

#include "plugin/input/labels.h"

/* ---- the file ---- */

static char told[4096];
static int n_told;

static void remember(void *context, const char *message)
{
    (void)context;
    n_told++;
    strncat(told, message, sizeof told - strlen(told) - 2);
    strcat(told, "\n");
}

static char label_file[] = "/tmp/amp-labels-XXXXXX";

static void write_labels(const char *text, size_t size)
{
    strcpy(label_file, "/tmp/amp-labels-XXXXXX");
    int fd = mkstemp(label_file);
    REQUIRE(fd >= 0 && write(fd, text, size) == (ssize_t)size);
    close(fd);
}

static int read_classes(const char *text, size_t size, int classes, struct amp_labels *labels)
{
    told[0] = '\0';
    n_told = 0;
    write_labels(text, size);
    int failed = amp_labels_read(label_file, classes, labels, remember, NULL);
    unlink(label_file);
    return failed;
}

/* Reads the text as a label file of 3 classes. */
static int read_text(const char *text, size_t size, struct amp_labels *labels)
{
    return read_classes(text, size, 3, labels);
}

AMP_TEST(reads_rows)
{
    struct amp_labels labels = {0};
    const char text[] = "0 0.5 0.25 0.1 0.2\r\n\n\t2 1e-1 .5 1 1  \n1 0 .1 0.002 0.002";
    CHECK_INT(read_text(text, sizeof text - 1, &labels), 0);
    CHECK_STR(told, "");
    REQUIRE(labels.count == 3);
    CHECK_INT(labels.rows[0].class_id, 0);
    CHECK_NEAR(labels.rows[0].y, 0.25, 0);
    CHECK_INT(labels.rows[1].class_id, 2);
    CHECK_NEAR(labels.rows[1].x, 0.1, 0);
    CHECK_NEAR(labels.rows[2].height, 0.002, 0);
    CHECK_INT(labels.fates[AMP_LABEL_OVER_EDGE], 2); /* the second (0.1 - 1/2 < 0) and the third */
    CHECK_INT(read_text("", 0, &labels), 0);
    CHECK_INT(labels.count, 0);
    CHECK_INT(labels.fates[AMP_LABEL_OVER_EDGE], 0);
    amp_labels_free(&labels);
}

/* Each side by itself: boxes that reach over one edge alone, and that touch all four. */
AMP_TEST(every_edge_counts)
{
    static const char *const over[] = {"0 0.1 0.5 0.3 0.1\n", "0 0.9 0.5 0.3 0.1\n",
                                       "0 0.5 0.1 0.1 0.3\n", "0 0.5 0.9 0.1 0.3\n"};
    struct amp_labels labels = {0};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(read_text(over[i], strlen(over[i]), &labels), 0);
        CHECK_INT(labels.fates[AMP_LABEL_OVER_EDGE], 1);
    }
    /* 1e-5 is rounding. */
    for (int side = 0; side < 4; side++)
        for (int beyond = 0; beyond < 2; beyond++) {
            char text[80];
            double over_by = beyond ? 1.1e-5 : .9e-5;
            double at = side % 2 ? 1 - .25 + over_by : .25 - over_by;
            snprintf(text, sizeof text, "0 %.9f %.9f .5 .5\n", side < 2 ? at : .5,
                     side < 2 ? .5 : at);
            CHECK_INT(read_text(text, strlen(text), &labels), 0);
            CHECK_INT(labels.fates[AMP_LABEL_OVER_EDGE], beyond);
        }
    static const char whole[] = "0 0.5 0.5 1 1\n0 0.9 0.5 0.2 0.9\n0 0.5 0.9 0.9 0.2\n";
    CHECK_INT(read_text(whole, strlen(whole), &labels), 0);
    CHECK_INT(labels.fates[AMP_LABEL_OVER_EDGE], 0);
    amp_labels_free(&labels);
}

/* Darknet clips a box to the image and leaves it out if a side is below 0.001 then. */
AMP_TEST(what_becomes_of_a_box)
{
    static const struct {
        const char *text;
        enum amp_label_fate fate;
    } cases[] = {
        {"0 .5 .5 .1 .1\n", AMP_LABEL_WHOLE},         {"0 .5 .5 .001 .001\n", AMP_LABEL_WHOLE},
        {"0 .5 .5 0 .1\n", AMP_LABEL_NO_AREA},        {"0 .5 .5 .1 0.0\n", AMP_LABEL_NO_AREA},
        {"0 .5 .5 .0009 .1\n", AMP_LABEL_TINY},       {"0 .5 .5 .1 .0009\n", AMP_LABEL_TINY},
        {"0 1.6 .5 .2 .2\n", AMP_LABEL_OUTSIDE},      {"0 .5 -.5 .2 .2\n", AMP_LABEL_OUTSIDE},
        {"0 -.0995 .5 .2 .2\n", AMP_LABEL_OUTSIDE}, /* .0005 of it is inside */
        {"0 -.0985 .5 .2 .2\n", AMP_LABEL_OVER_EDGE}, {"0 .5 .5 1.4 .3\n", AMP_LABEL_OVER_EDGE}};
    struct amp_labels labels = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(read_text(cases[i].text, strlen(cases[i].text), &labels), 0);
        for (int fate = 0; fate < AMP_LABEL_FATES; fate++)
            if (labels.fates[fate] != (fate == (int)cases[i].fate))
                TEST_FAIL("%s is not of kind %d", cases[i].text, cases[i].fate);
    }
    CHECK_INT(read_text("", 0, &labels), 0);
    CHECK_INT(labels.fates[AMP_LABEL_OVER_EDGE], 0);
    amp_labels_free(&labels);
}

/* By the fork's rules, which leave it out; what is no class at all is a fault there too. */
AMP_TEST(a_class_that_the_net_does_not_have)
{
    struct amp_labels labels = {.any_class = true};
    const char text[] = "2 .5 .5 .1 .1\n3 .5 .5 .1 .1\n2147483647 .5 .5 0 .1\n";
    CHECK_INT(read_text(text, sizeof text - 1, &labels), 0);
    CHECK_INT(labels.fates[AMP_LABEL_WHOLE], 1);
    CHECK_INT(labels.fates[AMP_LABEL_NO_CLASS], 2);
    static const char *const bad[] = {"-1", "2147483648", "99999999999999999999", "x"};
    for (int i = 0; i < 4; i++) {
        char line[60];
        snprintf(line, sizeof line, "%s .5 .5 .1 .1\n", bad[i]);
        CHECK_INT(read_text(line, strlen(line), &labels), -1);
        CHECK(strstr(told, bad[i]) && strstr(told, ":1: "));
    }
    amp_labels_free(&labels);
}

AMP_TEST(grows)
{
    struct amp_labels labels = {0};
    char text[40 * 300] = "";
    for (int i = 0; i < 300; i++)
        sprintf(text + strlen(text), "%d 0.5 0.5 0.25 %g\n", i % 3, (i + 1) / 1000.0);
    CHECK_INT(read_text(text, strlen(text), &labels), 0);
    REQUIRE(labels.count == 300);
    for (int i = 0; i < 300; i++)
        CHECK_NEAR(labels.rows[i].height, (i + 1) / 1000.0, 1e-15);
    CHECK_INT(labels.fates[AMP_LABEL_OVER_EDGE], 0);
    amp_labels_free(&labels);
}

static void check_fault(const char *text, size_t size, int line, const char *what)
{
    struct amp_labels labels = {0};
    char expected[300];
    CHECK_INT(read_text(text, size, &labels), -1);
    CHECK_INT(n_told, 1);
    snprintf(expected, sizeof expected, "%s:%d: %s", label_file, line, what);
    if (strncmp(told, expected, strlen(expected)))
        TEST_FAIL("\"%s\" is refused with \"%s\", expected \"%s\"", text, told, expected);
    amp_labels_free(&labels);
}

AMP_TEST(the_only_class)
{
    struct amp_labels labels = {0};
    CHECK_INT(read_classes("1 .5 .5 .1 .1\n", 14, 1, &labels), -1);
    CHECK(strstr(told, ":1: class \"1\": must be 0, the only class\n") != NULL);
    amp_labels_free(&labels);
}

#define CHECK_FAULT(text, line, what) check_fault(text, sizeof text - 1, line, what)

AMP_TEST(faults_name_file_and_line)
{
    CHECK_FAULT("0 .5 .5 .1 .1\n0 .5 .5 .1\n", 2, "4 fields, must be 5");
    CHECK_FAULT("0 .5 .5 .1 .1 .9\n", 1,
                "6 fields, must be 5: class x y width height (leave out a sixth");
    CHECK_FAULT("0 .1 .1 .2 .2 .1 .2\n", 1,
                "7 fields, must be 5: class x y width height (class and points");
    CHECK_FAULT("0 .1 .1 .2 .1 .2 .2 .1 .2\n", 1,
                "9 fields, must be 5: class x y width height (class and points");
    CHECK_FAULT("0 .5 .5 .2 .2 .3 .3 2\n", 1,
                "8 fields, must be 5: class x y width height (leave out what");
    CHECK_FAULT("\n3 .5 .5 .1 .1\n", 2, "class \"3\": must be a whole number from 0 to 2");
    CHECK_FAULT("-1 .5 .5 .1 .1\n", 1, "class \"-1\"");
    CHECK_FAULT("1.0 .5 .5 .1 .1\n", 1, "class \"1.0\"");
    CHECK_FAULT("99999999999999999999 .5 .5 .1 .1\n", 1, "class \"9999");
    CHECK_FAULT("cat .5 .5 .1 .1\n", 1, "class \"cat\"");
    CHECK_FAULT("0 nan .5 .1 .1\n", 1, "x \"nan\": must be a finite number");
    CHECK_FAULT("0 .5 inf .1 .1\n", 1, "y \"inf\"");
    CHECK_FAULT("0 .5 .5 1e999 .1\n", 1, "width \"1e999\": must be a finite number");
    CHECK_FAULT("0 .5 .5 .1 .1x\n", 1, "height \".1x\"");
    CHECK_FAULT("0 0,5 .5 .1 .1\n", 1, "has a comma; allowed: blanks");
    CHECK_FAULT("0 .5 .5 -1e-9 .1\n", 1, "width \"-1e-9\": must not be below 0");
    CHECK_FAULT("0 .5 .5 .1 -0.1\n", 1, "height \"-0.1\": must not be below 0");
    CHECK_FAULT("0 -320 .5 .1 .1\n", 1, "x \"-320\": must be a fraction of the image");
    CHECK_FAULT("0 120 80 20 30\n", 1, "x \"120\": must be a fraction of the image");
    CHECK_FAULT("0 .5 .5 .1 .1\0 0\n", 1, "NUL byte");
    CHECK_FAULT("0 0 0.0 .1 .1\n", 1, "x and y are both 0");
}

AMP_TEST(every_fault_is_told)
{
    struct amp_labels labels = {0};
    const char text[] = "9 .5 .5 .1 .1\n0 .5 .5 .1 .1\nx\n0 .5 .5 -1 0\n";
    CHECK_INT(read_text(text, sizeof text - 1, &labels), -1);
    CHECK_INT(n_told, 3);
    amp_labels_free(&labels);
}

AMP_TEST(missing_or_unreadable_file)
{
    struct amp_labels labels = {0};
    told[0] = '\0';
    CHECK_INT(amp_labels_read("/nonexistent/a.txt", 3, &labels, remember, NULL), -1);
    CHECK_STR(told, "/nonexistent/a.txt: cannot read label file: No such file or directory\n");
    told[0] = '\0';
    CHECK_INT(amp_labels_read("/tmp", 3, &labels, remember, NULL), -1);
    CHECK_STR(told, "/tmp: cannot read label file: a folder, not a file\n");
    CHECK_INT(read_text("\xEF\xBB\xBF"
                        "0 .5 .5 .1 .1\n",
                        17, &labels),
              -1);
    CHECK_SAYS(told, "cannot read label file: begins with a UTF-8 byte-order mark");
    CHECK_INT(read_text("0\0 \0.\0005\0", 8, &labels), -1);
    CHECK_SAYS(told, "cannot read label file: is in UTF-16");
    amp_labels_free(&labels);
}

AMP_TEST_MAIN
