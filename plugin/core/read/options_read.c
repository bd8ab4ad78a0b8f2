/* Reads the plugin's keys from a cfg. It decides which combinations make no sense. It must not know
 * which values a key may have (options.c), nor what a key does: whoever reads struct amp_options
 * does. */
#include "options_table.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cfg_checks.h"
#include "dialect.h"
#include "text.h"

/* What a level sets. */
static const struct {
    const char *keys;
    enum amp_dtype_choice dtype;
    bool dynamic; /* else a loss scale of 1 */
} levels[] = {[AMP_LEVEL_O0] = {"amp_dtype=fp32", AMP_DTYPE_FP32, true},
              [AMP_LEVEL_O1] = {"amp_dtype=auto, loss_scale=dynamic", AMP_DTYPE_AUTO, true},
              [AMP_LEVEL_O2] = {"amp_dtype=fp16, loss_scale=dynamic", AMP_DTYPE_FP16, true},
              [AMP_LEVEL_O3] = {"amp_dtype=fp16, loss_scale=1", AMP_DTYPE_FP16, false}};

const char *amp_level_keys(enum amp_level level)
{
    return levels[level].keys;
}

/* ---- reading ---- */

struct reader {
    struct amp_complaints complaints;
    struct amp_options *options;
};

static int read_entry(struct reader *r, const struct amp_cfg_section *section,
                      const struct amp_cfg_entry *entry)
{
    bool is_net = section == r->complaints.cfg->sections;
    const struct amp_option_row *row = amp_option_find(entry->key);
    if (!row) {
        /* Any other unknown key is Darknet's business (cfg_checks.h). */
        if (!amp_option_is_meant(entry->key, &row)) return 0;
        bool misplaced = !is_net && row->place == AMP_IN_NET;
        return amp_fail_entry(&r->complaints, entry, "unknown key in %s; did you mean %s%s?",
                              section->name, row->key, misplaced ? ", which stands in [net]" : "");
    }
    if (!is_net && row->place == AMP_IN_NET)
        return amp_fail_entry(&r->complaints, entry,
                              "stands in %s; allowed only in the first section, [net]",
                              section->name);
    if (is_net && row->place == AMP_IN_LAYERS)
        return amp_fail_entry(&r->complaints, entry,
                              "stands in %s; allowed only in the section of a layer",
                              section->name);
    /* Darknet takes the first of two equal keys. For a key of ours that is more likely a mistake
     * than a wish. */
    const struct amp_cfg_entry *first = amp_cfg_find(section, entry->key);
    if (first != entry)
        return amp_fail_entry(&r->complaints, entry, "given twice in %s, first in line %d",
                              section->name, first->line);
    /* A layer's value is only checked here; the functions amp_option_layer_... read it. */
    struct amp_options layer_options;
    if (!amp_option_set(row, is_net ? r->options : &layer_options, is_net, entry->value))
        return amp_fail_entry(&r->complaints, entry, "allowed: %s%s%s%s",
                              strcmp(row->type, "integer") ? "" : "a whole number, ", row->range,
                              row->kind == AMP_OPTION_NUMBER && amp_number_vanishes(entry->value)
                                  ? AMP_FP32_LEAST
                                  : "",
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
        return amp_fail_entry(&r->complaints, min ? min : max,
                              "loss_scale_min (%.0f) is above loss_scale_max (%.0f)",
                              o->loss_scale_min, o->loss_scale_max);
    if (init && (o->loss_scale_init < o->loss_scale_min || o->loss_scale_init > o->loss_scale_max))
        return amp_fail_entry(&r->complaints, init,
                              "allowed: loss_scale_min (%.0f) to loss_scale_max (%.0f)",
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
        return amp_fail_entry(&r->complaints, dynamic,
                              "steers the dynamic scale, but line %d fixes it (%s=%.80s)",
                              entry->line, entry->key, entry->value);
    /* Without mixed_precision=1 this is AlexeyAB's key, with its own values. */
    if (!o->mixed_precision) return 0;
    if (o->loss_scale < scale_min || o->loss_scale > scale_max)
        return amp_fail_entry(&r->complaints, entry, "allowed: %s",
                              amp_option_find("loss_scale")->range);
    int exponent;
    frexp(o->loss_scale, &exponent);
    /* Down, since a smaller scale never overflows where the given one did not. */
    double rounded = ldexp(0.5, exponent);
    if (rounded != o->loss_scale)
        amp_note_entry(&r->complaints, entry, "rounded down to %.0f, a power of two", rounded);
    o->loss_scale = rounded;
    return 0;
}

/* A cache that does not fit would be paged out, which is slower than decoding. */
static int check_image_cache(struct reader *r, const struct amp_cfg_section *net)
{
    long long memory = (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) >> 20;
    if (!r->options->mixed_precision || r->options->image_cache <= memory) return 0;
    return amp_fail_entry(&r->complaints, amp_cfg_find(net, "amp_image_cache"),
                          "allowed: 0 to %lld, which is this machine's memory in MiB", memory);
}

static int apply_level(struct reader *r, const struct amp_cfg_section *net)
{
    struct amp_options *o = r->options;
    if (!o->mixed_precision || o->level == AMP_LEVEL_NONE) return 0;
    for (int i = 0; i < net->n_entries; i++) {
        const struct amp_cfg_entry *e = &net->entries[i];
        if (strcmp(e->key, "amp_dtype") && strncmp(e->key, "loss_scale", 10)) continue;
        return amp_fail_entry(
            &r->complaints, e, "amp_level=%s in line %d stands for %s; allowed: one of them",
            amp_level_word(o->level), amp_cfg_line(net, "amp_level"), amp_level_keys(o->level));
    }
    o->dtype = levels[o->level].dtype;
    o->loss_scale_dynamic = levels[o->level].dynamic;
    o->loss_scale = 1;
    if (o->level == AMP_LEVEL_O3)
        amp_note_entry(&r->complaints, amp_cfg_find(net, "amp_level"),
                       "for benchmarks only: without a loss scale small gradients become 0");
    return 0;
}

/* auto chooses the layers itself. */
static int check_checkpoint(struct reader *r, const struct amp_cfg_section *net)
{
    const struct amp_cfg_entry *choice = amp_cfg_find(net, "checkpoint");
    for (const struct amp_cfg_section *s = net + 1;
         choice && s < net + r->complaints.cfg->n_sections; s++) {
        const struct amp_cfg_entry *e = amp_cfg_find(s, "checkpoint");
        if (e)
            return amp_fail_entry(
                &r->complaints, e,
                "line %d chooses the layers itself (%s=%.80s); allowed: one of both", choice->line,
                choice->key, choice->value);
    }
    return 0;
}

/* A sum that is rounded on the way is not that of one process. */
static int check_wire(struct reader *r, const struct amp_cfg_section *net)
{
    const struct amp_options *o = r->options;
    if (!o->mixed_precision || o->reduce != AMP_REDUCE_ORDERED || o->wire != AMP_WIRE_BF16)
        return 0;
    return amp_fail_entry(&r->complaints, amp_cfg_find(net, "amp_wire"),
                          "amp_reduce=ordered in line %d needs amp_wire=fp32",
                          amp_cfg_line(net, "amp_reduce"));
}

/* Their passes run one after another. */
static int check_sync_bn(struct reader *r, const struct amp_cfg_section *net)
{
    const struct amp_options *o = r->options;
    if (!o->mixed_precision || o->reduce != AMP_REDUCE_ORDERED || !o->sync_bn) return 0;
    return amp_fail_entry(
        &r->complaints, amp_cfg_find(net, "amp_sync_bn"),
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

/* loss_scale too: alone, it is AlexeyAB's way to half precision. With it and with other trainers'
 * words for mixed precision FP32 would be trained without a word. */
static bool is_idle_without_the_plugin(const char *key)
{
    static const char *const words[] = {"amp", "fp16", "bf16", "half", "cudnn_half"};
    for (int i = 0; i < 5; i++)
        if (!strcmp(key, words[i])) return true;
    return amp_option_is_key(key) && strcmp(key, "seed") && strcmp(key, "mixed_precision");
}

/* Other nets of the fork's load images by stock's rules. */
static bool loads_by_fork(const struct amp_cfg_file *cfg)
{
    return cfg->dialect == AMP_DIALECT_FORK &&
           !strcmp(cfg->sections[cfg->n_sections - 1].name, "[yolo]");
}

/* Keys that have no effect beside the others. */
static void note_idle_keys(struct reader *r, const struct amp_cfg_section *net)
{
    const struct amp_options *o = r->options;
    struct amp_cfg_idle all = {0}, scales = {0}, loading = {0}, stocks = {0}, log = {0};
    for (int i = 0; i < net->n_entries; i++) {
        const struct amp_cfg_entry *e = &net->entries[i];
        bool reduces = !strcmp(e->key, "amp_jpeg_scale");
        bool loads = reduces || !strcmp(e->key, "amp_image_cache");
        bool darknets = !strcmp(e->key, "amp_loader") && o->loader == AMP_LOADER_DARKNET;
        if (!o->mixed_precision && is_idle_without_the_plugin(e->key)) amp_cfg_idle_add(&all, e);
        if (!strncmp(e->key, "loss_scale", 10)) amp_cfg_idle_add(&scales, e);
        if (loads) amp_cfg_idle_add(&loading, e);
        if ((reduces && o->jpeg_scale) || darknets) amp_cfg_idle_add(&stocks, e);
        if (!strncmp(e->key, "amp_log_", 8)) amp_cfg_idle_add(&log, e);
    }
    amp_note_idle(&r->complaints, &all, "has no effect without mixed_precision=1");
    if (!o->mixed_precision) return;
    if (o->dtype != AMP_DTYPE_FP16)
        amp_note_idle(&r->complaints, &scales, "has no effect with amp_dtype=%s: the scale is 1",
                      amp_cfg_string(net, "amp_dtype", ""));
    if (loads_by_fork(r->complaints.cfg))
        amp_note_idle(&r->complaints, &stocks,
                      "has no effect: images are loaded by AlexeyAB's rules");
    else if (o->loader == AMP_LOADER_DARKNET)
        amp_note_idle(&r->complaints, &loading, "has no effect with amp_loader=darknet");
    if (!o->log_path[0]) amp_note_idle(&r->complaints, &log, "has no effect without amp_log");
}

/* The same for layers: the first one with each key. */
static void note_idle_layers(struct reader *r)
{
    static const char *const keys[] = {"mixed_precision", "freeze", "checkpoint"};
    const struct amp_cfg_section *end = r->complaints.cfg->sections + r->complaints.cfg->n_sections;
    struct amp_cfg_idle idle = {0};
    for (int i = 0; i < 3; i++) {
        const struct amp_cfg_entry *e = NULL;
        for (const struct amp_cfg_section *s = r->complaints.cfg->sections + 1; s < end && !e; s++)
            e = amp_cfg_find(s, keys[i]);
        amp_cfg_idle_add(&idle, e);
    }
    amp_note_idle(&r->complaints, &idle,
                  "a layer's key has no effect without mixed_precision=1 under [net]");
}

static int check_first_section(const struct amp_complaints *c)
{
    const struct amp_cfg_section *first = c->cfg->sections;
    if (!strcmp(first->name, "[net]") || !strcmp(first->name, "[network]")) return 0;
    return amp_fail_line(c, first->line, "the first section is %s; it must be [net] or [network]",
                         first->name);
}

/* The order: each key by itself, then combinations, then what has no effect. So the first error is
 * the simplest one. */
int amp_options_read(const struct amp_cfg_file *file, struct amp_options *options, char *notes,
                     size_t notes_size, char *err, size_t err_size)
{
    struct reader r = {{file, notes, notes ? notes_size : 0, err, err_size}, options};
    const struct amp_cfg_section *net = file->sections;
    amp_options_default(options);
    if (r.complaints.notes_size) *notes = '\0';
    if (check_first_section(&r.complaints)) return -1;
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
    /* A cfg that does not ask for us should train as silently as before, unless it was made for
     * another Darknet. */
    if (options->mixed_precision) {
        amp_cfg_note_doubles(&r.complaints);
    } else {
        note_idle_layers(&r);
        amp_dialect_note_stock(&r.complaints);
    }
    /* Nobody may act on a key that was not asked for; a seed works without mixed precision. */
    if (!options->mixed_precision) {
        bool seeded = options->seeded;
        uint64_t seed = options->seed;
        amp_options_default(options);
        options->seeded = seeded;
        options->seed = seed;
        return 0;
    }
    if (amp_options_check_all_keys(&r.complaints)) return -1;
    if (amp_rules_complete(&options->rules, &r.complaints)) return -1;
    return amp_schedule_complete(&options->schedule, &options->rules, &r.complaints);
}
