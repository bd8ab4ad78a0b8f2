/* Runs through a list of images that threads load ahead, fitted into a network's input as Darknet's
 * own commands do it. */
#ifndef AMP_IMAGES_AHEAD_H
#define AMP_IMAGES_AHEAD_H

#include <stdbool.h>

#include "darknet.h"

enum amp_fit {
    AMP_FIT_LETTERBOX, /* as `detector valid` */
    AMP_FIT_STRETCH,   /* as `yolo valid`, and all detectors of AlexeyAB's Darknet */
    AMP_FIT_CENTER,    /* as `classifier valid`: the largest square in the middle */
};

struct amp_loaded_image {
    image original; /* without data if Darknet has not read it: its size */
    image resized;
};

/* From the first to before the end. */
struct amp_image_range {
    int first, end;
};

/* Image i of the list. Not 0 ends the run. */
typedef int amp_each_image(void *user, int i, const struct amp_loaded_image *);

/* In the order of the list, on this thread. After the first image that cannot be decoded the others
 * are only loaded, so that all such images are named. progress: shown on stderr. 0; -1 after naming
 * on stderr every image that cannot be decoded, or if `each` ended the run. */
int amp_images_run(const network *, enum amp_fit, char **list, struct amp_image_range,
                   bool progress, amp_each_image *each, void *user);

/* Decodes them all, as Darknet: while a network trains, one that cannot be decoded would end the
 * program. 0, or -1 after naming on stderr those that cannot. */
int amp_images_check(char **list, int n);

#endif
