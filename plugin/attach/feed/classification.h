/* A classifier's images by a path of our own (plugin/images/turn.h): from a JPEG's bytes to the
 * network's input in one pass. Pixels are Darknet's within 5e-4, truths to the bit, and the same
 * random numbers are drawn in the same order. */
#ifndef AMP_CLASSIFICATION_H
#define AMP_CLASSIFICATION_H

#include "darknet.h"
#include "pictures.h"

#include <stdbool.h>

/* Does what load_data_blocking does for a list of one image of CLASSIFICATION_DATA. False, and
 * nothing drawn: this image is left to Darknet. Any number of threads may call it. */
bool amp_classification_load(const struct amp_image_loader *, const load_args *);

#endif
