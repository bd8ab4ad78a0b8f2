/* Decides which part of a picture a classifier is shown, how it is turned and how its colours
 * change: the draws of Darknet's load_image_augment_paths. It must not know how a picture is
 * decoded or turned. */
#include "classification.h"

#include "rows.h"
#include "plugin/attach/fail.h"
#include "plugin/attach/interposed.h"
#include "plugin/images/turn.h"
#include "seed.h"

#include "image.h"
#include "utils.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of src/data.c; no header of Darknet's declares it. */
matrix load_labels_paths(char **paths, int n, char **labels, int k, tree *hierarchy);

/* The formula of rotate_crop_image for pixel (x, y), by what stands before x, before y and alone.
 */
static struct amp_turn turn_as_drawn(const augment_args *a, const struct amp_pixels *pixels)
{
    double cosine = cos((double)a->rad), sine = sin((double)a->rad);
    double wide = (double)a->aspect / (double)a->scale, high = 1 / (double)a->scale;
    double x0 = (a->dx - a->w / 2.) * wide, y0 = (a->dy - a->h / 2.) * high;
    return (struct amp_turn){.w = a->w,
                             .h = a->h,
                             .left = cosine * x0 - sine * y0 + pixels->w / 2.,
                             .top = sine * x0 + cosine * y0 + pixels->h / 2.,
                             .across = {cosine * wide, sine * wide},
                             .down = {-sine * high, cosine * high}};
}

/* Every statement draws, in Darknet's order. */
static struct amp_turn draw(const load_args *a, const struct amp_pixels *pixels)
{
    const image size = {.w = pixels->w, .h = pixels->h, .c = 3}; /* no pixel is looked at */
    (void)amp_seed_rand();                                       /* which image of a list of one */
    augment_args part =
        AMP_USE(random_augment_args)(size, a->angle, a->aspect, a->min, a->max, a->size, a->size);
    struct amp_turn t = turn_as_drawn(&part, pixels);
    t.flip = amp_seed_rand() % 2;
    t.colours.hue = AMP_USE(rand_uniform)(-a->hue, a->hue);
    t.colours.saturation = AMP_USE(rand_scale)(a->saturation);
    t.colours.exposure = AMP_USE(rand_scale)(a->exposure);
    return t;
}

/* Of a picture that is narrower than the least cut in whole numbers, Darknet divides by zero and
 * makes black. */
static void load(const struct amp_image_loader *l, const load_args *a,
                 const struct amp_pixels *pixels)
{
    struct amp_turn t = draw(a, pixels);
    float *canvas = amp_row_take(a->size, a->size);
    float **row = malloc(sizeof *row);
    if (!row) amp_fail("out of memory while loading a batch: lower batch");
    *row = canvas;
    if (isfinite(t.left) && isfinite(t.top))
        amp_turn(pixels, &t, canvas);
    else
        memset(canvas, 0, sizeof *canvas * 3 * (size_t)a->size * (size_t)a->size);
    amp_picture_tell(l, AMP_LOAD_PLACE);
    *a->d =
        (data){.w = a->size,
               .h = a->size,
               .X = {.rows = 1, .cols = a->size * a->size * 3, .vals = row},
               .y = AMP_USE(load_labels_paths)(a->paths, 1, a->labels, a->classes, a->hierarchy)};
    amp_picture_tell(l, AMP_LOAD_LABELS);
}

bool amp_classification_load(const struct amp_image_loader *l, const load_args *a)
{
    struct amp_picture p;
    if (a->center || !amp_picture_read(l, a->paths[0], 0, &p)) return false;
    load(l, a, p.pixels);
    amp_picture_drop(l, &p);
    return true;
}
