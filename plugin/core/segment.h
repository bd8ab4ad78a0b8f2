/* Consecutive layers of ours that run in one go, recorded where the backend can: starting one
 * operation after the other costs more than many of them take.
 *
 * Not in a segment: layers that Darknet runs, and dropout where its masks are drawn on the host. A
 * recording holds the values that its operations were given; with other values it is made again.
 */
#ifndef AMP_SEGMENT_H
#define AMP_SEGMENT_H

#include <stdbool.h>

struct amp_graph;

enum { AMP_REGION_WARM_UP_IMAGES = 12800 }; /* Darknet's: boxes are drawn to their anchors first */

/* The ways to run a segment. */
enum amp_way { AMP_INFERENCE, AMP_FORWARD, AMP_BACKWARD, AMP_WAYS };

struct amp_segment {
    int first, last; /* layers */
    struct amp_segment_way {
        bool ran; /* unrecorded: plans are chosen, memory is there */
        /* What it last ran with, and its recording holds. */
        float scale;
        const float *truth;
        bool region_warm_up;
        struct ampk_recording *recording;
    } way[AMP_WAYS];
};

/* Finds the segments, if the backend can record. -1: out of memory. */
int amp_segments_create(struct amp_graph *);
void amp_segments_free(struct amp_graph *);

/* One layer, or its segment when the first of its layers (backward: the last) is called; the other
 * layers' calls then do nothing. */
void amp_segment_forward(struct amp_graph *, int layer);
void amp_segment_backward(struct amp_graph *, int layer);

#endif
