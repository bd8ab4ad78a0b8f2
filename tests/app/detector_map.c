/* `darknet detector map` end to end: the program is run on synthetic images with small networks of
 * random weights, and its JSON is compared with what Darknet's own functions, called one image at a
 * time, and the slow reference give. Then everything it must refuse.
 *
 * A random network finds nothing real, so truths are made from its own detections, moved a little.
 */

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/rig/harness.h"
#include "map_reference.h"

#include "darknet.h"
#include "plugin/input/labels.h"
#include "plugin/app/counts.h"
#include "plugin/app/map.h"

enum { IMAGES = 7, CLASSES = 3, MAX_ROWS = 20000 };

static const int sizes[IMAGES][2] = {{64, 64}, {100, 40}, {37, 90}, {200, 150},
                                     {10, 10}, {64, 48},  {33, 33}};

static const char yolo_cfg[] =
    "[net]\nbatch=2\nsubdivisions=1\nwidth=64\nheight=48\nchannels=3\n"
    "[convolutional]\nfilters=6\nsize=3\nstride=2\npad=1\nactivation=leaky\n"
    "[convolutional]\nfilters=8\nsize=3\nstride=4\npad=1\nactivation=leaky\n"
    "[convolutional]\nfilters=16\nsize=1\nstride=1\npad=1\nactivation=linear\n"
    "[yolo]\nmask=1,2\nanchors=6,8, 14,12, 30,24\nclasses=3\nnum=3\n"
    "[route]\nlayers=-3\n[upsample]\nstride=2\n"
    "[convolutional]\nfilters=8\nsize=1\nstride=1\npad=1\nactivation=linear\n"
    "[yolo]\nmask=0\nanchors=6,8, 14,12, 30,24\nclasses=3\nnum=3\n";

static const char region_cfg[] =
    "[net]\nbatch=4\nsubdivisions=2\nwidth=32\nheight=64\nchannels=3\n"
    "[convolutional]\nfilters=8\nsize=3\nstride=4\npad=1\nactivation=leaky\n"
    "[convolutional]\nfilters=16\nsize=3\nstride=2\npad=1\nactivation=linear\n"
    "[region]\nanchors=0.5,0.7, 1.6,1.3\nclasses=3\ncoords=4\nnum=2\nsoftmax=1\n";

static const char detection_cfg[] =
    "[net]\nbatch=1\nsubdivisions=1\nwidth=32\nheight=32\nchannels=3\n"
    "[convolutional]\nfilters=8\nsize=3\nstride=4\npad=1\nactivation=leaky\n"
    "[connected]\noutput=117\nactivation=logistic\n"
    "[detection]\nclasses=3\ncoords=4\nside=3\nnum=2\nsoftmax=0\nsqrt=1\n";

/* ---- files ---- */

static char folder[64];

static void enter_folder(void)
{
    strcpy(folder, "/tmp/amp-map-XXXXXX");
    REQUIRE(mkdtemp(folder) && chdir(folder) == 0);
    REQUIRE(mkdir("images", 0700) == 0 && mkdir("labels", 0700) == 0);
}

static void leave_folder(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    REQUIRE(chdir("/") == 0);
    CHECK_INT(system(command), 0);
}

__attribute__((format(printf, 2, 3))) static void write_file(const char *path, const char *format,
                                                             ...)
{
    va_list args;
    FILE *file = fopen(path, "w");
    REQUIRE(file);
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    REQUIRE(fclose(file) == 0);
}

static const char *read_file_text(const char *path)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[n] = '\0';
    return text;
}

/* Soft coloured blobs. */
static void write_image(int index)
{
    char name[64];
    image im = make_image(sizes[index][0], sizes[index][1], 3);
    for (int c = 0; c < 3; c++) {
        double fx = test_uniform(0.02, 0.3), fy = test_uniform(0.02, 0.3),
               shift = test_uniform(0, 6);
        for (int y = 0; y < im.h; y++)
            for (int x = 0; x < im.w; x++)
                im.data[(c * im.h + y) * im.w + x] =
                    (float)(0.5 + 0.5 * sin(fx * x + shift) * cos(fy * y));
    }
    snprintf(name, sizeof name, "images/im%d", index);
    save_image_options(im, name, PNG, 0);
    free_image(im);
}

static void randomize(float *x, int n, double scale)
{
    for (int i = 0; i < n; i++)
        x[i] = (float)(scale * test_uniform(-1, 1));
}

/* Network, weights, images, names and lists; labels are still missing. The caller frees the
 * network. */
static network *make_input(const char *cfg)
{
    FILE *list = fopen("set.list", "w");
    REQUIRE(list);
    for (int i = 0; i < IMAGES; i++) {
        write_image(i);
        fprintf(list, "images/im%d.png\n", i);
    }
    fclose(list);
    write_file("net.cfg", "%s", cfg);
    write_file("set.names", "first\nsecond \"quoted\"\nthird\n");
    write_file("set.data", "classes=%d\nnames=set.names\nvalid=set.list\n", CLASSES);
    network *net = load_network("net.cfg", NULL, 0);
    for (int i = 0; i < net->n; i++) {
        layer l = net->layers[i];
        if (l.type != CONVOLUTIONAL && l.type != CONNECTED) continue;
        int inputs = l.type == CONNECTED ? l.inputs : l.size * l.size * l.c;
        randomize(l.weights, l.type == CONNECTED ? l.inputs * l.outputs : l.nweights,
                  3 / sqrt(inputs));
        randomize(l.biases, l.type == CONNECTED ? l.outputs : l.n, 0.5);
    }
    save_weights(net, "net.weights");
    return net;
}

/* ---- what must come out ---- */

static struct amp_prediction predictions[MAX_ROWS];
static struct amp_truth truths[MAX_ROWS];
static size_t n_predictions, n_truths;

/* The detections of one image, as `detector valid` finds them, as fractions of the image. */
static void predict_image(network *net, int index, float thresh, float nms)
{
    char path[64];
    snprintf(path, sizeof path, "images/im%d.png", index);
    image im = load_image_color(path, 0, 0);
    bool stretch = net->layers[net->n - 1].type == DETECTION;
    image sized = stretch ? resize_image(im, net->w, net->h) : letterbox_image(im, net->w, net->h);
    int n = 0;
    network_predict(net, sized.data);
    detection *found = get_network_boxes(net, im.w, im.h, thresh, .5, 0, 0, &n);
    if (nms > 0) do_nms_sort(found, n, CLASSES, nms);
    for (int i = 0; i < n; i++) {
        box b = found[i].bbox;
        struct amp_box fraction = {((double)b.x - b.w / 2) / im.w, ((double)b.y - b.h / 2) / im.h,
                                   (double)b.w / im.w, (double)b.h / im.h};
        for (int k = 0; k < CLASSES; k++) {
            if (!(found[i].prob[k] > 0)) continue;
            REQUIRE(n_predictions < MAX_ROWS);
            predictions[n_predictions++] =
                (struct amp_prediction){index, k, found[i].prob[k], fraction};
        }
    }
    free_detections(found, n);
    free_image(im);
    free_image(sized);
}

static void predict_all(network *net, float thresh, float nms)
{
    n_predictions = 0;
    set_batch_network(net, 1);
    for (int i = 0; i < IMAGES; i++)
        predict_image(net, i, thresh, nms);
}

/* A label near a detection, as Darknet's text; the truth is what the text says. */
static void add_label(FILE *file, int index, const struct amp_prediction *p)
{
    char line[200];
    struct amp_box b = p->box;
    double shift = test_uniform(0, 0.25);
    double x = b.left + b.width * (0.5 + shift * test_uniform(-1, 1));
    double y = b.top + b.height * (0.5 + shift * test_uniform(-1, 1));
    double w = b.width * (1 + shift * test_uniform(-1, 1)), h = b.height;
    int class_id = test_uniform(0, 1) < 0.8 ? p->class_id : 1; /* class 2 may stay without truths */
    if (class_id == 2) class_id = 0;
    if (fabs(x) > 1.9 || fabs(y) > 1.9 || w > 1.9 || h > 1.9 || w < 1e-3 || h < 1e-3) return;
    snprintf(line, sizeof line, "%d %.9f %.9f %.9f %.9f\n", class_id, x, y, w, h);
    sscanf(line, "%d %lf %lf %lf %lf", &class_id, &x, &y, &w, &h);
    fputs(line, file);
    truths[n_truths++] = (struct amp_truth){index, class_id, {x - w / 2, y - h / 2, w, h}};
}

/* Labels for all images but image 5, which stays empty. */
static void make_labels(void)
{
    n_truths = 0;
    for (int i = 0; i < IMAGES; i++) {
        char path[64];
        snprintf(path, sizeof path, "labels/im%d.txt", i);
        FILE *file = fopen(path, "w");
        REQUIRE(file);
        for (size_t j = 0; j < n_predictions; j++) {
            if (predictions[j].image == i && i != 5 && test_uniform(0, 1) < 0.2)
                add_label(file, i, &predictions[j]);
        }
        fclose(file);
    }
}

/* ---- what does come out ---- */

/* Runs `darknet detector map` with these arguments in the folder; its status. Output: out.txt,
 * err.txt. */
static int run_map(const char *arguments)
{
    char command[4096];
    snprintf(command, sizeof command, "'%s' detector map %s >out.txt 2>err.txt", AMP_DARKNET,
             arguments);
    int status = system(command);
    if (!WIFEXITED(status)) TEST_FAIL("%s: did not exit: %s", arguments, read_file_text("err.txt"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The number after "key": in the text, NaN for null. */
static double json_number(const char *text, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    const char *at = strstr(text, quoted);
    if (!at) TEST_FAIL("no key %s", quoted);
    REQUIRE(at);
    at += strlen(quoted);
    if (strncmp(at, "null", 4) == 0) return NAN;
    char *end;
    double value = strtod(at, &end);
    REQUIRE(end != at);
    return value;
}

static void check_number(const char *text, const char *key, double expected)
{
    double actual = json_number(text, key);
    if (isnan(actual) && isnan(expected)) return;
    if (!(fabs(actual - expected) <= 1e-9))
        TEST_FAIL("%s is %.12g, expected %.12g", key, actual, expected);
}

/* Sum and count of what is defined. */
struct mean {
    double sum;
    int n;
};

static void add(struct mean *mean, double value)
{
    if (isnan(value)) return;
    mean->sum += value;
    mean->n++;
}

static double mean_value(struct mean mean)
{
    return mean.n ? mean.sum / mean.n : NAN;
}

static struct amp_class_ap expected_ap(int k, enum amp_match_rule rule, double iou)
{
    return reference_ap(predictions, n_predictions, truths, n_truths, k, rule, iou);
}

static void check_json(const char *text, double iou)
{
    struct mean map50 = {0}, map50_11 = {0}, map75 = {0}, map = {0}, map_iou = {0}, iou_11 = {0};
    const char *entry = strstr(text, "\"classes\": [");
    REQUIRE(entry);
    for (int k = 0; k < CLASSES; k++) {
        struct amp_class_ap at50 = expected_ap(k, AMP_MATCH_VOC, 0.5);
        double at75 = expected_ap(k, AMP_MATCH_VOC, 0.75).area;
        struct amp_class_ap of_iou = expected_ap(k, AMP_MATCH_VOC, iou);
        double at_iou = of_iou.area, coco = 0;
        for (int t = 0; t < 10; t++)
            coco += expected_ap(k, AMP_MATCH_COCO, 0.5 + 0.05 * t).coco / 10;
        entry = strstr(entry, "{\"name\": ");
        REQUIRE(entry);
        check_number(entry, "ap50", at50.area);
        check_number(entry, "ap50_11pt", at50.eleven_point);
        check_number(entry, "ap75", at75);
        check_number(entry, "ap_iou", at_iou);
        check_number(entry, "ap", coco);
        size_t t = 0, d = 0;
        for (size_t i = 0; i < n_truths; i++)
            t += truths[i].class_id == k;
        for (size_t i = 0; i < n_predictions; i++)
            d += predictions[i].class_id == k;
        check_number(entry, "truths", (double)t);
        check_number(entry, "detections", (double)d);
        add(&map50, at50.area), add(&map50_11, at50.eleven_point), add(&map75, at75);
        add(&map, coco), add(&map_iou, at_iou), add(&iou_11, of_iou.eleven_point);
        entry++;
    }
    check_number(text, "map50", mean_value(map50));
    check_number(text, "map50_11pt", mean_value(map50_11));
    check_number(text, "map75", mean_value(map75));
    check_number(text, "map", mean_value(map));
    check_number(text, "map_iou", mean_value(map_iou));
    check_number(text, "map_iou_11pt", mean_value(iou_11));
    CHECK(map50.n == 2 && map50.sum > 0.02 &&
          map50.sum < 1.98); /* the comparison means something */
}

/* All counted predictions are hits or false alarms, and all truths found or missed; how they are
 * told apart: test_counts.c. */
static void check_counts(const char *text, double thresh)
{
    size_t counted = 0;
    for (size_t i = 0; i < n_predictions; i++)
        counted += predictions[i].score > (double)(float)thresh;
    text = strstr(text, "\"counts\": {");
    REQUIRE(text);
    check_number(text, "conf_thresh", (double)(float)thresh);
    CHECK_INT((int)(json_number(text, "tp") + json_number(text, "fp")), (int)counted);
    CHECK_INT((int)(json_number(text, "tp") + json_number(text, "fn")), (int)n_truths);
    CHECK(json_number(text, "tp") > 0);
}

/* The whole way with one network, once with each line of arguments. */
static void check_network(const char *cfg)
{
    static const struct {
        const char *arguments;
        double thresh;
        float nms;
        double iou;
    } runs[] = {
        {"", 0.25, 0.45f, 0.5},
        {"--thresh 0.2 --nms 0 --iou 0.35 --coco", 0.2, 0, 0.35},
        {"-nms 0.7", 0.25, 0.7f, 0.5},
    };
    enter_folder();
    network *net = make_input(cfg);
    predict_all(net, 0.005f, 0.45f);
    make_labels();
    REQUIRE(n_truths > 5);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char arguments[200];
        predict_all(net, 0.005f, runs[i].nms);
        snprintf(arguments, sizeof arguments, "set.data net.cfg net.weights %s --json out.json",
                 runs[i].arguments);
        CHECK_INT(run_map(arguments), 0);
        check_json(read_file_text("out.json"), runs[i].iou);
        check_counts(read_file_text("out.json"), runs[i].thresh);
    }
    free_network(net);
    leave_folder();
}

/* ---- results ---- */

AMP_TEST(yolo_heads_give_the_reference_numbers)
{
    check_network(yolo_cfg);
}

AMP_TEST(region_head_gives_the_reference_numbers)
{
    check_network(region_cfg);
}

AMP_TEST(detection_head_gives_the_reference_numbers)
{
    check_network(detection_cfg);
}

AMP_TEST(output_says_what_was_measured)
{
    enter_folder();
    network *net = make_input(yolo_cfg);
    predict_all(net, 0.005f, 0.45f);
    make_labels();
    CHECK_INT(run_map("set.data net.cfg net.weights --coco --iou 0.6 --json out.json"), 0);
    const char *text = read_file_text("out.txt");
    static const char *const lines[] = {"7 from set.list",
                                        "64 x 48, images letterboxed",
                                        "of score 0.005 or more, nms 0.45",
                                        "AP@0.6",
                                        "second \"quoted\"",
                                        "mAP@[.5:.95]",
                                        "COCO AP@0.95",
                                        "mAP@0.75",
                                        "At scores above 0.25, IoU 0.6;"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(text, lines[i])) TEST_FAIL("output has no \"%s\":\n%s", lines[i], text);
    text = read_file_text("out.json");
    CHECK(strstr(text, "\"name\": \"second \\\"quoted\\\"\""));
    CHECK(strstr(text, "\"weights\": \"net.weights\""));
    check_number(text, "images", IMAGES);
    check_number(text, "thresh", 0.005);
    CHECK_INT(system("test \"$(ls | grep -c part-)\" = 0"), 0); /* nothing but the file itself */
    free_network(net);
    leave_folder();
}

static char *report_of(const struct amp_map_settings *settings, const struct amp_eval_set *set,
                       const struct amp_map_result *result)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    REQUIRE(f);
    amp_map_print(f, settings, set, result, true);
    fclose(f);
    return text;
}

static int count_words(const char *text, const char *words)
{
    int n = 0;
    for (; (text = strstr(text, words)); text++)
        n++;
    return n;
}

/* Every number in its place. */
AMP_TEST(a_report_of_given_results)
{
    static const char *const words[] = {
        "\ndetector map: a.data, a.cfg, a.weights\n",
        "  images        7 from v.list\n",
        "  network       64 x 48, images letterboxed\n",
        "  detections    30 of score 0.25 or more, nms 0.375\n",
        "  truth boxes   11, neither they nor detections are clipped\n",
        "  warning       2 truth boxes reach over the edge of their image\n",
        "                COCO rule (maxDets 100, area all) for AP@[.5:.95]\n",
        "\nclass                      truths detections   AP@0.625    AP@0.75 AP@[.5:.95]\n"
        "cat                             4         10    25.00 %    18.75 %     37.50 %\n"
        "dog                             7         20    62.50 %    56.25 %     75.00 %\n",
        "\nmAP@0.5             93.75 %   area under the curve\n"
        "mAP@0.5             87.50 %   VOC 11 points\n"
        "mAP@0.75            81.25 %   area under the curve\n"
        "mAP@0.625           75.00 %   area under the curve\n"
        "mAP@0.625           68.75 %   VOC 11 points\n"
        "mAP@[.5:.95]        50.00 %   COCO, 101 points\n"
        "  COCO AP@0.50      62.50 %   COCO, 101 points\n"
        "  COCO AP@0.55      56.25 %   COCO, 101 points\n"};
    static const char *const json[] = {
        "{\n  \"format\": \"darknet-amp detector map 1\",\n  \"map50\": 0.9375,\n  \"map50_11pt\": "
        "0.875,\n  \"map75\": 0.8125,\n  \"map\": 0.5,\n"
        "  \"map_iou\": 0.75,\n  \"map_iou_11pt\": 0.6875,\n  \"coco\": [\n"
        "    {\"iou\": 0.50, \"map\": 0.625},\n    {\"iou\": 0.55, \"map\": 0.5625},\n",
        "    {\"name\": \"dog\", \"ap50\": 0.4375, \"ap50_11pt\": 0.5, \"ap75\": 0.5625, "
        "\"ap_iou\": "
        "0.625, \"ap\": 0.75, \"truths\": 7, \"detections\": 20}\n",
        "\"valid\": \"v.list\",\n    \"images\": 7, \"truths\": 11, \"truths_over_edge\": 2, "
        "\"truths_no_area\": 1,\n    \"width\": 64, \"height\": 48, \"resize\": "
        "\"letterboxed\",\n    \"iou\": 0.625, \"thresh\": 0.25, \"nms\": 0.375,\n"
        "    \"coco_max_detections\": 100, "};
    struct amp_class_result classes[] = {{4, 10, {.0625, .125, .1875, .25, .3125, .ap = .375}},
                                         {7, 20, {.4375, .5, .5625, .625, .6875, .ap = .75}}};
    struct amp_map_result result = {
        2, classes, {.9375, .875, .8125, .75, .6875, {.625, .5625}, .5}};
    char *names[] = {"cat", "dog"}, err[300];
    const struct amp_eval_set set = {.valid_path = "v.list",
                                     .images.count = 7,
                                     .names = {.line = names, .count = 2},
                                     .n_head_classes = 2,
                                     .n_classes = 2,
                                     .n_truths = 11,
                                     .over_edge = 2,
                                     .no_area = 1};
    const struct amp_map_settings settings = {"a.data",      "a.cfg", "a.weights", 64,  48,
                                              "letterboxed", .625,    .25,         .375};
    const struct amp_bootstrap none = {0};
    struct amp_counted counted[2] = {{.ap = .375, .truths = 4}, {.ap = .75, .truths = 7}};
    const struct amp_counts counts = {.n_classes = 2, .classes = counted};
    char *text = report_of(&settings, &set, &result);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK_SAYS(text, words[i]);
    free(text);
    for (double iou = .5; iou < 1; iou += .25) { /* stands there once whatever is asked for */
        struct amp_map_settings usual = settings;
        usual.iou = iou;
        text = report_of(&usual, &set, &result);
        CHECK_INT(count_words(text, "\nmAP@0.5 "), 2);
        CHECK_INT(count_words(text, "\nmAP@0.75 "), 1);
        free(text);
    }
    enter_folder();
    CHECK_INT(
        amp_map_write_json("out.json", &settings, &set, &result, &none, &counts, err, sizeof err),
        0);
    for (size_t i = 0; i < sizeof json / sizeof *json; i++)
        CHECK_SAYS(read_file_text("out.json"), json[i]);
    CHECK_INT(
        amp_map_write_json("gone/a", &settings, &set, &result, &none, &counts, err, sizeof err),
        -1);
    CHECK_SAYS(err, "gone/a: cannot write a file beside it: No such file or directory");
    leave_folder();
}

/* Number i of the JSON array under this key. */
static double json_element(const char *text, const char *key, int i)
{
    char quoted[64], *end;
    snprintf(quoted, sizeof quoted, "\"%s\": [", key);
    const char *at = strstr(text, quoted);
    if (!at) TEST_FAIL("no array %s", key);
    REQUIRE(at);
    at += strlen(quoted);
    for (; i > 0; i--) {
        at = strpbrk(at, ",]");
        REQUIRE(at && *at == ',');
        at++;
    }
    double value = strtod(at, &end);
    REQUIRE(end != at);
    return value;
}

AMP_TEST(drawings_of_images_come_in_order)
{
    enum { DRAWINGS = 20 };
    char err[300];
    int draws[IMAGES];
    enter_folder();
    network *net = make_input(yolo_cfg);
    predict_all(net, 0.005f, 0.45f);
    make_labels();
    CHECK_INT(run_map("set.data net.cfg net.weights --bootstrap 20 --json out.json"), 0);
    const char *text = strstr(read_file_text("out.json"), "\"bootstrap\": {");
    REQUIRE(text);
    struct amp_ap_set *set = amp_ap_set_new(predictions, n_predictions, truths, n_truths, IMAGES,
                                            CLASSES, err, sizeof err);
    struct amp_ap_outcomes *outcomes = amp_ap_outcomes_new(set, err, sizeof err);
    for (int b = 0; b < DRAWINGS; b++) {
        amp_bootstrap_draw(b, IMAGES, draws);
        struct amp_map_means means = amp_ap_outcomes_means(outcomes, draws);
        CHECK_NEAR(json_element(text, "map50", b), means.map50, 1e-9);
        CHECK_NEAR(json_element(text, "map75", b), means.map75, 1e-9);
        CHECK_NEAR(json_element(text, "map", b), means.map, 1e-9);
    }
    CHECK(json_element(text, "map", 0) != json_element(text, "map", 1));
    amp_ap_outcomes_free(outcomes);
    amp_ap_set_free(set);
    free_network(net);
    leave_folder();
}

AMP_TEST(without_truths_the_result_is_undefined_and_says_so)
{
    enter_folder();
    free_network(make_input(region_cfg));
    for (int i = 0; i < IMAGES; i++) {
        char path[64];
        snprintf(path, sizeof path, "labels/im%d.txt", i);
        write_file(path, "%s", "");
    }
    CHECK_INT(run_map("set.data net.cfg net.weights --json out.json"), 0);
    CHECK(strstr(read_file_text("out.txt"), "There are no truth boxes at all"));
    CHECK(isnan(json_number(read_file_text("out.json"), "map50")));
    CHECK(isnan(json_number(read_file_text("out.json"), "ap")));
    leave_folder();
}

AMP_TEST(label_path_rule_is_darknets)
{
    static const char *const parts[] = {"images", "JPEGImages", "raw", "/",     ".jpg", ".png",
                                        ".JPG",   ".JPEG",      "a",   "image", ".jp"};
    static const char *const rule[][2] = {
        {"images", "labels"}, {"JPEGImages", "labels"}, {"raw", "labels"}, {".jpg", ".txt"},
        {".png", ".txt"},     {".JPG", ".txt"},         {".JPEG", ".txt"}};
    for (int round = 0; round < 2000; round++) {
        char path[256] = "", ours[256] = "", err[1000], a[4096], b[4096];
        for (int n = 1 + (int)(test_random() % 8); n > 0; n--)
            strcat(path, parts[test_random() % (sizeof parts / sizeof *parts)]);
        strcpy(a, path);
        for (size_t i = 0; i < sizeof rule / sizeof *rule; i++) {
            find_replace(a, (char *)rule[i][0], (char *)rule[i][1], b);
            strcpy(a, b);
        }
        int failed = amp_label_path(path, ours, sizeof ours, err, sizeof err);
        CHECK_STR(ours, a);
        CHECK_INT(failed, strcmp(a, path) == 0 ? -1 : 0);
    }
}

/* ---- refusals ---- */

static const char old_result[] = "{\"format\": \"" AMP_MAP_FORMAT "\"}";
static const char good_arguments[] = "set.data net.cfg net.weights --json out.json";

/* A complete correct input with an old result, which must survive. */
static void make_good_input(void)
{
    enter_folder();
    network *net = make_input(region_cfg);
    predict_all(net, 0.005f, 0.45f);
    make_labels();
    free_network(net);
    write_file("out.json", old_result);
}

/* The program must refuse, with this text, and leave the old result alone. */
static void check_refused(const char *arguments, const char *what)
{
    CHECK_INT(run_map(arguments), 1);
    if (!strstr(read_file_text("err.txt"), what))
        TEST_FAIL("\"%s\" does not say \"%s\": %s", arguments, what, read_file_text("err.txt"));
    CHECK_STR(read_file_text("out.json"), old_result);
    CHECK_INT(system("test \"$(ls | grep -c part-)\" = 0"), 0);
}

AMP_TEST(refuses_bad_command_lines)
{
    make_good_input();
    check_refused("", "needed: DATA CFG WEIGHTS");
    check_refused("set.data net.cfg", "needed: DATA CFG WEIGHTS");
    check_refused("set.data net.cfg net.weights more", "weights file more: cannot read");
    check_refused("set.data net.cfg net.weights net.weights more", "unexpected word \"more\"");
    check_refused("set.data net.cfg net.weights net.weights --json out.json",
                  "--json is of one weights file");
    check_refused("set.data net.cfg net.weights --page no/page.html",
                  "--page: no/page.html: cannot write a file beside it: No such file");
    check_refused("set.data net.cfg net.weights --page images",
                  "--page: cannot write images: exists and is not a regular file");
    check_refused("set.data net.cfg net.weights --ioo 0.5",
                  "unknown option \"--ioo\"; did you mean --iou?");
    check_refused("set.data net.cfg net.weights --iou", "no value after \"--iou\"");
    check_refused("set.data net.cfg net.weights --iou 0",
                  "--iou 0: must be a number above 0, at most 1");
    check_refused("set.data net.cfg net.weights --iou nan", "--iou nan");
    check_refused("set.data net.cfg net.weights --thresh 1", "--thresh 1: must be");
    check_refused("set.data net.cfg net.weights --bootstrap 5", "the file of --json");
    check_refused("set.data net.cfg net.weights --json out.json --bootstrap -5",
                  "--bootstrap -5: must be a whole number from 0 to 1000000");
    check_refused("set.data net.cfg net.weights --nms -1", "--nms -1");
    check_refused("set.data net.cfg net.weights --nms 0.5x", "--nms 0.5x");
    check_refused("set.data net.cfg net.weights --json images",
                  "images: exists and is not a regular file");
    check_refused("set.data net.cfg net.weights --json no/out.json",
                  "no/out.json: cannot write a file beside it: No such file");
    leave_folder();
}

AMP_TEST(refuses_missing_files_by_name)
{
    make_good_input();
    check_refused("none.data net.cfg net.weights --json out.json", "none.data");
    check_refused("set.data none.cfg net.weights --json out.json", "none.cfg: No such file");
    check_refused("set.data net.cfg none.weights --json out.json",
                  "weights file none.weights: cannot read: No such file");
    REQUIRE(unlink("images/im3.png") == 0 && unlink("labels/im1.txt") == 0);
    check_refused(good_arguments, "set.list:4: image images/im3.png: No such file");
    CHECK(strstr(read_file_text("err.txt"), "label file labels/im1.txt: No such file"));
    leave_folder();
}

AMP_TEST(refuses_bad_labels)
{
    make_good_input();
    write_file("labels/im2.txt", "0 .5 .5 .1 .1\n3 .5 .5 .1 .1\n");
    check_refused(good_arguments,
                  "labels/im2.txt:2: class \"3\": must be a whole number from 0 to 2");
    leave_folder();
}

AMP_TEST(refuses_images_that_cannot_be_decoded)
{
    make_good_input();
    write_file("images/im0.png", "P6 no image");
    write_file("images/im6.png", "P6 no image either");
    check_refused(good_arguments, "images/im0.png: cannot be decoded");
    CHECK(strstr(read_file_text("err.txt"), "images/im6.png: cannot be decoded"));
    leave_folder();
}

AMP_TEST(a_black_image_of_ten_pixels_is_an_image)
{
    make_good_input();
    image black = make_image(10, 10, 3);
    save_image_options(black, "images/im4", PNG, 0);
    free_image(black);
    CHECK_INT(run_map("set.data net.cfg net.weights"), 0);
    leave_folder();
}

AMP_TEST(refuses_weights_that_give_no_numbers)
{
    make_good_input();
    network *net = load_network("net.cfg", "net.weights", 0);
    net->layers[1].biases[5] = NAN;
    save_weights(net, "net.weights");
    free_network(net);
    check_refused(good_arguments, "output 160 of layer 1 is nan"); /* the first, not the head */
    leave_folder();
}

/* The good input with another cfg; weights do not matter, they are not reached. */
static void check_cfg_refused(const char *cfg, const char *what)
{
    make_good_input();
    write_file("net.cfg", "%s", cfg);
    check_refused(good_arguments, what);
    leave_folder();
}

#define NET "[net]\nbatch=1\nwidth=32\nheight=32\nchannels=3\n"
#define CONVOLUTION(filters)                                                                       \
    "[convolutional]\nfilters=" #filters "\nsize=3\nstride=8\npad=1\nactivation=linear\n"

AMP_TEST(refuses_networks_that_it_cannot_measure)
{
    check_cfg_refused(NET CONVOLUTION(8),
                      "net.cfg:6: the last layer is [convolutional]; allowed: [yolo]");
    check_cfg_refused(NET CONVOLUTION(9) "[region]\nclasses=4\nnum=1\nanchors=1,1\n",
                      "net.cfg:12: classes=4 in [region], but the data file says 3");
    check_cfg_refused("[net]\nbatch=1\nwidth=32\nheight=32\nchannels=1\n" CONVOLUTION(
                          8) "[region]\nclasses=3\nnum=1\nanchors=1,1\n",
                      "net.cfg:1: channels=1; allowed: 3");
}

AMP_TEST(refuses_cfgs_with_faults_before_darknet_reads_them)
{
    check_cfg_refused("", "net.cfg");
    check_cfg_refused(NET "amp_dtipe=fp16\n" CONVOLUTION(8) "[region]\nclasses=3\nnum=1\n",
                      "net.cfg:6: ");
    check_cfg_refused(NET CONVOLUTION(9) "[region]\nclasses=3\nnum=1\n", "net.cfg:12: ");
    check_cfg_refused(NET CONVOLUTION(8) "[region]\nclasses=3\nnum=1\ntree=no.tree\n",
                      "net.cfg:15: tree=no.tree: No such file");
}

AMP_TEST(refuses_weights_of_another_network)
{
    make_good_input();
    REQUIRE(truncate("net.weights", 20 + 4 * 8 + 4) == 0);
    check_refused(good_arguments, "net.weights: ends inside layer 0");
    leave_folder();
}

AMP_TEST(weights_that_end_between_layers_are_a_warning)
{
    make_good_input();
    REQUIRE(truncate("net.weights", 20 + 4 * (8 + 8 * 27)) == 0);
    CHECK_INT(run_map("set.data net.cfg net.weights"), 0);
    CHECK(strstr(read_file_text("err.txt"),
                 "warning: weights file net.weights ends before layer 1: "
                 "1 of 2 layers with weights are loaded"));
    leave_folder();
}

AMP_TEST(refuses_trees_and_class_maps_on_the_cpu)
{
    make_good_input();
    write_file("net.cfg", "%s",
               NET CONVOLUTION(8) "[region]\nclasses=3\nnum=1\nanchors=1,1\ntree=t.tree\n");
    write_file("t.tree", "a -1\nb -1\nc 0\n");
    check_refused(good_arguments, "net.cfg:16: [region] with tree= can only be evaluated on a GPU");
    write_file("net.cfg", "%s",
               NET CONVOLUTION(8) "[region]\nclasses=3\nnum=1\nanchors=1,1\nmap=m.map\n");
    write_file("m.map", "0\n1\n2\n");
    check_refused(good_arguments, "net.cfg:16: map=m.map: labels and detections name different");
    FILE *map = fopen("s.map", "w");
    REQUIRE(map);
    for (int i = 0; i < 200; i++)
        fprintf(map, "%d\n", i % 3);
    fclose(map);
    write_file("set.data", "classes=3\nnames=set.names\nvalid=set.list\nmap=s.map\n");
    check_refused(good_arguments, "net.cfg:12: the data file has map=, which is for [region]");
    leave_folder();
}

AMP_TEST_MAIN
