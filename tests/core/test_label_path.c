/* Where labels are looked for. What AlexeyAB's own function says: tests/recordings/label_paths.py;
 * stock Darknet's: ../app/detector_map.c. */
#include "tests/rig/harness.h"

#include "plugin/core/read/label_path.h"

/* ---- stock Darknet ---- */

static void check_path(const char *image, const char *expected)
{
    char path[AMP_LABEL_PATH_MAX], err[5000] = "";
    int failed = amp_label_path(image, path, sizeof path, err, sizeof err);
    if (failed) TEST_FAIL("%s: %s", image, err);
    if (!failed) CHECK_STR(path, expected);
}

/* Expected: what Darknet's find_replace chain gives. */
AMP_TEST(path_rule)
{
    check_path("data/images/a.jpg", "data/labels/a.txt");
    check_path("VOC/JPEGImages/000001.jpg", "VOC/labels/000001.txt");
    check_path("set/raw/x.png", "set/labels/x.txt");
    check_path("images/a.JPG", "labels/a.txt");
    check_path("images/a.JPEG", "labels/a.txt");
    check_path("a.jpg", "a.txt");
    check_path("images/a.jpeg",
               "labels/a.jpeg"); /* no rule for .jpeg: a missing file, told later */
}

AMP_TEST(path_rule_replaces_the_first_occurrence_only)
{
    check_path("images_old/images/a.jpg", "labels_old/images/a.txt");
    check_path("images/a.jpg.jpg", "labels/a.txt.jpg");
    check_path("images/raw/JPEGImages/b.png", "labels/labels/labels/b.txt");
    check_path("images/draw.png", "labels/dlabels.txt"); /* Darknet does this too */
    check_path("images/a.jpg.png", "labels/a.txt.txt");
}

static void check_no_path(const char *image, size_t size, const char *what)
{
    char path[AMP_LABEL_PATH_MAX], err[5000] = "";
    CHECK_INT(amp_label_path(image, path, size, err, sizeof err), -1);
    if (!strstr(err, what)) TEST_FAIL("\"%s\" does not say \"%s\"", err, what);
}

AMP_TEST(path_rule_refuses)
{
    check_no_path("pictures/a.jpeg", AMP_LABEL_PATH_MAX,
                  "pictures/a.jpeg: Darknet's rule gives no");
    check_no_path("pictures/a.jpg", 14, "longer than 13 bytes");
    check_no_path("set/raw/a.jpg", 16,
                  "longer than 15 bytes"); /* fits only before "labels" is put in */
    char path[17], err[300];
    CHECK_INT(amp_label_path("set/raw/a.jpg", path, sizeof path, err, sizeof err), 0);
}

/* ---- with the fork's rules ---- */

/* expected: "" for none. */
static void check_places(const char *image, const char *beside, const char *fork, const char *stock)
{
    const char *expected[AMP_LABEL_PLACES] = {beside, fork, stock};
    for (int place = 0; place < AMP_LABEL_PLACES; place++) {
        char path[AMP_LABEL_PATH_MAX] = "";
        bool some = amp_label_path_in((enum amp_label_place)place, image, path, sizeof path);
        CHECK_STR(some ? path : "", expected[place]);
    }
}

AMP_TEST(places_in_their_order)
{
    check_places("/a/images/train2017/x.jpg", "/a/images/train2017/x.txt",
                 "/a/labels/train2017/x.txt", "/a/labels/train2017/x.txt");
    check_places("/a/images/x.jpeg", "/a/images/x.txt", "/a/images/x.txt", "/a/labels/x.jpeg");
    check_places("/VOC/JPEGImages/x.PNG", "/VOC/JPEGImages/x.txt", "/VOC/labels/x.txt",
                 "/VOC/labels/x.PNG");
    check_places("set/x.webp", "set/x.txt", "", "");
    check_places("set.d/x", "", "", "");
    check_places("x.jpg", "x.txt", "x.txt", "x.txt");
    check_places("a.jpg/b.jpg", "a.jpg/b.txt", "a.jpg/b.txt", "a.txt/b.jpg");
}

AMP_TEST(places_have_room)
{
    char path[8];
    CHECK(amp_label_path_in(AMP_LABELS_BESIDE, "a/b.jpg", path, sizeof path));
    CHECK(!amp_label_path_in(AMP_LABELS_BESIDE, "aa/b.jpg", path, sizeof path));
    CHECK(!amp_label_path_in(AMP_LABELS_BESIDE, "aaa/b.c", path, sizeof path));
    CHECK(!amp_label_path_in(AMP_LABELS_BESIDE, "aaaa.c", path, sizeof path - 1));
    CHECK(amp_label_path_in(AMP_LABELS_FORK, "a/b.jpg", path, sizeof path));
    CHECK(!amp_label_path_in(AMP_LABELS_FORK, "aa/b.jpg", path, sizeof path));
}

AMP_TEST_MAIN

AMP_TEST(the_steps_of_the_rule_are_explained)
{
    static const char *const cases[][2] = {
        {"images/a.bmp", ": the first \"images\" became \"labels\", the suffix stayed"},
        {"raw/a.jpg_3.jpg", ": the first \"raw\" became \"labels\", the first \".jpg\" became"},
        {"a.gif", ": the suffix stayed, since it is none of .jpg .png .JPG .JPEG"},
    };
    char text[2000];
    for (int i = 0; i < 3; i++) {
        amp_label_path_explain(cases[i][0], text, sizeof text);
        if (!strstr(text, cases[i][1])) TEST_FAIL("%s: %s", cases[i][0], text);
    }
    CHECK(!strstr(text, "first"));
    for (size_t size = 1; size < 100; size++) {
        amp_label_path_explain("images/raw/a.jpg.png", text, size);
        CHECK(strlen(text) < size);
    }
}
