/* Decides whether somebody reads a key in its section, and whether a key that nobody reads is a
 * mistake. It looks at values only to see whether a foreign key or a switch asks for something that
 * this Darknet does not do. */
#include "cfg_checks.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer_types.h"
#include "text.h"

/* A set of section types, one bit each. */
#define IN(type) (UINT64_C(1) << AMP_##type)
#define NET      IN(NETWORK)
#define LAYERS   (~NET)
#define BOXES    (IN(YOLO) | IN(REGION) | IN(DETECTION))
#define WINDOWS  (IN(CONVOLUTIONAL) | IN(DECONVOLUTIONAL) | IN(LOCAL))
#define MATRICES                                                                                   \
    (IN(CONVOLUTIONAL) | IN(DECONVOLUTIONAL) | IN(CONNECTED) | IN(RNN) | IN(GRU) | IN(LSTM) |      \
     IN(CRNN))

/* ---- Darknet's keys, as its parser.c reads them ---- */

/* Sorted by name. */
static const struct key {
    const char *name;
    enum amp_cfg_kind kind;
    uint64_t sections;
} keys[] = {
    {"B1", AMP_CFG_NUMBER, NET},
    {"B2", AMP_CFG_NUMBER, NET},
    {"absolute", AMP_CFG_INTEGER, IN(REGION)},
    {"activation", AMP_CFG_WORD,
     WINDOWS | IN(CONNECTED) | IN(RNN) | IN(CRNN) | IN(SHORTCUT) | IN(ACTIVATION)},
    {"adam", AMP_CFG_SWITCH, NET},
    {"alpha", AMP_CFG_NUMBER, IN(NORMALIZATION) | IN(SHORTCUT)},
    {"anchors", AMP_CFG_NUMBERS, IN(YOLO) | IN(REGION)},
    {"angle", AMP_CFG_NUMBER, NET | IN(CROP)},
    {"aspect", AMP_CFG_NUMBER, NET},
    {"background", AMP_CFG_SWITCH, IN(REGION)},
    {"batch", AMP_CFG_INTEGER, NET},
    {"batch_normalize", AMP_CFG_SWITCH, MATRICES},
    {"beta", AMP_CFG_NUMBER, IN(NORMALIZATION) | IN(SHORTCUT)},
    {"bias_match", AMP_CFG_SWITCH, IN(REGION)},
    {"binary", AMP_CFG_SWITCH, IN(CONVOLUTIONAL)},
    {"burn_in", AMP_CFG_INTEGER, NET},
    {"center", AMP_CFG_SWITCH, NET},
    {"channels", AMP_CFG_INTEGER, NET},
    {"class_scale", AMP_CFG_NUMBER, IN(REGION) | IN(DETECTION)},
    {"classes", AMP_CFG_INTEGER, BOXES | IN(ISEG)},
    {"classfix", AMP_CFG_INTEGER, IN(REGION)},
    {"clip", AMP_CFG_NUMBER, NET},
    {"coord_scale", AMP_CFG_NUMBER, IN(REGION) | IN(DETECTION)},
    {"coords", AMP_CFG_INTEGER, IN(REGION) | IN(DETECTION)},
    {"crop_height", AMP_CFG_INTEGER, IN(CROP)},
    {"crop_width", AMP_CFG_INTEGER, IN(CROP)},
    {"decay", AMP_CFG_NUMBER, NET},
    {"dontload", AMP_CFG_SWITCH, LAYERS},
    {"dontloadscales", AMP_CFG_SWITCH, LAYERS},
    {"dontsave", AMP_CFG_SWITCH, LAYERS},
    {"dot", AMP_CFG_NUMBER, IN(CONVOLUTIONAL)},
    {"eps", AMP_CFG_NUMBER, NET},
    {"exposure", AMP_CFG_NUMBER, NET | IN(CROP)},
    {"extra", AMP_CFG_INTEGER, IN(REORG)},
    {"filters", AMP_CFG_INTEGER, WINDOWS},
    {"flatten", AMP_CFG_SWITCH, IN(REORG)},
    {"flip", AMP_CFG_SWITCH, IN(CROP)},
    {"flipped", AMP_CFG_SWITCH, IN(CONVOLUTIONAL)},
    {"forced", AMP_CFG_SWITCH, IN(DETECTION)},
    {"from", AMP_CFG_INTEGERS, IN(SHORTCUT)},
    {"gamma", AMP_CFG_NUMBER, NET},
    {"groups", AMP_CFG_INTEGER, IN(CONVOLUTIONAL) | IN(SOFTMAX)},
    {"height", AMP_CFG_INTEGER, NET},
    {"hidden_filters", AMP_CFG_INTEGER, IN(CRNN)},
    {"hue", AMP_CFG_NUMBER, NET},
    {"ids", AMP_CFG_INTEGER, IN(ISEG)},
    {"ignore_thresh", AMP_CFG_NUMBER, IN(YOLO)},
    {"inputs", AMP_CFG_INTEGER, NET},
    {"jitter", AMP_CFG_NUMBER, BOXES},
    {"kappa", AMP_CFG_NUMBER, IN(NORMALIZATION)},
    {"layers", AMP_CFG_INTEGERS, IN(ROUTE)},
    {"learning_rate", AMP_CFG_NUMBER, NET | LAYERS},
    {"log", AMP_CFG_INTEGER, IN(REGION)},
    {"map", AMP_CFG_WORD, IN(YOLO) | IN(REGION)},
    {"mask", AMP_CFG_INTEGERS, IN(YOLO)},
    {"mask_scale", AMP_CFG_NUMBER, IN(REGION)},
    {"max", AMP_CFG_INTEGER, BOXES},
    {"max_batches", AMP_CFG_INTEGER, NET},
    {"max_crop", AMP_CFG_INTEGER, NET},
    {"max_ratio", AMP_CFG_NUMBER, NET},
    {"min_crop", AMP_CFG_INTEGER, NET},
    {"min_ratio", AMP_CFG_NUMBER, NET},
    {"momentum", AMP_CFG_NUMBER, NET},
    {"noadjust", AMP_CFG_SWITCH, IN(CROP)},
    {"noloss", AMP_CFG_SWITCH, IN(SOFTMAX)},
    {"noobj", AMP_CFG_NUMBER, IN(COST)},
    {"noobject_scale", AMP_CFG_NUMBER, IN(REGION) | IN(DETECTION)},
    {"notruth", AMP_CFG_SWITCH, NET},
    {"num", AMP_CFG_INTEGER, BOXES},
    {"numload", AMP_CFG_INTEGER, LAYERS},
    {"object_scale", AMP_CFG_NUMBER, IN(REGION) | IN(DETECTION)},
    {"onlyforward", AMP_CFG_SWITCH, LAYERS},
    {"output", AMP_CFG_INTEGER, IN(CONNECTED) | IN(RNN) | IN(GRU) | IN(LSTM)},
    {"output_filters", AMP_CFG_INTEGER, IN(CRNN)},
    {"pad", AMP_CFG_SWITCH, WINDOWS},
    {"padding", AMP_CFG_INTEGER, IN(CONVOLUTIONAL) | IN(DECONVOLUTIONAL) | IN(MAXPOOL)},
    {"policy", AMP_CFG_WORD, NET},
    {"power", AMP_CFG_NUMBER, NET},
    {"probability", AMP_CFG_NUMBER, IN(DROPOUT)},
    {"random", AMP_CFG_SWITCH, NET | BOXES},
    {"ratio", AMP_CFG_NUMBER, IN(COST)},
    {"reorg", AMP_CFG_INTEGER, IN(DETECTION)},
    {"rescore", AMP_CFG_SWITCH, IN(REGION) | IN(DETECTION)},
    {"reverse", AMP_CFG_SWITCH, IN(REORG)},
    {"saturation", AMP_CFG_NUMBER, NET | IN(CROP)},
    {"scale", AMP_CFG_NUMBER, NET | IN(COST) | IN(UPSAMPLE)},
    {"scales", AMP_CFG_NUMBERS, NET},
    {"shift", AMP_CFG_NUMBER, IN(CROP)},
    {"shortcut", AMP_CFG_SWITCH, IN(RNN) | IN(CRNN)},
    {"side", AMP_CFG_INTEGER, IN(DETECTION)},
    {"size", AMP_CFG_INTEGER, WINDOWS | IN(MAXPOOL) | IN(NORMALIZATION)},
    {"smooth", AMP_CFG_NUMBER, LAYERS},
    {"softmax", AMP_CFG_SWITCH, IN(REGION) | IN(DETECTION)},
    {"spatial", AMP_CFG_NUMBER, IN(SOFTMAX)},
    {"sqrt", AMP_CFG_SWITCH, IN(REGION) | IN(DETECTION)},
    {"step", AMP_CFG_INTEGER, NET},
    {"steps", AMP_CFG_INTEGERS, NET},
    {"stopbackward", AMP_CFG_SWITCH, LAYERS},
    {"stride", AMP_CFG_INTEGER, WINDOWS | IN(MAXPOOL) | IN(REORG) | IN(UPSAMPLE)},
    {"subdivisions", AMP_CFG_INTEGER, NET},
    {"tanh", AMP_CFG_SWITCH, IN(GRU)},
    {"temperature", AMP_CFG_NUMBER, IN(SOFTMAX)},
    {"thresh", AMP_CFG_NUMBER, IN(REGION) | IN(COST)},
    {"time_steps", AMP_CFG_INTEGER, NET},
    {"tree", AMP_CFG_WORD, IN(REGION) | IN(SOFTMAX)},
    {"truth", AMP_CFG_SWITCH, LAYERS},
    {"truth_thresh", AMP_CFG_NUMBER, IN(YOLO)},
    {"type", AMP_CFG_WORD, IN(COST)},
    {"width", AMP_CFG_INTEGER, NET},
    {"xnor", AMP_CFG_SWITCH, IN(CONVOLUTIONAL)},
};

/* Keys of Darknet's own cfgs (writing.cfg, rnn.cfg) that it does not read itself: an error would
 * refuse those cfgs. */
static const struct key left_over[] = {
    {"hidden", AMP_CFG_INTEGER, IN(RNN)},
    {"seen", AMP_CFG_INTEGER, NET},
};

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- keys with which another Darknet trains another network ---- */

/* as_here: the value that trains the same network as this Darknet does; NULL: there is no such
 * value. Most keys are from AlexeyAB's parser.c, which hank-ai's Darknet has too. Words of other
 * trainers, which people try under [net], are at the end. */
static const struct foreign {
    const char *name;
    uint64_t sections;
    const char *as_here;
} foreign[] = {
    {"adversarial_lr", NET, "0"},
    {"attention", NET, "0"},
    {"augment_speed", NET, NULL},
    {"badlabels_reject_threshold", NET, "0"},
    {"badlabels_rejection_percentage", NET, "0"},
    {"batches_cycle_mult", NET, NULL},
    {"batches_per_cycle", NET, NULL},
    {"blur", NET, "0"},
    {"contrastive", NET, "0"},
    {"contrastive_color", NET, "0"},
    {"contrastive_jit_flip", NET, "0"},
    {"cutmix", NET, "0"},
    {"dynamic_minibatch", NET, "0"},
    {"equidistant_point", NET, "0"},
    {"flip", NET, "1"}, /* [detector train] mirrors images at random, always */
    {"gaussian_noise", NET, "0"},
    {"init_sequential_subdivisions", NET, NULL},
    {"label_smooth_eps", NET | IN(YOLO), "0"},
    {"letter_box", NET, "0"},
    {"mixup", NET, "0"},
    {"mosaic", NET, "0"},
    {"mosaic_bound", NET, "0"},
    {"num_sigmas_reject_badlabels", NET, "0"},
    {"resize_step", NET, "32"},
    {"seq_scales", NET, NULL},
    {"sequential_subdivisions", NET, NULL},
    {"track", NET, "0"},
    {"unsupervised", NET, "0"},
    {"weights_reject_freq", NET, "0"},

    {"burnin_update", LAYERS, "0"},
    {"dont_update", LAYERS, "0"},
    {"train_only_bn", LAYERS, "0"},
    {"angle", IN(CONVOLUTIONAL), NULL},
    {"antialiasing", IN(CONVOLUTIONAL) | IN(MAXPOOL), "0"},
    {"assisted_excitation", IN(CONVOLUTIONAL), "0"},
    {"cbn", IN(CONVOLUTIONAL), "0"},
    {"bin_output", IN(CONVOLUTIONAL), "0"},
    {"coordconv", IN(CONVOLUTIONAL), "0"},
    {"deform", IN(CONVOLUTIONAL), "0"},
    {"dilation", IN(CONVOLUTIONAL) | IN(CRNN), "1"},
    {"grad_centr", IN(CONVOLUTIONAL), "0"},
    {"rotate", IN(CONVOLUTIONAL), "0"},
    {"share_index", IN(CONVOLUTIONAL), NULL},
    {"stretch", IN(CONVOLUTIONAL), "0"},
    {"stretch_sway", IN(CONVOLUTIONAL), "0"},
    {"stride_x", IN(CONVOLUTIONAL) | IN(MAXPOOL), NULL},
    {"stride_y", IN(CONVOLUTIONAL) | IN(MAXPOOL), NULL},
    {"sway", IN(CONVOLUTIONAL), "0"},
    {"groups", IN(CRNN), "1"},
    {"pad", IN(CRNN), NULL},
    {"padding", IN(CRNN), NULL},
    {"size", IN(CRNN), "3"},
    {"stride", IN(CRNN), "1"},
    {"xnor", IN(CRNN), "0"},
    {"avg", IN(MAXPOOL), "0"},
    {"maxpool_depth", IN(MAXPOOL), "0"},
    {"maxpool_zero_nonmax", IN(MAXPOOL), "0"},
    {"out_channels", IN(MAXPOOL), NULL},
    {"dropblock", IN(DROPOUT), "0"},
    {"dropblock_size_abs", IN(DROPOUT), "0"},
    {"dropblock_size_rel", IN(DROPOUT), "0"},
    {"group_id", IN(ROUTE), NULL},
    {"groups", IN(ROUTE), NULL},
    {"weights_normalization", IN(SHORTCUT), NULL},
    {"weights_type", IN(SHORTCUT), "none"},

    {"classes_multipliers", BOXES, NULL},
    {"cls_normalizer", BOXES, "1"},
    {"counters_per_class", BOXES, NULL},
    {"delta_normalizer", BOXES, "1"},
    {"embedding_layer", BOXES, NULL},
    {"focal_loss", BOXES, "0"},
    {"iou_loss", BOXES, "mse"},
    {"iou_normalizer", BOXES, "1"},
    {"iou_thresh", BOXES, "1"},
    {"iou_thresh_kind", BOXES, "iou"},
    {"max_delta", BOXES, NULL},
    {"new_coords", BOXES, "0"},
    {"obj_normalizer", BOXES, "1"},
    {"objectness_smooth", BOXES, "0"},
    {"resize", BOXES, "1"},
    {"scale_x_y", BOXES, "1"},
    {"uc_normalizer", BOXES, "1"},

    {"accumulate", NET, "1"},
    {"ema", NET, "0"},
    {"epochs", NET, NULL},
    {"frozen", LAYERS, "0"},
    {"label_smoothing", NET, "0"},
    {"lr", NET, NULL},
    {"nesterov", NET, "0"},
    {"scheduler", NET, NULL},
    {"warmup", NET, "0"},
    {"warmup_epochs", NET, "0"},
    {"weight_decay", NET, NULL},
};

/* ---- looking up ---- */

enum amp_cfg_kind amp_cfg_key_kind(const char *name)
{
    for (size_t i = 0; i < LENGTH(keys); i++)
        if (!strcmp(keys[i].name, name)) return keys[i].kind;
    return AMP_CFG_UNKNOWN;
}

/* A linear search: a cfg has a few hundred keys. */
static bool reads(const struct key *table, size_t n, const char *name, uint64_t section)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].sections & section && !strcmp(table[i].name, name)) return true;
    return false;
}

/* "1" and "1.0" are the same number. */
static bool same_value(const char *a, const char *b)
{
    char *end_a, *end_b;
    double number_a = strtod(a, &end_a), number_b = strtod(b, &end_b);
    bool numbers = end_a != a && !*end_a && end_b != b && !*end_b;
    return numbers ? number_a == number_b : !strcmp(a, b);
}

static const struct foreign *find_foreign(const char *name, uint64_t section)
{
    for (size_t i = 0; i < LENGTH(foreign); i++)
        if (foreign[i].sections & section && !strcmp(foreign[i].name, name)) return &foreign[i];
    return NULL;
}

/* ---- the check ---- */

#define MOST_FOUND                                                                                 \
    200               /* different keys; looking for what more were meant to be would take long    \
                       */
#define MOST_NAMED 24 /* of those, the most that a message names */

/* Keys for one line of text: the first with its value, then the names of the others. */
struct findings {
    char text[1024];
    int n;
    struct {
        const char *section, *key;
    } found[MOST_FOUND];
};

struct keys_check {
    const struct amp_cfg_file *cfg;
    const char *const *own;
    size_t n_own;
    struct findings foreign, ignored;
};

__attribute__((format(printf, 2, 3))) static void append(struct findings *f, const char *format,
                                                         ...)
{
    size_t used = strlen(f->text);
    va_list args;
    va_start(args, format);
    vsnprintf(f->text + used, sizeof f->text - used, format, args);
    va_end(args);
}

static void add_finding(const struct keys_check *k, struct findings *f,
                        const struct amp_cfg_section *s, const struct amp_cfg_entry *e,
                        const char *meaning)
{
    /* A cfg repeats keys in many sections of one type: only the first of each is named. */
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->found[i].key, e->key) && !strcmp(f->found[i].section, s->name)) return;
    /* A cfg with so many unknown keys is no cfg; its first ones are enough. */
    if (f->n == MOST_FOUND) return;
    f->found[f->n].section = s->name;
    f->found[f->n].key = e->key;
    f->n++;
    if (f->n == 1)
        append(f, "%s:%d: %.60s=%.60s in %.60s: %s", k->cfg->path, e->line, e->key, e->written,
               s->name, meaning);
    else if (f->n <= MOST_NAMED)
        append(f, "%s %.60s (line %d)", f->n == 2 ? "; likewise" : ",", e->key, e->line);
}

static void end_findings(struct findings *f)
{
    if (f->n > MOST_NAMED) append(f, " and more");
}

/* The known key of this section that `name` was probably meant to be; NULL: none is near. */
static const char *guess(const struct keys_check *k, const char *name, uint64_t section)
{
    const char *known[LENGTH(keys) + 64];
    size_t n = 0;
    for (size_t i = 0; i < LENGTH(keys); i++)
        if (keys[i].sections & section) known[n++] = keys[i].name;
    /* Our keys are known under [net] only. */
    for (size_t i = 0; section == NET && i < k->n_own && n < LENGTH(known); i++)
        known[n++] = k->own[i];
    return amp_nearest_word(name, known, n);
}

/* True if Darknet reads the key for the whole network only. In a layer's section it looks like a
 * setting of that layer, or was meant for [net] and put at the end of the cfg. */
static bool is_for_net_only(const char *name)
{
    for (size_t i = 0; i < LENGTH(keys); i++)
        if (!strcmp(keys[i].name, name)) return keys[i].sections == NET;
    return false;
}

/* AlexeyAB's Darknet has switches with more values: a batch normalization over several passes (2),
 * or the iteration at which a frozen part thaws. Or it is no switch that was meant: pad=7, which is
 * a number of pixels in [local] alone. */
static bool is_no_switch(const struct amp_cfg_entry *e, uint64_t section)
{
    long value = strtol(e->value, NULL, 10);
    if (section == IN(LOCAL) && !strcmp(e->key, "pad")) return false;
    return amp_cfg_key_kind(e->key) == AMP_CFG_SWITCH && value != 0 && value != 1;
}

static int check_key(struct keys_check *k, const struct amp_cfg_section *s,
                     const struct amp_cfg_entry *e, uint64_t section, char *err, size_t err_size)
{
    if (reads(keys, LENGTH(keys), e->key, section)) {
        if (is_no_switch(e, section))
            add_finding(k, &k->foreign, s, e,
                        "allowed: 0 or 1; this Darknet reads any number but 0 as 1 and would train "
                        "another network");
        return 0;
    }
    if (reads(left_over, LENGTH(left_over), e->key, section)) return 0;
    for (size_t i = 0; i < k->n_own; i++)
        if (!strcmp(k->own[i], e->key)) return 0;
    const struct foreign *other = find_foreign(e->key, section);
    /* It asks for nothing that this Darknet does not do anyway. */
    if (other && other->as_here && same_value(e->value, other->as_here)) return 0;
    if (other) {
        add_finding(k, &k->foreign, s, e,
                    "this Darknet does not read this key and would train another network");
        return 0;
    }
    if (section != NET && is_for_net_only(e->key)) {
        snprintf(err, err_size,
                 "%s:%d: %.60s=%.60s in %.60s: allowed only in the first section, [net]; a layer "
                 "has none of its own",
                 k->cfg->path, e->line, e->key, e->written, s->name);
        return -1;
    }
    /* A key that Darknet reads in other layers is in the wrong place, not misspelt. */
    const char *meant =
        amp_cfg_key_kind(e->key) == AMP_CFG_UNKNOWN ? guess(k, e->key, section) : NULL;
    if (meant) {
        snprintf(err, err_size, "%s:%d: %.60s=%.60s in %.60s: unknown key; did you mean %s?",
                 k->cfg->path, e->line, e->key, e->written, s->name, meant);
        return -1;
    }
    add_finding(k, &k->ignored, s, e, "has no effect in this section");
    return 0;
}

static int check_section(struct keys_check *k, int i, char *err, size_t err_size)
{
    const struct amp_cfg_section *s = &k->cfg->sections[i];
    /* The first section is [net] or [network]; options_read.c refuses any other. */
    enum amp_layer_type type = i == 0 ? AMP_NETWORK : amp_layer_type_from_name(s->name);
    if (type == AMP_BLANK) return 0; /* an unknown layer is an error elsewhere */
    for (int j = 0; j < s->n_entries && k->ignored.n < MOST_FOUND; j++)
        if (check_key(k, s, &s->entries[j], UINT64_C(1) << type, err, err_size)) return -1;
    return 0;
}

/* Notes even if there is an error: both are about the same cfg. */
static int tell(struct keys_check *k, char *notes, size_t notes_size, char *err, size_t err_size)
{
    end_findings(&k->foreign);
    end_findings(&k->ignored);
    size_t used = notes ? strlen(notes) : 0;
    if (notes && k->ignored.n) snprintf(notes + used, notes_size - used, "%s\n", k->ignored.text);
    if (k->foreign.n == 0) return 0;
    snprintf(err, err_size, "%s. Remove what is not needed, or use a cfg made for this Darknet",
             k->foreign.text);
    return -1;
}

int amp_cfg_keys_check(const struct amp_cfg_file *cfg, const char *const *own, size_t n_own,
                       char *notes, size_t notes_size, char *err, size_t err_size)
{
    struct keys_check *k = calloc(1, sizeof *k);
    if (!k) {
        snprintf(err, err_size, "%s: out of memory", cfg->path);
        return -1;
    }
    *k = (struct keys_check){.cfg = cfg, .own = own, .n_own = n_own};
    int result = 0;
    for (int i = 0; i < cfg->n_sections && result == 0; i++)
        result = check_section(k, i, err, err_size);
    if (result == 0) result = tell(k, notes, notes_size, err, err_size);
    free(k);
    return result;
}
