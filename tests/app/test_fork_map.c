/* The numbers of AlexeyAB's `detector map` against the slow way, straight from their definition, on
 * random detections; how its counting differs from AP's; its table. What the fork itself printed:
 * ../recordings. */

#include "tests/rig/harness.h"
#include "map_reference.h"

#include "plugin/app/fork_map.h"

enum { MOST = 200, MOST_TRUTHS = 60, CLASSES = 4 };

struct fork_case {
    int images;
    size_t n_predictions, n_truths;
    struct amp_prediction predictions[MOST];
    struct amp_truth truths[MOST_TRUTHS];
};

static int pick(int n)
{
    return (int)(test_random() % (uint64_t)n);
}

/* On a coarse grid: overlaps at the threshold and equal ones occur. Class 3 has no truths. */
static struct amp_box random_box(void)
{
    return (struct amp_box){pick(12), pick(12), 1 + pick(6), 1 + pick(6)};
}

static void make_case(struct fork_case *c)
{
    c->images = 1 + pick(4);
    c->n_truths = 1 + (size_t)pick(MOST_TRUTHS);
    c->n_predictions = (size_t)pick(MOST + 1);
    for (size_t i = 0; i < c->n_truths; i++)
        c->truths[i] = (struct amp_truth){pick(c->images), pick(CLASSES - 1), random_box()};
    for (size_t i = 0; i < c->n_predictions; i++) {
        struct amp_truth near = c->truths[pick((int)c->n_truths)];
        struct amp_prediction *p = &c->predictions[i];
        *p = (struct amp_prediction){pick(c->images), pick(CLASSES), (1 + pick(32)) / 32.,
                                     random_box()};
        if (pick(3) == 0) continue;
        p->image = near.image;
        p->class_id = near.class_id;
        p->box = near.box;
        p->box.left += pick(3) - 1;
    }
}

static struct amp_ap_set *new_set(const struct fork_case *c)
{
    char err[300] = "";
    struct amp_ap_set *set = amp_ap_set_new(c->predictions, c->n_predictions, c->truths,
                                            c->n_truths, c->images, CLASSES, err, sizeof err);
    if (!set) TEST_FAIL("%s", err);
    REQUIRE(set);
    return set;
}

static struct amp_fork_map compute(const struct fork_case *c, struct amp_fork_settings settings)
{
    char err[300] = "";
    struct amp_fork_map map;
    struct amp_ap_set *set = new_set(c);
    int failed = amp_fork_map_compute(set, &settings, &map, err, sizeof err);
    amp_ap_set_free(set);
    if (failed) TEST_FAIL("%s", err);
    REQUIRE(!failed);
    return map;
}

/* ---- the slow way ---- */

struct counts {
    size_t tp[CLASSES], fp[CLASSES];
    double overlaps;
};

/* As the predictions stand there, image by image or not: one image's never meet another's. */
static struct counts slow_counts(const struct fork_case *c, struct amp_fork_settings s)
{
    struct counts n = {0};
    bool taken[MOST_TRUTHS] = {false};
    for (size_t i = 0; i < c->n_predictions; i++) {
        const struct amp_prediction *p = &c->predictions[i];
        size_t choice = reference_choice(*p, c->truths, c->n_truths, AMP_MATCH_FORK, s.iou, taken);
        bool hit = choice<c->n_truths, counted = p->score> s.thresh;
        if (hit) taken[choice] = true;
        n.tp[p->class_id] += counted && hit;
        n.fp[p->class_id] += counted && !hit;
        if (counted && hit) n.overlaps += reference_iou(p->box, c->truths[choice].box);
    }
    return n;
}

static double slow_ap(const struct fork_case *c, int k, struct amp_fork_settings s)
{
    struct amp_class_ap ap = reference_ap(c->predictions, c->n_predictions, c->truths, c->n_truths,
                                          k, AMP_MATCH_FORK, s.iou);
    double value = s.points == 0 ? ap.area : s.points == 11 ? ap.eleven_point : ap.coco;
    return isnan(value) ? 0 : value;
}

/* Equal, or both 0 / 0. */
static void check_ratio(double found, double part, double whole)
{
    if (whole == 0)
        CHECK(isnan(found));
    else
        CHECK_NEAR(found, part / whole, 1e-12);
}

static void check_case(const struct fork_case *c, struct amp_fork_settings s)
{
    struct amp_fork_map map = compute(c, s);
    struct counts n = slow_counts(c, s);
    size_t tp = 0, fp = 0;
    double sum = 0;
    for (int k = 0; k < CLASSES; k++) {
        CHECK_INT(map.classes[k].tp, n.tp[k]);
        CHECK_INT(map.classes[k].fp, n.fp[k]);
        CHECK_NEAR(map.classes[k].ap, slow_ap(c, k, s), 1e-12);
        tp += n.tp[k];
        fp += n.fp[k];
        sum += slow_ap(c, k, s);
    }
    CHECK_INT(map.tp, tp);
    CHECK_INT(map.fp, fp);
    CHECK_INT(map.fn, c->n_truths - tp);
    CHECK_INT(map.truths, c->n_truths);
    CHECK_INT(map.predictions, c->n_predictions);
    CHECK_NEAR(map.map, sum / CLASSES, 1e-12);
    check_ratio(map.precision, (double)tp, (double)(tp + fp));
    check_ratio(map.recall, (double)tp, (double)c->n_truths);
    check_ratio(map.mean_iou, n.overlaps, (double)(tp + fp));
    /* F1 = 2 TP / (2 TP + FP + FN), 0 / 0 where there is no hit. */
    if (tp)
        check_ratio(map.f1, 2 * (double)tp, (double)(2 * tp + fp + map.fn));
    else
        CHECK(isnan(map.f1));
    amp_fork_map_free(&map);
}

AMP_TEST(equals_the_slow_way)
{
    static const int points[] = {0, 11, 101};
    static const double ious[] = {.25, .5, .75};
    static struct fork_case c;
    for (int round = 0; round < 300 && !test_failures; round++) {
        make_case(&c);
        check_case(&c, (struct amp_fork_settings){ious[pick(3)], pick(33) / 32., points[pick(3)]});
    }
}

/* ---- single rules ---- */

static struct fork_case one_truth(void)
{
    return (struct fork_case){.images = 1, .n_truths = 1, .truths = {{0, 0, {0, 0, 4, 4}}}};
}

static void add(struct fork_case *c, double score, struct amp_box box)
{
    c->predictions[c->n_predictions++] = (struct amp_prediction){0, 0, score, box};
}

/* AP goes by score, so the second one is its hit and nothing is lost. At a threshold the first one
 * takes the truth, though it is not counted itself. */
AMP_TEST(what_is_below_the_threshold_takes_its_truth)
{
    struct fork_case c = one_truth();
    add(&c, .1, (struct amp_box){0, 0, 4, 3});
    add(&c, .9, (struct amp_box){0, 0, 4, 4});
    struct amp_fork_map map = compute(&c, (struct amp_fork_settings){.5, .25, 0});
    CHECK_INT(map.tp, 0);
    CHECK_INT(map.fp, 1);
    CHECK_INT(map.fn, 1);
    CHECK_NEAR(map.classes[0].ap, 1, 1e-12);
    amp_fork_map_free(&map);
    map = compute(&c, (struct amp_fork_settings){.5, .05, 0});
    CHECK_INT(map.tp, 1);
    CHECK_INT(map.fp, 1);
    CHECK_NEAR(map.mean_iou, .75 / 2, 1e-12);
    amp_fork_map_free(&map);
}

AMP_TEST(equal_is_not_above)
{
    struct fork_case c = one_truth();
    add(&c, .5, (struct amp_box){0, 0, 4, 2});
    struct amp_fork_map map = compute(&c, (struct amp_fork_settings){.5, .25, 0});
    CHECK_INT(map.fp, 1);
    CHECK_NEAR(map.map, 0, 0);
    amp_fork_map_free(&map);
    map = compute(&c, (struct amp_fork_settings){.49, .5, 0});
    CHECK_INT(map.tp + map.fp, 0);
    CHECK_NEAR(map.map, 1. / CLASSES, 1e-12);
    CHECK(isnan(map.precision) && isnan(map.mean_iou));
    amp_fork_map_free(&map);
}

AMP_TEST(refused_by_name)
{
    struct fork_case c = one_truth();
    struct amp_ap_set *set = new_set(&c);
    struct amp_fork_map map;
    char err[300] = "";
    struct amp_fork_settings points = {.5, .25, 12}, iou = {0, .25, 0};
    CHECK_INT(amp_fork_map_compute(set, &points, &map, err, sizeof err), -1);
    CHECK_SAYS(err, "points 12: must be 0 (area under the curve), 11 or 101");
    CHECK(!map.classes);
    CHECK_INT(amp_fork_map_compute(set, &iou, &map, err, sizeof err), -1);
    CHECK_SAYS(err, "IoU threshold 0");
    CHECK(!map.classes);
    amp_ap_set_free(set);
}

/* ---- the table ---- */

/* What scripts of users look for. */
AMP_TEST(words_of_the_table)
{
    struct fork_case c = one_truth();
    char *names[CLASSES] = {"RBC", "WBC", "two words", "none"}, *text = NULL;
    size_t length;
    struct amp_eval_set set = {.names = {.line = names, .count = CLASSES}};
    add(&c, .9, (struct amp_box){0, 0, 4, 4});
    add(&c, .8, (struct amp_box){9, 9, 4, 4});
    struct amp_fork_map map = compute(&c, (struct amp_fork_settings){.75, .25, 11});
    FILE *out = open_memstream(&text, &length);
    REQUIRE(out);
    amp_fork_map_print(out, &map, &set);
    fclose(out);
    CHECK_SAYS(text, "detections_count = 2, unique_truth_count = 1\n");
    CHECK_SAYS(text, "class_id = 0, name = RBC, ap = 100.00%   \t (TP = 1, FP = 1)\n");
    CHECK_SAYS(text, "class_id = 2, name = two words, ap = 0.00%   \t (TP = 0, FP = 0)\n");
    CHECK_SAYS(text, "for conf_thresh = 0.25, precision = 0.50, recall = 1.00, F1-score = 0.67\n");
    CHECK_SAYS(text, "for conf_thresh = 0.25, TP = 1, FP = 1, FN = 0, average IoU = 50.00 %\n");
    CHECK_SAYS(text, "IoU threshold = 75 %, used 11 Recall-points\n");
    CHECK_SAYS(text, "mean average precision (mAP@0.75) = 0.250000, or 25.00 %\n");
    CHECK_SAYS(text, "3 of 4 classes without truth boxes count 0 in the mean\n");
    amp_fork_map_free(&map);
    free(text);
}

AMP_TEST_MAIN
