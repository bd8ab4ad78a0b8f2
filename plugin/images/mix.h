/* Two or four cut pictures in one, by the rules of AlexeyAB's loader: mixup and mosaic. */
#ifndef AMP_MIX_H
#define AMP_MIX_H

#include "crop.h"
#include "truths.h"

/* ---- mixup: half of each ---- */

/* planes = (planes + other) / 2; n floats. */
void amp_mixup_planes(float *planes, const float *other, size_t n);
/* Adds others to truths while there is room; returns how many truths there are then. */
int amp_mixup_truths(const struct amp_truth_rules *, float *truths, int count, const float *others,
                     int others_count);

/* ---- mosaic: a quarter of each of four ---- */

/* What of the picture of this round is seen, and where: its quarter begins where the picture does,
 * seen from the place where the four meet. */
struct amp_part amp_mosaic_part(const struct amp_truth_rules *, const struct amp_crop *,
                                const struct amp_cut *, int round);

/* Adds truths of the picture of this part, moved with it. bounded: cut at the part's edges, to
 * whole pixels (mosaic_bound=1), else at the result's. Left out is what has no more than a pixel
 * then. Only as many of them are looked at as there is room. Returns how many truths there are
 * then. */
int amp_mosaic_truths(const struct amp_truth_rules *, const struct amp_part *, bool bounded,
                      float *truths, int count, const float *others, int others_count);

#endif
