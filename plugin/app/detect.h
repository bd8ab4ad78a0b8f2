/* Runs a Darknet network over a list of images, as many at a time as its batch has, and gives or
 * collects its detections.
 *
 * It does what `detector valid` does: images letterboxed, loaded a few ahead of the network;
 * network_predict; get_network_boxes; do_nms_sort. All but the reading of JPEGs is Darknet's own.
 * Boxes are not clipped. One difference of an evaluation: images for a [detection] head (YOLOv1)
 * are stretched to the network's size, as in `yolo valid`, because get_network_boxes takes its
 * boxes as fractions of the whole image.
 *
 * The network must have passed amp_map_check_network. */
#ifndef AMP_DETECT_H
#define AMP_DETECT_H

#include <stdbool.h>
#include <stddef.h>

#include "darknet.h"

#include "average_precision.h"
#include "images_ahead.h"
#include "map.h"

struct amp_detections {
    struct amp_prediction *rows; /* by image, then as Darknet lists them; boxes are fractions of the
                                    image */
    size_t count, capacity;
    size_t unbounded; /* boxes that are not finite: kept as empty boxes, which match nothing */
};

struct amp_detector {
    network *net;
    enum amp_fit fit;
    char **list; /* of images */
    int *map;    /* as of Darknet's map=, or NULL */
    int classes;
    float thresh, nms; /* as below */
    bool fractions;    /* boxes are fractions of the image, not pixels */
};
/* An image's, suppressed; w, h: its size. Not 0 ends the run. */
typedef int amp_each_detections(void *user, int image, int w, int h, detection *, int n);
/* In the order of the list. 0, or -1 as amp_detect_run. */
int amp_detect_each(const struct amp_detector *, struct amp_image_range, bool progress,
                    amp_each_detections *, void *user);

/* How images are fitted into the network: "letterboxed" or "stretched". */
const char *amp_detect_resize(const network *net);

/* thresh: objectness and class score below it are dropped; nms: IoU above which the lower of two
 * boxes of a class is dropped, 0 for none. images: the ones to run. detections is zero-initialised
 * by the caller. progress: shown on stderr. 0, or -1 after naming on stderr every image that cannot
 * be decoded, or the layer whose output is not finite. */
int amp_detect_run(network *net, const struct amp_eval_set *set, struct amp_image_range images,
                   float thresh, float nms, bool progress, struct amp_detections *detections);
/* Runs the network on all images and sorts its detections beside the set's truths, for
 * amp_map_compute. NULL after telling why. */
struct amp_ap_set *amp_detect_ap(network *net, const struct amp_eval_set *set, float thresh,
                                 float nms);
/* The same by all processes that train together, each with its share of the images: the result is
 * that of one process. *ap is NULL on all but process 0. -1 on all if one of them failed. */
int amp_detect_ap_shared(network *net, const struct amp_eval_set *set, float thresh, float nms,
                         struct amp_ap_set **ap);
void amp_detections_free(struct amp_detections *detections);

#endif
