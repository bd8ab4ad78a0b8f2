/* Decides whether a picture, a head or a list of boxes belongs to a network whose rules are not
 * stock Darknet's, and hands it to plugin/boxes then. It must not know how a box is decoded or
 * suppressed. */
#include "boxes.h"

#include "fail.h"
#include "interposed.h"
#include "session.h"
#include "plugin/boxes/boxes.h"

#include "box.h"
#include "image.h"
#include "yolo_layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* do_nms_sort is not told whose boxes it gets: they are those of the head that gave boxes last on
 * this thread. */
static _Thread_local struct {
    bool own_rules; /* false: of a stock network */
    enum amp_nms_kind kind;
    float beta;
} last;

static const enum amp_nms_kind kinds[] = {[AMP_BOX_NMS_DEFAULT] = AMP_NMS_DEFAULT,
                                          [AMP_BOX_NMS_GREEDY] = AMP_NMS_GREEDY,
                                          [AMP_BOX_NMS_DIOU] = AMP_NMS_DIOU};

/* ---- the picture ---- */

/* Darknet's own makes its picture with the same function, so pixels are as in detector map of the
 * other Darknets. */
image amp_boxes_letterbox(image picture, int w, int h)
{
    if (picture.w < 1 || picture.h < 1) /* of a video; images are looked at when they are read */
        amp_fail("a video without a picture that can be decoded");
    return amp_session_stretches(w, h) ? AMP_USE(resize_image)(picture, w, h)
                                       : AMP_REAL(letterbox_image)(picture, w, h);
}

void amp_boxes_letterbox_into(image picture, int w, int h, image boxed)
{
    if (!amp_session_stretches(w, h)) {
        AMP_REAL(letterbox_image_into)(picture, w, h, boxed);
        return;
    }
    image stretched = AMP_USE(resize_image)(picture, w, h);
    memcpy(boxed.data, stretched.data, (size_t)w * h * stretched.c * sizeof(float));
    AMP_USE(free_image)(stretched);
}

/* ---- a head's boxes ---- */

static struct amp_yolo_output output_of(const layer *l, const struct amp_yolo_desc *y, int net_w,
                                        int net_h)
{
    return (struct amp_yolo_output){.output = l->output,
                                    .w = l->w,
                                    .h = l->h,
                                    .boxes = l->n,
                                    .classes = l->classes,
                                    .mask = l->mask,
                                    .anchors = l->biases,
                                    .net_w = net_w,
                                    .net_h = net_h,
                                    .new_coords = y->new_coords};
}

static int give_boxes(const struct amp_yolo_output *head, const struct amp_yolo_picture *picture,
                      float thresh, int relative, detection *found)
{
    struct amp_centre_box b;
    int n = 0;
    for (int at = amp_yolo_next(head, 0, thresh); at >= 0;
         at = amp_yolo_next(head, at + 1, thresh), n++) {
        found[n].objectness = amp_yolo_read(head, picture, at, thresh, &b, found[n].prob);
        found[n].classes = head->classes;
        found[n].bbox = (box){b.x, b.y, b.w, b.h};
        if (relative) continue;
        found[n].bbox.x *= (float)picture->w;
        found[n].bbox.w *= (float)picture->w;
        found[n].bbox.y *= (float)picture->h;
        found[n].bbox.h *= (float)picture->h;
    }
    return n;
}

int amp_boxes_of_yolo(layer l, int w, int h, int net_w, int net_h, float thresh, int *map,
                      int relative, detection *found)
{
    bool letterbox = false;
    const struct amp_yolo_desc *y = amp_session_yolo(l.output, &letterbox);
    last.own_rules = y;
    if (!y)
        return AMP_REAL(get_yolo_detections)(l, w, h, net_w, net_h, thresh, map, relative, found);
    /* Of a batch of two the second is the picture's mirror image. Darknet averages both before it
     * looks for boxes; asked for none, it only averages. */
    if (l.batch == 2)
        AMP_REAL(get_yolo_detections)(l, w, h, net_w, net_h, INFINITY, map, relative, found);
    last.kind = kinds[y->nms_kind];
    last.beta = y->beta_nms;
    struct amp_yolo_output head = output_of(&l, y, net_w, net_h);
    struct amp_yolo_picture picture = {w, h, letterbox};
    return give_boxes(&head, &picture, thresh, relative, found);
}

/* ---- suppression ---- */

bool amp_boxes_suppress(detection *found, int n, int classes, float thresh)
{
    char err[200];
    if (!last.own_rules) return false;
    struct amp_nms nms = {last.kind, thresh, last.beta};
    struct amp_nms_row *rows = amp_allocate((size_t)n, sizeof *rows);
    detection *sorted = amp_allocate((size_t)n, sizeof *sorted);
    int *order = amp_allocate((size_t)n, sizeof *order);
    for (int i = 0; i < n; i++) {
        box b = found[i].bbox;
        rows[i] = (struct amp_nms_row){{b.x, b.y, b.w, b.h}, found[i].objectness, found[i].prob};
    }
    if (amp_nms_run(&nms, rows, n, classes, order, err, sizeof err)) amp_fail(err);
    for (int i = 0; i < n; i++)
        sorted[i] = found[order[i]];
    memcpy(found, sorted, (size_t)n * sizeof *found);
    free(rows);
    free(sorted);
    free(order);
    return true;
}
