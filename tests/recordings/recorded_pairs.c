/* Kinds of IoU and the gradients of boxes against recordings of AlexeyAB's Darknet: pairs.bin has
 * 30 floats a pair: prediction and truth (x, y, w, h each), IoU, GIoU, DIoU with exponent .6, CIoU,
 * DIoU with .6 and .3, then the gradients (x, y, w, h) of IoU, GIoU, DIoU and CIoU. The formulas
 * that the CPU and the CUDA backend share are judged in FP32, the reference's in double.
 *
 *     test_recorded_pairs FOLDER        FOLDER: where no AMP_RECORDINGS says otherwise
 *
 * Tolerances: 2e-5, of the value where that is above 1. The recorded program computes in FP32; it
 * was within 1e-6 of double precision for IoUs and 5e-6 for gradients. */
#include "kernels/reference/operations.h"
#include "kernels/yolo_box.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 30, BOXES = 8, RESULTS = NUMBERS - BOXES, OVERLAPS = 6, SKIPPED = 77 };

static const enum ampk_box_loss kinds[4] = {AMPK_BOX_IOU, AMPK_BOX_GIOU, AMPK_BOX_DIOU,
                                            AMPK_BOX_CIOU};

/* ---- both sides; p, t: x, y, w, h ---- */

static void by_shared_formulas(const float *p, const float *t, double *results)
{
    struct ampk_box a = {p[0], p[1], p[2], p[3]}, b = {t[0], t[1], t[2], t[3]};
    struct ampk_box_overlap o = ampk_overlap_of(a, b);
    results[0] = ampk_iou_of(&o);
    results[1] = ampk_giou_of(&o);
    results[2] = results[4] = ampk_diou_of(&o, .6f);
    results[3] = ampk_ciou_of(&o, a, b);
    results[5] = ampk_diou_of(&o, .3f);
    for (int k = 0; k < 4; k++) {
        struct ampk_box g = ampk_box_gradient(kinds[k], a, b);
        const double gradient[4] = {g.x, g.y, g.w, g.h};
        memcpy(results + OVERLAPS + 4 * k, gradient, sizeof gradient);
    }
}

static void by_reference(const float *p, const float *t, double *results)
{
    const double a[4] = {p[0], p[1], p[2], p[3]}, b[4] = {t[0], t[1], t[2], t[3]};
    static const enum ampk_box_loss overlaps[OVERLAPS] = {
        AMPK_BOX_IOU, AMPK_BOX_GIOU, AMPK_BOX_DIOU, AMPK_BOX_CIOU, AMPK_BOX_DIOU, AMPK_BOX_DIOU};
    for (int k = 0; k < OVERLAPS; k++)
        results[k] = ampk_ref_iou(overlaps[k], a, b, k == 5 ? .3 : .6);
    for (int k = 0; k < 4; k++)
        ampk_ref_box_gradient(kinds[k], a, b, results + OVERLAPS + 4 * k);
}

/* ---- comparing ---- */

static int failures;
static double largest; /* difference over the tolerance */

static void compare(const char *side, int pair, const double *results, const float *recorded)
{
    for (int k = 0; k < RESULTS; k++) {
        double allowed = 2e-5 * fmax(1, fabs(recorded[k]));
        double off = fabs(results[k] - recorded[k]) / allowed;
        if (off > largest) largest = off;
        if (off <= 1 || failures++ > 40) continue;
        fprintf(stderr, "pair %d, %s, number %d: %.9g, recorded %.9g\n", pair, side, k, results[k],
                recorded[k]);
    }
}

int main(int argc, char **argv)
{
    const char *given = getenv("AMP_RECORDINGS"),
               *folder = given && *given ? given : argv[argc - 1];
    char path[4096];
    float pair[NUMBERS];
    int pairs = 0;
    snprintf(path, sizeof path, "%s/o7_nms/pairs.bin", folder);
    FILE *f = fopen(path, "rb");
    if (!f) {
        printf("SKIPPED: %s cannot be opened\n", path);
        return SKIPPED;
    }
    for (; fread(pair, sizeof pair, 1, f) == 1; pairs++) {
        double results[RESULTS];
        by_shared_formulas(pair, pair + 4, results);
        compare("FP32", pairs, results, pair + BOXES);
        by_reference(pair, pair + 4, results);
        compare("reference", pairs, results, pair + BOXES);
    }
    fclose(f);
    printf("%s: %d pairs, %d differences; the largest one %.3f of the tolerance\n", path, pairs,
           failures, largest);
    return failures || !pairs;
}
