/* Decides which keys and sections of a cfg Darknet is given in another form. It must not know what
 * a key means: the description does (core/net). */
#include "stand_in.h"

#include "interposed.h"
#include "plugin/core/read/dialect.h"
#include "plugin/core/read/key_table.h"

#ifdef GPU
#include "cuda.h"
#endif

#include <stdio.h>
#include <stdlib.h>

/* ---- the cfg ---- */

static bool stands_in(const struct amp_layer_desc *l)
{
    return l->type == AMP_ROUTE && l->groups > 1;
}

/* Darknet only makes room for the output: the layer is ours in forward and backward. */
enum { SECTION_SIZE = 120 };
static void write_route(const struct amp_layer_desc *l, char text[SECTION_SIZE])
{
    snprintf(text, SECTION_SIZE,
             "[convolutional]\nsize=1\nstride=1\nfilters=%d\nactivation=linear\n", l->out_c);
}

struct changes {
    const struct amp_cfg_file *cfg;
    struct amp_cfg_key *keys;
    int n;
};

static void change(struct changes *c, int section, const char *key, const char *value)
{
    c->keys[c->n++] = (struct amp_cfg_key){key, value, section};
}

/* Darknet would say of each that it is unused, and take an activation that it does not know for
 * another one, which here is ours. Of random= it reads the whole number only, which is 0 for a
 * factor below 1. It would end backward for ever where stopbackward= says for how long. */
static void change_keys(struct changes *c, int section)
{
    const struct amp_cfg_section *s = &c->cfg->sections[section];
    enum amp_layer_type type = amp_cfg_section_type(c->cfg, s);
    for (int i = 0; i < s->n_entries; i++) {
        const struct amp_cfg_entry *e = &s->entries[i];
        const struct amp_key_row *row = amp_key_find(e->key, type);
        if (!amp_option_is_key(e->key) && (!row || !amp_key_is_stocks(row)))
            change(c, section, e->key, NULL);
        else if (!strcmp(e->key, "stopbackward"))
            change(c, section, e->key, NULL);
        else if (!strcmp(e->key, "activation") && amp_fork_activation(e->value))
            change(c, section, e->key, "linear");
        else if (!strcmp(e->key, "random") && atof(e->value) > 0)
            change(c, section, e->key, "1");
    }
}

/* Darknet would divide it to nothing where it is below the subdivisions. */
static void change_batch(struct changes *c, const struct amp_net_desc *net, char text[20])
{
    int steps = net->time_steps > 1 ? net->time_steps : 1;
    snprintf(text, 20, "%d", net->batch / steps * net->subdivisions);
    if (amp_net_int(c->cfg, "batch") != atoi(text)) change(c, 0, "batch", text);
}

static void change_for_stock(struct changes *c, const struct amp_net_desc *net,
                             char (*sections)[SECTION_SIZE], char batch[20])
{
    change_batch(c, net, batch);
    change_keys(c, 0);
    for (int i = 0; i < net->n; i++) {
        if (!stands_in(&net->layers[i])) {
            change_keys(c, i + 1);
            continue;
        }
        write_route(&net->layers[i], sections[i]);
        change(c, i + 1, NULL, sections[i]);
    }
}

char *amp_stand_in_cfg(const struct amp_session *s, char *file, int subdivisions,
                       struct amp_cfg_variant *variant)
{
    char number[20], batch[20], err[700];
    size_t most = 2;
    for (int i = 0; i < s->cfg->n_sections; i++)
        most += (size_t)s->cfg->sections[i].n_entries + 1;
    struct changes c = {.cfg = s->cfg, .keys = amp_allocate(most, sizeof *c.keys)};
    char(*sections)[SECTION_SIZE] = amp_allocate((size_t)s->desc->n, sizeof *sections);
    snprintf(number, sizeof number, "%d", subdivisions);
    if (subdivisions) change(&c, 0, "subdivisions", number);
    if (s->desc->dialect != AMP_DIALECT_STOCK) change_for_stock(&c, s->desc, sections, batch);
    if (c.n && amp_cfg_variant_open(variant, s->cfg, c.keys, c.n, err, sizeof err)) amp_fail(err);
    free(c.keys);
    free(sections);
    return c.n ? variant->path : file;
}

/* ---- the network ---- */

/* Darknet calls every update that is set, and would train the idle weights. */
void amp_stand_in_hide(const struct amp_net_desc *desc, network *net)
{
    for (int i = 0; i < desc->n; i++) {
        layer *l = &net->layers[i];
        if (!stands_in(&desc->layers[i])) continue;
        l->type = ROUTE;
        l->update = NULL;
#ifdef GPU
        l->update_gpu = NULL;
#endif
    }
}

void amp_stand_in_show(const struct amp_net_desc *desc, network *net)
{
    for (int i = 0; i < desc->n; i++)
        if (stands_in(&desc->layers[i])) net->layers[i].type = CONVOLUTIONAL;
}

static void make_room_for_truths(network *net)
{
    size_t n = (size_t)net->truths * (size_t)net->batch;
    free(net->truth);
    net->truth = amp_allocate(n, sizeof *net->truth);
#ifdef GPU
    if (!net->truth_gpu) return;
    cuda_free(net->truth_gpu);
    net->truth_gpu = cuda_make_array(net->truth, n);
#endif
}

void amp_stand_in_complete(const struct amp_net_desc *desc, network *net)
{
    if (desc->dialect == AMP_DIALECT_STOCK) return;
    amp_stand_in_hide(desc, net);
    for (int i = 0; i < desc->n && i < net->n; i++) {
        const struct amp_layer_desc *d = &desc->layers[i];
        if (!d->loss.yolo.own_rules) continue;
        net->layers[i].max_boxes = d->max_boxes;
        net->layers[i].truths = AMP_LABEL_FLOATS * d->truths;
    }
    const layer *last = &net->layers[net->n - 1];
    if (last->type != YOLO || net->truths == last->truths) return;
    net->truths = last->truths;
    make_room_for_truths(net);
}
