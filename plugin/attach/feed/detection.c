/* Decides where an image of a detection batch goes and how its colours change: the draws of
 * Darknet's load_data_detection. It must not know how an image is decoded or placed. */
#include "detection.h"

#include "plugin/attach/fail.h"
#include "rows.h"
#include "plugin/attach/interposed.h"
#include "plugin/images/place.h"
#include "seed.h"

#include "utils.h"

#include <stdlib.h>

/* Of src/data.c; no header of Darknet's declares it. */
void fill_truth_detection(char *path, int num_boxes, float *truth, int classes, int flip, float dx,
                          float dy, float sx, float sy);

/* ---- one image ---- */

/* Where the image lies, in Darknet's numbers. */
struct place {
    float w, h, left, top;
};

/* Darknet keeps what it was given, and takes 0 for "as it is". */
static float factor(float most)
{
    return AMP_USE(rand_scale)(most == 0 ? 1 : most);
}

/* Every statement draws once, in the order of load_data_detection. */
static struct place draw_place(const load_args *a, const struct amp_pixels *image)
{
    struct place p;
    float dw = a->jitter * image->full_w, dh = a->jitter * image->full_h;
    float w = image->full_w + AMP_USE(rand_uniform)(-dw, dw);
    float aspect = w / (image->full_h + AMP_USE(rand_uniform)(-dh, dh));
    if (aspect < 1) {
        p.h = a->h;
        p.w = p.h * aspect;
    } else {
        p.w = a->w;
        p.h = p.w / aspect;
    }
    p.left = AMP_USE(rand_uniform)(0, a->w - p.w);
    p.top = AMP_USE(rand_uniform)(0, a->h - p.h);
    return p;
}

static struct amp_placement draw_rest(const load_args *a, const struct place *p)
{
    struct amp_placement all = {.canvas_w = a->w,
                                .canvas_h = a->h,
                                .w = (int)p->w,
                                .h = (int)p->h,
                                .left = (int)p->left,
                                .top = (int)p->top,
                                .distorts = true};
    all.hue = AMP_USE(rand_uniform)(-a->hue, a->hue);
    all.saturation = factor(a->saturation);
    all.exposure = factor(a->exposure);
    all.flip = amp_seed_rand() % 2;
    return all;
}

static matrix one_row(float *row, int columns)
{
    matrix m = {.rows = 1, .cols = columns, .vals = malloc(sizeof *m.vals)};
    if (!m.vals || !row) amp_fail("out of memory while loading a batch: lower batch");
    m.vals[0] = row;
    return m;
}

static void load(const struct amp_image_loader *l, const load_args *a,
                 const struct amp_pixels *image)
{
    (void)amp_seed_rand(); /* which image of a list of one */
    struct place p = draw_place(a, image);
    struct amp_placement placement = draw_rest(a, &p);
    float *canvas = amp_row_take(a->w, a->h);
    if (!amp_place(image, &placement, canvas))
        amp_fail("out of memory while loading a batch: lower batch");
    amp_picture_tell(l, AMP_LOAD_PLACE);
    *a->d = (data){.X = one_row(canvas, a->w * a->h * 3),
                   .y = one_row(calloc((size_t)a->num_boxes * 5, sizeof(float)), a->num_boxes * 5)};
    /* Darknet is compiled with -Ofast, which makes p.w / a->w a product: labels then differ in
     * their last bit. */
    float x = 1.0f / a->w, y = 1.0f / a->h;
    AMP_USE(fill_truth_detection)
    (a->paths[0], a->num_boxes, a->d->y.vals[0], a->classes, placement.flip, -p.left * x,
     -p.top * y, p.w * x, p.h * y);
    amp_picture_tell(l, AMP_LOAD_LABELS);
}

bool amp_detection_load(const struct amp_image_loader *l, const load_args *a)
{
    struct amp_picture p;
    /* No side of the placed image is longer than the canvas's longer one. */
    int least = !l->reduces ? 0 : a->w > a->h ? a->w : a->h;
    if (!amp_picture_read(l, a->paths[0], least, &p)) return false;
    load(l, a, p.pixels);
    amp_picture_drop(l, &p);
    return true;
}
