/* Every bad input of `detector train`: each is named, and nothing is left behind. The tests run in
 * a folder of their own that holds a good set; each spoils one thing and puts it right again. */
#define _GNU_SOURCE
#include "plugin/input/check_train.h"
#include "plugin/input/image_files.h"
#include "plugin/input/labels.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/rig/harness.h"

#define IMAGES 12

static const char good_cfg[] = "[net]\nbatch=4\nsubdivisions=2\nheight=32\nwidth=32\nchannels=3\n"
                               "max_batches=10\nmixed_precision=1\n"
                               "[convolutional]\nfilters=4\nsize=3\nstride=2\npad=1\n"
                               "activation=leaky\nbatch_normalize=1\n"
                               "[convolutional]\nfilters=14\nsize=1\nactivation=linear\n"
                               "[yolo]\nmask=0,1\nanchors=1,1, 2,2\nnum=2\nclasses=2\n";
static const char good_data[] =
    "classes=2\ntrain=train.txt\nvalid=absent.txt\nnames=two.names\nbackup=backup\n";
#define WEIGHTS_FLOATS (4 * 4 + 4 * 27 + 14 + 14 * 4)

static char err[1 << 16], *out;
static size_t out_size;

/* ---- the folder ---- */

static void put_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *fp = fopen(path, "wb");
    REQUIRE(fp != NULL);
    REQUIRE(fwrite(bytes, 1, size, fp) == size);
    fclose(fp);
}

static void put(const char *path, const char *text)
{
    put_bytes(path, text, strlen(text));
}

static void put_weights(uint64_t seen, int floats)
{
    int32_t version[3] = {0, 2, 0};
    char bytes[20 + 4 * (WEIGHTS_FLOATS + 1)] = {0};
    memcpy(bytes, version, 12);
    memcpy(bytes + 12, &seen, 8);
    put_bytes("a.weights", bytes, 20 + 4 * (size_t)floats);
}

static void put_list(void)
{
    FILE *fp = fopen("train.txt", "w");
    REQUIRE(fp != NULL);
    for (int i = 0; i < IMAGES; i++)
        fprintf(fp, "images/%d.jpg\n", i);
    fclose(fp);
}

/* As much of a JPEG as is looked at. */
static void put_image(const char *path)
{
    put_bytes(path, "\xFF\xD8\xFF\xE0\0\4ab\xFF\xDA\0\2pixels", 18);
}

static void put_good_set(void)
{
    char path[64];
    put("a.cfg", good_cfg);
    put("a.data", good_data);
    put("two.names", "cat\ndog\n");
    put_list();
    for (int i = 0; i < IMAGES; i++) {
        snprintf(path, sizeof path, "images/%d.jpg", i);
        put_image(path);
        snprintf(path, sizeof path, "labels/%d.txt", i);
        put(path, i ? "0 0.5 0.5 0.25 0.25\n1 .1 .1 .1 .1\n" : "");
    }
    put_weights(0, WEIGHTS_FLOATS);
}

static void remove_folder(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) {
            char inside[512];
            snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
            if (unlink(inside)) remove_folder(inside);
        }
    }
    if (dir) closedir(dir);
    rmdir(path);
}

static char folder[] = "/tmp/amp-inputs-XXXXXX";

static void clean_up(void)
{
    remove_folder(folder);
    free(out);
}

static void start(void)
{
    static int done;
    if (!done) {
        done = 1;
        REQUIRE(mkdtemp(folder) != NULL && chmod(folder, 0755) == 0 && chdir(folder) == 0);
        atexit(clean_up);
        mkdir("images", 0755);
        mkdir("labels", 0755);
        mkdir("backup", 0755);
    }
    put_good_set();
}

static int count_backup_files(void)
{
    int n = -2; /* . and .. */
    DIR *dir = opendir("backup");
    REQUIRE(dir != NULL);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* ---- checks ---- */

static int backup_files; /* that are there, and stay the only ones */

static int check_with(const char *weights, bool clear)
{
    free(out);
    FILE *fp = open_memstream(&out, &out_size);
    REQUIRE(fp != NULL);
    memset(err, 'x', sizeof err);
    const struct amp_trainer_inputs in = {
        .data = "a.data", .cfg = "a.cfg", .weights = weights, .clear = clear};
    int status = amp_check_train_inputs(&in, fp, fp, err, sizeof err);
    fclose(fp);
    CHECK_INT(count_backup_files(), backup_files);
    return status;
}

static int check(void)
{
    return check_with(NULL, false);
}

static void check_good(void)
{
    int status = check();
    CHECK_INT(status, 0);
    CHECK_STR(err, "");
}

static void check_bad(const char *message)
{
    CHECK_INT(check(), -1);
    CHECK_STR(err, message);
}

static void check_bad_weights(const char *message)
{
    CHECK_INT(check_with("a.weights", false), -1);
    CHECK_STR(err, message);
}

/* The good text with one passage replaced, put into path. */
static void put_replaced(const char *path, const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    REQUIRE(at != NULL);
    FILE *fp = fopen(path, "w");
    REQUIRE(fp != NULL);
    fprintf(fp, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(fp);
}

static void check_bad_cfg(const char *from, const char *to, const char *message)
{
    put_replaced("a.cfg", good_cfg, from, to);
    check_bad(message);
    put("a.cfg", good_cfg);
}

static void check_bad_data(const char *from, const char *to, const char *message)
{
    put_replaced("a.data", good_data, from, to);
    check_bad(message);
    put("a.data", good_data);
}

static void check_bad_label(const char *text, const char *message)
{
    char expected[512];
    put("labels/3.txt", text);
    snprintf(expected, sizeof expected, "train.txt: faults in label files (1):\n  labels/3.txt:%s",
             message);
    check_bad(expected);
}

AMP_TEST(a_good_set)
{
    start();
    check_good();
    CHECK_STR(out, "");
    CHECK_INT(check_with("", false), 0);
    CHECK_INT(check_with("a.weights", false), 0);
    CHECK_STR(out, "");
}

AMP_TEST(missing_cfg_data_and_weights_are_all_named)
{
    start();
    unlink("a.cfg");
    unlink("a.data");
    unlink("a.weights");
    check_bad_weights("cannot read a.cfg: No such file or directory\n"
                      "cannot read a.data: No such file or directory\n"
                      "weights file a.weights: No such file or directory");
    put("a.cfg", good_cfg);
    check_bad("cannot read a.data: No such file or directory");
}

AMP_TEST(missing_images_and_labels)
{
    start();
    unlink("images/3.jpg");
    unlink("labels/3.txt");
    unlink("labels/4.txt");
    check_bad("train.txt: images that cannot be read (1):\n"
              "  line 4: images/3.jpg: No such file or directory\n"
              "train.txt: label files that cannot be read (2):\n"
              "  line 4: labels/3.txt: No such file or directory\n"
              "  line 5: labels/4.txt: No such file or directory (from the image's name: the "
              "first \"images\" became \"labels\", the first \".jpg\" became \".txt\")\n"
              "  " AMP_LABEL_RULE);
    for (int i = 0; i < IMAGES; i++) {
        char path[64];
        snprintf(path, sizeof path, "images/%d.jpg", i);
        unlink(path);
        if (i < 9 || i > 10) continue; /* the first that is not named is counted */
        CHECK_INT(check(), -1);
        CHECK_SAYS(err, "\n  line 10: images/9.jpg: No such file or directory\n");
        CHECK_INT(strstr(err, "  ... and 1 more\n") != NULL, i == 10);
        CHECK_INT(strstr(err, "more") != NULL, i == 10);
    }
    CHECK_INT(check(), -1);
    CHECK(strstr(err, "train.txt: images that cannot be read (12):\n  line 1: images/0.jpg: "));
    CHECK(strstr(err, "\n  line 10: images/9.jpg: No such file or directory\n  ... and 2 more\n"));
    CHECK(!strstr(err, "images/10.jpg"));
    unlink("train.txt");
    check_bad("image list train.txt: No such file or directory");
}

AMP_TEST(a_folder_is_no_image)
{
    start();
    put("train.txt", "images\n");
    CHECK_INT(check(), -1);
    CHECK(strstr(
        err, "train.txt: images that cannot be read (1):\n  line 1: images: a folder, not a file"));
}

AMP_TEST(files_in_place_of_others)
{
    start();
    check_bad_data("train=train.txt", "train=images",
                   "image list images: a folder, not a file; allowed: a text file with the path of "
                   "one image a line, as by find FOLDER -name '*.jpg' >LIST");
    check_bad_data("names=two.names", "names=images",
                   "a.data:4: names=images: a folder, not a file");
    static const char *const data[][2] = {
        {"path: ../set # root\n",
         "a.data:1: \"path:../set#root\" has no \"=\"; allowed: key=value. YAML "},
        {"- a\n",
         "allowed: key=value. YAML and JSON, as Ultralytics' data.yaml, have to be written"},
        {"{\"train\": 1}\n", "allowed: key=value. YAML and JSON"},
        {"images/1.jpg\n",
         "allowed: key=value. If this is a list of images: DATA is a file that names it"},
        {"cat\n", "a.data:1: \"cat\" has no \"=\"; allowed: key=value"}};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) {
        put("a.data", data[i][0]);
        CHECK_INT(check(), -1);
        CHECK_SAYS(err, data[i][1]);
        CHECK_INT(strstr(err, "LIST") != NULL, i != 4);
    }
    put("a.data", good_data);
    static const char *const cfgs[] = {"nc: 80\n", "layer {\n", "{\"a\": 1}\n"};
    for (size_t i = 0; i < 3; i++) {
        put("a.cfg", cfgs[i]);
        CHECK_INT(check(), -1);
        CHECK_SAYS(err, "stands before the first section; the first must be [net]. A model of "
                        "another framework (YAML, prototxt, JSON) has to be written anew");
    }
}

/* A converter was not run: its input lies beside the images, or where the labels would. */
AMP_TEST(annotations_in_other_formats)
{
    static const char *const places[] = {"images/3.xml", "images/3.json", "labels/3.xml"};
    start();
    unlink("labels/3.txt");
    for (int i = 0; i < 3; i++) {
        put(places[i], "");
        CHECK_INT(check(), -1);
        CHECK_SAYS(err, "  Of some there is an .xml or .json file, as for PASCAL VOC or LabelMe");
        unlink(places[i]);
    }
    CHECK_INT(check(), -1);
    CHECK(!strstr(err, ".xml"));
    check_bad_label(" \n<annotation>\n<folder>a</folder>",
                    " is XML, as PASCAL VOC's annotations are, not labels: it has "
                    "to be converted to a line \"class x y width height\" for each box, in "
                    "fractions of the image");
    check_bad_label("{\"images\": []}",
                    " is JSON, as COCO's and LabelMe's annotations are, not labels: it has "
                    "to be converted to a line \"class x y width height\" for each box, in "
                    "fractions of the image");
}

/* As Darknet reads the list. */
AMP_TEST(white_space_in_the_list_belongs_to_the_name)
{
    start();
    put("train.txt", "images/2.jpg \n\nimages/3.jpg");
    check_bad("train.txt: images that cannot be read (2):\n"
              "  line 1: images/2.jpg: No such file or directory (the name ends in a blank)\n"
              "  line 2: is empty, which Darknet takes for the name of a file\n"
              "train.txt: label files that cannot be read (1):\n"
              "  line 1: labels/2.txt: No such file or directory (the name ends in a blank)");
    put_image("images/2.jpg ");
    put("labels/2.txt ", "");
    put("train.txt", "images/2.jpg \nimages/3.jpg");
    check_good();
}

/* With mixed_precision=1 Darknet reads them as those of Unix. */
AMP_TEST(line_ends_of_windows)
{
    start();
    put_replaced("a.cfg", good_cfg, "mixed_precision=1", "mixed_precision=0");
    put("two.names", "cat\r\ndog\r\n");
    check_good();
    CHECK_SAYS(
        out,
        "warning: two.names:1: ends in a carriage return (Windows line end), which Darknet takes "
        "for a part of the name: sed -i 's/\\r$//' two.names\n");
    put("train.txt", "images/1.jpg\r\n");
    check_bad("train.txt:1: ends in a carriage return (Windows line end), which Darknet takes for "
              "a part of the name: sed -i 's/\\r$//' train.txt");
    put_replaced("a.data", good_data, "\n", "\r\n");
    CHECK_INT(check(), -1);
    CHECK_SAYS(err, "a.data:1: ends in a carriage return");
    CHECK_SAYS(err, "train.txt:1: ends in a carriage return");
    put_replaced("a.cfg", good_cfg, "[net]\n", "[net]\r\n");
    check_good();
    CHECK_SAYS(out, "warning: a.data:1: ends in a carriage return (Windows line end), which "
                    "mixed_precision=1 leaves out of all lines\n");
    CHECK_SAYS(out, "warning: train.txt:1: ends in a carriage return");
    CHECK_SAYS(out, "warning: two.names:1: ends in a carriage return");
}

AMP_TEST(why_a_name_is_not_found)
{
    static const char *const cases[][2] = {
        {"images\\\\1.jpg", "(a backslash is a part of the name here: write / between folders)"},
        {"~/images/1.jpg", "(only a shell knows what ~ is: write the whole path)"},
        {" images/1.jpg", "(the name begins with a blank)"},
        {"\"images/1.jpg\"", "(Darknet takes the quote for a part of the name)"},
        {"images/1.jpg 10,10,20,20,0", "(a name is all of its line: what stands behind"},
        {"images/none.jpg", "No such file or directory\n"},
    };
    char line[200];
    start();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(line, sizeof line, "%s\n", cases[i][0]);
        put("train.txt", line);
        CHECK_INT(check(), -1);
        CHECK_SAYS(err, cases[i][1]);
    }
    mkdir("lists", 0755);
    put_image("lists/a.jpg");
    put("lists/b.txt", "a.jpg\n");
    put_replaced("a.data", good_data, "train.txt", "lists/b.txt");
    CHECK_INT(check(), -1);
    CHECK_SAYS(err, "line 1: a.jpg: No such file or directory (seen from the folder of lists/b.txt "
                    "it is there, but Darknet looks from the current one");
}

AMP_TEST(why_a_name_in_the_data_file_is_not_found)
{
    start();
    check_bad_data(
        "names=two.names", "names=data\\two.names",
        "a.data:4: names=data\\two.names: No such file or directory (a backslash is a part "
        "of the name here: write / between folders)");
    check_bad_data(
        "train=train.txt", "train=~/train.txt",
        "image list ~/train.txt: No such file or directory (only a shell knows what ~ is: "
        "write the whole path)");
    put_replaced("a.data", good_data, "backup=backup", "backup=~/backup");
    CHECK_INT(check(), -1);
    CHECK_SAYS(err, "(only a shell knows what ~ is: write the whole path)");
}

/* By their first bytes, and JPEGs by their headers. */
AMP_TEST(files_that_are_no_images)
{
#define JPEG      "\xFF\xD8\xFF\xE0\0\4ab"
#define BMP       "BM\0\0\0\0\0\0\0\0\0\0\0\0"
#define NO_PIXELS "says in its header that it is 0 pixels wide or high"
#define PNG       "\x89PNG\r\n\x1A\n\0\0\0\rIHDR"
    static const struct {
        const char *bytes;
        size_t size;
        const char *why; /* NULL: an image */
    } cases[] = {
#define CASE(bytes, why) {bytes, sizeof bytes - 1, why}
        CASE("", "is empty (0 bytes)"),
        CASE("<!DOCTYPE html>", "is an HTML or XML page, not an image"),
        CASE("\r\n <html>", "is an HTML or XML page, not an image"),
        CASE("{\"error\": 404}", "is JSON text, not an image"),
        CASE("GIF89a....", "is a GIF, which OpenCV does not read: convert it to JPEG or PNG"),
        CASE("\0\0\0\x18"
             "ftypheic",
             "is HEIC or a video, which"),
        CASE("RIFF....AVI LIST", "is a video, not an image"),
        CASE("\x1A\x45\xDF\xA3\x9F", "is a video, not an image"),
        CASE("%PDF-1.4", "is a PDF"),
        CASE("PK\3\4....", "is a ZIP archive"),
        CASE("version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        CASE("Not found", "does not begin as an image does"),
        CASE("P", "does not begin as an image does"),
        CASE("\0\0\0\0", "does not begin as an image does"),
        CASE("\xFF\xD8\xFF", "is a JPEG that ends before its pixels begin"),
        CASE(JPEG, "is a JPEG that ends before its pixels begin"),
        CASE(JPEG "\xFF\xE1\x7F\xFF"
                  "cut",
             "is a JPEG that ends before its pixels begin"),
        CASE(JPEG "\xFF\xDA", "is a JPEG that ends before its pixels begin"),
        CASE(JPEG "\xFF\xFF\xDA\0\2x", NULL),
        CASE("\x89PNG\r\n\x1A\n", "is a PNG without its header (IHDR): it was not written"),
        CASE("\x89PNG\r\n\x1A\n\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\1", "is a PNG without its header"),
        CASE(PNG "\0\0\0\1\0\0\0\0", NO_PIXELS),
        CASE(PNG "\0\0\0\0\0\0\0\1", NO_PIXELS),
        CASE(PNG "\0\0\0\1\0\0\0\1", NULL),
        CASE(PNG "\xFF\xFF\xFF\xFF\0\0\0\1",
             "says in its header that it has more than 2^30 pixels"),
        CASE(PNG "\0\0\x80\0\0\0\x80\0", NULL), /* 2^15 x 2^15 */
        CASE(PNG "\0\0\x80\0\0\0\x80\1", "says in its header that it has more than 2^30 pixels"),
        CASE(PNG "\0\x10\0\1\0\0\0\1", "says in its header that it has more than 2^30 pixels, or "
                                       "a side of more than 2^20"),
        CASE(JPEG "\xFF\xC0\0\x8\x8\xFF\xFF\xFF\xFF\1"
                  "\xFF\xDA\0\2x",
             "says in its header that it has more than 2^30 pixels"),
        CASE(JPEG "\xFF\xC2\0\x8\x8\0\0\0\5\1"
                  "\xFF\xDA\0\2x",
             NO_PIXELS),
        CASE(JPEG "\xFF\xC0\0\x8\x8\0\5\0\5\1"
                  "\xFF\xDA\0\2x",
             NULL),
        CASE("BM", NULL),
        CASE(BMP "\x28\0\0\0\1\0\0\0\xFF\xFF\xFF\xFF", NULL), /* from top to bottom */
        CASE(BMP "\x28\0\0\0\1\0\0\0\0\0\0\0", NO_PIXELS),
        CASE(BMP "\x28\0\0\0\0\0\0\0\1\0\0\0", NO_PIXELS),
        CASE(BMP "\x28\0\0\0\x40\x9C\0\0\x40\x9C\0\0",
             "says in its header that it has more than 2^30"),
        CASE(BMP "\x0C\0\0\0\1\0\1\0....", NULL), /* of OS/2 */
        CASE(BMP "\x0C\0\0\0\1\0\0\0....", NO_PIXELS),
        CASE("RIFF....WEBPVP8X", NULL),
        CASE("RIFF....WEBPVP8X\n\0\0\0\x10", NULL), /* of one image, with transparency */
        CASE("RIFF....WEBPVP8X\n\0\0\0\x12", "is an animated WebP, which OpenCV does not read"),
        CASE("RIFF....WEBP\0\0\0\0", "is a WebP without an image (VP8)"),
        CASE("RIFF....WEBP", "is a WebP without an image (VP8)"),
        CASE("P6\n1 1 255\n...", NULL),
    };
    char expected[300];
    start();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_bytes("images/3.jpg", cases[i].bytes, cases[i].size);
        CHECK_INT(check(), cases[i].why ? -1 : 0);
        snprintf(expected, sizeof expected,
                 "train.txt: images that cannot be read (1):\n  line 4: images/3.jpg: %s",
                 cases[i].why ? cases[i].why : "");
        CHECK_INT(strncmp(err, expected, strlen(expected)) == 0, cases[i].why != NULL);
        if (test_failures) TEST_FAIL("case %zu: %s", i, err);
    }
}

/* Good images are known again until they change; bad ones never are. */
AMP_TEST(known_images)
{
    start();
    put("images/2.jpg", "no image");
    for (int run = 0; run < 3; run++) {
        struct amp_known_images *known = amp_known_images_open("cache/new/images");
        REQUIRE(known != NULL);
        if (run == 2) put("images/1.jpg", "written since");
        CHECK(!amp_known_images_fault(known, "images/0.jpg"));
        CHECK(!amp_known_images_fault(known, "./images/3.jpg"));
        CHECK_INT(amp_known_images_fault(known, "images/1.jpg") != NULL, run == 2);
        CHECK(amp_known_images_fault(known, "images/2.jpg") != NULL);
        CHECK(amp_known_images_fault(known, "images/none.jpg") != NULL);
        CHECK_INT(amp_known_images_new(known), run ? 0 : 3);
        mkdir("cache", 0755);
        CHECK_INT(amp_known_images_keep(known), 0);
        amp_known_images_free(known);
    }
    put("cache/new/images", "of somebody else");
    struct amp_known_images *known = amp_known_images_open("cache/new/images");
    CHECK(!amp_known_images_fault(known, "images/0.jpg"));
    CHECK_INT(amp_known_images_new(known), 1);
    amp_known_images_free(known);
}

/* So many that they are read ahead, and kept. */
AMP_TEST(a_long_list)
{
    char cache[PATH_MAX], path[PATH_MAX + 40];
    start();
    REQUIRE(getcwd(cache, sizeof cache) != NULL);
    setenv("XDG_CACHE_HOME", cache, 1);
    for (int run = 0; run < 2; run++) {
        FILE *fp = fopen("train.txt", "w");
        REQUIRE(fp != NULL);
        for (int i = 0; i < 3000; i++)
            fprintf(fp, "images/%d.jpg\n", i % IMAGES);
        fclose(fp);
        check_good();
        snprintf(path, sizeof path, "%s/darknet-amp/images", cache);
        CHECK_INT(access(path, R_OK), 0);
    }
    put("images/5.jpg", "no image");
    CHECK_INT(check(), -1);
    CHECK_SAYS(err,
               "train.txt: images that cannot be read (250):\n  line 6: images/5.jpg: does not");
}

AMP_TEST(texts_that_are_something_else)
{
    static const char *const files[] = {"a.data", "two.names", "train.txt", "labels/3.txt"};
    for (int f = 0; f < 4; f++) {
        start();
        put(files[f], "<!DOCTYPE html>\n<html>\n");
        CHECK_INT(check(), -1);
        CHECK_SAYS(err, f ? "is an HTML page: the download did not give the file" : "a.data");
        put(files[f], "version https://git-lfs.github.com/spec/v1\nsize 3\n");
        CHECK_INT(check(), -1);
        CHECK_SAYS(err, f ? "is a pointer of Git LFS, not the file: git lfs pull" : "a.data");
    }
    start();
}

AMP_TEST(texts_that_darknet_cannot_read)
{
    static const char *const files[] = {"a.cfg", "a.data", "two.names", "train.txt",
                                        "labels/3.txt"};
    static const struct {
        const char *mark, *why;
        size_t size;
    } marks[] = {{"\xEF\xBB\xBF"
                  "0",
                  "begins with a UTF-8 byte-order mark (BOM)", 4},
                 {"\xFF\xFE"
                  "0\0",
                  "is in UTF-16", 4},
                 {"\xFE\xFF\0"
                  "0",
                  "is in UTF-16", 4},
                 {"0\0 \0", "is in UTF-16", 4}};
    for (int f = 0; f < 5; f++)
        for (int m = 0; m < 4; m++) {
            start();
            put_bytes(files[f], marks[m].mark, marks[m].size);
            CHECK_INT(check(), -1);
            CHECK_SAYS(err, files[f]);
            CHECK_SAYS(err, marks[m].why);
        }
}

AMP_TEST(cfg_and_data_swapped)
{
    start();
    put("a.cfg", good_data);
    put("a.data", good_cfg);
    check_bad(
        "a.cfg:1: \"classes=2\" stands before the first section; the first must be [net]. If "
        "this is a data file: the order is DATA CFG\n"
        "a.data:1: \"[net]\" has no \"=\"; allowed: key=value. If this is a cfg: the order is "
        "DATA CFG");
}

AMP_TEST(bad_lines_in_the_list)
{
    static char line[8192];
    start();
    put("train.txt", "");
    check_bad("image list train.txt: names no image");
    put_bytes("train.txt", "images/1.jpg\0\n", 14);
    check_bad("train.txt: images that cannot be read (1):\n  line 1: has a NUL byte");
    memset(line, 'x', 4096);
    put("train.txt", line);
    CHECK_INT(check(), -1);
    CHECK(strstr(err, "line 1: xxx") && strstr(err, "xxx...: longer than 4095 bytes"));
    put("train.txt", "two.names\n"); /* Darknet's rule gives it no label file */
    CHECK_INT(check(), -1);
    CHECK(strstr(err, "train.txt: label files that cannot be read (1):\n  line 1: two.names: "));
    put("train.txt", "a.data/1.jpg\n");
    CHECK_INT(check(), -1);
    CHECK(strstr(err, "line 1: a.data/1.jpg: Not a directory"));
}

AMP_TEST(bad_labels)
{
#define COMMA                                                                                      \
    "1: has a comma; allowed: blanks between the fields, and points in fractions, as \"0 0.5 0.5 " \
    "0.25 0.25\""
    start();
    check_bad_label("0 .5 .5 .1 .1\n2 .5 .5 .1 .1\n",
                    "2: class \"2\": must be a whole number from 0 to 1");
    check_bad_label("-1 .5 .5 .1 .1\n", "1: class \"-1\": must be a whole number from 0 to 1");
    check_bad_label("0.0 .5 .5 .1 .1\n", "1: class \"0.0\": must be a whole number from 0 to 1");
    check_bad_label("0 nan .5 .1 .1\n", "1: x \"nan\": must be a finite number");
    check_bad_label("0 .5 .5 inf .1\n", "1: width \"inf\": must be a finite number");
    check_bad_label("0 .5 .5 .1\n", "1: 4 fields, must be 5: class x y width height");
    check_bad_label("\n0 .5 .5 .1 .1 .1\n", "2: 6 fields, must be 5: class x y width height (leave "
                                            "out a sixth, such as the score of a detector)");
    check_bad_label("0 .5 .5 .1 -.1\n", "1: height \"-.1\": must not be below 0");
    check_bad_label("0 0,5 0,5 0,1 0,1\n", COMMA);
    check_bad_label("0,.5,.5,.1,.1\n", COMMA);
    check_bad_label("0 208 104 20 20\n",
                    "1: x \"208\": must be a fraction of the image (0 to 1), not pixels");
}

AMP_TEST(odd_labels_are_counted_and_allowed)
{
    start();
    put("labels/3.txt", "0 .01 .5 .1 .1\n1 .5 .99 .1 .1\n0 .5 .5 .1 .1\n");
    put("labels/4.txt", "0 .5 .5 0 .1\n");
    check_good();
    CHECK_STR(out, "warning: train.txt: boxes without area (1): Darknet leaves them out; in "
                   "labels/4.txt (1)\n"
                   "warning: train.txt: boxes that reach over an edge of their image (2): Darknet "
                   "clips them; in labels/3.txt (2)\n");
}

AMP_TEST(a_set_without_boxes_is_told)
{
    start();
    for (int i = 0; i < IMAGES; i++) {
        char path[64];
        snprintf(path, sizeof path, "labels/%d.txt", i);
        put(path, i ? "" : "0 .5 .5 0 .1\n");
    }
    check_good();
    CHECK_SAYS(out, "warning: train.txt: no image has a box that is trained: ");
}

/* The room is the head's; the files with the most come first. */
AMP_TEST(images_named_again_and_classes_without_boxes_are_told)
{
    start();
    put("train.txt", "images/0.jpg\nimages/1.jpg\nimages/2.jpg\nimages/1.jpg\nimages/1.jpg\n");
    check_good();
    CHECK_SAYS(out, "warning: train.txt: lines that name an image again (2 of 5)");
    CHECK(!strstr(out, "without a box"));
    put("train.txt", "images/1.jpg\n");
    put("labels/1.txt", "0 .1 .1 .9 .9\n1 .8 .7 .9 .9\n");
    check_good();
    CHECK_SAYS(out,
               "warning: train.txt: 2 of 2 boxes are not inside their images: a line of labels "
               "is class, x and y of the centre");
    put("labels/1.txt", "1 .5 .5 .1 .1\n");
    check_good();
    CHECK_SAYS(out, "warning: train.txt: classes without a box (1 of 2): 0 (the first class is 0)");
    CHECK(!strstr(out, "again"));
    start();
    check_good();
    CHECK(!strstr(out, "warning"));
}

AMP_TEST(boxes_that_darknet_leaves_out_are_counted)
{
    start();
    for (int i = 0; i < 5; i++) {
        char path[64], text[200 * 20] = "";
        snprintf(path, sizeof path, "labels/%d.txt", i);
        for (int n = 0; n < 31 + i; n++)
            strcat(text, "0 .5 .5 .1 .1\n");
        for (int n = 0; n < 60 && i == 2; n++)
            strcat(text, "0 .5 .5 .1 .1\n");
        put(path, text);
    }
    check_good();
    CHECK_STR(out, "warning: train.txt: boxes beyond 90 in an image (3): Darknet leaves so many "
                   "out, others each time it loads the image; in labels/2.txt (3)\n");
    put_replaced("a.cfg", good_cfg, "[yolo]\n", "[region]\n");
    check_good();
    CHECK_SAYS(out, "warning: train.txt: boxes beyond 30 in an image (75): Darknet leaves so many "
                    "out, others each time it loads the image; in 5 label files, most in "
                    "labels/2.txt (63), labels/4.txt (5), labels/3.txt (4)\n");
    put("labels/2.txt", "0 1.6 .5 .2 .2\n1 .5 .5 .0005 .0005\n");
    check_good();
    CHECK_SAYS(out, "boxes smaller than 0.001 of their image's width or height (1): Darknet leaves "
                    "them out; in labels/2.txt (1)\n");
    CHECK_SAYS(out, "boxes outside of their image (1): Darknet leaves them out; in labels/2.txt");
}

AMP_TEST(classes_that_disagree)
{
    start();
    check_bad_cfg("filters=14\nsize=1\nactivation=linear\n[yolo]\nmask=0,1\nanchors=1,1, 2,2\n"
                  "num=2\nclasses=2",
                  "filters=16\nsize=1\nactivation=linear\n[yolo]\nmask=0,1\nanchors=1,1, 2,2\n"
                  "num=2\nclasses=3",
                  "a.cfg:24: classes=3 in [yolo], but the data file says 2");
    check_bad_data("classes=2", "classes=two",
                   "a.data:1: classes=two; allowed: a whole number, at least 1");
    check_bad_data("classes=2", "classes=0",
                   "a.data:1: classes=0; allowed: a whole number, at least 1");
    put("two.names", "cat\ndog\ncow\n\n");
    check_bad("a.data:4: names=two.names: has 3 names, but there are 2 classes");
    put("two.names", "cat\n\ndog\n"); /* Darknet's second class is called "" */
    check_bad("a.data:4: names=two.names: has 3 names, but there are 2 classes");
    put("two.names", "cat\ndog\n\n");
    check_good();
    CHECK_STR(out, "");
    check_bad_data("two.names", "absent.names",
                   "a.data:4: names=absent.names: No such file or directory");
    put_replaced("a.data", good_data, "classes=2\n", ""); /* then the cfg alone says */
    check_good();
    put_replaced("a.data", good_data, "names=two.names\n", "");
    check_good();
}

AMP_TEST(heads)
{
    start();
    check_bad_cfg("filters=14", "filters=15",
                  "a.cfg:20: [yolo] needs 14 values for each of 256 cells (classes=2, boxes per "
                  "cell 2), the layer before it gives 3840 in all; set its filters= to 14");
    check_bad_cfg("classes=2\n", "classes=2\nmax=50\n",
                  "a.cfg:25: max=50 in [yolo]; allowed: 90, the room that this Darknet makes");
    check_bad_cfg("[yolo]\n", "[region]\nmax=90\n",
                  "a.cfg:21: max=90 in [region]; allowed: 30, the room that this Darknet makes");
    check_bad_cfg("filters=14\nsize=1\nactivation=linear\n[yolo]\n",
                  "filters=16\nsize=1\nactivation=linear\n[region]\ncoords=5\n",
                  "a.cfg:21: coords=5 in [region]; allowed: 4, what detector train loads");
    check_bad_cfg("classes=2\n", "classes=2\n[softmax]\n",
                  "a.cfg:25: the last layer is [softmax]; detector train needs [yolo] or [region] "
                  "there");
    check_bad_cfg("channels=3", "channels=1",
                  "a.cfg:6: channels=1; allowed: 3, what detector train loads, of grey images too");
    put_replaced("a.cfg", good_cfg, "[yolo]\n", "[region]\n");
    check_good();
}

/* What trains, but not as the cfg lets one expect: one warning for each. */
AMP_TEST(odd_nets_are_told_and_allowed)
{
#define HEAD(mask) "[yolo]\nmask=" mask "\nanchors=1,1, 2,2\nnum=2\nclasses=2\n"
    static const struct {
        const char *from, *to, *said; /* NULL: nothing */
    } cases[] = {
        {"max_batches=10", "max_batches=10", NULL},
        {"num=2\n", "num=2\nrandom=1\n",
         "a.cfg:24: random=1: Darknet trains at 320 x 320 to 608 x 608, another size every 10 "
         "iterations, and at 608 x 608 in the last 200; width=32 and height=32 do not count"},
        {"batch=4\nsubdivisions=2", "batch=4\nsubdivisions=4",
         "a.cfg:3: batch=4, subdivisions=4: a pass has 1 image, so the batch-norm of 1 layers"},
        {"batch=4\nsubdivisions=2", "batch=1\nsubdivisions=1",
         "a.cfg:2: batch=1, subdivisions=1: a pass has 1 image"},
        {"batch_normalize=1\n", "batch_normalize=1\n[maxpool]\nsize=16\nstride=16\npadding=0\n",
         NULL},
        {"num=2\nclasses=2\n", "num=2\nclasses=2\n[route]\nlayers=-2\n" HEAD("1,0"),
         "a.cfg:28: mask: the same anchors as the [yolo] of line 20: both heads"},
        {"mask=0,1\nanchors=1,1, 2,2\nnum=2", "mask=0,2\nanchors=1,1, 2,2, 3,4\nnum=3",
         "a.cfg:21: mask: no [yolo] has anchor 1, 2x2: objects that it fits best are trained by "
         "no"},
        {"[yolo]\nmask=0,1\nanchors=1,1, 2,2\n", "[region]\nanchors=1,1, 16,16\n", NULL},
        {"[yolo]\nmask=0,1\nanchors=1,1, 2,2\n", "[region]\nanchors=1,1, 16,17\n",
         "a.cfg:21: anchors: 17 is more than the 16 x 16 cells of the image: anchors of [region] "
         "count cells, not pixels as those of [yolo]; divide pixels by 2"},
    };
    static const char stock[] =
        "[net]\nbatch=1\nheight=8\nwidth=8\nchannels=3\nmax_batches=10\n"
        "[convolutional]\nfilters=4\nsize=8\nactivation=leaky\nbatch_normalize=1\n"
        "[convolutional]\nfilters=14\nsize=1\nactivation=linear\n"
        "[yolo]\nmask=0,1\nanchors=1,1, 2,2\nnum=2\nclasses=2\n";
    char expected[300];
    start();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_replaced("a.cfg", good_cfg, cases[i].from, cases[i].to);
        check_good();
        snprintf(expected, sizeof expected, "warning: %s", cases[i].said ? cases[i].said : "");
        if (cases[i].said ? !strstr(out, expected) : *out != '\0')
            TEST_FAIL("case %zu: %s", i, out);
    }
    put("a.cfg", stock);
    check_good();
    CHECK_SAYS(out, "warning: a.cfg:7: batch-norm of layer 0, [convolutional], has one value of "
                    "each channel in a pass (1 image, 1 x 1): in training its output is the bias");
    /* With mixed precision it is a fault. */
    put_replaced("a.cfg", stock, "1,1, 2,2", "1,1, 2");
    check_good();
    CHECK_SAYS(out, "warning: a.cfg:18: anchors= has 3 numbers; needed: 4, two for each of num=2; "
                    "Darknet takes 0.5");
}

AMP_TEST(tree_and_map)
{
    start();
    check_bad_cfg("classes=2\n", "classes=2\nmap=a.map\n",
                  "a.cfg:25: map=a.map: No such file or directory");
    check_bad_cfg("classes=2\n", "classes=2\ntree=a.tree\n",
                  "a.cfg:25: tree=a.tree: No such file or directory");
    put_replaced("a.cfg", good_cfg, "classes=2\n", "classes=2\nmap=a.map\n");
    put("a.map", "0\n1\n2\n");
    check_bad("a.map:3: class 2; allowed: 0 to 1");
    put("a.map", "1\n0\n1\n");
    put("labels/3.txt", "2 .5 .5 .1 .1\n"); /* a line of the map */
    check_good();
    check_bad_label("3 .5 .5 .1 .1\n", "1: class \"3\": must be a whole number from 0 to 2");
}

/* Its tree is held against what it reads: it has no classes of its own. */
AMP_TEST(tree_of_a_softmax)
{
    start();
    put("a.tree", "a -1\nb -1\nc 0\nd 0\n");
    put_replaced("a.cfg", good_cfg, "[convolutional]\nfilters=14\nsize=1\nactivation=linear\n",
                 "[connected]\noutput=4\nactivation=linear\n[softmax]\nnoloss=1\ntree=a.tree\n"
                 "[connected]\noutput=14\nactivation=linear\n");
    check_good();
    put("a.tree", "a -1\nb -1\nc 0\n");
    check_bad("a.cfg:21: tree=a.tree: has 3 classes; allowed: 4, as many as [softmax]");
}

/* Layers before the others, trained by Darknet itself and in mixed precision. */
AMP_TEST(what_only_mixed_precision_can_train)
{
#define POOL "[maxpool]\nsize=2\nstride=2\n"
#define WRITE                                                                                      \
    "this Darknet would write its gradient, which is nowhere; allowed with mixed_precision=1, or " \
    "after a convolution"
#define CRASH                                                                                      \
    "this Darknet crashes when it trains such a layer on the CPU; allowed with mixed_precision=1"
    static const char *const cases[][2] = {
        {POOL, "a.cfg:9: [maxpool] reads the images: " WRITE},
        {"[activation]\nactivation=relu\n", "a.cfg:9: [activation] reads the images: " WRITE},
        {"[crop]\ncrop_width=32\ncrop_height=32\n" POOL,
         "a.cfg:12: [maxpool] reads the output of [crop]: " WRITE},
        {POOL "[convolutional]\nfilters=4\nsize=1\nstopbackward=1\n", ""},
        {"[convolutional]\nfilters=4\nsize=1\n" POOL, ""},
        {"[convolutional]\nfilters=4\nsize=1\n[batchnorm]\n", "a.cfg:12: [batchnorm]: " CRASH},
        {"[convolutional]\nfilters=4\nsize=1\nbinary=1\n",
         "a.cfg:9: [convolutional] with binary=1 and without batch_normalize=1: " CRASH},
        {"[convolutional]\nfilters=4\nsize=1\nbinary=1\nbatch_normalize=1\n", ""}};
    start();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int mixed = 0; mixed < 2; mixed++) {
            char keys[300];
            snprintf(keys, sizeof keys, "mixed_precision=%d\n%s", mixed, cases[i][0]);
            put_replaced("a.cfg", good_cfg, "mixed_precision=1\n", keys);
            if (mixed || !*cases[i][1])
                check_good();
            else
                check_bad(cases[i][1]);
        }
    put("a.cfg", good_cfg);
}

AMP_TEST(bad_cfg_and_options)
{
    start();
    check_bad_cfg("mixed_precision=1", "mixed_precision=yes",
                  "a.cfg:8: mixed_precision=yes: allowed: 0 or 1");
    check_bad_cfg("[net]", "[nets]",
                  "a.cfg:1: the first section is [nets]; it must be [net] or [network]");
    put("a.cfg", "[net]\nbatch\n");
    check_bad("a.cfg:2: \"batch\" has no \"=\"; allowed: key=value");
}

AMP_TEST(nothing_to_train)
{
    start();
    check_bad_cfg("max_batches=10", "max_batches=0",
                  "a.cfg:7: max_batches=0: nothing to train: raise max_batches");
    put_weights(40, WEIGHTS_FLOATS);
    check_bad_weights("weights file a.weights: has seen 40 images, 10 batches, and max_batches is "
                      "10: nothing to train: use -clear or raise max_batches");
    CHECK_INT(check_with("a.weights", true), 0);
    put_weights(39, WEIGHTS_FLOATS);
    CHECK_INT(check_with("a.weights", false), 0);
}

AMP_TEST(weights)
{
    start();
    put_weights(0, WEIGHTS_FLOATS + 1);
    check_bad_weights("weights file a.weights: 4 bytes are left over after the last layer; it "
                      "belongs to another network");
    put_weights(0, WEIGHTS_FLOATS - 1);
    check_bad_weights("weights file a.weights: ends inside layer 1 (convolutional), with 220 of "
                      "the 224 bytes of its weights; it is cut off, or belongs to another network");
    put_weights(0, 4 * 4 + 4 * 27);
    CHECK_INT(check_with("a.weights", false), 0);
    CHECK_STR(out, "weights file a.weights ends before layer 1: 1 of 2 layers with weights are "
                   "loaded, layer 1 and later ones start anew\n");
}

AMP_TEST(jitter)
{
    start();
    check_bad_cfg("num=2\n", "num=2\njitter=1\n",
                  "a.cfg:24: jitter=1 in [yolo]: allowed: 0 to below 1");
    check_bad_cfg("num=2\n", "num=2\njitter=-.1\n",
                  "a.cfg:24: jitter=-.1 in [yolo]: allowed: 0 to below 1");
    put_replaced("a.cfg", good_cfg, "num=2\n", "num=2\njitter=.99\n");
    check_good();
}

/* 6000 outputs for each of 608 x 608 places are more than an int counts; of 576 x 576 they are not.
 */
AMP_TEST(the_largest_size_of_random_1_is_tried)
{
    start();
    put("a.cfg", "[net]\nbatch=1\nheight=32\nwidth=32\nchannels=3\nmax_batches=10\n"
                 "[convolutional]\nfilters=6000\nsize=1\n[maxpool]\nsize=32\nstride=32\n"
                 "[convolutional]\nfilters=14\nsize=1\nactivation=linear\n"
                 "[yolo]\nmask=0,1\nanchors=1,1, 2,2\nnum=2\nclasses=2\nrandom=1\n");
    CHECK_INT(check(), -1);
    CHECK_SAYS(err, "random=1 also trains at 608 x 608, where: ");
}

AMP_TEST(keys_of_the_data_file)
{
    start();
    check_bad_data("classes=2", "claases=2",
                   "a.data:1: claases=: Darknet knows no such key; did you mean classes?");
    check_bad_data("train=train.txt", "trian=train.txt",
                   "a.data:2: trian=: Darknet knows no such key; did you mean train?\n"
                   "image list data/train.list: No such file or directory (a.data has no train= "
                   "line: this is Darknet's default)");
    check_bad_data("backup=backup\n", "",
                   "backup folder /backup/: No such file or directory (a.data has no backup= line: "
                   "this is Darknet's default)");
    put_replaced("a.data", good_data, "classes=2", "classes=2\ncolour=blue\nresults=x");
    check_good();
    CHECK_STR(out, "warning: a.data:2: colour=: Darknet knows no such key\n");
    put_replaced("a.data", good_data, "classes=2", "claases=2");
    put_replaced("a.cfg", good_cfg, "mixed_precision=1\n", "");
    check_good(); /* stock Darknet's training does not read it */
    CHECK_STR(out, "warning: a.data:1: claases=: Darknet knows no such key; did you mean "
                   "classes?\n");
}

AMP_TEST(blanks_in_the_data_file)
{
    start();
    check_bad_data("backup=backup", "# a b=c d\n backup = my folder ",
                   "backup folder myfolder: No such file or directory");
    CHECK_STR(out,
              "warning: a.data:6: backup=my folder: Darknet drops blanks and reads myfolder\n");
    put_replaced("a.data", good_data, "names=two.names", "names\t=  two .names");
    check_good();
    CHECK_STR(out,
              "warning: a.data:4: names=two .names: Darknet drops blanks and reads two.names\n");
    put_replaced("a.data", good_data, "names=two.names", " names = two.names ");
    check_good();
    CHECK_STR(out, "");
}

AMP_TEST(keys_given_twice_in_the_data_file)
{
    start();
    put_replaced("a.data", good_data, "names=two.names",
                 "train=other.txt\nnames=two.names\ntrain=third.txt");
    check_good();
    CHECK_STR(out,
              "warning: a.data:4: train=other.txt: given twice; line 2 counts (train=train.txt)\n"
              "warning: a.data:6: train=third.txt: given twice; line 2 counts (train=train.txt)\n");
}

/* One message each, which names the cause. */
AMP_TEST(remarks_in_the_data_file)
{
#define HINT " (a remark is not allowed after a value: put it on a line of its own)"
    start();
    check_bad_data("classes=2", "classes=2 # two",
                   "a.data:1: classes=2 # two; allowed: a whole number, at least 1" HINT);
    CHECK_STR(out, "");
    check_bad_data("names=two.names", "names=two.names # both",
                   "a.data:4: names=two.names#both: No such file or directory" HINT);
    CHECK_STR(out, "");
    check_bad_data("train=train.txt", "train=train.txt ; all",
                   "image list train.txt;all: No such file or directory" HINT);
    CHECK_STR(out, "");
    check_bad_data("backup=backup", "backup=backup # here",
                   "backup folder backup#here: No such file or directory" HINT);
    CHECK_STR(out, "");
    /* Training does not read it. */
    put_replaced("a.data", good_data, "absent.txt", "absent.txt # not yet");
    check_good();
    CHECK_STR(out, "warning: a.data:3: valid=absent.txt # not yet: Darknet drops blanks and reads "
                   "absent.txt#notyet" HINT "\n");
    /* No remark. */
    check_bad_data("names=two.names", "names=#2/two.names",
                   "a.data:4: names=#2/two.names: No such file or directory");
#undef HINT
}

AMP_TEST(backup_folder)
{
    start();
    check_bad_data("backup=backup", "backup=absent",
                   "backup folder absent: No such file or directory");
    check_bad_data("backup=backup", "backup=a.cfg", "backup a.cfg: not a folder");
    char data[512], err_text[] = "its weights files would have names of 256 bytes; Darknet has "
                                 "room for 255";
    int n = sprintf(data, "classes=2\ntrain=train.txt\nbackup=backup");
    for (int i = 0; i < (256 - 6 - 1 - 1 - 14) / 2; i++) /* backup, /, a, _final.weights */
        n += sprintf(data + n, "/.");
    put("a.data", data);
    CHECK_INT(check(), -1);
    CHECK(strstr(err, err_text));
    data[n - 2] = '\0';
    put("a.data", data);
    check_good();
}

AMP_TEST(read_only_backup_folder)
{
    start();
    chmod("backup", 0555);
    bool root = geteuid() == 0; /* may write everywhere: be someone else for a moment */
    REQUIRE(!root || seteuid(65534) == 0);
    int status = check();
    REQUIRE(!root || seteuid(0) == 0);
    chmod("backup", 0755);
    CHECK_INT(status, -1);
    CHECK_STR(err, "backup folder backup: 3184 bytes of weights and sidecar, twice (the old stay "
                   "until the new are whole; numbered files come on top), cannot be written: "
                   "Permission denied");
}

static int check_with_limit(rlim_t bytes)
{
    struct rlimit limit, small;
    getrlimit(RLIMIT_FSIZE, &limit);
    small = limit;
    small.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &small);
    int status = check();
    setrlimit(RLIMIT_FSIZE, &limit);
    return status;
}

/* Files of that many bytes and not one less, so many bytes in all. */
static void check_room(const char *keys, rlim_t largest, int all, const char *of)
{
    char expected[200];
    put_replaced("a.cfg", good_cfg, "mixed_precision=1\n", keys);
    CHECK_INT(check_with_limit(largest), 0);
    CHECK_INT(check_with_limit(largest - 1), -1);
    snprintf(expected, sizeof expected, "backup folder backup: %d bytes of %s", all, of);
    if (strncmp(err, expected, strlen(expected))) TEST_FAIL("%s", err);
    CHECK(strstr(err, "cannot be written: File too large"));
}

AMP_TEST(no_room_in_the_backup_folder)
{
    start();
    check_room("", 796, 796, "weights files cannot");
    check_room("adam=1\n", 796, 796, "weights files cannot");
    check_room("mixed_precision=1\n", 796, 4 * 796, "weights and sidecar, twice (");
    check_room("mixed_precision=1\nadam=1\n", 3 * 796, 8 * 796, "weights and sidecar, twice (");
    check_room("mixed_precision=1\namp_sidecar=none\n", 796, 2 * 796, "weights, twice (");
    put("backup/a.backup", "there"); /* the old ones need no room any more */
    backup_files = 1;
    check_room("mixed_precision=1\n", 796, 2 * 796, "weights and sidecar cannot");
    unlink("backup/a.backup");
    backup_files = 0;
}

AMP_TEST(a_short_error_buffer_is_not_overrun)
{
    char small[24];
    start();
    unlink("a.cfg");
    unlink("a.data");
    memset(small, 'x', sizeof small);
    const struct amp_trainer_inputs in = {.data = "a.data", .cfg = "a.cfg"};
    CHECK_INT(amp_check_train_inputs(&in, NULL, NULL, small, 20), -1);
    CHECK_INT(strlen(small), 19);
    CHECK_INT(small[20], 'x');
}

AMP_TEST(data_file_defaults)
{
    start();
    put("a.data", "classes=2\n");
    CHECK_INT(check(), -1);
    CHECK(strstr(err, "backup folder /backup/: "));
    CHECK(strstr(err, "image list data/train.list: No such file or directory"));
}

AMP_TEST_MAIN
