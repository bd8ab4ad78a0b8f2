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
    const struct amp_trainer_inputs *in;
    int classes, div; /* div: of the network's width to that of its last image */
    char **labels;
    int n_labels;
};

/* ---- what an image must have ---- */

/* Darknet looks for each label anywhere in the image's path. With one class none may be there. */
static bool has_one_label(void *context, const char *image, char *why, size_t size)
{
    const struct check *c = context;
    int first = amp_class_of_path(image, c->labels, c->n_labels, 0);
    int second = first < 0 ? -1 : amp_class_of_path(image, c->labels, c->n_labels, first + 1);
    if (second >= 0)
        snprintf(why, size, "%s: holds two labels, \"%s\" (line %d) and \"%s\" (line %d)", image,
                 c->labels[first], first + 1, c->labels[second], second + 1);
    else
        snprintf(why, size, "%s: holds no label", image);
    return second < 0 && (first >= 0 || c->n_labels == 1);
}

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
    while (l > net->layers && l->type == AMP_COST)
        l--;
    return l->outputs;
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
                      "%s: the network reads %dx%d and makes %dx%d; %s train needs an image whose "
                      "sides are the network's, divided by one whole number",
                      c->k.cfg->path, net->w, net->h, l ? l->out_w : 0, l ? l->out_h : 0,
                      c->t->name);
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
#define LABEL_FAULTS                                                                               \
    "images without exactly one line of labels= in their paths (give labels what stands around "   \
    "them, as /cat/ or _cat.)"
#define TAG_FAULTS "images with faulty tags"

static const struct trainer trainers[] = {
    {"classifier", true, 2, "data/train.list", true, true, NULL, as_classes, has_one_label,
     "images without exactly one label in their paths, where Darknet looks for the lines of "
     "labels="},
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
                          "%s:%d: channels=%d; allowed: 3, what %s train loads (a grey image is "
                          "loaded as three equal channels)",
                          c->k.cfg->path, amp_cfg_line(s, "channels"), net->c, c->t->name);
    else if (c->t->square && net->h != net->w)
        amp_checker_fault(&c->k, "%s:%d: height=%d; allowed: %d: %s train loads squares of `width`",
                          c->k.cfg->path, amp_cfg_line(s, "height"), net->h, net->w, c->t->name);
    else if (net->inputs != loaded)
        amp_checker_fault(&c->k, "%s: the network reads %d numbers for an image; %s train loads %d",
                          c->k.cfg->path, net->inputs, c->t->name, loaded);
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
    check_counts(c);
    int truths = c->t->truths(c);
    if (truths) check_truths(c, truths);
}

/* ---- labels ---- */

/* Line by line, to the newline, as Darknet reads them. */
static void read_labels(struct check *c, const char *path)
{
    char *line = NULL;
    const char *why;
    size_t size = 0;
    ssize_t length;
    FILE *file = amp_text_open(path, &why);
    c->labels = calloc((size_t)c->classes + 1, sizeof *c->labels);
    while (file && c->labels && c->n_labels < c->classes &&
           (length = getline(&line, &size, file)) >= 0) {
        if (length && line[length - 1] == '\n') line[--length] = '\0';
        if (!length || strchr(" \t\r", line[length - 1]))
            amp_checker_fault(&c->k,
                              "%s:%d: a label %s: Darknet looks for all of it in an image's path",
                              path, c->n_labels + 1,
                              length ? "that ends in a blank or carriage return" : "that is empty");
        c->labels[c->n_labels++] = line;
        line = NULL;
    }
    free(line);
    if (file) fclose(file);
}

static void free_labels(struct check *c)
{
    for (int i = 0; i < c->n_labels; i++)
        free(c->labels[i]);
    free(c->labels);
}

/* Darknet reads as many labels as there are classes, whether they are there or not. */
static void check_labels(struct check *c)
{
    const char *path = amp_cfg_string(&c->k.data->sections[0], "labels", "data/labels.list");
    const char *why;
    int lines = amp_checker_count_lines(path, &why);
    if (lines < 0)
        amp_checker_fault(&c->k, "labels file %s: %s%s", path, why,
                          amp_checker_explain(c->k.data, "labels"));
    else if (lines != c->classes)
        amp_checker_fault(&c->k,
                          "labels file %s: has %d labels; needed: %d, as many as `classes` of the "
                          "data file says (Darknet's default is 2)",
                          path, lines, c->classes);
    else
        read_labels(c, path);
}

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

/* A missing list is told here, where its name can be explained: key of the data file. */
static bool has_list(struct check *c, const char *key, const char *path)
{
    const char *why = amp_text_unreadable(path);
    if (!why) return true;
    amp_checker_fault(&c->k, "image list %s: %s%s%s%s", path, why,
                      c->t->data ? amp_checker_explain(c->k.data, key) : " (",
                      c->t->data ? "" : c->t->name,
                      c->t->data ? "" : " train reads no other: make it, one image a line)");
    return false;
}

/* Not where a fault above leaves no labels or classes to look for. */
static bool can_apply_rule(const struct check *c)
{
    return c->t->rule && (c->t->rule == has_one_label ? c->n_labels : c->classes) > 0;
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
    if (c->t->data) path = amp_cfg_string(&c->k.data->sections[0], "train", path);
    if (!has_list(c, "train", path)) return;
    if (c->t->truths == of_grid)
        check_boxes(c, path);
    else
        amp_image_list_check(path, c->t->faults, can_apply_rule(c) ? c->t->rule : has_nothing,
                             c->t->rule == has_one_label ? (void *)c : &c->classes, c->k.progress,
                             amp_checker_tell, &c->k);
}

/* What -topk needs: of the data file, images with one class each. */
static void check_measured(struct check *c)
{
    const char *path = amp_cfg_string(&c->k.data->sections[0], "valid", "data/train.list");
    if (c->t == &tagged)
        amp_checker_fault(&c->k, "%s: tag=1: -topk needs images with one class each; leave it out",
                          c->k.data->path);
    else if (has_list(c, "valid", path))
        amp_image_list_check(path, c->t->faults, can_apply_rule(c) ? c->t->rule : has_nothing, c,
                             c->k.progress, amp_checker_tell, &c->k);
}

/* ---- texts ---- */

/* The largest byte, or the largest token and the smallest; *count: how many there are. */
static void read_text(FILE *file, bool tokenized, long *least, long *most, size_t *count)
{
    long x;
    *least = LONG_MAX;
    *most = *count = 0;
    while (tokenized ? fscanf(file, "%ld", &x) == 1 : (x = getc(file)) != EOF && x) {
        *least = x < *least ? x : *least;
        *most = x > *most ? x : *most;
        ++*count;
    }
}

static void check_text(struct check *c)
{
    long least, most;
    size_t count;
    const char *path = c->in->text, *why = amp_file_unreadable(path);
    FILE *file = why ? NULL : fopen(path, "r");
    if (!file) {
        amp_checker_fault(&c->k, "%s: %s%s", path, why ? why : strerror(errno),
                          strcmp(c->t->name, "rnn") ? "" : " (-file TEXT names the text)");
        return;
    }
    read_text(file, c->in->tokenized, &least, &most, &count);
    fclose(file);
    if (!count)
        amp_checker_fault(&c->k, "%s: holds %s", path,
                          c->in->tokenized ? "no number: a text for -tokenized is whole numbers"
                                           : "no text");
    else if (!strcmp(c->t->name, "rnn") && c->k.net && (most >= c->k.net->inputs || least < 0))
        amp_checker_fault(&c->k, "%s: holds %s %ld; inputs=%d of %s allows 0 to %d", path,
                          c->in->tokenized ? "token" : "byte", least < 0 ? least : most,
                          c->k.net->inputs, c->k.cfg->path, c->k.net->inputs - 1);
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
            check_labels(c);
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
                      .in = in};
    amp_checker_read(&c.k, c.t->data ? in->data : NULL, in->cfg);
    if (c.k.data) check_data(&c);
    if (!c.t->data) amp_checker_folder(&c.k, in->folder, " (-backup DIR names another folder)");
    if (c.k.net) check_net(&c);
    if (in->weights && *in->weights) amp_checker_weights(&c.k, in->weights, in->clear);
    if (in->text) check_text(&c);
    if (c.t->list && (c.k.data || !c.t->data)) check_images(&c);
    if (in->measures && c.k.data) check_measured(&c);
    free_labels(&c);
    return amp_checker_end(&c.k);
}
