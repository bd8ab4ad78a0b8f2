/* Describes what stock Darknet and the fork do differently: the numbers of a [yolo] head, how
 * images are loaded, which sizes are drawn. The defaults of either stand in key_table.c. Nobody
 * behind the description asks for the dialect. */
#include "net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/dialect.h"

/* ---- the head ---- */

/* A word that it does not know is another to the fork. */
static int word(const struct describer *d, const char *key, int other)
{
    int place = amp_key_word(amp_key_find(key, AMP_YOLO), amp_desc_string(d, key));
    return place < 0 ? other : place;
}

/* Classes with fewer objects count more: the largest count over the class's own. */
static int read_multipliers(struct describer *d, int classes, struct amp_yolo_desc *y)
{
    const char *list = amp_desc_string(d, "counters_per_class");
    if (!*list) return 0;
    int n = amp_list_count(list);
    if (n != classes)
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "counters_per_class"),
                             "counters_per_class= in %s: %d numbers; allowed: %d, one for each of "
                             "classes=",
                             d->section->name, n, classes);
    y->class_multipliers = malloc((size_t)n * sizeof *y->class_multipliers);
    if (!y->class_multipliers)
        return amp_fail_line(&d->complaints, d->section->line, "out of memory");
    float most = 1;
    for (int i = 0; i < n; i++, list = amp_list_next(list)) {
        y->class_multipliers[i] = fmaxf((float)atof(list), 1);
        most = fmaxf(most, y->class_multipliers[i]);
    }
    for (int i = 0; i < n; i++) {
        float factor = most / y->class_multipliers[i];
        y->class_multipliers[i] = y->max_delta > 0 ? fminf(factor, y->max_delta) : factor;
    }
    return 0;
}

int amp_describe_yolo(struct describer *d, struct amp_layer_desc *l)
{
    struct amp_yolo_desc *y = &l->loss.yolo;
    *y = (struct amp_yolo_desc){
        .own_rules = d->net->dialect != AMP_DIALECT_STOCK,
        .box_loss = (enum amp_box_loss)word(d, "iou_loss", AMP_BOX_IOU),
        .iou_normalizer = amp_desc_float(d, "iou_normalizer"),
        .obj_normalizer = amp_desc_float(d, "obj_normalizer"),
        .cls_normalizer = amp_desc_float(d, "cls_normalizer"),
        .max_delta = amp_desc_float(d, "max_delta"),
        .iou_thresh = amp_desc_float(d, "iou_thresh"),
        .iou_thresh_kind = (enum amp_box_loss)word(d, "iou_thresh_kind", AMP_BOX_IOU),
        .scale_x_y = amp_desc_float(d, "scale_x_y"),
        .new_coords = amp_desc_int(d, "new_coords") != 0,
        .label_smooth_eps = amp_desc_float(d, "label_smooth_eps"),
        .focal_loss = amp_desc_int(d, "focal_loss") != 0,
        .objectness_smooth = amp_desc_int(d, "objectness_smooth") != 0,
        .nms_kind = (enum amp_box_nms)word(d, "nms_kind", AMP_BOX_NMS_DEFAULT),
        .beta_nms = amp_desc_float(d, "beta_nms"),
        .jitter = amp_desc_float(d, "jitter"),
        .resize = amp_desc_float(d, "resize"),
        .random = amp_desc_float(d, "random"),
    };
    return read_multipliers(d, l->classes, y);
}

/* ---- for the others too ---- */

int amp_desc_positive(struct describer *d, const char *key, int value)
{
    if (value > 0) return 0;
    return amp_fail_line(&d->complaints, amp_cfg_line(d->section, key),
                         "%s=%d in %s: must be at least 1", key, value, d->section->name);
}

/* ---- how images are loaded ---- */

int amp_describe_loading(struct describer *d)
{
    struct amp_net_desc *net = d->net;
    net->flip = amp_desc_int(d, "flip") != 0;
    net->letter_box = amp_desc_int(d, "letter_box") != 0;
    net->mosaic = amp_desc_int(d, "mosaic") != 0;
    net->mosaic_bound = amp_desc_int(d, "mosaic_bound") != 0;
    net->mixup = amp_desc_int(d, "mixup");
    net->drawn_step = amp_desc_int(d, "resize_step");
    return amp_desc_positive(d, "resize_step", net->drawn_step);
}

/* The fork draws a factor of the cfg's size up to `random`, and of 1.4 with random=1. */
static int drawn_side(int side, double factor, int step)
{
    double drawn = round(factor * side / step + 1) * step;
    return (int)fmin(fmax(drawn, step), AMP_MAX_INTEGER);
}

static void describe_drawn_sizes(const struct amp_cfg_file *cfg, struct amp_net_desc *net)
{
    const struct amp_layer_desc *last = &net->layers[net->n - 1];
    double most = last->loss.yolo.random == 1 ? 1.4 : last->loss.yolo.random;
    int sides[2] = {amp_net_int(cfg, "width"), amp_net_int(cfg, "height")};
    if (!last->random) return;
    for (int i = 0; i < 2; i++) {
        net->drawn_least[i] = 320;
        net->drawn_most[i] = 608;
        if (net->dialect == AMP_DIALECT_STOCK || last->type != AMP_YOLO || !(most > 0)) continue;
        if (most < 1) most = 1 / most;
        net->drawn_most[i] = drawn_side(sides[i], most, net->drawn_step);
        int least = drawn_side(sides[i], 1 / most, net->drawn_step);
        net->drawn_least[i] = least < sides[i] ? least : sides[i];
    }
}

/* Both sides grow by the same factor. */
bool amp_net_next_size(const struct amp_net_desc *net, int *w, int *h)
{
    const int *least = net->drawn_least, *most = net->drawn_most;
    if (!most[0] || *w >= most[0]) return false;
    *w = *w ? *w + net->drawn_step : least[0];
    if (*w > most[0]) *w = most[0];
    double share = most[0] > least[0] ? (double)(*w - least[0]) / (most[0] - least[0]) : 1;
    int steps = (int)round(share * (most[1] - least[1]) / net->drawn_step);
    *h = *w == most[0] ? most[1] : least[1] + steps * net->drawn_step;
    return true;
}

bool amp_net_has_forks_head(const struct amp_net_desc *net)
{
    return net->layers[net->n - 1].loss.yolo.own_rules;
}

bool amp_net_stretches(const struct amp_net_desc *net)
{
    return amp_net_has_forks_head(net) && !net->letter_box;
}

/* ---- the whole net ---- */

/* The fork has room for as many labels as the last head's max= says. */
static void describe_truths(struct amp_net_desc *net)
{
    const struct amp_layer_desc *last = &net->layers[net->n - 1];
    for (int i = 0; i < net->n && last->type == AMP_YOLO; i++)
        if (net->layers[i].type == AMP_YOLO)
            net->layers[i].truths = net->layers[i].max_boxes = last->max_boxes;
}

/* The fork's stopbackward=1: nothing before it learns, with running statistics. A larger number
 * ends backward there for so many iterations. */
static void describe_stops(struct describer *d)
{
    struct amp_net_desc *net = d->net;
    for (int i = net->n - 1, frozen = 0; i >= 0; i--) {
        struct amp_layer_desc *l = &net->layers[i];
        const struct amp_cfg_section *s = amp_cfg_layer(d->complaints.cfg, i);
        if (frozen && amp_layer_is_matrix(l)) l->freeze = true;
        int until = amp_key_int(s, l->type, net->dialect, "stopbackward");
        l->stop_until = until > 1 ? until : 0;
        frozen = frozen || until == 1;
        l->stopbackward = false;
    }
}

bool amp_net_stop(struct amp_net_desc *net, size_t iteration)
{
    bool changed = false;
    for (int i = 0; i < net->n; i++) {
        struct amp_layer_desc *l = &net->layers[i];
        if (!l->stop_until) continue;
        bool stops = iteration < (size_t)l->stop_until;
        changed = changed || stops != l->stopbackward;
        l->stopbackward = stops;
    }
    return changed;
}

void amp_describe_whole(struct describer *d)
{
    describe_drawn_sizes(d->complaints.cfg, d->net);
    if (d->net->dialect == AMP_DIALECT_STOCK) return;
    d->net->bn_under_root = true;
    describe_truths(d->net);
    describe_stops(d);
}

/* ---- what is refused ---- */

int amp_fail_fork_activation(struct describer *d, const char *name)
{
    return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "activation"),
                         "activation=%s in %s: not supported", name, d->section->name);
}

int amp_fail_fork_layer(struct describer *d, const char *lost)
{
    return amp_fail_line(&d->complaints, d->section->line,
                         "%s: not supported; without it the network would lose %s",
                         d->section->name, lost);
}

/* Other nets load their images by stock's rules. */
static int check_loading(const struct amp_complaints *c, const struct amp_net_desc *net)
{
    const struct amp_cfg_section *s = c->cfg->sections;
    const struct {
        const char *key;
        bool asked;
    } keys[] = {{"mosaic", net->mosaic},
                {"mixup", net->mixup},
                {"letter_box", net->letter_box},
                {"flip", !net->flip}};
    for (int i = 0; i < 4; i++)
        if (keys[i].asked && !amp_net_has_forks_head(net))
            return amp_fail_value(c, s, amp_cfg_find(s, keys[i].key),
                                  "supported only for nets that end in [yolo]");
    return 0;
}

/* Of [net], where AlexeyAB's Darknet ends or goes on without a word. */
int amp_net_check_dialect(const struct amp_cfg_file *cfg, const struct amp_net_desc *net, char *err,
                          size_t err_size)
{
    const struct amp_complaints c = {.cfg = cfg, .err = err, .err_size = err_size};
    const struct amp_cfg_section *s = cfg->sections;
    const struct amp_cfg_entry *mosaic = amp_cfg_find(s, "mosaic"),
                               *mixup = amp_cfg_find(s, "mixup");
    if (net->dialect == AMP_DIALECT_STOCK) return 0;
    if (check_loading(&c, net)) return -1;
    if (net->mosaic && net->letter_box)
        return amp_fail_value(&c, s, mosaic,
                              "with letter_box=1 AlexeyAB's Darknet does not train either; remove "
                              "one of the two. A detector that is tested with letter_box=1 is "
                              "trained with mosaic=0");
    if (net->mixup < 0 || net->mixup == 2 || net->mixup > 4)
        return amp_fail_value(&c, s, mixup,
                              "allowed for a detector: 0, 1 (two images), 3 (mosaic), 4 (either)");
    return 0;
}
