/* Hits, false alarms, curves and confusions against the slow way, straight from their definition,
 * on random detections by both rules; how AlexeyAB's counting differs from AP's; the tables. What
 * his Darknet itself printed: ../recordings. */

#include "tests/rig/harness.h"
#include "map_reference.h"

#include "plugin/app/counts.h"

enum { MOST = 200, MOST_TRUTHS = 60, CLASSES = 4 };

struct count_case {
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

static void make_case(struct count_case *c)
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

static struct amp_ap_set *new_set(const struct count_case *c)
{
    char err[300] = "";
    struct amp_ap_set *set = amp_ap_set_new(c->predictions, c->n_predictions, c->truths,
                                            c->n_truths, c->images, CLASSES, err, sizeof err);
    if (!set) TEST_FAIL("%s", err);
    REQUIRE(set);
    return set;
}

static struct amp_counts compute(const struct count_case *c, struct amp_counts_settings settings)
{
    char err[300] = "";
    struct amp_counts map;
    struct amp_ap_set *set = new_set(c);
    int failed = amp_counts_compute(set, &settings, &map, err, sizeof err);
    amp_ap_set_free(set);
    if (failed) TEST_FAIL("%s", err);
    REQUIRE(!failed);
    return map;
}

/* ---- the slow way ---- */

struct slow {
    size_t order[MOST], choice[MOST]; /* as they are looked at; the truth of each, or n_truths */
    double overlap[MOST];
};

/* Whether prediction a comes before b by falling score. */
static bool is_before(const struct count_case *c, size_t a, size_t b)
{
    double x = c->predictions[a].score, y = c->predictions[b].score;
    return x > y || (x == y && a < b);
}

/* As they are looked at: as they stand there, or by falling score. One image's never meet
 * another's. */
static struct slow look(const struct count_case *c, struct amp_counts_settings s, bool by_score)
{
    struct slow found;
    bool taken[MOST_TRUTHS] = {false};
    for (size_t i = 0; i < c->n_predictions; i++) {
        size_t rank = 0;
        for (size_t j = 0; by_score && j < c->n_predictions; j++)
            rank += is_before(c, j, i);
        found.order[by_score ? rank : i] = i;
    }
    for (size_t n = 0; n < c->n_predictions; n++) {
        size_t i = found.order[n];
        const struct amp_prediction *p = &c->predictions[i];
        size_t choice = reference_choice(*p, c->truths, c->n_truths, s.rule, s.iou, taken);
        found.choice[i] = choice;
        found.overlap[i] = 0;
        if (choice == c->n_truths) continue;
        taken[choice] = true;
        found.overlap[i] = reference_iou(p->box, c->truths[choice].box);
    }
    return found;
}

struct slow_counts {
    size_t truths, tp, fp;
    double overlaps;
};

/* Of one class; below 0: of all. */
static struct slow_counts count(const struct count_case *c, const struct slow *found, int k,
                                double thresh)
{
    struct slow_counts n = {0};
    for (size_t i = 0; i < c->n_truths; i++)
        n.truths += k < 0 || c->truths[i].class_id == k;
    for (size_t i = 0; i < c->n_predictions; i++) {
        bool hit = found->choice[i] < c->n_truths;
        if ((k >= 0 && c->predictions[i].class_id != k) || c->predictions[i].score <= thresh)
            continue;
        n.tp += hit;
        n.fp += !hit;
        n.overlaps += found->overlap[i];
    }
    return n;
}

static double slow_ap(const struct count_case *c, int k, struct amp_counts_settings s)
{
    struct amp_class_ap ap =
        reference_ap(c->predictions, c->n_predictions, c->truths, c->n_truths, k, s.rule, s.iou);
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

static void check_counted(const struct amp_counted *found, struct slow_counts n)
{
    double tp = (double)n.tp, counted = (double)(n.tp + n.fp);
    CHECK_INT(found->truths, n.truths);
    CHECK_INT(found->tp, n.tp);
    CHECK_INT(found->fp, n.fp);
    CHECK_INT(found->fn, n.truths - n.tp);
    check_ratio(found->precision, tp, counted);
    check_ratio(found->recall, tp, (double)n.truths);
    check_ratio(found->mean_iou, n.overlaps, counted);
    /* F1 = 2 TP / (2 TP + FP + FN), 0 / 0 where there is no hit. */
    check_ratio(found->f1, 2 * tp, n.tp ? counted + (double)n.truths : 0);
}

static double slow_f1(const struct count_case *c, const struct slow *found, int k, int step)
{
    struct slow_counts n = count(c, found, k, (double)((float)step / 1000));
    return n.tp ? 2. * (double)n.tp / (double)(n.tp + n.fp + n.truths) : 0;
}

/* At the threshold it is best, at none better, and at as many below as above just as good. */
static void check_f1(const struct count_case *c, const struct slow *found, int k,
                     const struct amp_counted *counted)
{
    double f1[1000], best = 0;
    int first = 0, last;
    for (int i = 0; i < 1000; i++) {
        f1[i] = slow_f1(c, found, k, i);
        if (f1[i] > best) best = f1[i], first = i;
    }
    for (last = first; last < 999 && f1[last + 1] == best;)
        last++;
    if (best > 0) {
        CHECK_NEAR(counted->best_f1, best, 1e-12);
        CHECK_NEAR(counted->best_thresh, (first + last) / 2 / 1000., 1e-12);
    } else {
        CHECK(isnan(counted->best_f1) && isnan(counted->best_thresh));
    }
    for (int i = 0; i < AMP_CURVE_POINTS; i++)
        CHECK_NEAR(counted->f1s[i], i < 100 ? f1[10 * i] : slow_f1(c, found, k, 1000), 1e-12);
}

/* The best precision of all that reach the recall. */
static void check_precisions(const struct count_case *c, const struct slow *by_score, int k,
                             const struct amp_counted *counted)
{
    double truths = (double)counted->truths;
    for (int point = 0; point < AMP_CURVE_POINTS; point++) {
        double hits = 0, seen = 0, best = 0;
        for (size_t n = 0; n < c->n_predictions; n++) {
            size_t i = by_score->order[n];
            if (c->predictions[i].class_id != k) continue;
            hits += by_score->choice[i] < c->n_truths;
            seen++;
            if (hits / truths >= point * .01 && hits / seen > best) best = hits / seen;
        }
        CHECK_NEAR(counted->precisions[point], truths > 0 ? best : 0, 1e-12);
    }
}

/* Of two pairs of a prediction and a truth with equal overlap: by class, then by score. */
static bool is_earlier(const struct count_case *c, size_t p, size_t t, size_t q, size_t u)
{
    int a = c->predictions[p].class_id, b = c->predictions[q].class_id;
    if (p != q) return a != b ? a < b : is_before(c, p, q);
    a = c->truths[t].class_id, b = c->truths[u].class_id;
    return a != b ? a < b : t < u;
}

static bool may_be_taken_for(const struct count_case *c, struct amp_counts_settings s, size_t i,
                             size_t t)
{
    const struct amp_prediction *p = &c->predictions[i];
    const struct amp_truth *truth = &c->truths[t];
    double overlap = reference_iou(p->box, truth->box);
    return p->image == truth->image && p->class_id != truth->class_id &&
           (s.rule == AMP_MATCH_FORK ? overlap > s.iou : overlap >= s.iou);
}

/* Pair by pair the best of all that are left. */
static void check_confusions(const struct count_case *c, const struct slow *found,
                             const struct amp_counts *counts)
{
    size_t expected[CLASSES][CLASSES] = {0}, sum = 0;
    bool alarm[MOST], missed[MOST_TRUTHS];
    struct amp_counts_settings s = counts->settings;
    for (size_t t = 0; t < c->n_truths; t++)
        missed[t] = true;
    for (size_t i = 0; i < c->n_predictions; i++) {
        bool counted = c->predictions[i].score > (double)s.thresh,
             hit = found->choice[i] < c->n_truths;
        alarm[i] = counted && !hit;
        if (counted && hit) missed[found->choice[i]] = false;
    }
    for (bool more = true; more;) {
        size_t p = MOST, t = MOST_TRUTHS;
        double best = 0;
        for (size_t i = 0; i < c->n_predictions; i++)
            for (size_t j = 0; alarm[i] && j < c->n_truths; j++) {
                if (!missed[j] || !may_be_taken_for(c, s, i, j)) continue;
                double overlap = reference_iou(c->predictions[i].box, c->truths[j].box);
                if (overlap < best || (overlap == best && !is_earlier(c, i, j, p, t))) continue;
                best = overlap, p = i, t = j;
            }
        more = p < MOST;
        if (more) expected[c->truths[t].class_id][c->predictions[p].class_id]++;
        if (more) alarm[p] = missed[t] = false;
    }
    for (size_t i = 0; i < counts->n_confusions; i++) {
        const struct amp_confusion *row = &counts->confusions[i];
        CHECK_INT(row->count, expected[row->truth][row->prediction]);
        sum += row->count;
    }
    for (int i = 0; i < CLASSES * CLASSES; i++)
        sum -= expected[i / CLASSES][i % CLASSES];
    CHECK_INT(sum, 0);
}

static void check_case(const struct count_case *c, struct amp_counts_settings s)
{
    struct amp_counts map = compute(c, s);
    struct slow found = look(c, s, s.rule == AMP_MATCH_VOC), by_score = look(c, s, true);
    double sum = 0, precisions = 0;
    int with_truths = 0;
    for (int k = 0; k < CLASSES; k++) {
        CHECK_NEAR(map.classes[k].ap, slow_ap(c, k, s), 1e-12);
        sum += slow_ap(c, k, s);
        with_truths += map.classes[k].truths > 0;
        precisions += map.classes[k].precisions[50];
        check_counted(&map.classes[k], count(c, &found, k, (double)s.thresh));
        check_f1(c, &found, k, &map.classes[k]);
        check_precisions(c, &by_score, k, &map.classes[k]);
    }
    check_counted(&map.all, count(c, &found, -1, (double)s.thresh));
    check_f1(c, &found, -1, &map.all);
    check_confusions(c, &found, &map);
    CHECK_INT(map.predictions, c->n_predictions);
    CHECK_NEAR(map.all.ap, sum / (s.rule == AMP_MATCH_FORK ? CLASSES : with_truths), 1e-12);
    CHECK_NEAR(map.all.precisions[50], precisions / with_truths, 1e-12);
    amp_counts_free(&map);
}

AMP_TEST(equals_the_slow_way)
{
    static const int points[] = {0, 11, 101};
    static const double ious[] = {.25, .5, .75};
    static struct count_case c;
    for (int round = 0; round < 200 && !test_failures; round++) {
        make_case(&c);
        check_case(&c, (struct amp_counts_settings){ious[pick(3)], (float)pick(33) / 32,
                                                    points[pick(3)],
                                                    pick(2) ? AMP_MATCH_FORK : AMP_MATCH_VOC});
    }
}

/* ---- single rules ---- */

static struct count_case one_truth(void)
{
    return (struct count_case){.images = 1, .n_truths = 1, .truths = {{0, 0, {0, 0, 4, 4}}}};
}

static void add(struct count_case *c, double score, struct amp_box box)
{
    c->predictions[c->n_predictions++] = (struct amp_prediction){0, 0, score, box};
}

/* AP goes by score, so the second one is its hit and nothing is lost. At a threshold the first one
 * takes the truth, though it is not counted itself. */
AMP_TEST(what_is_below_the_threshold_takes_its_truth)
{
    struct count_case c = one_truth();
    add(&c, .1, (struct amp_box){0, 0, 4, 3});
    add(&c, .9, (struct amp_box){0, 0, 4, 4});
    struct amp_counts map = compute(&c, (struct amp_counts_settings){.5, .25, 0, AMP_MATCH_FORK});
    CHECK_INT(map.all.tp, 0);
    CHECK_INT(map.all.fp, 1);
    CHECK_INT(map.all.fn, 1);
    CHECK_NEAR(map.classes[0].ap, 1, 1e-12);
    amp_counts_free(&map);
    map = compute(&c, (struct amp_counts_settings){.5, .05, 0, AMP_MATCH_FORK});
    CHECK_INT(map.all.tp, 1);
    CHECK_INT(map.all.fp, 1);
    CHECK_NEAR(map.all.mean_iou, .75 / 2, 1e-12);
    amp_counts_free(&map);
}

AMP_TEST(equal_is_not_above)
{
    struct count_case c = one_truth();
    add(&c, .5, (struct amp_box){0, 0, 4, 2});
    struct amp_counts map = compute(&c, (struct amp_counts_settings){.5, .25, 0, AMP_MATCH_FORK});
    CHECK_INT(map.all.fp, 1);
    CHECK_NEAR(map.all.ap, 0, 0);
    amp_counts_free(&map);
    map = compute(&c, (struct amp_counts_settings){.49, .5, 0, AMP_MATCH_FORK});
    CHECK_INT(map.all.tp + map.all.fp, 0);
    CHECK_NEAR(map.all.ap, 1. / CLASSES, 1e-12);
    CHECK(isnan(map.all.precision) && isnan(map.all.mean_iou));
    amp_counts_free(&map);
}

AMP_TEST(refused_by_name)
{
    struct count_case c = one_truth();
    struct amp_ap_set *set = new_set(&c);
    struct amp_counts map;
    char err[300] = "";
    struct amp_counts_settings points = {.5, .25, 12, AMP_MATCH_FORK},
                               iou = {0, .25, 0, AMP_MATCH_FORK};
    CHECK_INT(amp_counts_compute(set, &points, &map, err, sizeof err), -1);
    CHECK_SAYS(err, "points 12: must be 0 (area under the curve), 11 or 101");
    CHECK(!map.classes);
    CHECK_INT(amp_counts_compute(set, &iou, &map, err, sizeof err), -1);
    CHECK_SAYS(err, "IoU threshold 0");
    CHECK(!map.classes);
    amp_ap_set_free(set);
}

/* ---- the table ---- */

/* What scripts of users look for. */
AMP_TEST(words_of_the_table)
{
    struct count_case c = one_truth();
    char *names[CLASSES] = {"RBC", "WBC", "two words", "none"}, *text = NULL;
    size_t length;
    struct amp_eval_set set = {.names = {.line = names, .count = CLASSES}};
    add(&c, .9, (struct amp_box){0, 0, 4, 4});
    add(&c, .8, (struct amp_box){9, 9, 4, 4});
    struct amp_counts map = compute(&c, (struct amp_counts_settings){.75, .25, 11, AMP_MATCH_FORK});
    FILE *out = open_memstream(&text, &length);
    REQUIRE(out);
    amp_counts_print_fork(out, &map, &set);
    fclose(out);
    CHECK_SAYS(text, "detections_count = 2, unique_truth_count = 1\n");
    CHECK_SAYS(text, "class_id = 0, name = RBC, ap = 100.00%   \t (TP = 1, FP = 1)\n");
    CHECK_SAYS(text, "class_id = 2, name = two words, ap = 0.00%   \t (TP = 0, FP = 0)\n");
    CHECK_SAYS(text, "for conf_thresh = 0.25, precision = 0.50, recall = 1.00, F1-score = 0.67\n");
    CHECK_SAYS(text, "for conf_thresh = 0.25, TP = 1, FP = 1, FN = 0, average IoU = 50.00 %\n");
    CHECK_SAYS(text, "IoU threshold = 75 %, used 11 Recall-points\n");
    CHECK_SAYS(text, "mean average precision (mAP@0.75) = 0.250000, or 25.00 %\n");
    CHECK_SAYS(text, "3 of 4 classes without truth boxes count 0 in the mean\n");
    amp_counts_free(&map);
    free(text);
}

/* By stock rules the better of two overlaps takes the truth by its score, whatever came first. */
AMP_TEST(every_number_in_its_place)
{
    struct count_case c = one_truth();
    char *names[CLASSES] = {"RBC", "WBC", "two words", "none"}, *text = NULL;
    size_t length;
    struct amp_eval_set set = {.names = {.line = names, .count = CLASSES}};
    c.truths[c.n_truths++] = (struct amp_truth){0, 1, {20, 20, 4, 4}};
    add(&c, .3, (struct amp_box){0, 0, 4, 4});
    add(&c, .9, (struct amp_box){0, 0, 4, 3});
    add(&c, .7, (struct amp_box){20, 20, 4, 4});
    struct amp_counts map = compute(&c, (struct amp_counts_settings){.5, .25, 0, AMP_MATCH_VOC});
    FILE *out = open_memstream(&text, &length);
    REQUIRE(out);
    amp_counts_print(out, &map, &set);
    fclose(out);
    CHECK_SAYS(text,
               "\nAt scores above 0.25, IoU 0.5; the best F1 and the --thresh that gives it:\n");
    CHECK_SAYS(text,
               "class                         TP      FP      FN precision  recall      F1 "
               "mean IoU  best F1 at --thresh\n"
               "RBC                            1       2       0     0.333   1.000   0.500    "
               "0.250    1.000       0.800\n"
               "WBC                            0       0       1         -   0.000       -     "
               "   -        -           -\n");
    CHECK_SAYS(text,
               "all                            1       2       1     0.333   0.500   0.400    "
               "0.250    0.667       0.800\n");
    CHECK_INT(map.n_confusions, 1);
    CHECK(map.confusions[0].truth == 1 && map.confusions[0].prediction == 0);
    amp_counts_free(&map);
    free(text);
}

AMP_TEST_MAIN
