/* Decides by whose rules a cfg is trained. What the two Darknets make of a key stands in
 * key_table.c. */
#include "dialect.h"

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

static bool section_decides(struct amp_cfg_file *cfg, const struct amp_cfg_section *s)
{
    enum amp_layer_type type = amp_cfg_section_type(cfg, s);
    if (amp_fork_layer(s->name)) {
        cfg->dialect = AMP_DIALECT_FORK;
        snprintf(cfg->dialect_reason, sizeof cfg->dialect_reason, "line %d: %.40s", s->line,
                 s->name);
        return true;
    }
    for (int i = 0; i < s->n_entries; i++) {
        if (!decides(s, type, &s->entries[i])) continue;
        choose_fork(cfg, &s->entries[i]);
        return true;
    }
    return false;
}

void amp_dialect_settle(struct amp_cfg_file *cfg)
{
    const struct amp_cfg_section *net = cfg->sections;
    const struct amp_cfg_entry *named = amp_cfg_find(net, "amp_dialect");
    cfg->dialect = AMP_DIALECT_STOCK;
    cfg->dialect_reason[0] = '\0';
    cfg->fork_is_free = false;
    if (amp_cfg_int(net, "mixed_precision", 0) != 1) return;
    if (named && !strcmp(named->value, "stock")) return;
    if (named && !strcmp(named->value, "fork")) {
        choose_fork(cfg, named);
        return;
    }
    for (int i = 0; i < cfg->n_sections; i++)
        if (section_decides(cfg, &cfg->sections[i])) return;
    cfg->fork_is_free = !named;
}
