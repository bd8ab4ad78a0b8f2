/* Reads detections and truths from standard input and prints the table of AlexeyAB's Darknet, for
 * recorded_map.py:
 *
 *   IMAGES CLASSES IOU THRESH POINTS, then the names of the classes
 *   truth IMAGE CLASS LEFT TOP WIDTH HEIGHT
 *   prediction IMAGE CLASS SCORE LEFT TOP WIDTH HEIGHT */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/app/average_precision.h"
#include "plugin/app/counts.h"

enum { MOST_CLASSES = 100, MOST_ROWS = 1000000 };

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static double next_number(void)
{
    double value;
    if (scanf("%lf", &value) != 1) fail("a number is missing");
    return value;
}

static int next_int(void)
{
    return (int)next_number();
}

static struct amp_box next_box(void)
{
    struct amp_box b;
    b.left = next_number();
    b.top = next_number();
    b.width = next_number();
    b.height = next_number();
    return b;
}

struct input {
    struct amp_prediction *predictions;
    struct amp_truth *truths;
    size_t n_predictions, n_truths;
};

static void read_rows(struct input *in)
{
    char word[32];
    while (scanf("%31s", word) == 1) {
        if (in->n_predictions == MOST_ROWS || in->n_truths == MOST_ROWS) fail("too many rows");
        int image = next_int(), class_id = next_int();
        if (!strcmp(word, "truth")) {
            in->truths[in->n_truths++] = (struct amp_truth){image, class_id, next_box()};
        } else {
            double score = next_number();
            in->predictions[in->n_predictions++] =
                (struct amp_prediction){image, class_id, score, next_box()};
        }
    }
}

int main(void)
{
    char names[MOST_CLASSES][64], *lines[MOST_CLASSES], err[300];
    int images = next_int(), classes = next_int();
    struct amp_counts_settings settings = {.iou = next_number(), .rule = AMP_MATCH_FORK};
    settings.thresh = (float)next_number();
    settings.points = next_int();
    if (classes > MOST_CLASSES) fail("too many classes");
    for (int k = 0; k < classes; k++) {
        lines[k] = names[k];
        if (scanf("%63s", names[k]) != 1) fail("a name is missing");
    }
    struct amp_eval_set eval = {.names = {.line = lines, .count = classes}};
    struct input in = {malloc(MOST_ROWS * sizeof *in.predictions),
                       malloc(MOST_ROWS * sizeof *in.truths), 0, 0};
    struct amp_counts map;
    if (!in.predictions || !in.truths) fail("no memory");
    read_rows(&in);
    struct amp_ap_set *set = amp_ap_set_new(in.predictions, in.n_predictions, in.truths,
                                            in.n_truths, images, classes, err, sizeof err);
    if (!set || amp_counts_compute(set, &settings, &map, err, sizeof err)) fail(err);
    amp_counts_print_fork(stdout, &map, &eval);
    amp_counts_free(&map);
    amp_ap_set_free(set);
    free(in.predictions);
    free(in.truths);
    return 0;
}
