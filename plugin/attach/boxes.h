/* Boxes of networks that follow the rules of the other Darknets (amp_dialect): where the picture
 * lies in the network's input, where a head's boxes lie in the picture, and which of them are
 * suppressed. Stock networks get Darknet's own code. */
#ifndef AMP_ATTACH_BOXES_H
#define AMP_ATTACH_BOXES_H

#include <stdbool.h>

#include "darknet.h"

/* ---- in the places of Darknet's functions ---- */

image amp_boxes_letterbox(image picture, int w, int h);
void amp_boxes_letterbox_into(image picture, int w, int h, image boxed);
int amp_boxes_of_yolo(layer, int w, int h, int net_w, int net_h, float thresh, int *map,
                      int relative, detection *);
/* For do_nms_sort and do_nms_obj, both of which suppress class by class there. False: the boxes are
 * a stock network's. */
bool amp_boxes_suppress(detection *, int n, int classes, float thresh);

#endif
