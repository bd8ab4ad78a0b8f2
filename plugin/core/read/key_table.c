/* Darknet's keys: who reads them, which values they take, what holds without them, and what the
 * fork's rules make of them. It must not know whether a cfg is right (cfg_keys.c, cfg_values.c),
 * nor what a layer computes.
 *
 * Stock's rows follow its parser.c; of the fork's Darknet they hold what its users' cfgs name. */
#include "key_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A set of section types, one bit each. */
#define IN(type)    (UINT64_C(1) << AMP_##type)
#define NET         IN(NETWORK)
#define LAYERS      (~NET)
#define BOXES       (IN(YOLO) | OTHER_HEADS)
#define OTHER_HEADS (IN(REGION) | IN(DETECTION))
#define WINDOWS     (IN(CONVOLUTIONAL) | IN(DECONVOLUTIONAL) | IN(LOCAL))
#define MATRICES                                                                                   \
    (IN(CONVOLUTIONAL) | IN(DECONVOLUTIONAL) | IN(CONNECTED) | IN(RNN) | IN(GRU) | IN(LSTM) |      \
     IN(CRNN))

#define KEY(key, in, type, value) .name = key, .sections = in, .kind = AMP_CFG_##type, .def = value
#define RANGE(from, to, text)     .allowed = text, .low = from, .high = to
#define AT_LEAST(text)            .allowed = text, .high = INFINITY
#define ABOVE(limit)              .allowed = "above " #limit, .low = limit, .high = INFINITY, .above_low = true

/* Keys that only the fork reads. */
#define FORK .reader = AMP_READ_BY_FORK
#define REFUSED(key, in, value, what)                                                              \
    {                                                                                              \
        .name = key, .sections = in, .def = value, FORK, .use = AMP_KEY_REFUSED, .lost = what      \
    }
#define IGNORED(key, in, value)                                                                    \
    {                                                                                              \
        .name = key, .sections = in, .def = value, FORK, .use = AMP_KEY_IGNORED                    \
    }
#define NOTED(key, in)                                                                             \
    {                                                                                              \
        .name = key, .sections = in, .reader = AMP_KNOWN_TO_FORK, .use = AMP_KEY_IGNORED           \
    }
#define OTHERS(key, in, value)                                                                     \
    {                                                                                              \
        .name = key, .sections = in, .def = value, .reader = AMP_READ_BY_OTHERS,                   \
        .use = AMP_KEY_IGNORED                                                                     \
    }

/* In the order of the enums that their readers make of them. */
static const char *const policies[] = {"random", "poly",    "constant", "step",
                                       "exp",    "sigmoid", "steps",    NULL};
static const char *const cost_types[] = {"sse", "masked", "L1", "seg", "smooth", "wgan", NULL};
static const char *const box_losses[] = {"mse", "iou", "giou", "diou", "ciou", NULL};
static const char *const nms_kinds[] = {"default", "greedynms", "diounms", NULL};

static const struct amp_key_row rows[] = {
    {KEY("B1", NET, NUMBER, ".9")},
    {KEY("B2", NET, NUMBER, ".999")},
    {KEY("absolute", IN(REGION), INTEGER, "0")},
    OTHERS("accumulate", NET, "1"),
    {KEY("activation", WINDOWS | IN(CONNECTED) | IN(RNN) | IN(CRNN), WORD, "logistic")},
    {KEY("activation", IN(SHORTCUT) | IN(ACTIVATION), WORD, "linear")},
    {KEY("adam", NET, SWITCH, "0")},
    REFUSED("adversarial_lr", NET, "0", "adversarial training"),
    {KEY("alpha", IN(NORMALIZATION), NUMBER, ".0001")},
    {KEY("alpha", IN(SHORTCUT), NUMBER, "1"), .use = AMP_KEY_IGNORED},
    OTHERS("amp", NET, "0"),
    {KEY("anchors", IN(YOLO) | IN(REGION), NUMBERS, NULL)},
    {KEY("angle", NET | IN(CROP), NUMBER, "0"), RANGE(0, 360, "0 to 360, degrees")},
    REFUSED("angle", IN(CONVOLUTIONAL), NULL, "turned filters"),
    REFUSED("antialiasing", IN(CONVOLUTIONAL) | IN(MAXPOOL), "0", "the blur behind this layer"),
    {KEY("aspect", NET, NUMBER, "1"), ABOVE(0)},
    REFUSED("assisted_excitation", IN(CONVOLUTIONAL), "0", "assisted excitation"),
    REFUSED("attention", NET, "0", "adversarial training"),
    IGNORED("augment_speed", NET, NULL),
    REFUSED("avg", IN(MAXPOOL), "0", "means instead of maxima"),
    {KEY("background", IN(REGION), SWITCH, "0")},
    REFUSED("badlabels_reject_threshold", NET, "0", "the rejection of labels"),
    REFUSED("badlabels_rejection_percentage", NET, "0", "the rejection of labels"),
    {KEY("batch", NET, INTEGER, "1")},
    {KEY("batch_normalize", MATRICES, SWITCH, "0"), .use = AMP_KEY_REFUSED,
     .lost = "statistics over several passes"},
    REFUSED("batches_cycle_mult", NET, NULL, "the cycles of the learning rate"),
    REFUSED("batches_per_cycle", NET, NULL, "the cycles of the learning rate"),
    {KEY("beta", IN(NORMALIZATION), NUMBER, NULL)},
    {KEY("beta", IN(SHORTCUT), NUMBER, "1"), .use = AMP_KEY_IGNORED},
    {KEY("beta_nms", IN(YOLO), NUMBER, ".6"), .reader = AMP_KNOWN_TO_FORK},
    OTHERS("bf16", NET, "0"),
    {KEY("bias_match", IN(REGION), SWITCH, "0")},
    REFUSED("bin_output", IN(CONVOLUTIONAL), "0", "binary outputs"),
    {KEY("binary", IN(CONVOLUTIONAL), SWITCH, "0")},
    REFUSED("blur", NET, "0", "blurred images"),
    {KEY("burn_in", NET, INTEGER, "0"), AT_LEAST("at least 0")},
    REFUSED("burnin_update", LAYERS, "0", "the late start of this layer"),
    REFUSED("cbn", IN(CONVOLUTIONAL), "0", "statistics over several passes"),
    {KEY("center", NET, SWITCH, "0")},
    {KEY("channels", NET, INTEGER, "0")},
    {KEY("class_scale", IN(REGION) | IN(DETECTION), NUMBER, "1")},
    {KEY("classes", IN(YOLO) | IN(REGION) | IN(ISEG), INTEGER, "20")},
    {KEY("classes", IN(DETECTION), INTEGER, "1")},
    IGNORED("classes_multipliers", BOXES, NULL),
    {KEY("classfix", IN(REGION), INTEGER, "0")},
    {KEY("clip", NET, NUMBER, "0")},
    {KEY("cls_normalizer", IN(YOLO), NUMBER, "1"), FORK},
    REFUSED("cls_normalizer", OTHER_HEADS, "1", "the factor of this loss"),
    REFUSED("contrastive", NET, "0", "contrastive training"),
    REFUSED("contrastive_color", NET, "0", "contrastive training"),
    REFUSED("contrastive_jit_flip", NET, "0", "contrastive training"),
    {KEY("coord_scale", IN(REGION) | IN(DETECTION), NUMBER, "1")},
    REFUSED("coordconv", IN(CONVOLUTIONAL), "0", "the coordinates among its inputs"),
    {KEY("coords", IN(REGION), INTEGER, "4")},
    {KEY("coords", IN(DETECTION), INTEGER, "1")},
    {KEY("counters_per_class", IN(YOLO), NUMBERS, NULL), FORK},
    REFUSED("counters_per_class", OTHER_HEADS, NULL, "the factors of classes"),
    {KEY("crop_height", IN(CROP), INTEGER, "1")},
    {KEY("crop_width", IN(CROP), INTEGER, "1")},
    NOTED("cudnn_half", NET),
    REFUSED("cutmix", NET, "0", "the mixing of images"),
    {KEY("decay", NET, NUMBER, ".0001"), AT_LEAST("at least 0; the weights would grow")},
    REFUSED("deform", IN(CONVOLUTIONAL), "0", "deformed filters"),
    REFUSED("delta_normalizer", IN(YOLO) | OTHER_HEADS, "1", "the factor of this loss"),
    NOTED("dets_for_show", IN(YOLO)),
    NOTED("dets_for_track", IN(YOLO)),
    REFUSED("dilation", IN(CONVOLUTIONAL) | IN(CRNN), "1", "the dilated window"),
    REFUSED("dont_update", LAYERS, "0", "the frozen layer (freeze=1 freezes one)"),
    {KEY("dontload", LAYERS, SWITCH, "0")},
    {KEY("dontloadscales", LAYERS, SWITCH, "0")},
    {KEY("dontsave", LAYERS, SWITCH, "0")},
    {KEY("dot", IN(CONVOLUTIONAL), NUMBER, "0")},
    REFUSED("dropblock", IN(DROPOUT), "0", "the dropping of whole blocks"),
    REFUSED("dropblock_size_abs", IN(DROPOUT), "0", "the dropping of whole blocks"),
    REFUSED("dropblock_size_rel", IN(DROPOUT), "0", "the dropping of whole blocks"),
    REFUSED("dynamic_minibatch", NET, "0", "passes of changing size"),
    OTHERS("ema", NET, "0"),
    /* Ours too, by another rule, so it does not decide. */
    {KEY("ema_alpha", NET, NUMBER, "0"), .reader = AMP_KNOWN_TO_FORK},
    REFUSED("embedding_layer", BOXES, NULL, "tracking"),
    OTHERS("epochs", NET, NULL),
    {KEY("eps", NET, NUMBER, ".0000001"), .fork_def = ".000001"},
    REFUSED("equidistant_point", NET, "0", "the rejection of labels"),
    {KEY("exposure", NET | IN(CROP), NUMBER, "1"), ABOVE(0)},
    {KEY("extra", IN(REORG), INTEGER, "0")},
    {KEY("filters", WINDOWS, INTEGER, "1")},
    {KEY("flatten", IN(REORG), SWITCH, "0")},
    {KEY("flip", IN(CROP), SWITCH, "0")},
    {KEY("flip", NET, SWITCH, "1"), FORK},
    {KEY("flipped", IN(CONVOLUTIONAL), SWITCH, "0")},
    {KEY("focal_loss", IN(YOLO), SWITCH, "0"), FORK},
    REFUSED("focal_loss", OTHER_HEADS, "0", "the focal loss"),
    {KEY("forced", IN(DETECTION), SWITCH, "0")},
    OTHERS("fp16", NET, "0"),
    {KEY("from", IN(SHORTCUT), INTEGERS, NULL)},
    OTHERS("frozen", LAYERS, "0"),
    {KEY("gamma", NET, NUMBER, "1")},
    REFUSED("gaussian_noise", NET, "0", "noise on images"),
    NOTED("gpu_memory", NET),
    REFUSED("grad_centr", IN(CONVOLUTIONAL), "0", "centred gradients"),
    {KEY("group_id", IN(ROUTE), INTEGER, "0"), FORK},
    {KEY("groups", IN(CONVOLUTIONAL) | IN(SOFTMAX), INTEGER, "1")},
    {KEY("groups", IN(ROUTE), INTEGER, "1"), FORK},
    REFUSED("groups", IN(CRNN), "1", "the groups inside"),
    OTHERS("half", NET, "0"),
    {KEY("height", NET, INTEGER, "0")},
    REFUSED("hidden", IN(RNN), "=output", "a hidden state of another size than output="),
    {KEY("hidden_filters", IN(CRNN), INTEGER, "1")},
    {KEY("hue", NET, NUMBER, "0"), RANGE(0, 1, "0 to 1")},
    {KEY("ids", IN(ISEG), INTEGER, "32")},
    {KEY("ignore_thresh", IN(YOLO), NUMBER, ".5"), RANGE(0, 1, "0 to 1")},
    REFUSED("init_sequential_subdivisions", NET, NULL, "training on sequences"),
    {KEY("inputs", NET, INTEGER, NULL)},
    {KEY("iou_loss", IN(YOLO), WORD, "mse"), FORK, .words = box_losses},
    REFUSED("iou_loss", OTHER_HEADS, "mse", "the loss of its boxes"),
    {KEY("iou_normalizer", IN(YOLO), NUMBER, "1"), FORK, .fork_def = ".75"},
    REFUSED("iou_normalizer", OTHER_HEADS, "1", "the factor of this loss"),
    {KEY("iou_thresh", IN(YOLO), NUMBER, "1"), FORK},
    REFUSED("iou_thresh", OTHER_HEADS, "1", "the further anchors of a truth"),
    {KEY("iou_thresh_kind", IN(YOLO), WORD, "iou"), FORK, .words = box_losses},
    REFUSED("iou_thresh_kind", OTHER_HEADS, "iou", "the further anchors of a truth"),
    {KEY("jitter", BOXES, NUMBER, ".2"), .allowed = "0 to below 1", .high = 1, .below_high = true},
    {KEY("kappa", IN(NORMALIZATION), NUMBER, "1")},
    {KEY("label_smooth_eps", IN(YOLO), NUMBER, "0"), FORK},
    IGNORED("label_smooth_eps", NET, "0"),
    OTHERS("label_smoothing", NET, "0"),
    {KEY("layers", IN(ROUTE), INTEGERS, NULL)},
    {KEY("learning_rate", NET, NUMBER, ".001"), AT_LEAST("at least 0; the loss would grow")},
    {KEY("learning_rate", LAYERS, NUMBER, "1")},
    {KEY("letter_box", NET, SWITCH, "0"), FORK},
    {KEY("log", IN(REGION), INTEGER, "0")},
    REFUSED("logistic", IN(RNN), "0", "the activation of its state"),
    OTHERS("lr", NET, NULL),
    {KEY("map", IN(YOLO) | IN(REGION), WORD, NULL)},
    {KEY("mask", IN(YOLO), INTEGERS, NULL)},
    {KEY("mask_scale", IN(REGION), NUMBER, "1")},
    {KEY("max", IN(YOLO), INTEGER, "90"), .fork_def = "200", RANGE(1, 1000, "1 to 1000")},
    {KEY("max", IN(DETECTION), INTEGER, "90")},
    {KEY("max", IN(REGION), INTEGER, "30")},
    {KEY("max_batches", NET, INTEGER, "0")},
    NOTED("max_chart_loss", NET),
    {KEY("max_crop", NET, INTEGER, NULL), ABOVE(0)},
    {KEY("max_delta", IN(YOLO), NUMBER, NULL), FORK, ABOVE(0)},
    REFUSED("max_delta", OTHER_HEADS, NULL, "the limit of its gradients"),
    {KEY("max_ratio", NET, NUMBER, NULL), ABOVE(0)},
    REFUSED("maxpool_depth", IN(MAXPOOL), "0", "maxima over channels"),
    REFUSED("maxpool_zero_nonmax", IN(MAXPOOL), "0", "zeros beside the maxima"),
    {KEY("min_crop", NET, INTEGER, NULL), ABOVE(0)},
    {KEY("min_ratio", NET, NUMBER, NULL), ABOVE(0)},
    {KEY("mixup", NET, INTEGER, "0"), FORK},
    {KEY("momentum", NET, NUMBER, ".9"), .allowed = "at least 0 and below 1", .high = 1,
     .below_high = true},
    {KEY("mosaic", NET, SWITCH, "0"), FORK},
    {KEY("mosaic_bound", NET, SWITCH, "0"), FORK},
    OTHERS("nesterov", NET, "0"),
    {KEY("new_coords", IN(YOLO), SWITCH, "0"), FORK},
    REFUSED("new_coords", OTHER_HEADS, "0", "the coordinates of its boxes"),
    {KEY("nms_kind", IN(YOLO), WORD, "default"), .reader = AMP_KNOWN_TO_FORK, .words = nms_kinds},
    {KEY("noadjust", IN(CROP), SWITCH, "0")},
    {KEY("noloss", IN(SOFTMAX), SWITCH, "0")},
    {KEY("noobj", IN(COST), NUMBER, "1")},
    {KEY("noobject_scale", IN(REGION) | IN(DETECTION), NUMBER, "1")},
    {KEY("notruth", NET, SWITCH, "0")},
    {KEY("num", BOXES, INTEGER, "1")},
    REFUSED("num_sigmas_reject_badlabels", NET, "0", "the rejection of labels"),
    {KEY("numload", LAYERS, INTEGER, "0")},
    {KEY("obj_normalizer", IN(YOLO), NUMBER, "1"), FORK},
    REFUSED("obj_normalizer", OTHER_HEADS, "1", "the factor of this loss"),
    {KEY("object_scale", IN(REGION) | IN(DETECTION), NUMBER, "1")},
    {KEY("objectness_smooth", IN(YOLO), SWITCH, "0"), FORK},
    REFUSED("objectness_smooth", OTHER_HEADS, "0", "the smoothed objectness"),
    {KEY("onlyforward", LAYERS, SWITCH, "0")},
    NOTED("optimized_memory", NET),
    REFUSED("out_channels", IN(MAXPOOL), NULL, "maxima over channels"),
    {KEY("output", IN(CONNECTED) | IN(RNN) | IN(GRU) | IN(LSTM), INTEGER, "1")},
    {KEY("output_filters", IN(CRNN), INTEGER, "1")},
    {KEY("pad", IN(CONVOLUTIONAL) | IN(DECONVOLUTIONAL), SWITCH, "0")},
    {KEY("pad", IN(LOCAL), INTEGER, "0")},
    REFUSED("pad", IN(CRNN), NULL, "the padding inside"),
    {KEY("padding", IN(CONVOLUTIONAL) | IN(DECONVOLUTIONAL), INTEGER, "0"), AT_LEAST("at least 0")},
    {KEY("padding", IN(MAXPOOL), INTEGER, NULL), AT_LEAST("at least 0")},
    REFUSED("padding", IN(CRNN), NULL, "the padding inside"),
    {KEY("policy", NET, WORD, "constant"), .words = policies},
    {KEY("power", NET, NUMBER, "4"), AT_LEAST("at least 0")},
    {KEY("probability", IN(DROPOUT), NUMBER, ".5"), .fork_def = ".2"},
    {KEY("random", NET | IN(REGION) | IN(DETECTION), SWITCH, "0")},
    {KEY("random", IN(YOLO), SWITCH, "0"), .fork_kind = AMP_CFG_NUMBER},
    {KEY("ratio", IN(COST), NUMBER, "0")},
    {KEY("reorg", IN(DETECTION), INTEGER, NULL)},
    {KEY("rescore", IN(REGION) | IN(DETECTION), SWITCH, "0")},
    {KEY("resize", IN(YOLO), NUMBER, "1"), FORK, ABOVE(0)},
    REFUSED("resize", OTHER_HEADS, "1", "the sizes of its images"),
    {KEY("resize_step", NET, INTEGER, "32"), FORK, .allowed = "at least 1", .low = 1,
     .high = INFINITY},
    {KEY("reverse", IN(REORG), SWITCH, "0")},
    REFUSED("rotate", IN(CONVOLUTIONAL), "0", "turned filters"),
    {KEY("saturation", NET | IN(CROP), NUMBER, "1"), ABOVE(0)},
    {KEY("scale", NET | IN(COST) | IN(UPSAMPLE), NUMBER, "1")},
    {KEY("scale_x_y", IN(YOLO), NUMBER, "1"), FORK, ABOVE(0)},
    REFUSED("scale_x_y", OTHER_HEADS, "1", "the coordinates of its boxes"),
    {KEY("scales", NET, NUMBERS, NULL)},
    OTHERS("scheduler", NET, NULL),
    {KEY("seen", NET, INTEGER, NULL), .reader = AMP_READ_BY_NOBODY},
    REFUSED("seq_scales", NET, NULL, "training on sequences"),
    REFUSED("sequential_subdivisions", NET, NULL, "training on sequences"),
    REFUSED("share_index", IN(CONVOLUTIONAL), NULL, "the weights shared with another layer"),
    {KEY("shift", IN(CROP), NUMBER, "0")},
    {KEY("shortcut", IN(RNN) | IN(CRNN), SWITCH, "0")},
    NOTED("show_details", IN(YOLO) | IN(REGION)),
    NOTED("show_receptive_field", NET),
    {KEY("side", IN(DETECTION), INTEGER, "7")},
    NOTED("sim_thresh", IN(YOLO)),
    {KEY("size", WINDOWS, INTEGER, "1")},
    {KEY("size", IN(MAXPOOL), INTEGER, NULL)},
    {KEY("size", IN(NORMALIZATION), INTEGER, "5")},
    REFUSED("size", IN(CRNN), "3", "the window inside"),
    {KEY("smooth", LAYERS, NUMBER, "0")},
    {KEY("softmax", IN(REGION) | IN(DETECTION), SWITCH, "0")},
    {KEY("spatial", IN(SOFTMAX), NUMBER, "0")},
    {KEY("sqrt", IN(REGION) | IN(DETECTION), SWITCH, "0")},
    {KEY("step", NET, INTEGER, "1")},
    {KEY("steps", NET, INTEGERS, NULL)},
    {KEY("stopbackward", LAYERS, SWITCH, "0"), .fork_kind = AMP_CFG_INTEGER},
    REFUSED("stretch", IN(CONVOLUTIONAL), "0", "stretched filters"),
    REFUSED("stretch_sway", IN(CONVOLUTIONAL), "0", "stretched filters"),
    {KEY("stride", WINDOWS | IN(MAXPOOL) | IN(REORG), INTEGER, "1")},
    {KEY("stride", IN(UPSAMPLE), INTEGER, "2")},
    REFUSED("stride", IN(CRNN), "1", "the stride inside"),
    REFUSED("stride_x", IN(CONVOLUTIONAL) | IN(MAXPOOL), "=stride",
            "strides that differ; give stride="),
    REFUSED("stride_y", IN(CONVOLUTIONAL) | IN(MAXPOOL), "=stride",
            "strides that differ; give stride="),
    {KEY("subdivisions", NET, INTEGER, "1")},
    REFUSED("sway", IN(CONVOLUTIONAL), "0", "swayed filters"),
    {KEY("tanh", IN(GRU), SWITCH, "0")},
    {KEY("temperature", IN(SOFTMAX), NUMBER, "1")},
    {KEY("thresh", IN(REGION), NUMBER, ".5")},
    {KEY("thresh", IN(COST), NUMBER, "0")},
    {KEY("time_steps", NET, INTEGER, "1"), .use = AMP_KEY_REFUSED, .lost = "recurrent training"},
    REFUSED("track", NET, "0", "training on sequences"),
    NOTED("track_ciou_norm", IN(YOLO)),
    NOTED("track_history_size", IN(YOLO)),
    REFUSED("train_only_bn", LAYERS, "0", "the training of batch normalization alone"),
    {KEY("tree", IN(REGION) | IN(SOFTMAX), WORD, NULL)},
    {KEY("truth", LAYERS, SWITCH, "0")},
    {KEY("truth_thresh", IN(YOLO), NUMBER, "1"), AT_LEAST("at least 0")},
    NOTED("try_fix_nan", NET),
    {KEY("type", IN(COST), WORD, "sse"), .words = cost_types},
    IGNORED("uc_normalizer", BOXES, "1"),
    REFUSED("unsupervised", NET, "0", "unsupervised training"),
    NOTED("use_cuda_graph", NET),
    OTHERS("warmup", NET, "0"),
    OTHERS("warmup_epochs", NET, "0"),
    OTHERS("weight_decay", NET, NULL),
    IGNORED("weights_normalization", IN(SHORTCUT), NULL),
    REFUSED("weights_reject_freq", NET, "0", "the rejection of weights"),
    REFUSED("weights_type", IN(SHORTCUT), "none", "the weights of its sources"),
    {KEY("width", NET, INTEGER, "0")},
    NOTED("workspace_size_limit_MB", NET),
    {KEY("xnor", IN(CONVOLUTIONAL), SWITCH, "0")},
    REFUSED("xnor", IN(CRNN), "0", "binary weights inside"),
};

const struct amp_key_row *amp_key_rows(size_t *count)
{
    *count = sizeof rows / sizeof *rows;
    return rows;
}

/* ---- looking up ---- */

enum amp_layer_type amp_cfg_section_type(const struct amp_cfg_file *cfg,
                                         const struct amp_cfg_section *s)
{
    return s == cfg->sections ? AMP_NETWORK : amp_layer_type_from_name(s->name);
}

static int compare_names(const void *name, const void *row)
{
    return strcmp(name, ((const struct amp_key_row *)row)->name);
}

/* The first row of that name. */
static const struct amp_key_row *find_name(const char *name)
{
    const struct amp_key_row *row =
        bsearch(name, rows, sizeof rows / sizeof *rows, sizeof *rows, compare_names);
    while (row && row > rows && !strcmp(row[-1].name, name))
        row--;
    return row;
}

static const struct amp_key_row *next_row(const struct amp_key_row *row)
{
    const struct amp_key_row *next = row + 1;
    return next < rows + sizeof rows / sizeof *rows && !strcmp(next->name, row->name) ? next : NULL;
}

const struct amp_key_row *amp_key_find(const char *name, enum amp_layer_type section)
{
    const struct amp_key_row *row = section == AMP_BLANK ? NULL : find_name(name);
    while (row && !(row->sections & UINT64_C(1) << section))
        row = next_row(row);
    return row;
}

bool amp_key_is_stocks(const struct amp_key_row *row)
{
    return row->reader == AMP_READ_BY_ALL;
}

const struct amp_key_row *amp_key_find_anywhere(const char *name)
{
    const struct amp_key_row *row = find_name(name);
    while (row && !amp_key_is_stocks(row))
        row = next_row(row);
    return row;
}

enum amp_cfg_kind amp_cfg_key_kind(const char *name)
{
    const struct amp_key_row *row = amp_key_find_anywhere(name);
    return row ? row->kind : AMP_CFG_UNKNOWN;
}

bool amp_key_is_nets_only(const char *name)
{
    const struct amp_key_row *row = amp_key_find_anywhere(name);
    bool only = row != NULL;
    for (; row && only; row = next_row(row))
        only = !amp_key_is_stocks(row) || row->sections == NET;
    return only;
}

bool amp_key_allows(const struct amp_key_row *row, double value)
{
    if (!row->allowed) return true;
    return value >= row->low && value <= row->high && !(row->above_low && value == row->low) &&
           !(row->below_high && value == row->high);
}

static bool same_value(const char *a, const char *b)
{
    char *end_a, *end_b;
    double number_a = strtod(a, &end_a), number_b = strtod(b, &end_b);
    bool numbers = end_a != a && !*end_a && end_b != b && !*end_b;
    return numbers ? number_a == number_b : !strcmp(a, b);
}

bool amp_key_is_default(const struct amp_key_row *row, const struct amp_cfg_section *s,
                        const char *value)
{
    if (!row->def) return false;
    if (row->def[0] != '=') return same_value(value, row->def);
    const char *other = row->def + 1;
    return same_value(
        value, amp_key_string(s, amp_layer_type_from_name(s->name), AMP_DIALECT_STOCK, other));
}

int amp_key_word(const struct amp_key_row *row, const char *value)
{
    for (int i = 0; row->words[i]; i++)
        if (!strcmp(row->words[i], value)) return i;
    return -1;
}

/* ---- what a section says ---- */

/* A key that its Darknet does not read counts as absent. */
const char *amp_key_string(const struct amp_cfg_section *s, enum amp_layer_type section,
                           enum amp_dialect dialect, const char *key)
{
    const struct amp_key_row *row = amp_key_find(key, section);
    bool fork = dialect == AMP_DIALECT_FORK;
    if (!row) return "";
    const struct amp_cfg_entry *e = fork || amp_key_is_stocks(row) ? amp_cfg_find(s, key) : NULL;
    if (e) return e->value;
    const char *def = fork && row->fork_def ? row->fork_def : row->def;
    return def ? def : "";
}

int amp_key_int(const struct amp_cfg_section *s, enum amp_layer_type section,
                enum amp_dialect dialect, const char *key)
{
    /* glibc's atoi, but defined. */
    return (int)strtol(amp_key_string(s, section, dialect, key), NULL, 10);
}

double amp_key_float(const struct amp_cfg_section *s, enum amp_layer_type section,
                     enum amp_dialect dialect, const char *key)
{
    return strtod(amp_key_string(s, section, dialect, key), NULL);
}

int amp_net_int(const struct amp_cfg_file *cfg, const char *key)
{
    return amp_key_int(cfg->sections, AMP_NETWORK, cfg->dialect, key);
}

double amp_net_float(const struct amp_cfg_file *cfg, const char *key)
{
    return amp_key_float(cfg->sections, AMP_NETWORK, cfg->dialect, key);
}
