/* Decides in which order a row of AlexeyAB's loader is drawn: coin and paths first, then each
 * picture's cut and the order of its labels. It must not know how a cut is drawn or computed. */
#include "crops.h"

#include "plugin/attach/fail.h"
#include "plugin/attach/interposed.h"
#include "plugin/core/read/label_path.h"
#include "images.h"
#include "rows.h"
#include "seed.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- what is loaded ---- */

static float or_one(float factor)
{
    return factor > 0 ? factor : 1;
}

bool amp_crops_of(const struct amp_net_desc *net, const load_args *a, struct amp_crops *c)
{
    const struct amp_layer_desc *last = &net->layers[net->n - 1];
    const struct amp_yolo_desc *y = &last->loss.yolo;
    if (!amp_net_has_forks_head(net) || a->type != DETECTION_DATA) return false;
    *c = (struct amp_crops){.cut = {.w = a->w,
                                    .h = a->h,
                                    .jitter = y->jitter,
                                    .resize = y->resize,
                                    .letter_box = net->letter_box,
                                    .flip = net->flip,
                                    .hue = a->hue,
                                    .saturation = or_one(a->saturation),
                                    .exposure = or_one(a->exposure)},
                            .truths = {a->w, a->h, a->classes, last->truths},
                            .mixing = (enum amp_mixing)net->mixup,
                            .bounded = net->mosaic_bound};
    if (net->mosaic) c->mixing = AMP_MIX_MOSAIC;
    return true;
}

/* ---- drawing ---- */

static int next(void *user)
{
    (void)user;
    return amp_seed_rand();
}

static const struct amp_random numbers = {.next = next};

static void *allocate(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) amp_fail("out of memory while loading a batch: lower batch");
    return p;
}

/* ---- labels ---- */

static bool find_labels(const char *picture, char path[AMP_LABEL_PATH_MAX])
{
    for (int place = 0; place < AMP_LABEL_PLACES; place++)
        if (amp_label_path_in((enum amp_label_place)place, picture, path, AMP_LABEL_PATH_MAX) &&
            !access(path, R_OK))
            return true;
    return false;
}

/* Darknet reads them. NULL: there are none. */
static struct amp_box_label *read_labels(const char *picture, int *count)
{
    char path[AMP_LABEL_PATH_MAX];
    *count = 0;
    if (!find_labels(picture, path)) return NULL;
    box_label *rows = AMP_USE(read_boxes)(path, count);
    struct amp_box_label *labels = allocate((size_t)*count, sizeof *labels);
    for (int i = 0; i < *count; i++)
        labels[i] = (struct amp_box_label){rows[i].id, rows[i].x, rows[i].y, rows[i].w, rows[i].h};
    free(rows);
    return labels;
}

/* ---- one row ---- */

struct row {
    float *planes, *truths;
    int count;
};

static size_t numbers_of(const struct amp_crops *c)
{
    return (size_t)c->cut.w * (size_t)c->cut.h * 3;
}

static struct row new_row(const struct amp_crops *c)
{
    return (struct row){.planes = amp_row_take(c->cut.w, c->cut.h),
                        .truths =
                            allocate((size_t)c->truths.max * AMP_TRUTH_FLOATS, sizeof(float))};
}

/* A picture's cut, and its truths in it. */
static struct amp_crop draw_cut(const struct amp_crops *c, const char *path,
                                const struct amp_pixels *pixels, int round, struct row *r)
{
    int n;
    struct amp_crop crop;
    struct amp_box_label *labels = read_labels(path, &n);
    int *order = allocate((size_t)n, sizeof *order);
    amp_crop_draw(&c->cut, pixels->w, pixels->h, round, &numbers, &crop);
    amp_label_order_draw(n, &numbers, order);
    r->count = amp_crop_truths(&c->truths, &crop, labels, n, order, r->truths);
    free(order);
    free(labels);
    return crop;
}

static void require_memory(bool there)
{
    if (!there) amp_fail("out of memory while loading a batch: lower batch");
}

static void load_picture(const struct amp_image_loader *l, const struct amp_crops *c, char *path,
                         struct row *r)
{
    struct amp_picture p;
    amp_picture_read_any(l, path, &p);
    struct amp_crop crop = draw_cut(c, path, p.pixels, AMP_NO_MOSAIC, r);
    amp_picture_tell(l, AMP_LOAD_LABELS);
    require_memory(amp_crop_picture(p.pixels, &crop, c->cut.w, c->cut.h, r->planes));
    amp_picture_tell(l, AMP_LOAD_PLACE);
    amp_picture_drop(l, &p);
}

static void mix_in(const struct amp_image_loader *l, const struct amp_crops *c, char *path,
                   struct row *r)
{
    struct row other = new_row(c);
    load_picture(l, c, path, &other);
    amp_mixup_planes(r->planes, other.planes, numbers_of(c));
    amp_picture_tell(l, AMP_LOAD_PLACE);
    r->count = amp_mixup_truths(&c->truths, r->truths, r->count, other.truths, other.count);
    amp_row_give(other.planes, numbers_of(c));
    free(other.truths);
}

static void put_into_mosaic(const struct amp_image_loader *l, const struct amp_crops *c, char *path,
                            int round, const struct amp_cut *cut, struct row *r)
{
    struct amp_picture p;
    struct row other = {.truths =
                            allocate((size_t)c->truths.max * AMP_TRUTH_FLOATS, sizeof(float))};
    amp_picture_read_any(l, path, &p);
    struct amp_crop crop = draw_cut(c, path, p.pixels, round, &other);
    amp_picture_tell(l, AMP_LOAD_LABELS);
    struct amp_part part = amp_mosaic_part(&c->truths, &crop, cut, round);
    require_memory(amp_crop_part(p.pixels, &crop, c->cut.w, c->cut.h, &part, r->planes));
    amp_picture_tell(l, AMP_LOAD_PLACE);
    amp_picture_drop(l, &p);
    r->count = amp_mosaic_truths(&c->truths, &part, c->bounded, r->truths, r->count, other.truths,
                                 other.count);
    free(other.truths);
}

static matrix as_matrix(float *row, int columns)
{
    matrix m = {.rows = 1, .cols = columns, .vals = allocate(1, sizeof *m.vals)};
    m.vals[0] = row;
    return m;
}

/* After a picture that cannot be decoded the row is of no use; its caller draws another. */
void amp_crops_load(const struct amp_image_loader *l, const struct amp_crops *c, const load_args *a,
                    char **name)
{
    struct amp_cut cut;
    struct row r = new_row(c);
    struct amp_mix mix = amp_mix_draw(c->mixing, c->cut.w, c->cut.h, 1, &numbers, &cut);
    for (int round = 0; round < mix.rounds; round++) {
        char *path = a->paths[next(NULL) % a->m];
        if (round == 0 || !amp_images_is_bad()) *name = path;
        if (mix.mixing == AMP_MIX_MOSAIC)
            put_into_mosaic(l, c, path, round, &cut, &r);
        else if (round == 0)
            load_picture(l, c, path, &r);
        else
            mix_in(l, c, path, &r);
    }
    *a->d = (data){.X = as_matrix(r.planes, (int)numbers_of(c)),
                   .y = as_matrix(r.truths, c->truths.max * AMP_TRUTH_FLOATS)};
}
