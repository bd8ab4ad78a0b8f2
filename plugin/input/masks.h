/* Masks of objects, as Darknet's trainers of segmentation read them: text of pairs, the class of an
 * object and its runs, `3 20,5,30`. The runs are numbers of pixels, from the image's upper left
 * corner row by row, outside the object and inside in turn. Pure C. */
#ifndef AMP_MASKS_H
#define AMP_MASKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* True if the text is right: classes from 0 to classes - 1, and runs of at most `pixels` in all
 * (UINT64_MAX: the image's size is not known); *objects says how many. Else why says where the
 * first fault is, and what is allowed. */
bool amp_masks_check(FILE *, int classes, uint64_t pixels, int *objects, char *why, size_t size);

#endif
