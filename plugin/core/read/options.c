/* The plugin's keys: which there are, and which values they may have. It must not know which
 * combinations make no sense (options_read.c), nor what a key does: whoever reads struct
 * amp_options does.
 *
 * To add a key, add a row to `rows` and a member to struct amp_options; everything else follows. */
#include "options_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cfg_checks.h"
#include "text.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- values: every parser takes the whole text or fails ---- */

static bool parse_word(const char *value, const char *const *words, int *choice)
{
    for (*choice = 0; words[*choice]; (*choice)++)
        if (!strcmp(value, words[*choice])) return true;
    return false;
}

/* Darknet's atoi would take "yes" for 0, silently; a switch of ours must not. */
static bool parse_switch(const char *value, bool *on)
{
    *on = !strcmp(value, "1");
    return *on || !strcmp(value, "0");
}

/* A finite decimal number; no nan, inf or hexadecimal. */
static bool parse_number(const char *value, double *number)
{
    char *end;
    if (!*value || value[strspn(value, "0123456789+-.eE")]) return false;
    *number = strtod(value, &end);
    return !*end && isfinite(*number);
}

/* A number that the kernels take as FP32. */
static bool parse_float(const char *value, double *number)
{
    return parse_number(value, number) && !amp_number_vanishes(value);
}

static bool parse_unsigned(const char *value, uint64_t max, uint64_t *number)
{
    *number = 0;
    if (!*value) return false;
    for (; *value; value++) {
        unsigned digit = (unsigned)(*value - '0');
        /* Also false before an overflow: the next digit would exceed max. */
        if (digit > 9 || *number > (max - digit) / 10) return false;
        *number = *number * 10 + digit;
    }
    return true;
}

/* Scales are powers of two: multiplying by one changes the exponent only, so scaling and unscaling
 * round nothing. */
static bool parse_power_of_two(const char *value, double *number)
{
    int exponent;
    return parse_number(value, number) && *number >= scale_min && *number <= scale_max &&
           frexp(*number, &exponent) == 0.5;
}

/* ---- keys ---- */

static const char *const dtype_words[] = {"auto", "fp16", "bf16", "tf32", "fp32", NULL};
static const char *const dialect_words[] = {"auto", "stock", "fork", NULL};
static const char *const level_words[] = {"none", "O0", "O1", "O2", "O3", NULL};
static const char *const overflow_words[] = {"retry", "skip", NULL};
static const char *const divergence_words[] = {"stop", "continue", NULL};
static const char *const backend_words[] = {"auto", "cpu", "cuda", NULL};
static const char *const loader_words[] = {"fast", "darknet", NULL};
static const char *const reduce_words[] = {"fast", "ordered", NULL};
static const char *const wire_words[] = {"fp32", "bf16", NULL};
static const char *const count_words[] = {"auto", NULL};
static const char *const sidecar_words[] = {"backup", "all", "none", NULL};

const char *amp_level_word(enum amp_level level)
{
    return level_words[level];
}

const char *amp_dtype_word(enum amp_dtype_choice dtype)
{
    return dtype_words[dtype];
}

#define A_POWER_OF_TWO "a power of two from 1 to 16777216"
#define AT(member)     offsetof(struct amp_options, member)
#define MOST           1000000000 /* iterations */

/* The help texts are also the rows of docs/options.md, so they are Markdown. */
static const struct amp_option_row rows[] = {
    {"mixed_precision", "switch", "0 or 1", "0",
     "Train in mixed precision. In a layer's section, whatever the plan would choose: 0 keeps "
     "the layer in 4 bytes (a loss: in Darknet's own code), 1 computes it in `amp_dtype`. A "
     "`[route]` or `[shortcut]` stores 4 bytes if one of its sources is kept so, as in PyTorch, "
     "unless its own section says 1.",
     .kind = AMP_OPTION_SWITCH, .offset = AT(mixed_precision), .place = AMP_IN_BOTH},
    {"amp_dialect", "word", "auto, stock or fork", "auto",
     "By whose rules the cfg is trained. fork: those of AlexeyAB's Darknet, with its losses, its "
     "defaults and its way to load images. auto: fork if the cfg has a layer, an activation or a "
     "key with a value with which this Darknet would train another network.",
     .kind = AMP_OPTION_WORD, .offset = AT(dialect), .words = dialect_words},
    {"amp_dtype", "word", "auto, fp16, bf16, tf32 or fp32", "auto",
     "What convolutions, deconvolutions, local and connected layers compute in. auto: bf16 on a "
     "CPU that multiplies BF16; else, and where the cfg has a loss_scale key, fp16. A run that "
     "goes on with its sidecar keeps its type. tf32 and fp32 store 4 bytes; they are for "
     "comparison.",
     .kind = AMP_OPTION_WORD, .offset = AT(dtype), .words = dtype_words},
    {"amp_level", "word", "none, O0, O1, O2 or O3", "none",
     "A name for a set of keys, as in Apex. O0: `amp_dtype=fp32`. O1: `amp_dtype=auto`, "
     "`loss_scale=dynamic`. O2: `amp_dtype=fp16`, `loss_scale=dynamic`. O3: O2 with a fixed scale, "
     "`loss_scale=1`; for benchmarks only. Unlike Apex's, its master weights and the arithmetic of "
     "batch-norm are FP32.",
     .kind = AMP_OPTION_WORD, .offset = AT(level), .words = level_words},
    {"loss_scale", "word or number", "dynamic, or a number from 1 to 16777216", "dynamic",
     "A number is a fixed scale, rounded down to a power of two; a step that overflows is skipped. "
     "Has no effect with any `amp_dtype` but fp16.",
     .kind = AMP_OPTION_LOSS_SCALE},
    {"loss_scale_init", "number", A_POWER_OF_TWO, "searched",
     "First dynamic scale. Absent: searched on the first batch, downward from `loss_scale_max`.",
     .described = true, .kind = AMP_OPTION_POWER_OF_TWO, .offset = AT(loss_scale_init)},
    {"loss_scale_window", "integer", "1 to 1000000000", "max_batches / 50, within 20 to 2000",
     "Steps in a row whose gradients would fit FP16 at the next scale too; then the scale grows.",
     .described = true, .kind = AMP_OPTION_COUNT, .offset = AT(loss_scale_window),
     .numbers = {1, MOST}},
    {"loss_scale_growth", "number", "2 or 4", "2", "Factor by which the scale grows.",
     .kind = AMP_OPTION_NUMBER_OF, .offset = AT(loss_scale_growth), .numbers = {2, 4}},
    {"loss_scale_backoff", "number", "0.5 or 0.25", "0.5",
     "Factor by which the scale shrinks at an overflow.", .kind = AMP_OPTION_NUMBER_OF,
     .offset = AT(loss_scale_backoff), .numbers = {.5, .25}},
    {"loss_scale_min", "number", A_POWER_OF_TWO, "1", "Smallest dynamic scale.",
     .kind = AMP_OPTION_POWER_OF_TWO, .offset = AT(loss_scale_min)},
    {"loss_scale_max", "number", A_POWER_OF_TWO, "16777216", "Largest dynamic scale.",
     .kind = AMP_OPTION_POWER_OF_TWO, .offset = AT(loss_scale_max)},
    {"amp_on_overflow", "word", "retry or skip", "retry",
     "Redo the backward pass with a smaller scale, or skip the step.", .kind = AMP_OPTION_WORD,
     .offset = AT(on_overflow), .words = overflow_words},
    {"amp_on_divergence", "word", "stop or continue", "stop",
     "stop: end the run when the loss has been 100 times its best for 100 iterations, or not "
     "finite for 10, and keep the last good backup ([the exact rule](#when-a-run-has-diverged)). "
     "continue: warn once.",
     .kind = AMP_OPTION_WORD, .offset = AT(on_divergence), .words = divergence_words},
    {"amp_backend", "word", "auto, cpu or cuda", "auto", "Where to compute.",
     .kind = AMP_OPTION_WORD, .offset = AT(backend), .words = backend_words},
    {"amp_sidecar", "word", "backup, all or none", "backup",
     "Which weights files get a `.amp` file beside them, from which training resumes exactly: the "
     "backup, best and final ones, all, or none.",
     .kind = AMP_OPTION_WORD, .offset = AT(sidecar), .words = sidecar_words},
    {"amp_backup_every", "integer or word", "auto, or 0 to 1000000000", "auto",
     "Write a backup at most every so many iterations; a run that goes on from one counts from its "
     "start. auto: at most so often that saves take 1 % of the time "
     "([what a save costs](stopping-and-resuming.md#saving)). 0: each that the trainer writes (a "
     "detector's every 100 iterations). Other files are written as ever.",
     .kind = AMP_OPTION_COUNT, .offset = AT(backup_every), .words = count_words,
     .numbers = {0, MOST}},
    {"amp_log", "file name", "at most 4095 bytes", "none",
     "Write one JSON object per iteration to this file; a run that goes on from "
     "weights appends, unless -clear.",
     .described = true, .kind = AMP_OPTION_PATH},
    {"amp_log_layers", "integer", "0 to 1000000000", "100",
     "Every how many iterations `amp_log` also lists the layers: largest output, largest delta, "
     "share of the delta that is zero. 0: never.",
     .kind = AMP_OPTION_COUNT, .offset = AT(log_layers), .numbers = {0, MOST}},
    {"amp_log_noise", "switch", "0 or 1", "0",
     "1: `amp_log` also gives the gradient noise scale ([what it "
     "says](training-features.md#how-large-a-batch)). Needs `subdivisions` of 2 or more; costs a "
     "pass over the gradients in each step.",
     .kind = AMP_OPTION_SWITCH, .offset = AT(log_noise)},
    {"amp_loader", "word", "fast or darknet", "fast",
     "What loads the images of a detector or classifier. fast: JPEGs from file to input in one "
     "pass, with Darknet's "
     "labels and pixels within 5e-4 of Darknet's; other files as Darknet loads them. darknet: "
     "Darknet's own code for all.",
     .kind = AMP_OPTION_WORD, .offset = AT(loader), .words = loader_words},
    {"amp_loader_threads", "integer", "1 to 1024", "the number of cores",
     "How many threads load a batch. Each holds one image in memory. More than there are cores "
     "help where files come from a slow disk.",
     .described = true, .kind = AMP_OPTION_COUNT, .offset = AT(loader_threads),
     .numbers = {1, 1024}},
    {"amp_jpeg_scale", "switch", "0 or 1", "0",
     "Decode a detector's large JPEGs at 1/2, 1/4 or 1/8 of their size, but not below the "
     "network's input. A "
     "pixel is then a mean, where Darknet takes a single one.",
     .kind = AMP_OPTION_SWITCH, .offset = AT(jpeg_scale)},
    {"amp_image_cache", "integer", "0 to 1000000000", "0",
     "MiB of memory for decoded images of a detector or classifier. An image in it is not decoded "
     "again. When "
     "it is full, the image that was not used for longest goes.",
     .kind = AMP_OPTION_COUNT, .offset = AT(image_cache), .numbers = {0, MOST}},
    {"freeze", "switch", "0 or 1", "0",
     "In the section of a `[convolutional]`, `[deconvolutional]`, `[local]` or `[connected]` "
     "layer: its weights and statistics never change, and its batch-norm uses the running "
     "statistics. Backward ends at the lowest layer that still learns.",
     .kind = AMP_OPTION_SWITCH, .place = AMP_IN_LAYERS},
    {"checkpoint", "switch or word", "0 or 1 in a layer's section; auto:GiB under [net], as auto:4",
     "0",
     "In a layer's section, 1: this layer's tensors are not kept for backward, which computes "
     "them again. Saves memory, costs time. Under [net], auto:GiB: choose such layers so that a "
     "pass's activations fit into so much memory with the least extra arithmetic.",
     .described = true, .kind = AMP_OPTION_CHECKPOINT, .place = AMP_IN_BOTH},
    {"amp_reduce", "word", "fast or ordered", "fast",
     "How several processes (`mpirun`) make one step. fast: all at the same time; the order in "
     "which gradients are added up is MPI's. ordered: one after another, with the same bits as "
     "one process; slow, for proof. No effect in one process.",
     .kind = AMP_OPTION_WORD, .offset = AT(reduce), .words = reduce_words},
    {"amp_wire", "word", "fp32 or bf16", "fp32",
     "The type in which processes send gradients to each other. bf16: half the bytes; each sum "
     "is rounded ([how far](several-processes.md#gradients-in-16-bits)). Only with "
     "`amp_reduce=fast`. No effect in one process.",
     .kind = AMP_OPTION_WORD, .offset = AT(wire), .words = wire_words},
    {"amp_sync_bn", "switch", "0 or 1", "0",
     "1: batch-norm takes its statistics from the passes of all processes together ([what it "
     "costs](several-processes.md#batch-norm-over-all-processes)). Only with `amp_reduce=fast`. "
     "No effect in one process.",
     .kind = AMP_OPTION_SWITCH, .offset = AT(sync_bn)},
    {"amp_bucket_mb", "number", "0 to 1024", "25",
     "Size in MiB of the pieces in which GPUs send gradients by NCCL while backward still runs "
     "([how](several-processes.md#while-backward-runs)). 0: all at once after backward, which "
     "saves 4 bytes of memory a parameter (6 with `amp_wire=bf16`). No effect without NCCL, with "
     "`amp_reduce=ordered` or with `amp_sync_bn=1`.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(bucket_mb), .numbers = {0, 1024}},
    {"amp_rank_timeout", "integer", "3 to 86400", "30",
     "Seconds without a sign of life after which a process counts as lost: the others save and "
     "end. A process that is only slow gives signs.",
     .kind = AMP_OPTION_COUNT, .offset = AT(rank_timeout), .numbers = {3, 86400}},
    {"ema_alpha", "number", "0 to 0.999999", "0",
     "Keep a moving average of weights and running statistics: each step it keeps this share of "
     "its old value (less in the [first steps](training-features.md#moving-average-of-weights)). "
     "`-map` measures the average, and `NAME_ema.weights` holds it beside backup and final "
     "weights. 0: none. Cfgs of AlexeyAB's Darknet are averaged by its rule.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(rules.ema_alpha), .numbers = {0, .999999}},
    {"clip_grad_norm", "number", "0 to 1000000000", "0",
     "Largest norm of a step's gradients: where it is larger, all are multiplied by one factor "
     "that makes it this. A gradient is the mean over the step's images. 0: no limit.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(rules.clip_norm), .numbers = {0, MOST}},
    {"clip_grad_value", "number", "0 to 1000000000", "0",
     "Largest magnitude of an element of the gradients, which are means over the step's images; "
     "larger ones are set to it. 0: no limit.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(rules.clip_value), .numbers = {0, MOST}},
    {"optimizer", "word", "sgd, adam, adamw, lars or lamb", "sgd; adam with `adam=1`",
     "How gradients become steps. sgd (with momentum) and adam: Darknet's. adamw: Adam whose "
     "decay is no part of the gradient. lars and lamb: for large batches. adam, adamw and lamb "
     "read `B1`, `B2` and `eps` too.",
     .described = true, .kind = AMP_OPTION_WORD, .offset = AT(rules.optimizer),
     .words = amp_optimizer_words},
    {"decay_bn", "integer", "0 or 1", "0; with adam 1",
     "1: `decay` also holds for biases and batch-norm's scales. 0: for weights alone.",
     .described = true, .kind = AMP_OPTION_COUNT, .offset = AT(rules.decay_bn), .numbers = {0, 1}},
    {"learning_rate_min", "number", "0 to 1", "0.00001",
     "Lowest rate of `policy=cosine`, `sgdr` and `cyclic`; `learning_rate` is the highest.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(schedule.rate_min), .numbers = {0, 1}},
    {"sgdr_cycle", "integer", "1 to 1000000000", "max_batches",
     "Iterations of the first cycle of `policy=sgdr`.", .described = true, .kind = AMP_OPTION_COUNT,
     .offset = AT(schedule.cycle), .numbers = {1, MOST}},
    {"sgdr_mult", "integer", "1 to 1000000000", "2",
     "Factor by which each cycle of `policy=sgdr` is longer than the one before.",
     .kind = AMP_OPTION_COUNT, .offset = AT(schedule.mult), .numbers = {1, MOST}},
    {"cyclic_step", "integer", "1 to 1000000000", "none",
     "Iterations from the lowest rate of `policy=cyclic` to the highest; the way back takes as "
     "many.",
     .described = true, .kind = AMP_OPTION_COUNT, .offset = AT(schedule.step),
     .numbers = {1, MOST}},
    {"momentum_min", "number", "0 to 1", "0.85",
     "Lowest momentum of `policy=onecycle`, where the rate is highest (of Adam and its kind: "
     "B1). At both ends it is `momentum`.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(schedule.momentum_min), .numbers = {0, 1}},
    {"seed", "integer", "0 to 18446744073709551615", "none",
     "Same weights, images and augmentation in every run. Works without `mixed_precision` too.",
     .described = true, .kind = AMP_OPTION_SEED},
};

/* Counts are int in struct amp_options; MOST keeps the 64-bit value within that. */
static bool set_count(const struct amp_option_row *row, void *member, const char *value)
{
    uint64_t count;
    int word;
    if (row->words && parse_word(value, row->words, &word)) {
        *(int *)member = AMP_COUNT_AUTO;
        return true;
    }
    if (!parse_unsigned(value, MOST, &count) || (double)count < row->numbers[0] ||
        (double)count > row->numbers[1])
        return false;
    *(int *)member = (int)count;
    return true;
}

/* A TiB is more than any machine has. */
static bool set_checkpoint(struct amp_options *o, bool is_net, const char *value)
{
    bool on;
    if (!is_net) return parse_switch(value, &on);
    return !strncmp(value, "auto:", 5) && parse_number(value + 5, &o->checkpoint_gib) &&
           o->checkpoint_gib > 0 && o->checkpoint_gib <= 1024;
}

bool amp_option_set(const struct amp_option_row *row, struct amp_options *o, bool is_net,
                    const char *value)
{
    void *member = (char *)o + row->offset;
    double *number = member;
    int choice;
    switch (row->kind) {
    case AMP_OPTION_SWITCH:
        return parse_switch(value, member);
    case AMP_OPTION_WORD:
        if (!parse_word(value, row->words, &choice)) return false;
        *(unsigned *)member = (unsigned)choice; /* an enum without negative values */
        return true;
    case AMP_OPTION_NUMBER:
        return parse_float(value, number) && *number >= row->numbers[0] &&
               *number <= row->numbers[1];
    case AMP_OPTION_NUMBER_OF:
        return parse_number(value, number) &&
               (*number == row->numbers[0] || *number == row->numbers[1]);
    case AMP_OPTION_POWER_OF_TWO:
        return parse_power_of_two(value, number);
    case AMP_OPTION_COUNT:
        return set_count(row, member, value);
    case AMP_OPTION_PATH:
        return strlen(value) < sizeof o->log_path && strcpy(o->log_path, value);
    case AMP_OPTION_LOSS_SCALE: /* any number here; check_static_scale checks the range, only with
                                   mixed_precision=1 */
        o->loss_scale_dynamic = !strcmp(value, "dynamic");
        return o->loss_scale_dynamic || parse_number(value, &o->loss_scale);
    case AMP_OPTION_SEED:
        o->seeded = true;
        return parse_unsigned(value, UINT64_MAX, &o->seed);
    case AMP_OPTION_CHECKPOINT:
        return set_checkpoint(o, is_net, value);
    }
    return false;
}

void amp_options_default(struct amp_options *o)
{
    *o = (struct amp_options){.rules.decay_bn = -1};
    for (int i = 0; i < LENGTH(rows); i++)
        if (rows[i].place != AMP_IN_LAYERS && !rows[i].described)
            amp_option_set(&rows[i], o, true, rows[i].default_text);
}

const struct amp_option_row *amp_option_rows(int *count)
{
    *count = LENGTH(rows);
    return rows;
}

/* Few rows and few keys: a linear search is enough. */
const struct amp_option_row *amp_option_find(const char *key)
{
    for (int i = 0; i < LENGTH(rows); i++)
        if (!strcmp(rows[i].key, key)) return &rows[i];
    return NULL;
}

bool amp_option_is_key(const char *key)
{
    return amp_option_find(key) != NULL;
}

void amp_options_settle_dtype(struct amp_options *o, bool device, bool bf16)
{
    if (o->dtype != AMP_DTYPE_AUTO) return;
    o->dtype = !device && bf16 ? AMP_DTYPE_BF16 : AMP_DTYPE_FP16;
    o->dtype_reason = device ? "GPUs multiply FP16"
                      : bf16 ? "this CPU multiplies BF16"
                             : "this CPU multiplies FP32 only; of the short types FP16 is the more "
                               "exact";
}

bool amp_options_replay(const struct amp_options *o)
{
    return o->dtype == AMP_DTYPE_FP16 && o->loss_scale_dynamic &&
           o->on_overflow == AMP_OVERFLOW_RETRY;
}

int amp_option_layer_override(const struct amp_cfg_section *section)
{
    return amp_cfg_int(section, "mixed_precision", -1);
}

bool amp_option_layer_freeze(const struct amp_cfg_section *section)
{
    return amp_cfg_int(section, "freeze", 0);
}

bool amp_option_layer_checkpoint(const struct amp_cfg_section *section)
{
    return amp_cfg_int(section, "checkpoint", 0);
}

/* ---- unknown keys ---- */

/* Strict, since Darknet's own class_scale is only two edits from loss_scale. */
bool amp_option_is_meant(const char *key, const struct amp_option_row **nearest)
{
    int fewest = AMP_WORDS_FAR_APART;
    *nearest = rows;
    for (int i = 0; i < LENGTH(rows); i++) {
        int edits = amp_word_edits(key, rows[i].key);
        if (edits >= fewest) continue;
        fewest = edits;
        *nearest = &rows[i];
    }
    return !strncasecmp(key, "amp_", 4) || !strncasecmp(key, "loss_scale", 10) ||
           fewest <= (int)strlen((*nearest)->key) / 6;
}

/* ---- all keys ---- */

/* Unknown keys first: a misspelt key explains a missing value better than the value's own check. */
int amp_options_check_all_keys(const struct amp_complaints *c)
{
    const char *own[LENGTH(rows)];
    for (int i = 0; i < LENGTH(rows); i++)
        own[i] = rows[i].key;
    return amp_cfg_keys_check(c, own, LENGTH(rows)) || amp_cfg_values_check(c) ||
                   amp_cfg_values_check_training(c)
               ? -1
               : 0;
}
