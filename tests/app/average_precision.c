/* Average precision: the cases of tests/app/map against their independently computed numbers,
 * random cases against the slow reference, and what must hold for any input. */

#include <time.h>
#include <unistd.h>

#include "tests/rig/harness.h"
#include "map_reference.h"

#include "plugin/app/average_precision.h"
#include "plugin/app/counts.h"
#include "plugin/app/map.h"

#define EXACT 1e-9

/* ---- the allocator: fails once, after calls_left more; -1: never ---- */

static int calls_left = -1;

void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);

void *__wrap_malloc(size_t size)
{
    return calls_left >= 0 && calls_left-- == 0 ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return calls_left >= 0 && calls_left-- == 0 ? NULL : __real_calloc(n, size);
}

/* ---- cases ---- */

struct map_case {
    int images, classes;
    struct amp_prediction *predictions;
    struct amp_truth *truths;
    size_t n_predictions, n_truths;
};

static void free_case(struct map_case *c)
{
    free(c->predictions);
    free(c->truths);
}

static void add_truth(struct map_case *c, struct amp_truth t)
{
    c->truths = realloc(c->truths, (c->n_truths + 1) * sizeof t);
    c->truths[c->n_truths++] = t;
}

static void add_prediction(struct map_case *c, struct amp_prediction p)
{
    c->predictions = realloc(c->predictions, (c->n_predictions + 1) * sizeof p);
    c->predictions[c->n_predictions++] = p;
}

static struct amp_ap_set *new_set(const struct map_case *c)
{
    char err[300] = "";
    struct amp_ap_set *set = amp_ap_set_new(c->predictions, c->n_predictions, c->truths,
                                            c->n_truths, c->images, c->classes, err, sizeof err);
    if (!set) TEST_FAIL("amp_ap_set_new: %s", err);
    REQUIRE(set);
    return set;
}

static struct amp_class_ap measure(const struct amp_ap_set *set, int class_id,
                                   enum amp_match_rule rule, double iou)
{
    struct amp_class_ap per_class[16];
    char err[300];
    REQUIRE(amp_ap_set_measure(set, rule, iou, per_class, err, sizeof err) == 0);
    return per_class[class_id];
}

/* Equal within tolerance, or both undefined. */
static void check_same(const char *what, int class_id, double iou, double actual, double expected,
                       double tolerance)
{
    if (isnan(actual) && isnan(expected)) return;
    if (fabs(actual - expected) <= tolerance) return;
    TEST_FAIL("%s, class %d, IoU %g: %.17g, expected %.17g", what, class_id, iou, actual, expected);
}

/* ---- the cases of tests/app/map ---- */

/* Reads "nan" as well as numbers; false at the end of the line. */
static bool next_number(char **text, double *value)
{
    char *end;
    *value = strtod(*text, &end);
    bool found = end != *text;
    *text = end;
    return found;
}

static int next_int(char **text)
{
    double value;
    REQUIRE(next_number(text, &value));
    return (int)value;
}

static struct amp_box next_box(char **text)
{
    struct amp_box b;
    REQUIRE(next_number(text, &b.left) && next_number(text, &b.top));
    REQUIRE(next_number(text, &b.width) && next_number(text, &b.height));
    return b;
}

static char *after(char *line, const char *word)
{
    size_t n = strlen(word);
    return strncmp(line, word, n) == 0 && line[n] == ' ' ? line + n : NULL;
}

static void read_input(FILE *file, struct map_case *c)
{
    char line[512], *at;
    while (fgets(line, sizeof line, file)) {
        if ((at = after(line, "size"))) {
            c->images = next_int(&at);
            c->classes = next_int(&at);
        } else if ((at = after(line, "truth"))) {
            struct amp_truth t = {.image = next_int(&at)};
            t.class_id = next_int(&at);
            t.box = next_box(&at);
            add_truth(c, t);
        } else if ((at = after(line, "prediction"))) {
            struct amp_prediction p = {.image = next_int(&at)};
            p.class_id = next_int(&at);
            REQUIRE(next_number(&at, &p.score));
            p.box = next_box(&at);
            add_prediction(c, p);
        }
    }
}

/* The columns of amp_map_compute(0.3) that are the area or the eleven points at this IoU. */
static void check_row(const struct amp_map_row *row, int k, double iou, double area, double eleven)
{
    if (iou == 0.3) check_same("ap_iou", k, iou, row->ap_iou, area, EXACT);
    if (iou == 0.3) check_same("ap_iou_11pt", k, iou, row->ap_iou_11pt, eleven, EXACT);
    if (iou == 0.5) check_same("ap50", k, iou, row->ap50, area, EXACT);
    if (iou == 0.5) check_same("ap50_11pt", k, iou, row->ap50_11pt, eleven, EXACT);
    if (iou == 0.75) check_same("ap75", k, iou, row->ap75, area, EXACT);
}

/* Checks every expectation of the file; returns how many there were. */
static int check_expected(FILE *file, const struct amp_ap_set *set)
{
    char line[512], err[300], *at;
    struct amp_map_result result;
    int checks = 0;
    REQUIRE(amp_map_compute(set, 0.3, &result, err, sizeof err) == 0);
    while (fgets(line, sizeof line, file)) {
        double a = 0, b = 0, iou = 0;
        if ((at = after(line, "coco"))) {
            int k = next_int(&at), t = next_int(&at);
            REQUIRE(next_number(&at, &a));
            check_same("coco", k, amp_coco_iou(t), result.classes[k].row.coco[t], a, EXACT);
            checks++;
        } else if ((at = after(line, "voc"))) {
            int k = next_int(&at);
            REQUIRE(next_number(&at, &iou) && next_number(&at, &a) && next_number(&at, &b));
            struct amp_class_ap ap = measure(set, k, AMP_MATCH_VOC, iou);
            check_same("area", k, iou, ap.area, a, EXACT);
            check_same("eleven points", k, iou, ap.eleven_point, b, EXACT);
            check_row(&result.classes[k].row, k, iou, a, b);
            checks++;
        } else if ((at = after(line, "coco_means"))) {
            REQUIRE(next_number(&at, &iou) && next_number(&at, &a) && next_number(&at, &b));
            check_same("COCO mAP", -1, 0, result.mean.ap, iou, EXACT);
            check_same("COCO AP50", -1, 0.5, result.mean.coco[0], a, EXACT);
            check_same("COCO AP75", -1, 0.75, result.mean.coco[5], b, EXACT);
            checks++;
        }
    }
    amp_map_result_free(&result);
    return checks;
}

static void check_file(const char *name)
{
    char path[1024];
    struct map_case c = {0};
    int before = test_failures;
    snprintf(path, sizeof path, "%s/map/%s.txt", AMP_TEST_DATA, name);
    FILE *file = fopen(path, "r");
    if (!file) TEST_FAIL("no %s", path);
    REQUIRE(file);
    read_input(file, &c);
    REQUIRE(c.images > 0 && c.classes > 0);
    rewind(file);
    struct amp_ap_set *set = new_set(&c);
    CHECK_INT(check_expected(file, set), c.classes * (10 + 4) + 1);
    fclose(file);
    amp_ap_set_free(set);
    free_case(&c);
    if (test_failures > before) fprintf(stderr, "in %s\n", path);
}

AMP_TEST(ties)
{
    check_file("ties");
}
AMP_TEST(no_truths)
{
    check_file("no_truths");
}
AMP_TEST(no_detections)
{
    check_file("no_detections");
}
AMP_TEST(nothing_at_all)
{
    check_file("nothing");
}
AMP_TEST(duplicate_boxes)
{
    check_file("duplicates");
}
AMP_TEST(tiny_boxes)
{
    check_file("tiny");
}
AMP_TEST(equal_iou)
{
    check_file("equal_iou");
}
AMP_TEST(second_choice)
{
    check_file("second_choice");
}
AMP_TEST(rounding)
{
    check_file("rounding");
}

/* ---- random cases ---- */

/* Fresh input on every run; AMP_TEST_SEED repeats one. */
static void start_fresh(const char *what)
{
    const char *text = getenv("AMP_TEST_SEED");
    uint64_t seed =
        text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
    test_random_state = seed;
    printf("%s: AMP_TEST_SEED=%llu\n", what, (unsigned long long)seed);
}

static int pick(int n)
{
    return (int)(test_random() % (uint64_t)n);
}

/* Boxes on a coarse grid, so that equal IoUs and IoUs at a threshold do occur. */
static struct amp_box random_box(void)
{
    return (struct amp_box){pick(24), pick(24), 1 + pick(8), 1 + pick(8)};
}

static struct map_case random_case(int truths, int predictions)
{
    struct map_case c = {.images = 1 + pick(6), .classes = 1 + pick(4)};
    for (int i = 0; i < truths; i++)
        add_truth(&c, (struct amp_truth){pick(c.images), pick(c.classes), random_box()});
    int levels = 1 + pick(64);
    for (int i = 0; i < predictions; i++) {
        struct amp_prediction p = {pick(c.images), pick(c.classes), pick(levels) / 64.0,
                                   random_box()};
        if (truths && pick(3)) { /* often near a truth */
            const struct amp_truth *t = &c.truths[pick(truths)];
            p.image = t->image;
            p.class_id = t->class_id;
            p.box = t->box;
            p.box.left += pick(3) - 1;
            p.box.height += pick(2);
        }
        add_prediction(&c, p);
    }
    return c;
}

static void check_against_reference(const struct map_case *c)
{
    static const double ious[] = {0.1, 0.25, 0.5, 0.6, 0.75, 0.95, 1};
    static const char *const rules[] = {"VOC rule", "COCO rule", "rule of AlexeyAB's Darknet"};
    struct amp_ap_set *set = new_set(c);
    for (size_t i = 0; i < sizeof ious / sizeof *ious; i++) {
        for (int k = 0; k < c->classes; k++) {
            for (enum amp_match_rule rule = AMP_MATCH_VOC; rule <= AMP_MATCH_FORK; rule++) {
                struct amp_class_ap a = measure(set, k, rule, ious[i]);
                struct amp_class_ap e = reference_ap(c->predictions, c->n_predictions, c->truths,
                                                     c->n_truths, k, rule, ious[i]);
                const char *what = rules[rule];
                check_same(what, k, ious[i], a.area, e.area, 1e-12);
                check_same(what, k, ious[i], a.eleven_point, e.eleven_point, 1e-12);
                check_same(what, k, ious[i], a.coco, e.coco, 1e-12);
            }
        }
    }
    amp_ap_set_free(set);
}

AMP_TEST(equals_the_reference_on_random_input)
{
    start_fresh("equals_the_reference_on_random_input");
    for (int round = 0; round < 200 && !test_failures; round++) {
        struct map_case c = random_case(pick(40), pick(120));
        check_against_reference(&c);
        free_case(&c);
    }
}

AMP_TEST(equals_the_reference_with_hundreds_in_an_image)
{
    start_fresh("equals_the_reference_with_hundreds_in_an_image");
    for (int round = 0; round < 5 && !test_failures; round++) {
        struct map_case c = random_case(30, 600);
        for (size_t i = 0; i < c.n_predictions; i++)
            c.predictions[i].image = pick(2) ? 0 : c.predictions[i].image;
        for (size_t i = 0; i < c.n_truths; i++)
            c.truths[i].image = 0;
        check_against_reference(&c);
        free_case(&c);
    }
}

/* A box with real coordinates: no two overlaps are equal, so that no order has to decide. */
static struct amp_box random_real_box(void)
{
    return (struct amp_box){test_uniform(0, 24), test_uniform(0, 24), test_uniform(1, 9),
                            test_uniform(1, 9)};
}

static void mirror(int *image, struct amp_box *box, const struct map_case *c)
{
    *image = c->images - 1 - *image;
    *box = (struct amp_box){4 * box->left, 4 * box->top, 4 * box->width, 4 * box->height};
}

/* With different scores neither the order of the input, nor the names of the images, nor the unit
 * of the boxes count. */
AMP_TEST(order_names_and_unit_do_not_count)
{
    start_fresh("order_names_and_unit_do_not_count");
    struct map_case c = random_case(40, 300), r = {.images = c.images + 3, .classes = c.classes};
    for (size_t i = c.n_truths; i-- > 0;) {
        struct amp_truth t = c.truths[i];
        c.truths[i].box = t.box = random_real_box();
        mirror(&t.image, &t.box, &r);
        add_truth(&r, t);
    }
    for (size_t i = c.n_predictions; i-- > 0;) {
        struct amp_prediction *p = &c.predictions[i], q;
        p->box = random_real_box();
        p->score = test_uniform(0, 1);
        q = *p;
        mirror(&q.image, &q.box, &r);
        add_prediction(&r, q);
    }
    struct amp_ap_set *a = new_set(&c), *b = new_set(&r);
    for (int k = 0; k < c.classes; k++) {
        for (enum amp_match_rule rule = AMP_MATCH_VOC; rule <= AMP_MATCH_FORK; rule++) {
            struct amp_class_ap x = measure(a, k, rule, 0.3), y = measure(b, k, rule, 0.3);
            check_same("area", k, 0.3, y.area, x.area, 0);
            check_same("eleven points", k, 0.3, y.eleven_point, x.eleven_point, 0);
            check_same("coco", k, 0.3, y.coco, x.coco, 0);
        }
    }
    amp_ap_set_free(a);
    amp_ap_set_free(b);
    free_case(&c);
    free_case(&r);
}

/* Wherever memory ends, it is said. */
AMP_TEST(no_memory)
{
    start_fresh("no_memory");
    struct map_case c = random_case(60, 60);
    struct amp_ap_set *set = new_set(&c), *copy = NULL;
    struct amp_map_result result = {0};
    struct amp_ap_outcomes *outcomes = NULL;
    struct amp_counts_settings settings = {.5, .25, 0, AMP_MATCH_FORK};
    struct amp_counts fork = {0};
    for (int what = 0; what < 4; what++) {
        int n = 0;
        for (bool failed = true; failed; n++) {
            char err[300] = "";
            calls_left = n;
            if (what == 0)
                copy = amp_ap_set_new(c.predictions, c.n_predictions, c.truths, c.n_truths,
                                      c.images, c.classes, err, sizeof err);
            else if (what == 1)
                outcomes = amp_ap_outcomes_new(set, err, sizeof err);
            else if (what == 2)
                amp_map_compute(set, .5, &result, err, sizeof err);
            else
                amp_counts_compute(set, &settings, &fork, err, sizeof err);
            failed = calls_left < 0;
            calls_left = -1;
            if (failed) CHECK(!strncmp(err, "no memory ", 10));
            CHECK((what == 0   ? copy != NULL
                   : what == 1 ? outcomes != NULL
                   : what == 2 ? result.classes != NULL
                               : fork.classes != NULL) == !failed);
            REQUIRE(n < 1000);
        }
        CHECK(n > 3);
    }
    amp_counts_free(&fork);
    amp_map_result_free(&result);
    amp_ap_outcomes_free(outcomes);
    amp_ap_set_free(copy);
    amp_ap_set_free(set);
    free_case(&c);
}

/* Even at IoU 1, where the overlap of a box with itself may round to just below 1: COCO's rule
 * allows for that. */
AMP_TEST(perfect_detections_give_one)
{
    start_fresh("perfect_detections_give_one");
    struct map_case c = random_case(60, 0);
    struct amp_map_result result;
    char err[300];
    for (size_t i = 0; i < c.n_truths; i++) {
        struct amp_truth *t = &c.truths[i];
        t->box = random_real_box();
        add_prediction(&c,
                       (struct amp_prediction){t->image, t->class_id, test_uniform(0, 1), t->box});
    }
    struct amp_ap_set *set = new_set(&c);
    REQUIRE(amp_map_compute(set, 0.5, &result, err, sizeof err) == 0);
    CHECK_NEAR(result.mean.ap, 1, 1e-12);
    CHECK_NEAR(result.mean.ap50, 1, 1e-12);
    CHECK_NEAR(measure(set, c.truths[0].class_id, AMP_MATCH_COCO, 1).eleven_point, 1, 1e-12);
    amp_map_result_free(&result);
    amp_ap_set_free(set);
    free_case(&c);
}

/* ---- drawings of images ---- */

/* The same images for real: image i becomes draws[i] images. */
static struct map_case copy_images(const struct map_case *c, const int *draws)
{
    struct map_case r = {.classes = c->classes};
    int first[16] = {0};
    REQUIRE(c->images <= 16);
    for (int i = 0; i < c->images; i++) {
        first[i] = r.images;
        r.images += draws[i];
    }
    for (size_t i = 0; i < c->n_truths; i++) {
        for (int copy = 0; copy < draws[c->truths[i].image]; copy++) {
            struct amp_truth t = c->truths[i];
            t.image = first[t.image] + copy;
            add_truth(&r, t);
        }
    }
    for (size_t i = 0; i < c->n_predictions; i++) {
        for (int copy = 0; copy < draws[c->predictions[i].image]; copy++) {
            struct amp_prediction p = c->predictions[i];
            p.image = first[p.image] + copy;
            add_prediction(&r, p);
        }
    }
    return r;
}

static void check_drawing(struct amp_ap_outcomes *outcomes, const struct map_case *c,
                          const int *draws)
{
    char err[300];
    struct amp_map_result expected;
    struct map_case copied = copy_images(c, draws);
    struct amp_ap_set *set = new_set(&copied);
    struct amp_map_means means = amp_ap_outcomes_means(outcomes, draws);
    REQUIRE(amp_map_compute(set, 0.5, &expected, err, sizeof err) == 0);
    check_same("drawn mAP50", -1, 0.5, means.map50, expected.mean.ap50, 1e-12);
    check_same("drawn mAP75", -1, 0.75, means.map75, expected.mean.ap75, 1e-12);
    check_same("drawn mAP", -1, 0, means.map, expected.mean.ap, 1e-12);
    amp_map_result_free(&expected);
    amp_ap_set_free(set);
    free_case(&copied);
}

AMP_TEST(a_drawing_is_the_set_with_copies_of_its_images)
{
    start_fresh("a_drawing_is_the_set_with_copies_of_its_images");
    for (int round = 0; round < 100 && !test_failures; round++) {
        struct map_case c = random_case(pick(40), pick(120));
        char err[300];
        int draws[16];
        struct amp_ap_set *set = new_set(&c);
        struct amp_ap_outcomes *outcomes = amp_ap_outcomes_new(set, err, sizeof err);
        REQUIRE(outcomes);
        for (int b = 0; b < 5; b++) {
            amp_bootstrap_draw(b, c.images, draws);
            check_drawing(outcomes, &c, draws);
        }
        struct amp_map_means all = amp_ap_outcomes_means(outcomes, NULL);
        for (int i = 0; i < c.images; i++)
            draws[i] = 1;
        struct amp_map_means ones = amp_ap_outcomes_means(outcomes, draws);
        CHECK(memcmp(&all, &ones, sizeof all) == 0);
        check_drawing(outcomes, &c, draws);
        amp_ap_outcomes_free(outcomes);
        amp_ap_set_free(set);
        free_case(&c);
    }
}

/* As many images as there are, each equally often: over 1000 drawings of 50 images the count of
 * one image has mean 1000 and standard deviation 31. */
AMP_TEST(drawings_are_fair_and_repeat)
{
    enum { IMAGES = 50, DRAWINGS = 1000 };
    int total[IMAGES] = {0}, draws[IMAGES], again[IMAGES];
    for (int b = 0; b < DRAWINGS; b++) {
        int sum = 0;
        amp_bootstrap_draw(b, IMAGES, draws);
        amp_bootstrap_draw(b, IMAGES, again);
        CHECK(memcmp(draws, again, sizeof draws) == 0);
        for (int i = 0; i < IMAGES; i++) {
            sum += draws[i];
            total[i] += draws[i];
        }
        CHECK_INT(sum, IMAGES);
    }
    for (int i = 0; i < IMAGES; i++)
        if (abs(total[i] - DRAWINGS) > 150) TEST_FAIL("image %d: %d times", i, total[i]);
    amp_bootstrap_draw(DRAWINGS, IMAGES, again);
    CHECK(memcmp(draws, again, sizeof draws) != 0);
}

/* ---- the interface ---- */

AMP_TEST(means_leave_out_classes_without_truths)
{
    struct map_case c = {.images = 1, .classes = 3};
    struct amp_map_result result;
    char err[300];
    struct amp_box box = {0, 0, 4, 4}, half = {0, 0, 4, 2};
    add_truth(&c, (struct amp_truth){0, 0, box});
    add_truth(&c, (struct amp_truth){0, 2, box});
    add_prediction(&c, (struct amp_prediction){0, 0, 0.5, half});
    add_prediction(&c, (struct amp_prediction){0, 1, 0.5, box});
    struct amp_ap_set *set = new_set(&c);
    REQUIRE(amp_map_compute(set, 0.4, &result, err, sizeof err) == 0);
    CHECK_INT(result.classes[0].truths, 1);
    CHECK_INT(result.classes[1].truths, 0);
    CHECK_INT(result.classes[1].predictions, 1);
    CHECK(isnan(result.classes[1].row.ap50) && isnan(result.classes[1].row.ap));
    CHECK_NEAR(result.classes[0].row.ap50, 1, EXACT);
    CHECK_NEAR(result.classes[2].row.ap50, 0, EXACT);
    CHECK_NEAR(result.mean.ap50, 0.5, EXACT);
    CHECK_NEAR(result.mean.ap50_11pt, 0.5, EXACT);
    CHECK_NEAR(result.mean.ap75, 0, EXACT);
    CHECK_NEAR(result.mean.ap_iou, 0.5, EXACT);
    CHECK_NEAR(result.mean.ap, 0.05, EXACT);
    amp_map_result_free(&result);
    amp_ap_set_free(set);
    free_case(&c);
}

AMP_TEST(coco_ious_are_those_of_numpy)
{
    /* numpy.linspace(.5, .95, 10), printed with repr. */
    static const double expected[] = {
        0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.8999999999999999, 0.95};
    for (int i = 0; i < AMP_COCO_IOUS; i++)
        CHECK(amp_coco_iou(i) == expected[i]);
}

static void check_refused(struct map_case c, const char *what)
{
    char err[300] = "";
    struct amp_ap_set *set = amp_ap_set_new(c.predictions, c.n_predictions, c.truths, c.n_truths,
                                            c.images, c.classes, err, sizeof err);
    CHECK(!set);
    CHECK_SAYS(err, what);
    amp_ap_set_free(set);
}

AMP_TEST(bad_input_is_refused_by_name)
{
    struct amp_box box = {0, 0, 1, 1};
    struct amp_prediction p[] = {{0, 0, 0.5, box}, {0, 0, 0.5, box}};
    struct amp_truth t[] = {{0, 0, box}, {0, 0, box}};
    struct map_case c = {2, 3, p, t, 2, 2};
    p[1].image = 2;
    check_refused(c, "prediction 1: image index out of range (image 2 of 2");
    p[1] = p[0], p[1].class_id = -1;
    check_refused(c, "prediction 1: class out of range");
    p[1] = p[0], p[1].score = NAN;
    check_refused(c, "prediction 1: score is not finite");
    p[1] = p[0], p[1].box.top = INFINITY;
    check_refused(c, "prediction 1: box is not finite");
    p[1] = p[0], p[1].box.width = -1;
    check_refused(c, "prediction 1: box has a negative size");
    p[1] = p[0], t[1].class_id = 3;
    check_refused(c, "truth 1: class out of range (image 0 of 2, class 3 of 3");
}

AMP_TEST(bad_iou_is_refused)
{
    static const double bad[] = {0, -0.5, 1.0001, NAN};
    struct map_case c = {.images = 1, .classes = 1};
    struct amp_ap_set *set = new_set(&c);
    struct amp_class_ap ap;
    struct amp_map_result result;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char err[300] = "";
        CHECK_INT(amp_ap_set_measure(set, AMP_MATCH_VOC, bad[i], &ap, err, sizeof err), -1);
        CHECK(strstr(err, "IoU threshold"));
        CHECK_INT(amp_map_compute(set, bad[i], &result, err, sizeof err), -1);
        CHECK(!result.classes);
    }
    amp_ap_set_free(set);
}

/* 300,000 detections, all ten IoUs and both rules: well under a second of work unless something is
 * quadratic, which would take minutes. */
AMP_TEST(large_input_is_fast)
{
    struct map_case c = {.images = 2000, .classes = 8};
    c.n_truths = 20000;
    c.n_predictions = 300000;
    c.truths = malloc(c.n_truths * sizeof *c.truths);
    c.predictions = malloc(c.n_predictions * sizeof *c.predictions);
    for (size_t i = 0; i < c.n_truths; i++)
        c.truths[i] = (struct amp_truth){pick(c.images), pick(c.classes), random_box()};
    for (size_t i = 0; i < c.n_predictions; i++)
        c.predictions[i] = (struct amp_prediction){pick(c.images), pick(c.classes),
                                                   test_uniform(0, 1), random_box()};
    struct amp_map_result result;
    char err[300];
    clock_t start = clock();
    struct amp_ap_set *set = new_set(&c);
    REQUIRE(amp_map_compute(set, 0.5, &result, err, sizeof err) == 0);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    printf("large_input_is_fast: %.2f s\n", seconds);
    CHECK(seconds < 20);
    CHECK(result.mean.ap50 > 0 && result.mean.ap50 < 1);
    amp_map_result_free(&result);
    amp_ap_set_free(set);
    free_case(&c);
}

AMP_TEST_MAIN
