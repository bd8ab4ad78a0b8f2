/* `darknet amp data`: all that a training looks at before it starts, and what the set consists of.
 * Decides the order of checks, counting and files. It must not know what an input must be
 * (plugin/input), which numbers are shown (data_report.c) or drawn (data_sheet.c). */
#define _GNU_SOURCE
#include "data.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "amp.h"
#include "commands.h"
#include "measuring.h"

#include "plugin/core/files/file.h"

struct command {
    const char *data, *cfg, *json, *sheet;
    int anchors, gpu;
    struct amp_cfg_file *data_file, *cfg_file;
    struct amp_net_desc *net;
    struct amp_lines names, labels;
    struct amp_survey_sources sources;
    struct amp_survey survey;
    struct amp_extent *extents;
};

/* ---- the command line ---- */

static void read_arguments(int argc, char **argv, struct command *c)
{
    const struct amp_argument options[] = {
        {.name = "anchors",
         .value = "N",
         .help = "Find N anchors that fit the boxes, and the filters that heads then need",
         .kind = AMP_ARGUMENT_COUNT,
         .target = &c->anchors,
         .low = 1,
         .high = AMP_MOST_ANCHORS},
        {.name = "sheet",
         .value = "FILE.jpg",
         .help = "Write 16 images as training loads them, with their boxes",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &c->sheet},
        {.name = "json",
         .value = "FILE",
         .help = "Write the result as JSON too",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &c->json},
        AMP_GPU_ARGUMENTS(&c->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "DATA [CFG]",
        .help = "Looks at all that a training looks at before it starts, and says what the data "
                "set consists of: images, boxes, sizes, classes, copies. With CFG also what its "
                "network makes of them. Trains nothing.",
        .file = {&c->data, &c->cfg},
        .least_files = 1,
        .options = options};
    amp_arguments_read(&line, argc, argv);
}

static bool ends_in(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n > m && !strcasecmp(path + n - m, ending);
}

/* Before the work. A JPEG that is no sheet of ours is not replaced: it may be an image of the set.
 */
static int check_outputs(const struct command *c)
{
    char err[PATH_MAX + 600];
    if (c->anchors && !c->cfg)
        return amp_complain("--anchors needs CFG: anchors are in pixels of its width and height");
    if (c->sheet && !c->cfg)
        return amp_complain("--sheet needs CFG: images are loaded for its network");
    if (c->sheet && !ends_in(c->sheet, ".jpg") && !ends_in(c->sheet, ".jpeg")) {
        snprintf(err, sizeof err, "--sheet %s: allowed: a name that ends in .jpg", c->sheet);
        return amp_complain(err);
    }
    return amp_output_try("--json", c->json, AMP_DATA_FORMAT) ||
                   amp_output_try("--sheet", c->sheet, AMP_DATA_SHEET) ||
                   amp_outputs_differ("--json", c->json, "--sheet", c->sheet)
               ? -1
               : 0;
}

/* ---- the set ---- */

/* A file that its check has read before. */
static int read_lines(const char *path, struct amp_lines *lines)
{
    const char *why;
    char err[PATH_MAX + 200];
    if (!path || !amp_lines_read(path, true, lines, &why)) return 0;
    snprintf(err, sizeof err, "%s: %s", path, why);
    return amp_complain(err);
}

static int read_files(struct command *c)
{
    char err[2 * PATH_MAX];
    c->data_file = amp_cfg_read_data(c->data, err, sizeof err);
    c->cfg_file = c->cfg ? amp_cfg_read(c->cfg, err, sizeof err) : NULL;
    c->net = c->cfg_file ? amp_net_describe(c->cfg_file, 0, 0, true, err, sizeof err) : NULL;
    return !c->data_file || (c->cfg && !c->net) ? amp_complain(err) : 0;
}

static int find_sources(struct command *c, bool classifier)
{
    const struct amp_cfg_section *s = c->data_file->sections;
    const char *valid = amp_cfg_string(s, "valid", NULL);
    bool tags = classifier && amp_cfg_int(s, "tag", 0);
    c->sources = (struct amp_survey_sources){.train = amp_cfg_string(s, "train", "data/train.list"),
                                             .dialect = c->cfg_file ? c->cfg_file->dialect
                                                                    : AMP_DIALECT_STOCK,
                                             .boxes = !classifier,
                                             .labels = classifier && !tags ? &c->labels : NULL};
    if (valid && strcmp(valid, c->sources.train)) c->sources.valid = valid;
    if (c->sources.labels &&
        read_lines(amp_cfg_string(s, "labels", "data/labels.list"), &c->labels))
        return -1;
    return read_lines(amp_cfg_string(s, "names", NULL), &c->names);
}

static int count_classes(const struct command *c, bool classifier)
{
    int given = amp_cfg_int(c->data_file->sections, "classes", 0);
    for (int i = 0; c->net && !given && !classifier && i < c->net->n; i++)
        if (amp_layer_is_head(&c->net->layers[i])) given = c->net->layers[i].classes;
    return !given && classifier ? 2 : given;
}

static int survey(struct command *c)
{
    char err[2 * PATH_MAX];
    return amp_survey_make(&c->survey, &c->sources, stderr, err, sizeof err) ? amp_complain(err)
                                                                             : 0;
}

/* ---- at the network's size ---- */

/* As the loader fits an image that is neither moved nor scaled. Of one whose size its header does
 * not say, as if it had the network's shape. */
static struct amp_extent fit(const struct amp_net_desc *net, const struct amp_surveyed_image *image,
                             const struct amp_surveyed_box *box)
{
    float across = (float)net->w, down = (float)net->h;
    if (image->w && !amp_net_stretches(net)) {
        float scale = across / (float)image->w, other = down / (float)image->h;
        if (other < scale) scale = other;
        across = scale * (float)image->w;
        down = scale * (float)image->h;
    }
    return (struct amp_extent){across * box->w, down * box->h};
}

static int find_extents(struct command *c)
{
    const struct amp_survey *s = &c->survey;
    if (!c->net) return 0;
    c->extents = malloc((s->n_boxes + 1) * sizeof *c->extents);
    if (!c->extents) return amp_complain("out of memory");
    for (size_t i = 0; i < s->n_boxes; i++)
        c->extents[i] = fit(c->net, &s->images[s->boxes[i].image], &s->boxes[i]);
    return 0;
}

/* ---- anchors ---- */

static int check_heads(const struct command *c, const struct amp_data_anchors *a)
{
    char err[PATH_MAX + 200] = "";
    if (!a->heads.n)
        snprintf(err, sizeof err, "--anchors: %s has no [yolo] or [region], whose anchors they are",
                 c->cfg);
    else if (a->heads.n > a->n)
        snprintf(err, sizeof err, "--anchors %d: allowed: at least %d, one for each head of %s",
                 a->n, a->heads.n, c->cfg);
    return *err ? amp_complain(err) : 0;
}

/* Boxes of the training list that have an area. Returns how many there are. */
static size_t take_trained(const struct command *c, struct amp_extent *boxes)
{
    size_t n = 0;
    for (size_t i = 0; i < c->survey.n_train_boxes; i++)
        if (c->extents[i].w > 0 && c->extents[i].h > 0) boxes[n++] = c->extents[i];
    return n;
}

static int search(const struct command *c, struct amp_data_anchors *a, struct amp_extent *boxes)
{
    char err[200];
    bool whole = a->heads.unit.w == 1 && a->heads.unit.h == 1;
    struct amp_extent *cfgs = amp_anchors_of_cfg(c->net, &a->heads, &a->cfgs);
    if (!cfgs) return amp_complain("out of memory");
    a->boxes = take_trained(c, boxes);
    a->before = amp_anchors_iou(boxes, a->boxes, cfgs, a->cfgs);
    free(cfgs);
    if (amp_anchors_find(boxes, a->boxes, a->n, whole, a->sizes)) {
        snprintf(err, sizeof err,
                 "--anchors %d: the %zu boxes of the training list have fewer different sizes",
                 a->n, a->boxes);
        return amp_complain(err);
    }
    a->after = amp_anchors_iou(boxes, a->boxes, a->sizes, a->n);
    return 0;
}

static int find_anchors(const struct command *c, struct amp_data_anchors *a)
{
    char err[200];
    *a = (struct amp_data_anchors){.n = c->anchors};
    if (!a->n) return 0;
    if (amp_anchor_heads_find(c->net, a->n, &a->heads)) {
        snprintf(err, sizeof err, "--anchors: the cfg has more than %d heads", AMP_MOST_HEADS);
        return amp_complain(err);
    }
    if (check_heads(c, a)) return -1;
    struct amp_extent *boxes = malloc((c->survey.n_train_boxes + 1) * sizeof *boxes);
    int failed = boxes ? search(c, a, boxes) : amp_complain("out of memory");
    free(boxes);
    return failed;
}

/* ---- the whole ---- */

static int print_json(FILE *f, const void *user)
{
    return amp_data_write_json(user, f);
}

/* The sheet last: an image that cannot be decoded ends the program there. */
static int tell(const struct command *c, const struct amp_data *d)
{
    char err[PATH_MAX + 600];
    if (amp_data_print(d, stdout)) return amp_complain("out of memory");
    if (amp_result_flush()) return -1;
    if (c->json && amp_whole_print(c->json, print_json, d, err, sizeof err))
        return amp_complain(err);
    return c->sheet ? amp_data_sheet(d, c->sheet) : 0;
}

static int look(struct command *c)
{
    bool classifier = amp_is_classifier(c->data, c->cfg);
    if (amp_inputs_check(c->data, c->cfg, NULL, true) || read_files(c) ||
        find_sources(c, classifier))
        return -1;
    struct amp_data d = {.data = c->data,
                         .cfg = c->cfg,
                         .classifier = classifier,
                         .classes = count_classes(c, classifier),
                         .names = c->names.count ? &c->names : &c->labels,
                         .survey = &c->survey,
                         .sources = &c->sources,
                         .cfg_file = c->cfg_file,
                         .net = c->net};
    if (survey(c) || find_extents(c) || find_anchors(c, &d.anchors)) return -1;
    d.extents = c->extents;
    return tell(c, &d);
}

int amp_command_data(int argc, char **argv)
{
    struct command c = {0};
    read_arguments(argc, argv, &c);
    if (check_outputs(&c)) return 1;
    amp_machine_choose(c.gpu);
    amp_refuse_bad_images(1);
    int failed = look(&c);
    free(c.extents);
    amp_survey_free(&c.survey);
    amp_lines_free(&c.names);
    amp_lines_free(&c.labels);
    amp_net_desc_free(c.net);
    amp_cfg_free(c.cfg_file);
    amp_cfg_free(c.data_file);
    return failed ? 1 : 0;
}
