/* Detection images by a path of our own (plugin/images/): from a JPEG's bytes to the network's
 * input in one pass, in a fraction of the time that Darknet's load_data_detection takes. Pixels are
 * its own within 5e-4, labels to the bit, and the same random numbers are drawn in the same order.
 */
#ifndef AMP_DETECTION_H
#define AMP_DETECTION_H

#include "darknet.h"
#include "pictures.h"

#include <stdbool.h>

/* Does what load_data_blocking does for a list of one image of DETECTION_DATA. False, and nothing
 * drawn: this image is left to Darknet (plugin/images/jpeg.h). Any number of threads may call it.
 */
bool amp_detection_load(const struct amp_image_loader *, const load_args *);

#endif
