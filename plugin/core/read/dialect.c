/* Decides by whose rules a cfg is trained. What the two Darknets make of a key stands in
 * key_table.c. */
#include "dialect.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "key_table.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- what only the fork has ---- */

static const struct {
    const char *name, *does;
} layers[] = {
    {"[Gaussian_yolo]", "boxes with an uncertainty"},
    {"[sam]", "attention over places"},
    {"[scale_channels]", "a factor for each channel"},
    {"[local_avgpool]", "means over windows"},
    {"[conv_lstm]", "memory from one image to the next"},
    {"[history]", "memory from one image to the next"},
    {"[contrastive]", "a loss over pairs of images"},
    {"[implicit]", "weights without an input"},
    {"[empty]", "nothing but its place"},
    {"[silence]", "nothing but its place"},
    {"[reorg3d]", "another order of the channels"},
    {"[reorg_old]", "another order of the channels"},
};

static const char *const activations[] = {
    "mish",     "swish",     "hard_mish",         "relu6",
    "gelu",     "norm_chan", "norm_chan_softmax", "norm_chan_softmax_maxval",
    "revleaky",
};

const char *amp_fork_layer(const char *name)
{
    for (size_t i = 0; i < LENGTH(layers); i++)
        if (!strcmp(name, layers[i].name)) return layers[i].does;
    return NULL;
}

bool amp_fork_activation(const char *name)
{
    for (size_t i = 0; i < LENGTH(activations); i++)
        if (!strcmp(name, activations[i])) return true;
    return false;
}

/* ---- what decides ---- */

/* A switch of stock's for which the fork has more values: the iteration at which a part thaws, a
 * batch normalization over several passes, a factor of sizes. */
static bool is_more_than_a_switch(const struct amp_key_row *row, const char *value)
{
    return row->kind == AMP_CFG_SWITCH && row->fork_kind && strtod(value, NULL) > 1;
}

/* Whether stock would train another network than the fork. */
static bool decides(const struct amp_cfg_section *s, enum amp_layer_type type,
                    const struct amp_cfg_entry *e)
{
    const struct amp_key_row *row = amp_key_find(e->key, type);
    if (!row) return false;
    if (amp_key_is_stocks(row) && !strcmp(e->key, "activation"))
        return amp_fork_activation(e->value);
    if (amp_key_is_stocks(row)) return is_more_than_a_switch(row, e->value);
    return row->reader == AMP_READ_BY_FORK && !amp_key_is_default(row, s, e->value);
}

static void choose_fork(struct amp_cfg_file *cfg, const struct amp_cfg_entry *e)
{
    cfg->dialect = AMP_DIALECT_FORK;
    snprintf(cfg->dialect_reason, sizeof cfg->dialect_reason, "line %d: %.40s=%.40s", e->line,
             e->key, e->written);
}

/* NULL: no key does. */
static const struct amp_cfg_entry *first_deciding(const struct amp_cfg_file *cfg,
                                                  const struct amp_cfg_section *s)
{
    enum amp_layer_type type = amp_cfg_section_type(cfg, s);
    for (int i = 0; i < s->n_entries; i++)
        if (decides(s, type, &s->entries[i])) return &s->entries[i];
    return NULL;
}

static bool section_decides(struct amp_cfg_file *cfg, const struct amp_cfg_section *s)
{
    const struct amp_cfg_entry *e = first_deciding(cfg, s);
    if (amp_fork_layer(s->name)) {
        cfg->dialect = AMP_DIALECT_FORK;
        snprintf(cfg->dialect_reason, sizeof cfg->dialect_reason, "line %d: %.40s", s->line,
                 s->name);
        return true;
    }
    if (e) choose_fork(cfg, e);
    return e;
}

void amp_dialect_settle(struct amp_cfg_file *cfg)
{
    const struct amp_cfg_section *net = cfg->sections;
    const struct amp_cfg_entry *named = amp_cfg_find(net, "amp_dialect");
    cfg->dialect = AMP_DIALECT_STOCK;
    cfg->dialect_reason[0] = '\0';
    if (amp_cfg_int(net, "mixed_precision", 0) != 1) return;
    if (named && !strcmp(named->value, "stock")) return;
    if (named && !strcmp(named->value, "fork")) {
        choose_fork(cfg, named);
        return;
    }
    for (int i = 0; i < cfg->n_sections; i++)
        if (section_decides(cfg, &cfg->sections[i])) return;
}

/* ---- complaints ---- */

void amp_dialect_note_stock(const struct amp_complaints *c)
{
    for (const struct amp_cfg_section *s = c->cfg->sections;
         s < c->cfg->sections + c->cfg->n_sections; s++) {
        const struct amp_cfg_entry *e = first_deciding(c->cfg, s);
        if (!e) continue;
        bool known = amp_key_is_stocks(amp_key_find(e->key, amp_cfg_section_type(c->cfg, s)));
        amp_note_value(c, s, e,
                       "stock Darknet %s, and trains and runs another network than "
                       "AlexeyAB's would; " AMP_FORK_HINT,
                       !known                          ? "does not read this key"
                       : !strcmp(e->key, "activation") ? "takes it for relu"
                                                       : "takes it for 1");
        return;
    }
}

const char *amp_fork_way_out(const struct amp_cfg_file *cfg)
{
    const struct amp_cfg_section *net = cfg->sections;
    bool chosen = cfg->dialect == AMP_DIALECT_FORK || amp_cfg_find(net, "amp_dialect");
    if (chosen || amp_cfg_int(net, "mixed_precision", 0) != 1) return "";
    return " (AlexeyAB's Darknet allows it; amp_dialect=fork under [net] follows its rules)";
}

int amp_doubt_line(const struct amp_complaints *c, int line, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (c->cfg->dialect != AMP_DIALECT_FORK)
        return amp_fail_line(c, line, "%s%s", what, amp_fork_way_out(c->cfg));
    amp_note_line(c, line, "%s", what);
    return 0;
}
