/* The passes of crop.h, compiled once per instruction set. */
#ifndef AMP_CROP_ROWS_H
#define AMP_CROP_ROWS_H

#include "crop.h"

enum { AMP_RESIZE_ONE = 1 << 11 }; /* weights are in units of 1/2048 */

/* What a row of the result takes from two rows of the cut. */
struct amp_row_tap {
    int first, second;
    int16_t first_weight, second_weight;
};

/* What each of [part.w] columns takes from two neighbours in a row of the cut. */
struct amp_column_taps {
    int *byte;                           /* where the first of them begins */
    float *first_weight, *second_weight; /* whole numbers */
    uint32_t *first, *second; /* their pixels: bytes blue, green, red, another from the lowest up */
};

/* A row of the cut, stretched to the result's columns: [3][part.w], blue, green and red, in units
 * of 1/128 of a level. */
struct amp_stretched {
    int row; /* of the cut */
    int16_t *values;
};
enum { AMP_ROW_NONE = -2, AMP_ROW_OUTSIDE = -1 }; /* outside the picture all are the same */

struct amp_crop_work {
    const struct amp_pixels *image;
    const struct amp_crop *crop;
    int w, h;             /* of the whole result */
    struct amp_part part; /* of which this is computed */
    bool recolours;
    uint8_t mean[3]; /* around the picture */
    struct amp_column_taps columns;
    struct amp_row_tap *rows; /* [part.h], within the cut */
    uint8_t *row;             /* [3 * crop->w + 4]: a row of the cut, and a pixel of weight 0 */
    struct amp_stretched above, below;
    uint8_t *bytes; /* [3][part.w]: a row of the result */
};

typedef void amp_crop_function(struct amp_crop_work *, float *planes);
amp_crop_function amp_crop_base, amp_crop_avx2, amp_crop_avx512;

/* Sums of blue, green and red over all pixels. columns: [3 * image w], to work in. */
typedef void amp_sum_function(const struct amp_pixels *, uint32_t *columns, uint64_t sums[3]);
amp_sum_function amp_sum_base, amp_sum_avx2, amp_sum_avx512;

/* An instruction set. */
struct amp_crop_set {
    amp_crop_function *crop;
    amp_sum_function *sum;
};
/* From the slowest to the best that this processor has; returns how many. */
enum { AMP_CROP_SETS = 3 };
int amp_crop_sets(struct amp_crop_set sets[AMP_CROP_SETS]);

/* amp_crop_part on this one. */
bool amp_crop_part_on(const struct amp_crop_set *, const struct amp_pixels *,
                      const struct amp_crop *, int w, int h, const struct amp_part *,
                      float *planes);

#endif
