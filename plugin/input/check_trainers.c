/* Decides what is wrong with the inputs of Darknet's trainers other than the detector's before
 * anything is trained: one row of a table says what a trainer loads, and each check follows from
 * the row. It must not call Darknet. What is restated here are the train_* functions of its
 * examples and the loaders of its data.c, which compare no sizes. */

#define _GNU_SOURCE
#include "check_train.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "checker.h"
#include "class_labels.h"
#include "plugin/core/read/lines.h"
#include "plugin/core/read/named_files.h"
#include "train_list.h"
#include "truth_files.h"

enum { GO_BOARD = 19 * 19, MASK_CLASSES = 80, TAG_IMAGES = 1024, INSTANCES = 90, SUPER_SCALE = 4 };

struct check;

struct trainer {
    const char *name;
    bool data;        /* reads a data file: train=, backup=, and what `classes` says */
    int classes;      /* default of classes=; 0: the key is not read */
    const char *list; /* default of train=, or the fixed list of images; NULL: reads none */
    bool square;      /* images are loaded as squares of `width` */
    bool endless;     /* max_batches=0 trains without end; else it trains nothing */
    int (*inputs)(const struct check *); /* numbers loaded for an image; NULL: 3 channels of it */
    int (*truths)(struct check *);       /* its truths; 0: not known, which was told */
    amp_image_rule *rule; /* what an image must have beside its file; NULL: nothing */
    const char *faults;   /* title of what the rule finds */
};

struct check {
    struct amp_checker k;
    const struct trainer *t;
    const char *command; /* of its group */
    const struct amp_trainer_inputs *in;
    int classes, div; /* div: of the network's width to that of its last image */
    struct amp_class_labels labels;
};

/* ---- how many truths are loaded for an image ---- */

static int as_classes(struct check *c)
{
    return c->classes;
}

/* Truths that a loss reads for an image; of the last layer, also the room that Darknet makes. */
static int truths_of(const struct amp_layer_desc *l)
{
    switch (l->type) {
    case AMP_YOLO:
        return AMP_YOLO_TRUTHS * 5;
    case AMP_REGION:
        return AMP_REGION_TRUTHS * (l->coords + 1);
    case AMP_DETECTION:
        return l->w * l->h * (1 + l->coords + l->classes);
    case AMP_ISEG:
        return INSTANCES * (l->w * l->h + 1);
    default:
        return l->inputs;
    }
}

/* Darknet makes room for as many truths as the last layer but [cost] has outputs. */
static int room_for_truths(const struct amp_net_desc *net)
{
    const struct amp_layer_desc *l = &net->layers[net->n - 1];
    if (amp_layer_is_head(l) || l->type == AMP_ISEG) return truths_of(l);
    return amp_net_outputs(net);
}

static int as_outputs(struct check *c)
{
    c->classes = room_for_truths(c->k.net);
    return c->classes;
}

/* Of the last layer that makes an image: Darknet divides by its width, and asserts that the
 * network's is a multiple. */
static int find_div(struct check *c)
{
    const struct amp_net_desc *net = c->k.net;
    const struct amp_layer_desc *l = NULL;
    for (int i = net->n - 1; i >= 0 && !l; i--)
        if (net->layers[i].out_w && net->layers[i].out_h && net->layers[i].out_c)
            l = &net->layers[i];
    int div = l ? net->w / l->out_w : 0;
    if (div && l->out_w * div == net->w && l->out_h * div == net->h) return div;
    amp_checker_fault(&c->k,
                      "%s: the network reads %dx%d and makes %dx%d; %s %s needs an image whose "
                      "sides are the network's, divided by one whole number",
                      c->k.cfg->path, net->w, net->h, l ? l->out_w : 0, l ? l->out_h : 0,
                      c->t->name, c->command);
    return 0;
}

static int of_segments(struct check *c)
{
    int div = find_div(c);
    c->classes = MASK_CLASSES;
    return div ? c->k.net->h * c->k.net->w * MASK_CLASSES / div / div : 0;
}

static int of_instances(struct check *c)
{
    const struct amp_layer_desc *last = &c->k.net->layers[c->k.net->n - 1];
    int div = find_div(c);
    c->classes = last->type == AMP_ISEG ? last->classes : MASK_CLASSES;
    return div ? (c->k.net->w / div * (c->k.net->h / div) + 1) * INSTANCES : 0;
}

static int of_grid(struct check *c)
{
    const struct amp_layer_desc *last = &c->k.net->layers[c->k.net->n - 1];
    c->classes = last->classes;
    if (last->type == AMP_DETECTION) return last->w * last->h * (5 + last->classes);
    amp_checker_fault(&c->k,
                      "%s:%d: the last layer is %s; %s train needs [detection] there. [yolo] and "
                      "[region] are trained by detector train",
                      c->k.cfg->path, last->line, last->type_name, c->t->name);
    return 0;
}

static int of_pictures(struct check *c)
{
    return c->k.net->w * c->k.net->h * 3 * SUPER_SCALE * SUPER_SCALE;
}

static int of_cifar(struct check *c)
{
    (void)c;
    return 10;
}

static int cifar_inputs(const struct check *c)
{
    (void)c;
    return 32 * 32 * 3;
}

static int of_go(struct check *c)
{
    (void)c;
    return GO_BOARD + 2;
}

static int go_inputs(const struct check *c)
{
    (void)c;
    return GO_BOARD * 3;
}

static int text_inputs(const struct check *c)
{
    return c->k.net->inputs;
}

static int of_text(struct check *c)
{
    return c->k.net->inputs;
}

/* ---- the trainers ---- */

#define MASK_FAULTS "images whose masks cannot be read"
#define TAG_FAULTS  "images with faulty tags"

static const struct trainer trainers[] = {
    {"classifier", true, 2, "data/train.list", true, true, NULL, as_classes, amp_has_one_label,
     AMP_LABELS_WRONG},
    {"regressor", true, 1, "data/train.list", true, true, NULL, as_classes, amp_truths_are_values,
     "images whose values cannot be read"},
    {"segmenter", true, 0, "data/train.list", false, true, NULL, of_segments, amp_truths_are_masks,
     MASK_FAULTS},
    {"isegmenter", true, 0, "data/train.list", false, true, NULL, of_instances,
     amp_truths_are_masks, MASK_FAULTS},
    {"yolo", false, 0, "/data/voc/train.txt", false, false, NULL, of_grid, NULL, NULL},
    {"coco", false, 0, "data/coco.trainval.txt", false, false, NULL, of_grid, NULL, NULL},
    {"tag", false, 0, "/home/pjreddie/tag/train.list", true, true, NULL, as_outputs,
     amp_truths_are_tags, TAG_FAULTS},
    {"super", false, 0, "/data/imagenet/imagenet1k.train.list", false, false, NULL, of_pictures,
     NULL, NULL},
    {"cifar", false, 0, NULL, false, true, cifar_inputs, of_cifar, NULL, NULL},
    {"go", false, 0, NULL, false, true, go_inputs, of_go, NULL, NULL},
    {"rnn", false, 0, NULL, false, false, text_inputs, of_text, NULL, NULL},
};

static const struct trainer tagged = {
    "classifier", true, 2,          "data/train.list",   true,
    true,         NULL, as_classes, amp_truths_are_tags, TAG_FAULTS};

static const struct trainer *find(const char *name)
{
    const struct trainer *t = trainers;
    while (strcmp(t->name, name))
        t++;
    return t;
}

/* ---- the network ---- */

static void check_inputs(struct check *c)
{
    const struct amp_net_desc *net = c->k.net;
    const struct amp_cfg_section *s = &c->k.cfg->sections[0];
    int loaded = c->t->inputs   ? c->t->inputs(c)
                 : c->t->square ? net->w * net->w * 3
                                : net->w * net->h * 3;
    if (!c->t->inputs && net->c != 3)
        amp_checker_fault(&c->k,
                          "%s:%d: channels=%d; allowed: 3, what %s %s loads (a grey image is "
                          "loaded as three equal channels)",
                          c->k.cfg->path, amp_cfg_line(s, "channels"), net->c, c->t->name,
                          c->command);
    else if (c->t->square && net->h != net->w)
        amp_checker_fault(&c->k, "%s:%d: height=%d; allowed: %d: %s train loads squares of `width`",
                          c->k.cfg->path, amp_cfg_line(s, "height"), net->h, net->w, c->t->name);
    else if (net->inputs != loaded)
        amp_checker_fault(&c->k, "%s: the network reads %d numbers for an image; %s %s loads %d",
                          c->k.cfg->path, net->inputs, c->t->name, c->command, loaded);
}

static void tell_truths(struct check *c, const struct amp_layer_desc *l, int takes, int loaded)
{
    const char *of = c->t->truths == as_classes    ? ", the `classes` of the data file"
                     : c->t->truths == of_segments ? ", 80 maps of classes"
                                                   : "";
    amp_checker_fault(
        &c->k,
        "%s:%d: %s takes %d truths for an image; %s train loads %d%s: its outputs must "
        "be as many",
        c->k.cfg->path, l->line, l->type_name, takes, c->t->name, loaded, of);
}

/* Of a network that is not trained a loss may be missing. */
static void check_outputs(struct check *c, int needed)
{
    const struct amp_net_desc *net = c->k.net;
    const struct amp_layer_desc *last = &net->layers[net->n - 1];
    if (room_for_truths(net) != needed)
        amp_checker_fault(&c->k,
                          "%s:%d: the network ends with %s and gives %d numbers for an image; %s "
                          "%s reads %d",
                          c->k.cfg->path, last->line, last->type_name, amp_net_outputs(net),
                          c->t->name, c->command, needed);
}

/* One fault is enough: the others follow from it. Truths that the network makes itself (truth=1)
 * are not loaded. */
static void check_truths(struct check *c, int loaded)
{
    const struct amp_net_desc *net = c->k.net;
    bool loss = false;
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        if (!amp_layer_is_loss(l)) continue;
        loss = true;
        if (truths_of(l) != loaded) {
            tell_truths(c, l, truths_of(l), loaded);
            return;
        }
        if (l->truth) break;
    }
    if (room_for_truths(net) != loaded)
        tell_truths(c, &net->layers[net->n - 1], room_for_truths(net), loaded);
    else if (!loss)
        amp_checker_fault(&c->k,
                          "%s: no layer has a loss, so nothing would be learned: end with "
                          "[softmax], [logistic] or [cost]",
                          c->k.cfg->path);
}

/* Darknet divides by these, and trains on black images. */
static void check_cuts(struct check *c)
{
    static const char *const keys[] = {"aspect",    "min_crop",   "max_crop", "min_ratio",
                                       "max_ratio", "saturation", "exposure"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct amp_cfg_entry *e = amp_cfg_find(c->k.cfg->sections, keys[i]);
        const struct amp_key_row *row = amp_key_find(keys[i], AMP_NETWORK);
        if (e && !amp_key_allows(row, strtod(e->value, NULL)))
            amp_checker_fault(&c->k, "%s:%d: %s=%s; allowed: %s: the images would be black",
                              c->k.cfg->path, e->line, e->key, e->value, row->allowed);
    }
}

static void check_counts(struct check *c)
{
    const struct amp_net_desc *net = c->k.net;
    const struct amp_cfg_section *s = &c->k.cfg->sections[0];
    if (net->max_batches < !c->t->endless)
        amp_checker_fault(&c->k, "%s:%d: max_batches=%d: nothing to train: raise max_batches",
                          c->k.cfg->path, amp_cfg_line(s, "max_batches"), net->max_batches);
    if (!strcmp(c->t->name, "tag") && TAG_IMAGES % net->batch)
        amp_checker_fault(&c->k,
                          "%s:%d: %d images in a pass; tag train loads 1024 at a time: batch / "
                          "subdivisions must be a power of two",
                          c->k.cfg->path, amp_cfg_line(s, "batch"), net->batch);
}

static void check_net(struct check *c)
{
    if (!strcmp(c->t->name, "classifier") && amp_cfg_int(&c->k.cfg->sections[0], "random", 0))
        amp_train_resizing_check(c->k.cfg, c->k.net, 128, 448, amp_checker_tell, &c->k);
    amp_train_any_check(c->k.cfg, c->k.net, c->k.options.mixed_precision, c->in->on_gpu,
                        amp_checker_tell, &c->k);
    check_inputs(c);
    if (c->t->list) check_cuts(c);
    check_counts(c);
    int truths = c->t->truths(c);
    if (truths) check_truths(c, truths);
}

/* ---- labels ---- */

static void check_tree(struct check *c)
{
    const struct amp_cfg_entry *e = amp_cfg_find(&c->k.data->sections[0], "tree");
    char err[2 * PATH_MAX];
    struct amp_class_tree tree;
    if (!e) return;
    if (amp_class_tree_read(c->k.data->path, e->value, &tree, err, sizeof err)) {
        amp_checker_tell(&c->k, err);
        return;
    }
    if (tree.classes != c->classes)
        amp_checker_fault(&c->k, "%s:%d: tree=%s: has %d classes; allowed: %d", c->k.data->path,
                          e->line, e->value, tree.classes, c->classes);
    amp_class_tree_free(&tree);
}

/* ---- images ---- */

static bool has_nothing(void *context, const char *image, char *why, size_t size)
{
    (void)context;
    (void)image;
    (void)why;
    (void)size;
    return true;
}

/* A missing list is told here, where its name can be explained, and the list's line ends. key: of
 * the data file. */
static bool has_list(struct check *c, const char *key, const char *path)
{
    const char *why = amp_text_unreadable(path);
    if (!why) {
        amp_checker_line_ends(&c->k, path, false);
        return true;
    }
    amp_checker_fault(&c->k, "image list %s: %s%s%s%s", path, why,
                      c->t->data ? amp_checker_explain(c->k.data, key) : " (",
                      c->t->data ? "" : c->t->name,
                      c->t->data ? "" : " train reads no other: make it, one image a line)");
    return false;
}

/* Not where a fault above leaves no labels or classes to look for. */
static bool can_apply_rule(const struct check *c)
{
    return c->t->rule && (c->t->rule == amp_has_one_label ? c->labels.n : c->classes) > 0;
}

/* Which boxes count follows other rules here than those of detector train, so nothing is said of
 * them. */
static void check_boxes(struct check *c, const char *path)
{
    struct amp_train_list list;
    amp_train_list_check(path, AMP_DIALECT_STOCK, c->classes ? c->classes : INT_MAX, INT_MAX,
                         c->k.progress, &list, amp_checker_tell, &c->k);
    amp_train_list_free(&list);
}

static void check_images(struct check *c)
{
    const char *path = c->t->list;
    struct amp_truth_rule rule = {.classes = c->classes,
                                  .room = c->t->truths == of_instances ? INSTANCES : 0};
    if (c->t->data) path = amp_cfg_string(&c->k.data->sections[0], "train", path);
    if (!has_list(c, "train", path)) return;
    if (c->t->truths == of_grid)
        check_boxes(c, path);
    else
        amp_image_list_check(path, c->t->faults, can_apply_rule(c) ? c->t->rule : has_nothing,
                             c->t->rule == amp_has_one_label ? (void *)&c->labels : &rule,
                             c->k.progress, amp_checker_tell, &c->k);
    if (c->t->rule == amp_truths_are_tags && !c->k.failed && !rule.files)
        amp_checker_fault(&c->k,
                          "%s: none of its images has a file of tags (images becomes labels, .jpg "
                          "becomes .txt): nothing would be learned",
                          path);
    if (rule.beyond && c->k.warn)
        fprintf(c->k.warn,
                "warning: %s: %zu images have more than %d objects: the others, %zu in all, are "
                "not trained\n",
                path, rule.beyond, rule.room, rule.beyond_objects);
}

/* What -topk needs: of the data file, images with one class each. */
static void check_measured(struct check *c)
{
    const char *path = amp_cfg_string(&c->k.data->sections[0], "valid", "data/train.list");
    if (c->t == &tagged)
        amp_checker_fault(&c->k, "%s: tag=1: -topk needs images with one class each; leave it out",
                          c->k.data->path);
    else if (has_list(c, "valid", path))
        amp_image_list_check(path, c->t->faults, can_apply_rule(c) ? c->t->rule : has_nothing,
                             &c->labels, c->k.progress, amp_checker_tell, &c->k);
}

/* ---- all ---- */

static void check_data(struct check *c)
{
    amp_checker_data_keys(&c->k);
    if (c->t->classes) {
        int classes = amp_checker_classes(&c->k);
        c->classes = classes ? classes : c->t->classes;
    }
    if (!strcmp(c->t->name, "classifier")) {
        if (amp_cfg_int(&c->k.data->sections[0], "tag", 0))
            c->t = &tagged;
        else
            amp_checker_labels(&c->k, c->classes, &c->labels);
        check_tree(c);
    }
    amp_checker_folder(&c->k, amp_cfg_string(&c->k.data->sections[0], "backup", "/backup/"),
                       amp_checker_explain(c->k.data, "backup"));
}

int amp_check_trainer_inputs(const char *trainer, const struct amp_trainer_inputs *in,
                             FILE *progress, FILE *warn, char *err, size_t err_size)
{
    struct check c = {.k = {.progress = progress, .warn = warn, .err = err, .err_size = err_size},
                      .t = find(trainer),
                      .command = "train",
                      .in = in};
    amp_checker_read(&c.k, c.t->data ? in->data : NULL, in->cfg);
    if (c.k.data) check_data(&c);
    if (!c.t->data) amp_checker_folder(&c.k, in->folder, " (-backup DIR names another folder)");
    if (c.k.net) check_net(&c);
    if (in->weights && *in->weights) amp_checker_weights(&c.k, in->weights, in->clear);
    if (in->text && !strcmp(trainer, "rnn")) amp_checker_text(&c.k, in->text, in->tokenized);
    if (in->text && strcmp(trainer, "rnn")) amp_checker_moves(&c.k, in->text);
    if (c.t->list && (c.k.data || !c.t->data)) check_images(&c);
    if (in->measures && c.k.data) check_measured(&c);
    amp_class_labels_free(&c.labels);
    return amp_checker_end(&c.k);
}

void amp_checker_fits_trainer(struct amp_checker *k, const char *trainer, const char *command)
{
    enum { WAYS_TO_TURN = 8 };
    struct check c = {.k = *k, .t = find(trainer), .command = command};
    check_inputs(&c);
    int truths = c.t->truths(&c);
    if (truths) check_outputs(&c, truths);
    if (!strcmp(command, "self") && k->net->batch > WAYS_TO_TURN)
        amp_checker_fault(
            &c.k, "%s:%d: %d images in a pass; go self has %d, the ways to turn a board",
            k->cfg->path, amp_cfg_line(k->cfg->sections, "batch"), k->net->batch, WAYS_TO_TURN);
    *k = c.k;
}
