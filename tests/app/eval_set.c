/* The evaluation set of `detector map`: what a data file and the files it names give, and that
 * every fault in them is named. */

#include <sys/stat.h>
#include <unistd.h>

#include "tests/rig/harness.h"

#include "plugin/app/map.h"

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    REQUIRE(file);
    fputs(text, file);
    REQUIRE(fclose(file) == 0);
}

/* A new folder with a small correct set in it; the working directory of the test. */
static void make_set(void)
{
    char folder[] = "/tmp/amp-eval-set-XXXXXX";
    REQUIRE(mkdtemp(folder) && chdir(folder) == 0);
    REQUIRE(mkdir("images", 0700) == 0 && mkdir("labels", 0700) == 0);
    write_file("set.data", "# a set\nclasses = 2\nnames= set.names\nvalid =set.list\nbackup=x\n");
    write_file("set.names", "cat\nbig dog\n\n");
    write_file("set.list", "images/a.png\n\nimages/b.jpg\r\nimages/a.png");
    write_file("images/a.png", "P6 not decoded here");
    write_file("images/b.jpg", "P6 nor here");
    write_file("labels/a.txt", "1 0.5 0.5 0.5 0.25\n0 0.9 0.5 0.4 0.2\n");
    write_file("labels/b.txt", "");
}

static void remove_set(void)
{
    char folder[1024], command[1100];
    REQUIRE(getcwd(folder, sizeof folder) && chdir("/tmp") == 0);
    REQUIRE(strncmp(folder, "/tmp/amp-eval-set-", 18) == 0);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    CHECK_INT(system(command), 0);
}

AMP_TEST(loads)
{
    struct amp_eval_set set;
    make_set();
    REQUIRE(amp_eval_set_load("set.data", AMP_DIALECT_STOCK, &set, stderr) == 0);
    CHECK_STR(set.valid_path, "set.list");
    CHECK_INT(set.n_classes, 2);
    CHECK_INT(set.n_head_classes, 2);
    CHECK_STR(amp_eval_set_class_name(&set, 1), "big dog");
    CHECK(!set.map);
    REQUIRE(set.images.count == 3);
    CHECK_STR(set.images.line[1], "images/b.jpg");
    CHECK_INT(set.images.number[1], 3);
    REQUIRE(set.n_truths == 4); /* image a twice, as the list has it */
    CHECK_INT(set.truths[0].image, 0);
    CHECK_INT(set.truths[0].class_id, 1);
    CHECK_NEAR(set.truths[0].box.left, 0.25, 1e-15);
    CHECK_NEAR(set.truths[0].box.top, 0.375, 1e-15);
    CHECK_NEAR(set.truths[0].box.width, 0.5, 0);
    CHECK_NEAR(set.truths[0].box.height, 0.25, 0);
    CHECK_INT(set.truths[3].image, 2);
    CHECK_NEAR(set.truths[3].box.left + set.truths[3].box.width, 1.1, 1e-15); /* not clipped */
    CHECK_INT(set.over_edge, 2);
    amp_eval_set_free(&set);
    remove_set();
}

/* A class may have no name; Darknet counts its line. */
AMP_TEST(blank_names_keep_their_lines)
{
    struct amp_eval_set set;
    make_set();
    write_file("set.data", "classes=4\nnames=set.names\nvalid=set.list\n");
    write_file("set.names", "cat\n\n \nbig dog\n\n");
    REQUIRE(amp_eval_set_load("set.data", AMP_DIALECT_STOCK, &set, stderr) == 0);
    REQUIRE(set.names.count == 4);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(set.names.number[i], i + 1);
        CHECK_STR(set.names.line[i], i == 0 ? "cat" : i == 3 ? "big dog" : "");
    }
    amp_eval_set_free(&set);
    remove_set();
}

AMP_TEST(boxes_without_area_are_kept_and_counted)
{
    struct amp_eval_set set;
    make_set();
    write_file("labels/b.txt", "0 .5 .5 0 .1\n1 .5 .5 .1 .1\n");
    REQUIRE(amp_eval_set_load("set.data", AMP_DIALECT_STOCK, &set, stderr) == 0);
    CHECK_INT(set.n_truths, 6);
    CHECK_INT(set.no_area, 1);
    amp_eval_set_free(&set);
    remove_set();
}

AMP_TEST(map_names_the_classes)
{
    struct amp_eval_set set;
    make_set();
    write_file("set.data", "classes=300\nnames=set.names\nvalid=set.list\nmap=set.map\n");
    FILE *names = fopen("set.names", "w"), *map = fopen("set.map", "w");
    REQUIRE(names && map);
    for (int i = 0; i < 300; i++)
        fprintf(names, "name%d\n", i);
    for (int i = 0; i < AMP_MAP_CLASSES; i++)
        fprintf(map, "%d\n", 299 - i);
    fclose(names);
    fclose(map);
    REQUIRE(amp_eval_set_load("set.data", AMP_DIALECT_STOCK, &set, stderr) == 0);
    CHECK_INT(set.n_classes, 200);
    CHECK_INT(set.n_head_classes, 300);
    CHECK_INT(set.map[5], 294);
    CHECK_STR(amp_eval_set_class_name(&set, 5), "name294");
    amp_eval_set_free(&set);
    remove_set();
}

/* Loads set.data, which must fail, and returns what it said. */
static const char *load_bad_set(void)
{
    static char said[8192];
    struct amp_eval_set set;
    FILE *log = fmemopen(said, sizeof said, "w");
    REQUIRE(log);
    CHECK_INT(amp_eval_set_load("set.data", AMP_DIALECT_STOCK, &set, log), -1);
    fclose(log);
    CHECK(!set.truths && !set.images.line); /* nothing is left to free */
    return said;
}

static void check_says(const char *said, const char *what)
{
    if (!strstr(said, what)) TEST_FAIL("\"%s\" does not say \"%s\"", said, what);
}

AMP_TEST(every_missing_file_and_bad_line_is_named)
{
    make_set();
    write_file("set.list",
               "images/a.png\nimages/b.jpg\nimages/c.png\nimages/d.png\nlabels\nx.bmp\n");
    write_file("images/d.png", "P6 ");
    write_file("labels/a.txt", "2 .5 .5 .1 .1\n0 .5 .5 .1 .1\n0 .5\n");
    const char *said = load_bad_set();
    check_says(said, "error: labels/a.txt:1: class \"2\"");
    check_says(said, "error: labels/a.txt:3: 2 fields");
    check_says(said, "error: set.list:3: image images/c.png: No such file");
    check_says(said, "error: set.list:3: label file labels/c.txt: No such file");
    check_says(said, "error: set.list:4: label file labels/d.txt: No such file");
    check_says(said, "error: set.list:5: image labels: a folder, not a file");
    check_says(said, "error: set.list:6: image x.bmp: No such file");
    check_says(said, "error: set.list:6: x.bmp: Darknet's rule gives no label file");
    check_says(said, "nothing was evaluated");
    CHECK(!strstr(said, "b.jpg") && !strstr(said, "image images/d.png"));
    remove_set();
}

/* One changed file of the set, and what must be said about it. */
static void check_refused(const char *path, const char *text, const char *what)
{
    make_set();
    write_file(path, text);
    check_says(load_bad_set(), what);
    remove_set();
}

AMP_TEST(data_file_faults)
{
    check_refused("set.data", "classes=2\nnames=set.names\n", "set.data: no key \"valid\"");
    check_refused("set.data", "classes=2\nvalid=set.list\n", "set.data: no key \"names\"");
    check_refused("set.data", "names=set.names\nvalid=set.list\n", "set.data: no key \"classes\"");
    check_refused("set.data", "names=set.names\nvalid=set.list\nclasses=two\n",
                  "set.data:3: classes=two: must be a whole number from 1");
    check_refused("set.data", "names=set.names\nvalid=set.list\nclasses=2 # two\n",
                  "set.data:3: classes=2 # two: must be a whole number from 1 to 2147483647 (a "
                  "remark is not allowed after a value: put it on a line of its own)");
    check_refused("set.data", "classes=0\nnames=set.names\nvalid=set.list\n",
                  "set.data:1: classes=0");
    check_refused("set.data", "classes=3\nnames=set.names\nvalid=set.list\n",
                  "set.data:1: classes=3, but set.names has 2 names");
    check_refused("set.data", "classes=2\nnames=none\nvalid=set.list\n",
                  "names none: No such file");
    check_refused("set.data", "classes=2\nnames=set.names\nvalid=none\n",
                  "image list none: No such");
    check_refused("set.data", "classes=2\nnames=set.names\nvalid=set.list\nmap=set.names\n",
                  "set.data:4: map=set.names: 2 classes, Darknet reads exactly 200");
    check_refused("set.list", "\n\n", "image list set.list: is empty");
    check_refused("set.names", "", "names set.names: is empty");
}

AMP_TEST(map_lines_are_checked)
{
    make_set();
    write_file("set.data", "classes=2\nnames=set.names\nvalid=set.list\nmap=set.map\n");
    FILE *map = fopen("set.map", "w");
    REQUIRE(map);
    for (int i = 0; i < AMP_MAP_CLASSES; i++)
        fprintf(map, "%d\n", i == 150 ? 2 : 1);
    fclose(map);
    check_says(load_bad_set(), "set.map:151: \"2\": must be a class from 0 to 1");
    remove_set();
}

AMP_TEST(missing_data_file)
{
    make_set();
    REQUIRE(unlink("set.data") == 0);
    check_says(load_bad_set(), "set.data");
    remove_set();
}

AMP_TEST_MAIN
