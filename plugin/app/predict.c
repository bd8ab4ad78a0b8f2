/* `darknet amp predict`: what a network makes of given inputs, as numbers. It decides how the
 * network is built, image after image, and the order of the numbers; what they mean is Darknet's.
 *
 * It is what other programs' answers are compared with (scripts/export), so FP32 is Darknet's own
 * code, and no image is loaded, scaled or cut. */

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "darknet.h"
#include "measuring.h"
#include "plugin/core/files/file.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/core/read/json.h"
#include "plugin/core/read/lines.h"

struct predict {
    const char *cfg, *weights, *input, *output;
    const char *precision;
    int gpu;
    struct amp_measured subject;
    bool own; /* the plugin's code, not Darknet's */
    network *net;
    float *images; /* all of the input file */
    int n;
    int *boxes; /* of an image */
};

/* ---- what there is to do ---- */

static void read_arguments(int argc, char **argv, struct predict *p)
{
    const struct amp_argument options[] = {
        {.name = "input",
         .value = "FILE",
         .help = "32-bit floats, one image after the other: channels, rows, columns, as Darknet "
                 "has them in memory",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &p->input},
        {.name = "output",
         .value = "FILE",
         .help = "Where to write: of each image what the layers give that standard output lists",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &p->output},
        {.name = "precision",
         .value = "WORD",
         .help = "fp32, Darknet's own (the default), fp16 or bf16",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &p->precision},
        AMP_GPU_ARGUMENTS(&p->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "CFG WEIGHTS",
        .help = "Runs a network on images that are given as numbers, and writes what its heads, "
                "or its last layer, make of them; of a detector also all of its boxes.",
        .file = {&p->cfg, &p->weights},
        .least_files = 2,
        .options = options};
    amp_arguments_read(&line, argc, argv);
}

static bool is_precision(const char *word)
{
    return !strcmp(word, "fp32") || !strcmp(word, "fp16") || !strcmp(word, "bf16");
}

static int check_arguments(const struct predict *p)
{
    char err[PATH_MAX + 200];
    struct stat info;
    if (!p->input || !p->output) return amp_complain("--input FILE and --output FILE are needed");
    if (!strcmp(p->input, p->output) || !strcmp(p->output, p->cfg) ||
        !strcmp(p->output, p->weights))
        return amp_complain("--output names a file that is read; choose another name");
    if (!*p->output || !strcmp(p->output, "-"))
        return amp_complain("--output: allowed: the name of a file");
    if (!stat(p->output, &info) &&
        info.st_size) { /* numbers have no mark by which ours are known */
        snprintf(err, sizeof err,
                 "--output %s: is there already; choose another name, or remove it", p->output);
        return amp_complain(err);
    }
    if (is_precision(p->precision)) return 0;
    snprintf(err, sizeof err, "--precision %.40s: allowed: fp32, fp16 or bf16", p->precision);
    return amp_complain(err);
}

static int check_weights(const struct predict *p)
{
    char err[2 * PATH_MAX];
    struct amp_weights_info info;
    if (amp_weights_check(p->weights, p->subject.net, &info, err, sizeof err))
        return amp_complain(err);
    if (info.first_absent < 0) return 0;
    snprintf(err, sizeof err, "weights file %s ends before layer %d: it has a part of the network",
             p->weights, info.first_absent);
    return amp_complain(err);
}

static int read_images(struct predict *p)
{
    char err[2 * PATH_MAX];
    size_t image = (size_t)p->subject.net->inputs * sizeof(float);
    const char *why = amp_file_unreadable(p->input);
    if (why) {
        snprintf(err, sizeof err, "--input %s: %s", p->input, why);
        return amp_complain(err);
    }
    FILE *f = fopen(p->input, "rb");
    long bytes = f && !fseek(f, 0, SEEK_END) ? ftell(f) : -1;
    if (bytes < 0) {
        snprintf(err, sizeof err, "--input %s: %s", p->input, strerror(errno));
    } else if (!bytes || (size_t)bytes % image || (size_t)bytes / image > INT_MAX) {
        snprintf(err, sizeof err, "--input %s: has %ld bytes; allowed: a multiple of %zu, an image",
                 p->input, bytes, image);
    } else if (!(p->images = malloc((size_t)bytes))) {
        snprintf(err, sizeof err, "--input %s: no memory for %ld bytes", p->input, bytes);
    } else {
        rewind(f);
        p->n = (int)((size_t)bytes / image);
        if (fread(p->images, 1, (size_t)bytes, f) == (size_t)bytes) {
            fclose(f);
            return 0;
        }
        snprintf(err, sizeof err, "--input %s: cannot be read: %s", p->input, strerror(errno));
    }
    if (f) fclose(f);
    return amp_complain(err);
}

/* ---- the network ---- */

/* On a CPU Darknet crashes at a [batchnorm], and its 1x1 convolutions read past what stride and
 * padding leave them. */
static bool goes_wrong(const struct amp_layer_desc *l)
{
    bool small = l->type == AMP_CONVOLUTIONAL && l->size == 1;
    return l->type == AMP_BATCHNORM || (small && (l->stride != 1 || l->pad));
}

/* By AlexeyAB's rules, and where Darknet goes wrong, FP32 is the plugin's own. */
static bool uses_own(const struct predict *p)
{
    const struct amp_net_desc *net = p->subject.net;
    bool own = strcmp(p->precision, "fp32") || net->dialect == AMP_DIALECT_FORK;
    for (int i = 0; i < net->n && gpu_index < 0; i++)
        own |= goes_wrong(&net->layers[i]);
    return own;
}

static int build(struct predict *p)
{
    bool own = p->own = uses_own(p);
    const struct amp_cfg_key keys[] = {{"batch", "1", 0},
                                       {"subdivisions", "1", 0},
                                       {"time_steps", "1", 0},
                                       {"seed", NULL, 0},
                                       {"amp_log", NULL, 0},
                                       {"amp_level", NULL, 0},
                                       {"mixed_precision", own ? "1" : NULL, 0},
                                       {"amp_dtype", own ? p->precision : NULL, 0}};
    p->net = amp_variant_load("amp predict: the network", p->subject.cfg, keys,
                              sizeof keys / sizeof *keys, p->weights);
    if (!p->net) return -1;
    set_batch_network(p->net, 1);
    return 0;
}

static bool is_head(const layer *l)
{
    return l->type == YOLO || l->type == REGION || l->type == DETECTION;
}

/* Heads, other losses but the one that passes on what it gets, and what comes last. */
static bool is_written(const network *net, int i)
{
    int last = net->n - 1;
    while (last > 0 && net->layers[last].type == COST)
        last--;
    const layer *l = &net->layers[i];
    return i == last || is_head(l) || l->type == SOFTMAX || l->type == LOGXENT;
}

/* get_network_boxes makes room for the last layer's classes, and finds one class of a tree.
 * [detection] gives boxes in pixels, the others fractions. */
static bool has_boxes(const network *net)
{
    const layer *last = &net->layers[net->n - 1];
    bool boxes = is_head(last);
    for (int i = 0; i < net->n; i++) {
        const layer *l = &net->layers[i];
        bool alike = l->type == last->type && l->classes == last->classes && !l->softmax_tree;
        if (is_head(l) && !alike) boxes = false;
    }
    return boxes;
}

/* ---- the numbers ---- */

/* A threshold below every score keeps all boxes, in Darknet's order. */
static int write_boxes(network *net, FILE *f, int *n)
{
    const float all = -INFINITY, tree = .5;
    const layer *last = &net->layers[net->n - 1];
    size_t classes = (size_t)last->classes;
    float w = last->type == DETECTION ? (float)net->w : 1;
    float h = last->type == DETECTION ? (float)net->h : 1;
    detection *found = get_network_boxes(net, net->w, net->h, all, tree, 0, 1, n);
    int failed = 0;
    for (int i = 0; i < *n && !failed; i++) {
        box b = found[i].bbox;
        float row[] = {b.x / w, b.y / h, b.w / w, b.h / h, found[i].objectness};
        failed = fwrite(row, sizeof row, 1, f) != 1 ||
                 fwrite(found[i].prob, sizeof(float), classes, f) != classes;
    }
    free_detections(found, *n);
    return failed;
}

/* As `classifier predict` does: the layer gives classes their share among those of one parent. */
static void descend_tree(const layer *l)
{
    const int only_leaves = 1, stride = 1;
    if (l->type == SOFTMAX && l->softmax_tree)
        hierarchy_predictions(l->output, l->outputs, l->softmax_tree, only_leaves, stride);
}

static int write_image(network *net, float *image, FILE *f, int *boxes)
{
    network_predict(net, image);
    for (int i = 0; i < net->n; i++) {
        const layer *l = &net->layers[i];
        size_t n = (size_t)l->outputs;
        if (!is_written(net, i)) continue;
        descend_tree(l);
        if (fwrite(l->output, sizeof(float), n, f) != n) return -1;
    }
    return has_boxes(net) && write_boxes(net, f, boxes) ? -1 : 0;
}

static int print(FILE *f, const void *user)
{
    const struct predict *p = user;
    int failed = 0;
    for (int i = 0; i < p->n && !failed; i++)
        failed = write_image(p->net, p->images + (size_t)i * (size_t)p->subject.net->inputs, f,
                             p->boxes);
    return failed;
}

static int write_all(struct predict *p)
{
    char err[2 * PATH_MAX];
    int kept = amp_quiet_begin();
    int failed = amp_whole_print(p->output, print, p, err, sizeof err);
    amp_quiet_end(kept);
    return failed ? amp_complain(err) : 0;
}

static void print_order(const struct predict *p, int boxes)
{
    struct amp_json j = {.out = stdout, .digits = AMP_JSON_FLOAT};
    amp_json_begin(&j, NULL, '{');
    amp_json_string(&j, "computed_by", p->own ? "darknet-amp" : "Darknet");
    amp_json_put(&j, "images", "%d", p->n);
    amp_json_begin(&j, "outputs", '[');
    for (int i = 0; i < p->net->n; i++) {
        if (!is_written(p->net, i)) continue;
        amp_json_begin(&j, NULL, '{');
        amp_json_put(&j, "layer", "%d", i);
        amp_json_put(&j, "values", "%d", p->net->layers[i].outputs);
        amp_json_end(&j, '}');
    }
    amp_json_end(&j, ']');
    amp_json_put(&j, "boxes", "%d", boxes);
    amp_json_put(&j, "classes", "%d", boxes ? p->net->layers[p->net->n - 1].classes : 0);
    amp_json_end(&j, '}');
    putchar('\n');
}

int amp_command_predict(int argc, char **argv)
{
    int boxes = 0;
    struct predict p = {.precision = "fp32", .boxes = &boxes};
    read_arguments(argc, argv, &p);
    if (check_arguments(&p)) return 1;
    amp_machine_choose(p.gpu);
    int failed = amp_measured_read(&p.subject, p.cfg, p.gpu) || check_weights(&p) ||
                 read_images(&p) || build(&p) || write_all(&p);
    if (!failed) print_order(&p, boxes);
    failed = failed || amp_result_flush();
    if (p.net) free_network(p.net);
    amp_measured_free(&p.subject);
    free(p.images);
    return failed ? 1 : 0;
}
