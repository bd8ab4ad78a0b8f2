/* Decides what becomes of a picture's labels when it is cut, turned and mixed. It must not know
 * pixels or draw anything. */
#include "truths.h"

struct edges {
    float left, right, top, bottom;
};

static float into_picture(float x)
{
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

/* Labels at (0, 0) are left out as in stock Darknet. */
static bool lies_in_picture(const struct amp_box_label *l)
{
    bool at_zero = l->x == 0 && l->y == 0;
    return !at_zero && l->x + l->w / 2 >= 0 && l->y + l->h / 2 >= 0 && l->x - l->w / 2 <= 1 &&
           l->y - l->h / 2 <= 1;
}

/* A fraction of the picture as one of the cut. Rounded in this order: a mosaic truncates edges to
 * whole pixels, and the last bit decides which. */
static float move(float at, int picture, int start, int size)
{
    float share = (float)size / (float)picture;
    float scale = 1 / share, shift = (float)start / (float)picture / share;
    return at * scale - shift;
}

static struct edges cut_edges(const struct amp_crop *crop, const struct amp_box_label *l)
{
    struct edges e = {.left = move(l->x - l->w / 2, crop->picture_w, crop->left, crop->w),
                      .right = move(l->x + l->w / 2, crop->picture_w, crop->left, crop->w),
                      .top = move(l->y - l->h / 2, crop->picture_h, crop->top, crop->h),
                      .bottom = move(l->y + l->h / 2, crop->picture_h, crop->top, crop->h)};
    if (crop->flip) {
        float left = e.left;
        e.left = 1 - e.right;
        e.right = 1 - left;
    }
    e.left = into_picture(e.left);
    e.right = into_picture(e.right);
    e.top = into_picture(e.top);
    e.bottom = into_picture(e.bottom);
    return e;
}

static void write_truth(const struct edges *e, int class_id, float *truth)
{
    truth[0] = (e->left + e->right) / 2;
    truth[1] = (e->top + e->bottom) / 2;
    truth[2] = e->right - e->left;
    truth[3] = e->bottom - e->top;
    truth[4] = (float)class_id;
}

static bool is_in(float x)
{
    return x > 0 && x <= 1;
}

int amp_crop_truths(const struct amp_truth_rules *rules, const struct amp_crop *crop,
                    const struct amp_box_label *labels, int count, const int *order, float *truths)
{
    float least_w = 1 / (float)rules->w, least_h = 1 / (float)rules->h;
    int kept = 0;
    for (int i = 0; i < count && i < rules->max; i++) {
        const struct amp_box_label *l = &labels[order[i]];
        float truth[AMP_TRUTH_FLOATS];
        if (l->class_id < 0 || l->class_id >= rules->classes || !lies_in_picture(l)) continue;
        struct edges e = cut_edges(crop, l);
        write_truth(&e, l->class_id, truth);
        /* Written so that a NaN is left out. */
        if (!(truth[2] >= least_w && truth[3] >= least_h && is_in(truth[0]) && is_in(truth[1])))
            continue;
        for (int k = 0; k < AMP_TRUTH_FLOATS; k++)
            truths[kept * AMP_TRUTH_FLOATS + k] = truth[k];
        kept++;
    }
    return kept;
}
