/* The gradients by which a box is drawn to a truth (reference/yolo_iou.c), beside finite
 * differences of the kinds of IoU, in double. AlexeyAB's Darknet does not train by the derivatives;
 * each test states where its gradient is one, and where and by how much it is not, on purpose:
 *
 *   x, y    those of IoU and GIoU are the derivatives. DIoU's and CIoU's term of the distance over
 *           the diagonal counts the diagonal's part with the wrong sign.
 *   w, h    those of IoU and GIoU are twice the derivatives, that of the distance once. CIoU's
 *           term of the shape lacks the factor 1 / (w^2 + h^2); its alpha counts as a constant.
 *   apart   for boxes that do not overlap GIoU's and DIoU's own terms are alone, GIoU's with a
 *           union from which the product of the signed distances is taken.
 *
 * Third derivatives of these functions stay below about 1e4 for sides above .15, so a central
 * difference with step 1e-5 errs by some 2e-7. Of each gradient 1e-4 of its largest number is
 * allowed. */
#include "kernels/reference/operations.h"
#include "tests/rig/harness.h"

enum { ROUNDS = 300 };

static const double step = 1e-5, least_distance = 2e-3;

/* ---- boxes ---- */

static void random_box(double b[4])
{
    for (int k = 0; k < 2; k++) {
        b[k] = test_uniform(.3, .7);
        b[2 + k] = test_uniform(.15, .5);
    }
}

/* An edge that meets the other box's makes a kink, where there is no derivative. */
static int edges_differ(const double p[4], const double t[4])
{
    for (int axis = 0; axis < 2; axis++)
        for (int a = -1; a < 2; a += 2)
            for (int b = -1; b < 2; b += 2) {
                double of_p = p[axis] + a * p[2 + axis] / 2, of_t = t[axis] + b * t[2 + axis] / 2;
                if (fabs(of_p - of_t) < least_distance) return 0;
            }
    return 1;
}

static double shared_along(const double p[4], const double t[4], int axis)
{
    double high = fmin(p[axis] + p[2 + axis] / 2, t[axis] + t[2 + axis] / 2);
    return high - fmax(p[axis] - p[2 + axis] / 2, t[axis] - t[2 + axis] / 2);
}

static double spanned_along(const double p[4], const double t[4], int axis)
{
    double high = fmax(p[axis] + p[2 + axis] / 2, t[axis] + t[2 + axis] / 2);
    return high - fmin(p[axis] - p[2 + axis] / 2, t[axis] - t[2 + axis] / 2);
}

static void random_pair(int overlapping, double p[4], double t[4])
{
    do {
        random_box(p);
        random_box(t);
        if (!overlapping) t[0] += p[0] < t[0] ? .6 : -.6;
    } while (!edges_differ(p, t) ||
             overlapping != (shared_along(p, t, 0) > 0 && shared_along(p, t, 1) > 0));
}

/* ---- derivatives ---- */

static double with(double (*f)(const double *, const double *), const double p[4],
                   const double t[4], int k, double by)
{
    double moved[4];
    memcpy(moved, p, sizeof moved);
    moved[k] += by;
    return f(moved, t);
}

static double derivative(double (*f)(const double *, const double *), const double p[4],
                         const double t[4], int k)
{
    return (with(f, p, t, k, step) - with(f, p, t, k, -step)) / (2 * step);
}

static double iou(const double *p, const double *t)
{
    return ampk_ref_iou(AMPK_BOX_IOU, p, t, 1);
}

static double giou(const double *p, const double *t)
{
    return ampk_ref_iou(AMPK_BOX_GIOU, p, t, 1);
}

static double diou(const double *p, const double *t)
{
    return ampk_ref_iou(AMPK_BOX_DIOU, p, t, 1);
}

/* CIoU's difference of the shapes. */
static double v(const double *p, const double *t)
{
    double angle = atan(t[2] / t[3]) - atan(p[2] / p[3]);
    return 4 / (M_PI * M_PI) * angle * angle;
}

static double constant_alpha; /* CIoU's */

static double ciou(const double *p, const double *t)
{
    return diou(p, t) - constant_alpha * v(p, t);
}

static void hold_alpha(const double p[4], const double t[4])
{
    constant_alpha = v(p, t) / (1 - iou(p, t) + v(p, t) + 1e-6);
}

/* ---- tests ---- */

static void check_gradient(const char *what, const double g[4], const double expected[4])
{
    static const char names[] = "xywh";
    double largest = 0;
    for (int k = 0; k < 4; k++)
        largest = fmax(largest, fabs(expected[k]));
    for (int k = 0; k < 4; k++)
        if (!(fabs(g[k] - expected[k]) <= 1e-4 * largest))
            TEST_FAIL("%s: %c is %.9g, expected %.9g", what, names[k], g[k], expected[k]);
}

/* How many gradients are unlike the derivatives by more than the tolerance: that the tests of the
 * differences look at some. */
static int unlike;

static void count_unlike(const double g[4], const double derivatives[4])
{
    double largest = 0, most = 0;
    for (int k = 0; k < 4; k++) {
        largest = fmax(largest, fabs(derivatives[k]));
        most = fmax(most, fabs(g[k] - derivatives[k]));
    }
    unlike += most > 1e-2 * largest;
}

AMP_TEST(kinds_by_hand)
{
    /* Two unit squares, one half a side further: a third, in a hull of 1 x 1.5. */
    const double a[4] = {0, 0, 1, 1}, b[4] = {.5, 0, 1, 1}, wide[4] = {0, 0, 2, 1};
    CHECK_NEAR(ampk_ref_iou(AMPK_BOX_IOU, a, b, 1), 1. / 3, 1e-12);
    CHECK_NEAR(ampk_ref_iou(AMPK_BOX_GIOU, a, b, 1), 1. / 3, 1e-12);
    CHECK_NEAR(ampk_ref_iou(AMPK_BOX_DIOU, a, b, 1), 1. / 3 - .25 / 3.25, 1e-12);
    CHECK_NEAR(ampk_ref_iou(AMPK_BOX_DIOU, a, b, .5), 1. / 3 - sqrt(.25 / 3.25), 1e-12);
    CHECK_NEAR(ampk_ref_iou(AMPK_BOX_CIOU, a, b, 1), 1. / 3 - .25 / 3.25, 1e-12);
    double angle = atan(2) - atan(1), shape = 4 / (M_PI * M_PI) * angle * angle;
    CHECK_NEAR(ampk_ref_iou(AMPK_BOX_CIOU, a, wide, 1), .5 - shape * shape / (.5 + shape + 1e-6),
               1e-12);
}

static void check_areas(enum ampk_box_loss kind, double (*f)(const double *, const double *),
                        const char *what)
{
    for (int round = 0; round < ROUNDS; round++) {
        double p[4], t[4], g[4], expected[4];
        random_pair(1, p, t);
        ampk_ref_box_gradient(kind, p, t, g);
        for (int k = 0; k < 4; k++)
            expected[k] = derivative(f, p, t, k) * (k < 2 ? 1 : 2);
        check_gradient(what, g, expected);
    }
}

AMP_TEST(iou_is_its_derivative_but_twice_for_sizes)
{
    check_areas(AMPK_BOX_IOU, iou, "iou");
}

AMP_TEST(giou_is_its_derivative_but_twice_for_sizes)
{
    check_areas(AMPK_BOX_GIOU, giou, "giou");
}

/* What the reversed sign makes of x or y: twice the diagonal's part of the derivative of the
 * distance over the diagonal, which is 2 * span * e * apart / diagonal^2. */
static double reversed(const double p[4], const double t[4], int axis)
{
    double diagonal = 0, apart = 0;
    for (int k = 0; k < 2; k++) {
        diagonal += spanned_along(p, t, k) * spanned_along(p, t, k);
        apart += (p[k] - t[k]) * (p[k] - t[k]);
    }
    int high = p[axis] + p[2 + axis] / 2 > t[axis] + t[2 + axis] / 2;
    int low = p[axis] - p[2 + axis] / 2 < t[axis] - t[2 + axis] / 2;
    return -2 * 2 * spanned_along(p, t, axis) * (high - low) * apart / (diagonal * diagonal);
}

/* overlap: whether IoU's part is there, too. */
static void expect_distance(const double p[4], const double t[4], int overlap, double expected[4])
{
    for (int k = 0; k < 4; k++)
        expected[k] = derivative(diou, p, t, k);
    for (int k = 0; k < 2; k++) {
        expected[k] += reversed(p, t, k);
        if (overlap) expected[2 + k] += derivative(iou, p, t, 2 + k);
    }
}

AMP_TEST(diou_reverses_a_sign)
{
    for (int round = 0; round < ROUNDS; round++) {
        double p[4], t[4], g[4], expected[4], exact[4];
        random_pair(1, p, t);
        ampk_ref_box_gradient(AMPK_BOX_DIOU, p, t, g);
        expect_distance(p, t, 1, expected);
        check_gradient("diou", g, expected);
        for (int k = 0; k < 4; k++)
            exact[k] = derivative(diou, p, t, k);
        exact[2] = g[2], exact[3] = g[3]; /* only the sign */
        count_unlike(g, exact);
    }
    CHECK(unlike > ROUNDS / 4);
    unlike = 0;
}

AMP_TEST(ciou_lacks_a_factor)
{
    for (int round = 0; round < ROUNDS; round++) {
        double p[4], t[4], g[4], expected[4], exact[4];
        random_pair(1, p, t);
        hold_alpha(p, t);
        ampk_ref_box_gradient(AMPK_BOX_CIOU, p, t, g);
        expect_distance(p, t, 1, expected);
        for (int k = 0; k < 4; k++) {
            double of_shape = derivative(ciou, p, t, k) - derivative(diou, p, t, k);
            expected[k] += of_shape * (p[2] * p[2] + p[3] * p[3]);
            exact[k] = derivative(ciou, p, t, k);
        }
        check_gradient("ciou", g, expected);
        count_unlike(g, exact);
    }
    CHECK(unlike > ROUNDS * 9 / 10);
    unlike = 0;
}

AMP_TEST(diou_of_boxes_apart_is_the_distance_alone)
{
    for (int round = 0; round < ROUNDS; round++) {
        double p[4], t[4], g[4], expected[4];
        random_pair(0, p, t);
        ampk_ref_box_gradient(AMPK_BOX_DIOU, p, t, g);
        expect_distance(p, t, 0, expected);
        check_gradient("diou apart", g, expected);
    }
}

/* GIoU + 1 without IoU: the union, with the intersection as a product of signed lengths, over the
 * hull. */
static double signed_union_over_hull(const double *p, const double *t)
{
    double shared = shared_along(p, t, 0) * shared_along(p, t, 1);
    return (p[2] * p[3] + t[2] * t[3] - shared) / (spanned_along(p, t, 0) * spanned_along(p, t, 1));
}

AMP_TEST(giou_of_boxes_apart_takes_signed_lengths)
{
    for (int round = 0; round < ROUNDS; round++) {
        double p[4], t[4], g[4], expected[4], exact[4];
        random_pair(0, p, t);
        ampk_ref_box_gradient(AMPK_BOX_GIOU, p, t, g);
        for (int k = 0; k < 4; k++) {
            expected[k] = derivative(signed_union_over_hull, p, t, k) * (k < 2 ? 1 : 2);
            exact[k] = derivative(giou, p, t, k) * (k < 2 ? 1 : 2);
        }
        check_gradient("giou apart", g, expected);
        count_unlike(g, exact);
    }
    CHECK(unlike > ROUNDS * 9 / 10);
    unlike = 0;
}

AMP_TEST_MAIN
