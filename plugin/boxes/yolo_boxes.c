/* Decides which boxes a [yolo] head's output stands for and where they lie in the picture. It must
 * not know who reads them, nor what the head did before: its output is taken as stored.
 *
 * Thresholds are compared in float, as Darknet and its forks do: whether a box is there must not
 * depend on who asks. */

#include "boxes.h"

#include <math.h>

enum { X, Y, W, H, OBJECTNESS, CLASSES };

/* A box's place: which cell, and which box of the mask. */
struct place {
    int column, row, box;
};

static struct place find_place(const struct amp_yolo_output *head, int at)
{
    int cell = at / head->boxes;
    return (struct place){cell % head->w, cell / head->w, at % head->boxes};
}

static float read_plane(const struct amp_yolo_output *head, struct place p, int plane)
{
    size_t of_head = (size_t)p.box * (size_t)(CLASSES + head->classes) + (size_t)plane;
    size_t row = of_head * (size_t)head->h + (size_t)p.row;
    return head->output[row * (size_t)head->w + (size_t)p.column];
}

int amp_yolo_next(const struct amp_yolo_output *head, int from, float thresh)
{
    int n = head->w * head->h * head->boxes;
    for (int at = from; at < n; at++) {
        if (read_plane(head, find_place(head, at), OBJECTNESS) > thresh) return at;
    }
    return -1;
}

/* One side as a fraction of the network's input. */
static double side(double output, bool new_coords, double anchor, int net)
{
    double factor = new_coords ? 4 * output * output : exp(output);
    return factor * anchor / net;
}

/* From fractions of the network's input to fractions of the picture, which covers `covered` of
 * `net` pixels, in the middle. */
static void stretch(double *centre, double *length, int covered, int net)
{
    double part = (double)covered / net;
    *centre = (*centre - (1 - part) / 2) / part;
    *length /= part;
}

/* The side that fits is covered whole; the other one's pixels are cut to a whole number, as
 * letterbox_image cuts them. A picture of a fraction of a pixel still covers one. */
static void leave_letterbox(const struct amp_yolo_output *head,
                            const struct amp_yolo_picture *picture, double *x, double *y, double *w,
                            double *h)
{
    if ((float)head->net_w / (float)picture->w < (float)head->net_h / (float)picture->h) {
        int covered = (int)((long long)picture->h * head->net_w / picture->w);
        stretch(y, h, covered > 0 ? covered : 1, head->net_h);
    } else {
        int covered = (int)((long long)picture->w * head->net_h / picture->h);
        stretch(x, w, covered > 0 ? covered : 1, head->net_w);
    }
}

static struct amp_centre_box decode(const struct amp_yolo_output *head,
                                    const struct amp_yolo_picture *picture, struct place p)
{
    const float *anchor = head->anchors + 2 * head->mask[p.box];
    double x = (p.column + (double)read_plane(head, p, X)) / head->w;
    double y = (p.row + (double)read_plane(head, p, Y)) / head->h;
    double w = side(read_plane(head, p, W), head->new_coords, anchor[0], head->net_w);
    double h = side(read_plane(head, p, H), head->new_coords, anchor[1], head->net_h);
    if (picture->letterbox) leave_letterbox(head, picture, &x, &y, &w, &h);
    return (struct amp_centre_box){(float)x, (float)y, (float)w, (float)h};
}

float amp_yolo_read(const struct amp_yolo_output *head, const struct amp_yolo_picture *picture,
                    int at, float thresh, struct amp_centre_box *box, float *prob)
{
    struct place p = find_place(head, at);
    float objectness = read_plane(head, p, OBJECTNESS);
    *box = decode(head, picture, p);
    for (int k = 0; k < head->classes; k++) {
        float score = objectness * read_plane(head, p, CLASSES + k);
        prob[k] = score > thresh ? score : 0;
    }
    return objectness;
}
