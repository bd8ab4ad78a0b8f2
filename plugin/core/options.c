/* Reads the plugin's keys from a cfg. It decides which keys exist, which values they may have and
 * which combinations make no sense. It must not know what a key does: whoever reads struct
 * amp_options does.
 *
 * To add a key, add a row to `rows` and a member to struct amp_options; everything else follows. */
#include "options.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cfg_checks.h"
#include "text.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static const double scale_min = 1, scale_max = AMP_LOSS_SCALE_MAX;

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
static const char *const level_words[] = {"none", "O0", "O1", "O2", "O3", NULL};
static const char *const overflow_words[] = {"retry", "skip", NULL};
static const char *const divergence_words[] = {"stop", "continue", NULL};
static const char *const backend_words[] = {"auto", "cpu", "cuda", NULL};
static const char *const loader_words[] = {"fast", "darknet", NULL};
static const char *const reduce_words[] = {"fast", "ordered", NULL};
static const char *const wire_words[] = {"fp32", "bf16", NULL};
static const char *const sidecar_words[] = {"backup", "all", "none", NULL};

/* What a level sets. */
static const struct {
    const char *keys;
    enum amp_dtype_choice dtype;
    bool dynamic; /* else a loss scale of 1 */
} levels[] = {[AMP_LEVEL_O0] = {"amp_dtype=fp32", AMP_DTYPE_FP32, true},
              [AMP_LEVEL_O1] = {"amp_dtype=auto, loss_scale=dynamic", AMP_DTYPE_AUTO, true},
              [AMP_LEVEL_O2] = {"amp_dtype=fp16, loss_scale=dynamic", AMP_DTYPE_FP16, true},
              [AMP_LEVEL_O3] = {"amp_dtype=fp16, loss_scale=1", AMP_DTYPE_FP16, false}};

const char *amp_level_word(enum amp_level level)
{
    return level_words[level];
}

const char *amp_level_keys(enum amp_level level)
{
    return levels[level].keys;
}

const char *amp_dtype_word(enum amp_dtype_choice dtype)
{
    return dtype_words[dtype];
}

/* Members that are not named here are 0, false or empty. */
static const struct amp_options defaults = {
    .dtype = AMP_DTYPE_AUTO,
    .loss_scale_dynamic = true,
    .loss_scale_growth = 2,
    .loss_scale_backoff = 0.5,
    .loss_scale_min = 1,
    .loss_scale_max = AMP_LOSS_SCALE_MAX,
    .on_overflow = AMP_OVERFLOW_RETRY,
    .on_divergence = AMP_DIVERGENCE_STOPS,
    .backend = AMP_BACKEND_AUTO,
    .sidecar = AMP_SIDECAR_BACKUP,
    .log_layers = 100,
    .bucket_mb = 25,
    .rank_timeout = 30,
    .rules = {.decay_bn = -1},
    .schedule = {.rate_min = .00001, .momentum_min = .85, .mult = 2},
};

#define A_POWER_OF_TWO "a power of two from 1 to 16777216"
#define AT(member)     offsetof(struct amp_options, member)
#define MOST           1000000000 /* iterations */

/* The help texts are also the rows of docs/options.md, so they are Markdown. */
static const struct amp_option_row rows[] = {
    {"mixed_precision", "switch", "0 or 1", "0",
     "Train in mixed precision. In a layer's section: keep this layer in 4 bytes (0; a loss: "
     "in Darknet's own code) or compute it in `amp_dtype` (1), whatever the plan would choose.",
     .kind = AMP_OPTION_SWITCH, .offset = AT(mixed_precision), .place = AMP_IN_BOTH},
    {"amp_dtype", "word", "auto, fp16, bf16, tf32 or fp32", "auto",
     "What convolutions, deconvolutions, local and connected layers compute in. auto: bf16 on a "
     "CPU "
     "that multiplies BF16, fp16 on other CPUs, on GPUs, and with a loss_scale key; a run that is "
     "resumed with its sidecar keeps what it began with. tf32 and fp32 store 4 bytes: baselines on "
     "the same code.",
     .kind = AMP_OPTION_WORD, .offset = AT(dtype), .words = dtype_words},
    {"amp_level", "word", "none, O0, O1, O2 or O3", "none",
     "Stands for other keys, by the names that Apex gave such sets. O0: `amp_dtype=fp32`. O1: "
     "`amp_dtype=auto`, `loss_scale=dynamic`. O2: `amp_dtype=fp16`, `loss_scale=dynamic`. O3, for "
     "benchmarks only: `amp_dtype=fp16`, `loss_scale=1`; unlike Apex's, its master weights and the "
     "arithmetic of batch-norm are FP32.",
     .kind = AMP_OPTION_WORD, .offset = AT(level), .words = level_words},
    {"loss_scale", "word or number", "dynamic, or a number from 1 to 16777216", "dynamic",
     "A number is a fixed scale, rounded down to a power of two; a step that overflows is skipped. "
     "Has no effect with any `amp_dtype` but fp16.",
     .kind = AMP_OPTION_LOSS_SCALE},
    {"loss_scale_init", "number", A_POWER_OF_TWO, "searched",
     "First dynamic scale. Absent: searched on the first batch, downward from `loss_scale_max`.",
     .kind = AMP_OPTION_POWER_OF_TWO, .offset = AT(loss_scale_init)},
    {"loss_scale_window", "integer", "1 to 1000000000", "max_batches / 50, within 20 to 2000",
     "Steps without overflow after which the scale grows.", .kind = AMP_OPTION_COUNT,
     .offset = AT(loss_scale_window), .numbers = {1, MOST}},
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
     "End a run that has diverged: 100 iterations in a row with a loss above 100 times the lowest "
     "mean of 20 since iteration 100 (or `burn_in`) and 3 times the highest before, or 10 without "
     "a finite loss. From the first of them on backup and final weights are not replaced. "
     "continue: warn once.",
     .kind = AMP_OPTION_WORD, .offset = AT(on_divergence), .words = divergence_words},
    {"amp_backend", "word", "auto, cpu or cuda", "auto", "Where to compute.",
     .kind = AMP_OPTION_WORD, .offset = AT(backend), .words = backend_words},
    {"amp_sidecar", "word", "backup, all or none", "backup",
     "Which weights files get a `.amp` file beside them, from which training resumes exactly: the "
     "backup, best and final ones, all, or none.",
     .kind = AMP_OPTION_WORD, .offset = AT(sidecar), .words = sidecar_words},
    {"amp_log", "file name", "at most 4095 bytes", "none",
     "Write one JSON object per iteration to this file; a run that goes on from "
     "weights appends, unless -clear.",
     .kind = AMP_OPTION_PATH},
    {"amp_log_layers", "integer", "0 to 1000000000", "100",
     "Every so many iterations `amp_log` also tells of every layer: largest output and delta, and "
     "the share of the delta that is zero. 0: never.",
     .kind = AMP_OPTION_COUNT, .offset = AT(log_layers), .numbers = {0, MOST}},
    {"amp_loader", "word", "fast or darknet", "fast",
     "What loads the images of a detector's batches. fast: JPEGs from file to input in one pass, "
     "pixels within 5e-4 of Darknet's, the same labels; other files as Darknet loads them. "
     "darknet: "
     "Darknet's own code for all.",
     .kind = AMP_OPTION_WORD, .offset = AT(loader), .words = loader_words},
    {"amp_loader_threads", "integer", "1 to 1024", "the number of cores",
     "How many threads load a batch. More than there are cores help where files come from a slow "
     "disk; each has an image in memory.",
     .kind = AMP_OPTION_COUNT, .offset = AT(loader_threads), .numbers = {1, 1024}},
    {"amp_jpeg_scale", "switch", "0 or 1", "0",
     "Decode large JPEGs at 1/2, 1/4 or 1/8 of their size, as far as they stay larger than the "
     "network's input. Pixels then are means, where Darknet takes single ones.",
     .kind = AMP_OPTION_SWITCH, .offset = AT(jpeg_scale)},
    {"amp_image_cache", "integer", "0 to 1000000000", "0",
     "MiB of memory for decoded images of a detector, which are not decoded again when they are "
     "drawn again. Those that were not drawn for longest go first.",
     .kind = AMP_OPTION_COUNT, .offset = AT(image_cache), .numbers = {0, MOST}},
    {"freeze", "switch", "0 or 1", "0",
     "In the section of a `[convolutional]`, `[deconvolutional]`, `[local]` or `[connected]` "
     "layer: its "
     "weights and statistics never change, and batch-norm uses the running ones. Below the lowest "
     "layer that learns nothing runs backward.",
     .kind = AMP_OPTION_SWITCH, .place = AMP_IN_LAYERS},
    {"checkpoint", "switch or word", "0 or 1 in a layer's section; auto:GiB under [net], as auto:4",
     "0",
     "In a layer's section, 1: do not keep this layer's tensors for backward, which computes them "
     "again from the last ones kept. Under [net], auto:GiB: choose such layers so that the "
     "activations of a pass fit in so much, for the least arithmetic.",
     .kind = AMP_OPTION_CHECKPOINT, .place = AMP_IN_BOTH},
    {"amp_reduce", "word", "fast or ordered", "fast",
     "How several processes (`mpirun`) make one step. fast: all at the same time; gradients are "
     "added up in an order of MPI's own. ordered: one after another, to the bit as one process "
     "does it: slow, for proof. Has no effect in one process.",
     .kind = AMP_OPTION_WORD, .offset = AT(reduce), .words = reduce_words},
    {"amp_wire", "word", "fp32 or bf16", "fp32",
     "In what several processes send their gradients to each other. bf16: half the bytes, each sum "
     "rounded ([how far](several-processes.md#gradients-in-16-bits)). Only with "
     "`amp_reduce=fast`. Has no effect in one process.",
     .kind = AMP_OPTION_WORD, .offset = AT(wire), .words = wire_words},
    {"amp_sync_bn", "switch", "0 or 1", "0",
     "1: batch-norm of several processes works over the passes that they run at the same time, as "
     "if these were one larger pass "
     "([what it costs](several-processes.md#batch-norm-over-all-processes)). Only with "
     "`amp_reduce=fast`. Has no effect in one process.",
     .kind = AMP_OPTION_SWITCH, .offset = AT(sync_bn)},
    {"amp_bucket_mb", "number", "0 to 1024", "25",
     "GPUs that exchange by NCCL send gradients to each other in pieces of so many MiB, while the "
     "backward pass still computes others ([how](several-processes.md#while-backward-runs)). 0: in "
     "one piece after it, which needs 4 bytes of memory a parameter less (6 with `amp_wire=bf16`; "
     "`amp plan --memory` counts neither). Has no effect without NCCL, with `amp_reduce=ordered` "
     "or with `amp_sync_bn=1`.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(bucket_mb), .numbers = {0, 1024}},
    {"amp_rank_timeout", "integer", "3 to 86400", "30",
     "Seconds after which one of several processes that gives no sign of life counts as lost: the "
     "others save and end. A process that is only slow gives signs.",
     .kind = AMP_OPTION_COUNT, .offset = AT(rank_timeout), .numbers = {3, 86400}},
    {"ema_alpha", "number", "0 to 0.999999", "0",
     "Keep a moving average of weights and running statistics, with this share of the old value "
     "in every step (at first less: [training features](training-features.md)). `-map` judges it, "
     "and it is saved as `NAME_ema.weights` beside backup and final weights. 0: none.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(rules.ema_alpha), .numbers = {0, .999999}},
    {"clip_grad_norm", "number", "0 to 1000000000", "0",
     "Make the gradients of a step smaller, all by one factor, where their norm is larger than "
     "this. A gradient is the mean over the step's images. 0: never.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(rules.clip_norm), .numbers = {0, MOST}},
    {"clip_grad_value", "number", "0 to 1000000000", "0",
     "Keep each element of the gradients, which are means over the step's images, within plus and "
     "minus this. 0: never.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(rules.clip_value), .numbers = {0, MOST}},
    {"optimizer", "word", "sgd, adam, adamw, lars or lamb", "sgd; adam with `adam=1`",
     "What turns gradients into steps: Darknet's SGD with momentum or Adam; AdamW; LARS; LAMB. "
     "Those with moments read `B1`, `B2` and `eps` too.",
     .kind = AMP_OPTION_WORD, .offset = AT(rules.optimizer), .words = amp_optimizer_words},
    {"decay_bn", "integer", "0 or 1", "0; with adam 1",
     "Whether `decay` also holds for biases and batch-norm's scales.", .kind = AMP_OPTION_COUNT,
     .offset = AT(rules.decay_bn), .numbers = {0, 1}},
    {"learning_rate_min", "number", "0 to 1", "0.00001",
     "Lowest rate of `policy=cosine`, `sgdr` and `cyclic`; `learning_rate` is the highest.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(schedule.rate_min), .numbers = {0, 1}},
    {"sgdr_cycle", "integer", "1 to 1000000000", "max_batches",
     "Iterations of the first cycle of `policy=sgdr`.", .kind = AMP_OPTION_COUNT,
     .offset = AT(schedule.cycle), .numbers = {1, MOST}},
    {"sgdr_mult", "integer", "1 to 1000000000", "2",
     "How many times as long as the one before each further cycle of `policy=sgdr` is.",
     .kind = AMP_OPTION_COUNT, .offset = AT(schedule.mult), .numbers = {1, MOST}},
    {"cyclic_step", "integer", "1 to 1000000000", "none",
     "Iterations in which `policy=cyclic` goes from the lowest rate to the highest, and in which "
     "it goes back.",
     .kind = AMP_OPTION_COUNT, .offset = AT(schedule.step), .numbers = {1, MOST}},
    {"momentum_min", "number", "0 to 1", "0.85",
     "Momentum (of Adam and its kind: B1) of `policy=onecycle` where the rate is highest; "
     "`momentum` is that at both ends.",
     .kind = AMP_OPTION_NUMBER, .offset = AT(schedule.momentum_min), .numbers = {0, 1}},
    {"seed", "integer", "0 to 18446744073709551615", "none",
     "Same weights, images and augmentation in every run. Works without `mixed_precision` too.",
     .kind = AMP_OPTION_SEED},
};

/* Counts are int in struct amp_options; MOST keeps the 64-bit value within that. */
static bool set_count(const struct amp_option_row *row, void *member, const char *value)
{
    uint64_t count;
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

/* Sets the member of this row; false if the value is not allowed. */
static bool set_option(const struct amp_option_row *row, struct amp_options *o, bool is_net,
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
        return parse_number(value, number) && *number >= row->numbers[0] &&
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

const struct amp_option_row *amp_option_rows(int *count)
{
    *count = LENGTH(rows);
    return rows;
}

/* Few rows and few keys: a linear search is enough. */
static const struct amp_option_row *find_row(const char *key)
{
    for (int i = 0; i < LENGTH(rows); i++)
        if (!strcmp(rows[i].key, key)) return &rows[i];
    return NULL;
}

bool amp_option_is_key(const char *key)
{
    return find_row(key) != NULL;
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

/* Whether an unknown key was meant to be one of ours: by its beginning, or by at most one wrong
 * character in six. That is strict, since Darknet's own class_scale is only two edits from
 * loss_scale. */
static bool is_meant_for_us(const char *key, const struct amp_option_row **nearest)
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

/* ---- reading ---- */

/* Everything that the checks below share; errors and notes go to the caller's buffers. */
struct reader {
    const struct amp_cfg_file *file;
    struct amp_options *options;
    char *notes, *err;
    size_t notes_size, err_size;
};

__attribute__((format(printf, 3, 4))) static int
fail(const struct reader *r, const struct amp_cfg_entry *entry, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    amp_cfg_describe(r->file, entry, r->err, r->err_size, format, args);
    va_end(args);
    return -1;
}

__attribute__((format(printf, 3, 4))) static void
note(const struct reader *r, const struct amp_cfg_entry *entry, const char *format, ...)
{
    if (!r->notes_size) return;
    /* Notes are appended, one per line. */
    size_t used = strlen(r->notes);
    va_list args;
    va_start(args, format);
    amp_cfg_describe(r->file, entry, r->notes + used, r->notes_size - used, format, args);
    va_end(args);
    strncat(r->notes, "\n", r->notes_size - strlen(r->notes) - 1);
}

static int read_entry(struct reader *r, const struct amp_cfg_section *section,
                      const struct amp_cfg_entry *entry)
{
    bool is_net = section == r->file->sections;
    const struct amp_option_row *row = find_row(entry->key);
    if (!row) {
        /* Any other unknown key is Darknet's business (cfg_checks.h). */
        if (!is_meant_for_us(entry->key, &row)) return 0;
        bool misplaced = !is_net && row->place == AMP_IN_NET;
        return fail(r, entry, "unknown key in %s; did you mean %s%s?", section->name, row->key,
                    misplaced ? ", which stands in [net]" : "");
    }
    if (!is_net && row->place == AMP_IN_NET)
        return fail(r, entry, "stands in %s; allowed only in the first section, [net]",
                    section->name);
    if (is_net && row->place == AMP_IN_LAYERS)
        return fail(r, entry, "stands in %s; allowed only in the section of a layer",
                    section->name);
    /* Darknet takes the first of two equal keys. For a key of ours that is more likely a mistake
     * than a wish. */
    const struct amp_cfg_entry *first = amp_cfg_find(section, entry->key);
    if (first != entry)
        return fail(r, entry, "given twice in %s, first in line %d", section->name, first->line);
    /* A layer's value is only checked here; the functions amp_option_layer_... read it. */
    struct amp_options layer_options;
    if (!set_option(row, is_net ? r->options : &layer_options, is_net, entry->value))
        return fail(r, entry, "allowed: %s%s%s",
                    strcmp(row->type, "integer") ? "" : "a whole number, ", row->range,
                    amp_cfg_remark_hint(entry->value));
    return 0;
}

/* Blames a line of the cfg: if only one of the limits is given, the default is the other one. */
static int check_dynamic_scale(struct reader *r, const struct amp_cfg_section *net)
{
    const struct amp_options *o = r->options;
    const struct amp_cfg_entry *min = amp_cfg_find(net, "loss_scale_min"),
                               *max = amp_cfg_find(net, "loss_scale_max"),
                               *init = amp_cfg_find(net, "loss_scale_init");
    if (o->loss_scale_min > o->loss_scale_max)
        return fail(r, min ? min : max, "loss_scale_min (%.0f) is above loss_scale_max (%.0f)",
                    o->loss_scale_min, o->loss_scale_max);
    if (init && (o->loss_scale_init < o->loss_scale_min || o->loss_scale_init > o->loss_scale_max))
        return fail(r, init, "allowed: loss_scale_min (%.0f) to loss_scale_max (%.0f)",
                    o->loss_scale_min, o->loss_scale_max);
    return 0;
}

/* The first key that steers the dynamic scale, or NULL. */
static const struct amp_cfg_entry *find_dynamic_key(const struct amp_cfg_section *net)
{
    for (int i = 0; i < net->n_entries; i++)
        if (!strncmp(net->entries[i].key, "loss_scale_", 11)) return &net->entries[i];
    return NULL;
}

/* AlexeyAB's Darknet allows any number, ours wants a power of two: rounding it down keeps such a
 * cfg usable. */
static int check_static_scale(struct reader *r, const struct amp_cfg_section *net)
{
    struct amp_options *o = r->options;
    const struct amp_cfg_entry *entry = amp_cfg_find(net, "loss_scale");
    const struct amp_cfg_entry *dynamic = find_dynamic_key(net);
    if (dynamic)
        return fail(r, dynamic, "steers the dynamic scale, but line %d fixes it (%s=%.80s)",
                    entry->line, entry->key, entry->value);
    /* Without mixed_precision=1 this is AlexeyAB's key, with its own values. */
    if (!o->mixed_precision) return 0;
    if (o->loss_scale < scale_min || o->loss_scale > scale_max)
        return fail(r, entry, "allowed: %s", find_row("loss_scale")->range);
    int exponent;
    frexp(o->loss_scale, &exponent);
    /* Down, since a smaller scale never overflows where the given one did not. */
    double rounded = ldexp(0.5, exponent);
    if (rounded != o->loss_scale) note(r, entry, "rounded down to %.0f, a power of two", rounded);
    o->loss_scale = rounded;
    return 0;
}

/* A cache that does not fit would be paged out, which is slower than decoding. */
static int check_image_cache(struct reader *r, const struct amp_cfg_section *net)
{
    long long memory = (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) >> 20;
    if (!r->options->mixed_precision || r->options->image_cache <= memory) return 0;
    return fail(r, amp_cfg_find(net, "amp_image_cache"),
                "allowed: 0 to %lld, which is this machine's memory in MiB", memory);
}

static int apply_level(struct reader *r, const struct amp_cfg_section *net)
{
    struct amp_options *o = r->options;
    if (!o->mixed_precision || o->level == AMP_LEVEL_NONE) return 0;
    for (int i = 0; i < net->n_entries; i++) {
        const struct amp_cfg_entry *e = &net->entries[i];
        if (strcmp(e->key, "amp_dtype") && strncmp(e->key, "loss_scale", 10)) continue;
        return fail(r, e, "amp_level=%s in line %d stands for %s; allowed: one of them",
                    amp_level_word(o->level), amp_cfg_line(net, "amp_level"),
                    amp_level_keys(o->level));
    }
    o->dtype = levels[o->level].dtype;
    o->loss_scale_dynamic = levels[o->level].dynamic;
    o->loss_scale = 1;
    if (o->level == AMP_LEVEL_O3)
        note(r, amp_cfg_find(net, "amp_level"),
             "for benchmarks only: without a loss scale small gradients become 0");
    return 0;
}

/* auto chooses the layers itself. */
static int check_checkpoint(struct reader *r, const struct amp_cfg_section *net)
{
    const struct amp_cfg_entry *choice = amp_cfg_find(net, "checkpoint");
    for (const struct amp_cfg_section *s = net + 1; choice && s < net + r->file->n_sections; s++) {
        const struct amp_cfg_entry *e = amp_cfg_find(s, "checkpoint");
        if (e)
            return fail(r, e, "line %d chooses the layers itself (%s=%.80s); allowed: one of both",
                        choice->line, choice->key, choice->value);
    }
    return 0;
}

/* A sum that is rounded on the way is not that of one process. */
static int check_wire(struct reader *r, const struct amp_cfg_section *net)
{
    const struct amp_options *o = r->options;
    if (!o->mixed_precision || o->reduce != AMP_REDUCE_ORDERED || o->wire != AMP_WIRE_BF16)
        return 0;
    return fail(r, amp_cfg_find(net, "amp_wire"),
                "amp_reduce=ordered in line %d needs amp_wire=fp32",
                amp_cfg_line(net, "amp_reduce"));
}

/* Their passes run one after another. */
static int check_sync_bn(struct reader *r, const struct amp_cfg_section *net)
{
    const struct amp_options *o = r->options;
    if (!o->mixed_precision || o->reduce != AMP_REDUCE_ORDERED || !o->sync_bn) return 0;
    return fail(r, amp_cfg_find(net, "amp_sync_bn"),
                "amp_reduce=ordered in line %d runs the processes' passes one after another, so "
                "that they cannot share batch-norm; allowed with it: 0",
                amp_cfg_line(net, "amp_reduce"));
}

/* Only FP16 needs a loss scale: who sets one wants FP16. */
static void keep_fp16(struct reader *r, const struct amp_cfg_section *net)
{
    if (r->options->dtype != AMP_DTYPE_AUTO) return;
    for (int i = 0; i < net->n_entries; i++) {
        if (strncmp(net->entries[i].key, "loss_scale", 10)) continue;
        r->options->dtype = AMP_DTYPE_FP16;
        r->options->dtype_reason = "a loss_scale key is for FP16";
    }
}

/* Notes the first key that has no effect beside the others; one is enough to make the point.
 * AlexeyAB's loss_scale without mixed_precision is none of our business. */
static void note_idle_keys(struct reader *r, const struct amp_cfg_section *net)
{
    const struct amp_options *o = r->options;
    for (int i = 0; i < net->n_entries; i++) {
        const struct amp_cfg_entry *e = &net->entries[i];
        bool scale = !strncmp(e->key, "loss_scale", 10), amp = !strncmp(e->key, "amp_", 4);
        bool feature = !amp && !scale && find_row(e->key) && strcmp(e->key, "seed") &&
                       strcmp(e->key, "mixed_precision");
        if (!o->mixed_precision && (amp || (scale && e->key[10])))
            note(r, e, "no amp_ or loss_scale key has an effect without mixed_precision=1");
        else if (!o->mixed_precision && feature)
            note(r, e, "has no effect without mixed_precision=1");
        else if (o->mixed_precision && scale && o->dtype != AMP_DTYPE_FP16)
            note(r, e, "no loss_scale key has an effect with amp_dtype=%s: the scale is 1",
                 amp_cfg_string(net, "amp_dtype", ""));
        else if (o->mixed_precision && o->loader == AMP_LOADER_DARKNET &&
                 (!strcmp(e->key, "amp_jpeg_scale") || !strcmp(e->key, "amp_image_cache")))
            note(r, e, "has no effect with amp_loader=darknet");
        else
            continue;
        return;
    }
}

/* The same for the first layer with the key. */
static void note_idle_layers(struct reader *r)
{
    const struct amp_cfg_section *end = r->file->sections + r->file->n_sections;
    for (const struct amp_cfg_section *s = r->file->sections + 1; s < end; s++) {
        const struct amp_cfg_entry *e = amp_cfg_find(s, "mixed_precision");
        if (!e) e = amp_cfg_find(s, "freeze");
        if (!e) e = amp_cfg_find(s, "checkpoint");
        if (!e) continue;
        note(r, e, "a layer's key has no effect without mixed_precision=1 under [net]");
        return;
    }
}

#define LONGEST_SECTION 1000 /* keys; the search compares all pairs */
#define MOST_DOUBLES    3    /* in the notes; callers have room for some lines */

/* Darknet takes the first of equal keys and does not mention the others under [net]. */
static void note_doubles(struct reader *r, const struct amp_cfg_section *s, int *doubles)
{
    for (int i = 1; i < s->n_entries && i < LONGEST_SECTION && *doubles < MOST_DOUBLES; i++) {
        const struct amp_cfg_entry *e = &s->entries[i], *first = amp_cfg_find(s, e->key);
        if (first == e) continue;
        const char *more = ++*doubles == MOST_DOUBLES ? "; there may be more" : "";
        note(r, e, "given twice in %s; line %d counts (%s=%.40s)%s", s->name, first->line,
             first->key, first->value, more);
    }
}

static int check_first_section(struct reader *r)
{
    const struct amp_cfg_section *first = r->file->sections;
    if (!strcmp(first->name, "[net]") || !strcmp(first->name, "[network]")) return 0;
    snprintf(r->err, r->err_size, "%s:%d: the first section is %s; it must be [net] or [network]",
             r->file->path, first->line, first->name);
    return -1;
}

/* Unknown keys first: a misspelt key explains a missing value better than the value's own check. */
int amp_options_check_all_keys(const struct amp_cfg_file *file, char *notes, size_t notes_size,
                               char *err, size_t err_size)
{
    const char *own[LENGTH(rows)];
    for (int i = 0; i < LENGTH(rows); i++)
        own[i] = rows[i].key;
    return amp_cfg_keys_check(file, own, LENGTH(rows), notes, notes_size, err, err_size) ||
                   amp_cfg_values_check(file, err, err_size) ||
                   amp_cfg_values_check_training(file, notes, notes_size, err, err_size)
               ? -1
               : 0;
}

/* The order: each key by itself, then combinations, then what has no effect. So the first error is
 * the simplest one. */
int amp_options_read(const struct amp_cfg_file *file, struct amp_options *options, char *notes,
                     size_t notes_size, char *err, size_t err_size)
{
    struct reader r = {file, options, notes, err, notes ? notes_size : 0, err_size};
    const struct amp_cfg_section *net = file->sections;
    *options = defaults;
    if (r.notes_size) *notes = '\0';
    if (check_first_section(&r)) return -1;
    /* Every section, since a key of ours in a wrong one is an error. */
    for (const struct amp_cfg_section *s = net; s < net + file->n_sections; s++)
        for (int i = 0; i < s->n_entries; i++)
            if (read_entry(&r, s, &s->entries[i])) return -1;
    if (options->loss_scale_dynamic ? check_dynamic_scale(&r, net) : check_static_scale(&r, net))
        return -1;
    if (check_image_cache(&r, net) || apply_level(&r, net) || check_checkpoint(&r, net) ||
        check_wire(&r, net) || check_sync_bn(&r, net))
        return -1;
    keep_fp16(&r, net);
    note_idle_keys(&r, net);
    int doubles = 0;
    /* Only with mixed_precision=1: a cfg that does not ask for us should train as silently as
     * before. */
    for (int i = 0; options->mixed_precision && i < file->n_sections; i++)
        note_doubles(&r, &file->sections[i], &doubles);
    if (!options->mixed_precision) note_idle_layers(&r);
    /* Nobody may act on a key that was not asked for; a seed works without mixed precision. */
    if (!options->mixed_precision) {
        bool seeded = options->seeded;
        uint64_t seed = options->seed;
        *options = defaults;
        options->seeded = seeded;
        options->seed = seed;
        return 0;
    }
    if (amp_options_check_all_keys(file, r.notes_size ? notes : NULL, notes_size, err, err_size))
        return -1;
    if (amp_rules_complete(&options->rules, file, notes, r.notes_size, err, err_size)) return -1;
    return amp_schedule_complete(&options->schedule, &options->rules, file, notes, r.notes_size,
                                 err, err_size);
}
