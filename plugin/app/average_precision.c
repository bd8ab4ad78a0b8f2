/* Decides which detection counts as a hit, and what average precision follows. The definitions are
 * in average_precision.h. It must not know Darknet, files or how boxes were made: its numbers must
 * equal those of the devkits on any input.
 *
 * Everything is sorted once. A measurement is then one walk over each class, and the bootstrap
 * repeats only the sums, never the matching. */

#include "average_precision.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ranked_prediction {
    struct amp_prediction p;
    size_t input; /* position in the caller's array: breaks ties */
};

struct placed_truth {
    struct amp_truth t;
    size_t input;
};

struct amp_ap_set {
    int n_images, n_classes;
    struct ranked_prediction *predictions;  /* by class, falling score, input order */
    struct placed_truth *truths;            /* by class, image, input order */
    size_t *first_prediction, *first_truth; /* [n_classes + 1], into the arrays above */
};

/* The outcome of a prediction that takes part. */
struct outcome {
    int image;
    bool hit;
};

/* Memory that one measurement needs, for the largest class. */
struct scratch {
    struct outcome *outcomes; /* per prediction of the class */
    unsigned char *taken;     /* per truth of the class */
    int *seen;                /* per image: predictions of the class met so far */
};

/* ---- sorting ---- */

/* The input's position makes every comparison decide: qsort keeps no order of equals, and results
 * must not depend on libc. */
static int compare_sizes(size_t a, size_t b)
{
    return (a > b) - (a < b);
}

static int compare_predictions(const void *pa, const void *pb)
{
    const struct ranked_prediction *a = pa, *b = pb;
    if (a->p.class_id != b->p.class_id) return a->p.class_id < b->p.class_id ? -1 : 1;
    if (a->p.score != b->p.score) return a->p.score > b->p.score ? -1 : 1;
    return compare_sizes(a->input, b->input);
}

static int compare_truths(const void *pa, const void *pb)
{
    const struct placed_truth *a = pa, *b = pb;
    if (a->t.class_id != b->t.class_id) return a->t.class_id < b->t.class_id ? -1 : 1;
    if (a->t.image != b->t.image) return a->t.image < b->t.image ? -1 : 1;
    return compare_sizes(a->input, b->input);
}

/* first_* are counted one place up, so that the running sum over classes makes them starts. */
static void sort_set(struct amp_ap_set *set, size_t n_predictions, size_t n_truths)
{
    qsort(set->predictions, n_predictions, sizeof *set->predictions, compare_predictions);
    qsort(set->truths, n_truths, sizeof *set->truths, compare_truths);
    for (size_t i = 0; i < n_predictions; i++)
        ++set->first_prediction[set->predictions[i].p.class_id + 1];
    for (size_t i = 0; i < n_truths; i++)
        ++set->first_truth[set->truths[i].t.class_id + 1];
    for (int k = 0; k < set->n_classes; k++) {
        set->first_prediction[k + 1] += set->first_prediction[k];
        set->first_truth[k + 1] += set->first_truth[k];
    }
}

/* ---- checking and copying the input ---- */

/* Says what is wrong with a box of this image and class; NULL: nothing. */
static const char *find_fault(const struct amp_ap_set *set, int image, int class_id,
                              struct amp_box box)
{
    if (image < 0 || image >= set->n_images) return "image index out of range";
    if (class_id < 0 || class_id >= set->n_classes) return "class out of range";
    if (!isfinite(box.left) || !isfinite(box.top) || !isfinite(box.width) || !isfinite(box.height))
        return "box is not finite";
    if (box.width < 0 || box.height < 0) return "box has a negative size";
    return NULL;
}

/* A NaN would make the sort's order undefined, so all is checked before sorting. */
static int copy_predictions(struct amp_ap_set *set, const struct amp_prediction *predictions,
                            size_t n, char *err, size_t err_size)
{
    for (size_t i = 0; i < n; i++) {
        const struct amp_prediction *p = &predictions[i];
        const char *fault = find_fault(set, p->image, p->class_id, p->box);
        if (!fault && !isfinite(p->score)) fault = "score is not finite";
        if (fault) {
            snprintf(err, err_size,
                     "prediction %zu: %s (image %d of %d, class %d of %d, score %g, box %g %g %g "
                     "%g)",
                     i, fault, p->image, set->n_images, p->class_id, set->n_classes, p->score,
                     p->box.left, p->box.top, p->box.width, p->box.height);
            return -1;
        }
        set->predictions[i] = (struct ranked_prediction){*p, i};
    }
    return 0;
}

static int copy_truths(struct amp_ap_set *set, const struct amp_truth *truths, size_t n, char *err,
                       size_t err_size)
{
    for (size_t i = 0; i < n; i++) {
        const struct amp_truth *t = &truths[i];
        const char *fault = find_fault(set, t->image, t->class_id, t->box);
        if (fault) {
            snprintf(err, err_size,
                     "truth %zu: %s (image %d of %d, class %d of %d, box %g %g %g %g)", i, fault,
                     t->image, set->n_images, t->class_id, set->n_classes, t->box.left, t->box.top,
                     t->box.width, t->box.height);
            return -1;
        }
        set->truths[i] = (struct placed_truth){*t, i};
    }
    return 0;
}

struct amp_ap_set *amp_ap_set_new(const struct amp_prediction *predictions, size_t n_predictions,
                                  const struct amp_truth *truths, size_t n_truths, int n_images,
                                  int n_classes, char *err, size_t err_size)
{
    if (n_images < 0 || n_classes < 0) {
        snprintf(err, err_size, "%d images and %d classes: neither may be negative", n_images,
                 n_classes);
        return NULL;
    }
    struct amp_ap_set *set = calloc(1, sizeof *set);
    if (set) {
        set->n_images = n_images;
        set->n_classes = n_classes;
        set->predictions = calloc(n_predictions + 1, sizeof *set->predictions);
        set->truths = calloc(n_truths + 1, sizeof *set->truths);
        set->first_prediction = calloc((size_t)n_classes + 1, sizeof *set->first_prediction);
        set->first_truth = calloc((size_t)n_classes + 1, sizeof *set->first_truth);
    }
    if (!set || !set->predictions || !set->truths || !set->first_prediction || !set->first_truth) {
        snprintf(err, err_size, "no memory for %zu predictions and %zu truths", n_predictions,
                 n_truths);
    } else if (copy_predictions(set, predictions, n_predictions, err, err_size) == 0 &&
               copy_truths(set, truths, n_truths, err, err_size) == 0) {
        sort_set(set, n_predictions, n_truths);
        return set;
    }
    amp_ap_set_free(set);
    return NULL;
}

void amp_ap_set_free(struct amp_ap_set *set)
{
    if (!set) return;
    free(set->predictions);
    free(set->truths);
    free(set->first_prediction);
    free(set->first_truth);
    free(set);
}

/* ---- matching ---- */

/* IoU of two boxes, 0 if they do not overlap. Same operations in the same order as pycocotools'
 * bbIou, so that both round alike. */
static double box_iou(struct amp_box a, struct amp_box b)
{
    double width = fmin(a.width + a.left, b.width + b.left) - fmax(a.left, b.left);
    if (width <= 0) return 0;
    double height = fmin(a.height + a.top, b.height + b.top) - fmax(a.top, b.top);
    if (height <= 0) return 0;
    double both = width * height;
    return both / (a.width * a.height + b.width * b.height - both);
}

/* First of the class's n truths, which are sorted by image, that belongs to this image or a later
 * one. */
static size_t find_image(const struct placed_truth *truths, size_t n, int image)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (truths[middle].t.image < image)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Gives p the truth that the rule says, marking it taken; false for a false alarm. */
static bool match(const struct amp_prediction *p, const struct placed_truth *truths, size_t n,
                  enum amp_match_rule rule, double iou, unsigned char *taken)
{
    bool coco = rule == AMP_MATCH_COCO;
    /* COCO starts at the threshold (min with 1 - 1e-10, as evaluateImg does), VOC at no overlap. >=
     * takes the last of equals, > the first: each as its source does. */
    double best = coco ? fmin(iou, 1 - 1e-10) : 0;
    size_t best_at = n;
    for (size_t i = find_image(truths, n, p->image); i < n && truths[i].t.image == p->image; i++) {
        if (coco && taken[i]) continue;
        double overlap = box_iou(p->box, truths[i].t.box);
        if (coco ? overlap >= best : overlap > best) {
            best = overlap;
            best_at = i;
        }
    }
    if (best_at == n || taken[best_at] || (!coco && best < iou)) return false;
    taken[best_at] = 1;
    return true;
}

/* Walks one class by falling score and writes the outcome of each prediction that takes part;
 * returns how many do. */
static size_t match_class(const struct amp_ap_set *set, int class_id, enum amp_match_rule rule,
                          double iou, struct scratch *scratch, struct outcome *outcomes)
{
    const struct ranked_prediction *predictions =
        set->predictions + set->first_prediction[class_id];
    size_t n = set->first_prediction[class_id + 1] - set->first_prediction[class_id];
    const struct placed_truth *truths = set->truths + set->first_truth[class_id];
    size_t n_truths = set->first_truth[class_id + 1] - set->first_truth[class_id];
    size_t counted = 0;
    /* seen is cleared only for images that this class has: sets with many images and classes stay
     * fast. */
    memset(scratch->taken, 0, n_truths);
    for (size_t i = 0; i < n; i++)
        scratch->seen[predictions[i].p.image] = 0;
    for (size_t i = 0; i < n; i++) {
        const struct amp_prediction *p = &predictions[i].p;
        if (rule == AMP_MATCH_COCO && ++scratch->seen[p->image] > AMP_COCO_MAX_DETECTIONS) continue;
        bool hit = match(p, truths, n_truths, rule, iou, scratch->taken);
        outcomes[counted++] = (struct outcome){p->image, hit};
    }
    return counted;
}

/* ---- areas ---- */

/* True if so many hits reach recall point/10. Exact, in whole numbers. */
static bool reaches_tenth(size_t hits, size_t truths, int point)
{
    return 10 * hits >= (size_t)point * truths;
}

/* True if so many hits reach recall point/100, with the rounding of COCOeval. */
static bool reaches_hundredth(size_t hits, size_t truths, int point)
{
    return (double)hits / (double)truths >= point * 0.01;
}

/* Number of times an image counts: as often as it was drawn; without draws, once. */
static size_t count_image(const int *draws, int image)
{
    return draws ? (size_t)draws[image] : 1;
}

/* The three areas from the outcomes of n predictions by falling score, each as often as its image
 * was drawn. Walks from the right, so that the best precision so far IS the monotone curve; a
 * recall point lies on the first prediction that reaches it. Copies of a prediction stand side by
 * side: precision is highest after the last copy of a hit. */
static struct amp_class_ap integrate(const struct outcome *outcomes, size_t n, const int *draws,
                                     size_t truths)
{
    const double coco_epsilon = 0x1p-52; /* COCOeval adds it to the denominator */
    double best = 0, best_coco = 0;
    struct amp_class_ap sum = {0, 0, 0};
    size_t hits = 0, seen = 0; /* among the predictions up to i */
    int tenth = 10, hundredth = 100;
    for (size_t i = 0; i < n; i++) {
        size_t copies = count_image(draws, outcomes[i].image);
        seen += copies;
        hits += outcomes[i].hit ? copies : 0;
    }
    /* Points above the recall that was reached at all contribute 0. */
    while (!reaches_tenth(hits, truths, tenth))
        tenth--;
    while (!reaches_hundredth(hits, truths, hundredth))
        hundredth--;
    for (size_t i = n; i-- > 0;) {
        size_t copies = count_image(draws, outcomes[i].image);
        if (copies == 0) continue;
        best = fmax(best, (double)hits / (double)seen);
        best_coco = fmax(best_coco, (double)hits / ((double)seen + coco_epsilon));
        seen -= copies; /* from here on: before i */
        if (outcomes[i].hit) {
            sum.area += (double)copies * best;
            hits -= copies;
        }
        for (; tenth >= 0 && (seen == 0 || !reaches_tenth(hits, truths, tenth)); tenth--)
            sum.eleven_point += best;
        for (; hundredth >= 0 && (seen == 0 || !reaches_hundredth(hits, truths, hundredth));
             --hundredth)
            sum.coco += best_coco;
    }
    return (struct amp_class_ap){sum.area / (double)truths, sum.eleven_point / 11, sum.coco / 101};
}

static void free_scratch(struct scratch *scratch)
{
    free(scratch->outcomes);
    free(scratch->taken);
    free(scratch->seen);
}

static int make_scratch(const struct amp_ap_set *set, struct scratch *scratch, char *err,
                        size_t err_size)
{
    size_t n_predictions = set->first_prediction[set->n_classes] + 1;
    scratch->outcomes = malloc(n_predictions * sizeof *scratch->outcomes);
    scratch->taken = malloc(set->first_truth[set->n_classes] + 1);
    scratch->seen = malloc(((size_t)set->n_images + 1) * sizeof *scratch->seen);
    if (scratch->outcomes && scratch->taken && scratch->seen) return 0;
    snprintf(err, err_size, "no memory to measure average precision");
    free_scratch(scratch);
    return -1;
}

int amp_ap_set_measure(const struct amp_ap_set *set, enum amp_match_rule rule, double iou,
                       struct amp_class_ap *per_class, char *err, size_t err_size)
{
    if (!(iou > 0 && iou <= 1)) {
        snprintf(err, err_size, "IoU threshold %g: must be above 0 and at most 1", iou);
        return -1;
    }
    struct scratch scratch;
    if (make_scratch(set, &scratch, err, err_size)) return -1;
    for (int k = 0; k < set->n_classes; k++) {
        size_t truths = set->first_truth[k + 1] - set->first_truth[k];
        if (truths == 0) {
            per_class[k] = (struct amp_class_ap){NAN, NAN, NAN};
            continue;
        }
        size_t n = match_class(set, k, rule, iou, &scratch, scratch.outcomes);
        per_class[k] = integrate(scratch.outcomes, n, NULL, truths);
    }
    free_scratch(&scratch);
    return 0;
}

/* ---- the usual numbers ---- */

/* numpy.linspace(0.5, 0.95, 10) */
double amp_coco_iou(int index)
{
    return index == AMP_COCO_IOUS - 1 ? 0.95 : index * ((0.95 - 0.5) / (AMP_COCO_IOUS - 1)) + 0.5;
}

/* Averages column by column over the classes that have truths. A row holds doubles and nothing
 * else, so it can be walked as an array. */
static void average_rows(struct amp_map_result *result)
{
    enum { COLUMNS = sizeof(struct amp_map_row) / sizeof(double) };
    double sum[COLUMNS] = {0}, column[COLUMNS];
    size_t with_truths = 0;
    for (int k = 0; k < result->n_classes; k++) {
        if (result->classes[k].truths == 0) continue;
        memcpy(column, &result->classes[k].row, sizeof column);
        for (int i = 0; i < COLUMNS; i++)
            sum[i] += column[i];
        with_truths++;
    }
    for (int i = 0; i < COLUMNS; i++)
        column[i] = with_truths ? sum[i] / (double)with_truths : NAN;
    memcpy(&result->mean, column, sizeof column);
}

/* The same three IoUs may be measured twice (iou = 0.5): it is cheap, and no case is special. */
static int fill_rows(const struct amp_ap_set *set, double iou, struct amp_map_result *result,
                     struct amp_class_ap *ap, char *err, size_t err_size)
{
    int n = set->n_classes;
    struct amp_class_result *classes = result->classes;
    for (int k = 0; k < n; k++) {
        classes[k].truths = set->first_truth[k + 1] - set->first_truth[k];
        classes[k].predictions = set->first_prediction[k + 1] - set->first_prediction[k];
    }
    if (amp_ap_set_measure(set, AMP_MATCH_VOC, 0.5, ap, err, err_size)) return -1;
    for (int k = 0; k < n; k++) {
        classes[k].row.ap50 = ap[k].area;
        classes[k].row.ap50_11pt = ap[k].eleven_point;
    }
    if (amp_ap_set_measure(set, AMP_MATCH_VOC, 0.75, ap, err, err_size)) return -1;
    for (int k = 0; k < n; k++)
        classes[k].row.ap75 = ap[k].area;
    if (amp_ap_set_measure(set, AMP_MATCH_VOC, iou, ap, err, err_size)) return -1;
    for (int k = 0; k < n; k++) {
        classes[k].row.ap_iou = ap[k].area;
        classes[k].row.ap_iou_11pt = ap[k].eleven_point;
    }
    for (int t = 0; t < AMP_COCO_IOUS; t++) {
        if (amp_ap_set_measure(set, AMP_MATCH_COCO, amp_coco_iou(t), ap, err, err_size)) return -1;
        for (int k = 0; k < n; k++) {
            classes[k].row.coco[t] = ap[k].coco;
            classes[k].row.ap += ap[k].coco / AMP_COCO_IOUS;
        }
    }
    average_rows(result);
    return 0;
}

int amp_map_compute(const struct amp_ap_set *set, double iou, struct amp_map_result *result,
                    char *err, size_t err_size)
{
    int failed = -1;
    size_t n = (size_t)set->n_classes + 1;
    struct amp_class_ap *ap = malloc(n * sizeof *ap);
    *result = (struct amp_map_result){.n_classes = set->n_classes,
                                      .classes = calloc(n, sizeof *result->classes)};
    if (ap && result->classes)
        failed = fill_rows(set, iou, result, ap, err, err_size);
    else
        snprintf(err, err_size, "no memory for the results of %d classes", set->n_classes);
    free(ap);
    if (failed) amp_map_result_free(result);
    return failed;
}

void amp_map_result_free(struct amp_map_result *result)
{
    free(result->classes);
    *result = (struct amp_map_result){0};
}

/* ---- the means of drawn images ---- */

enum { MEANS_IOUS = 2 + AMP_COCO_IOUS }; /* VOC 0.5, VOC 0.75, COCO 0..9 */

/* Matching within one image does not depend on the others, so all outcomes are found once. A
 * drawing only changes how often each one counts. */
struct amp_ap_outcomes {
    const struct amp_ap_set *set;
    struct outcome *outcomes[MEANS_IOUS]; /* a class's begin at first_prediction[class] */
    size_t *counted[MEANS_IOUS];          /* [n_classes] how many took part */
    size_t *truths;                       /* [n_classes] of the drawn images */
};

void amp_ap_outcomes_free(struct amp_ap_outcomes *o)
{
    if (!o) return;
    for (int t = 0; t < MEANS_IOUS; t++) {
        free(o->outcomes[t]);
        free(o->counted[t]);
    }
    free(o->truths);
    free(o);
}

static bool allocate_outcomes(struct amp_ap_outcomes *o)
{
    size_t n_classes = (size_t)o->set->n_classes + 1;
    size_t n_predictions = o->set->first_prediction[o->set->n_classes] + 1;
    bool complete = (o->truths = malloc(n_classes * sizeof *o->truths));
    for (int t = 0; t < MEANS_IOUS; t++) {
        o->outcomes[t] = malloc(n_predictions * sizeof *o->outcomes[t]);
        o->counted[t] = malloc(n_classes * sizeof *o->counted[t]);
        complete = complete && o->outcomes[t] && o->counted[t];
    }
    return complete;
}

struct amp_ap_outcomes *amp_ap_outcomes_new(const struct amp_ap_set *set, char *err,
                                            size_t err_size)
{
    struct scratch scratch;
    struct amp_ap_outcomes *o = calloc(1, sizeof *o);
    if (o) o->set = set;
    if (!o || !allocate_outcomes(o)) {
        snprintf(err, err_size, "no memory for the outcomes of all predictions");
        amp_ap_outcomes_free(o);
        return NULL;
    }
    if (make_scratch(set, &scratch, err, err_size)) {
        amp_ap_outcomes_free(o);
        return NULL;
    }
    for (int t = 0; t < MEANS_IOUS; t++) {
        enum amp_match_rule rule = t < 2 ? AMP_MATCH_VOC : AMP_MATCH_COCO;
        double iou = t == 0 ? 0.5 : t == 1 ? 0.75 : amp_coco_iou(t - 2);
        for (int k = 0; k < set->n_classes; k++)
            o->counted[t][k] =
                match_class(set, k, rule, iou, &scratch, o->outcomes[t] + set->first_prediction[k]);
    }
    free_scratch(&scratch);
    return o;
}

static void count_truths(struct amp_ap_outcomes *o, const int *draws)
{
    const struct amp_ap_set *set = o->set;
    for (int k = 0; k < set->n_classes; k++) {
        o->truths[k] = 0;
        for (size_t i = set->first_truth[k]; i < set->first_truth[k + 1]; i++)
            o->truths[k] += count_image(draws, set->truths[i].t.image);
    }
}

struct amp_map_means amp_ap_outcomes_means(struct amp_ap_outcomes *o, const int *draws)
{
    const struct amp_ap_set *set = o->set;
    struct amp_map_means sum = {0, 0, 0};
    int with_truths = 0;
    count_truths(o, draws);
    for (int k = 0; k < set->n_classes; k++) {
        if (o->truths[k] == 0) continue;
        with_truths++;
        for (int t = 0; t < MEANS_IOUS; t++) {
            struct amp_class_ap ap = integrate(o->outcomes[t] + set->first_prediction[k],
                                               o->counted[t][k], draws, o->truths[k]);
            if (t == 0) sum.map50 += ap.area;
            if (t == 1) sum.map75 += ap.area;
            if (t >= 2) sum.map += ap.coco / AMP_COCO_IOUS;
        }
    }
    if (with_truths == 0) return (struct amp_map_means){NAN, NAN, NAN};
    return (struct amp_map_means){sum.map50 / with_truths, sum.map75 / with_truths,
                                  sum.map / with_truths};
}
