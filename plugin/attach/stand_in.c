/* Decides which sections of a cfg Darknet is given in another form. It must not know what a key
 * means: the description does (core/net). */
#include "stand_in.h"

#include <stdio.h>
#include <stdlib.h>

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

char *amp_stand_in_cfg(const struct amp_session *s, char *file, int subdivisions,
                       struct amp_cfg_variant *variant)
{
    const struct amp_net_desc *net = s->desc;
    struct amp_cfg_key *keys = amp_allocate((size_t)net->n + 1, sizeof *keys);
    char(*sections)[SECTION_SIZE] = amp_allocate((size_t)net->n, sizeof *sections);
    char number[20], err[700];
    int n = 0;
    if (subdivisions) keys[n++] = (struct amp_cfg_key){"subdivisions", number, 0};
    snprintf(number, sizeof number, "%d", subdivisions);
    for (int i = 0; i < net->n; i++) {
        if (!stands_in(&net->layers[i])) continue;
        write_route(&net->layers[i], sections[i]);
        keys[n++] = (struct amp_cfg_key){NULL, sections[i], i + 1};
    }
    if (n && amp_cfg_variant_open(variant, s->cfg, keys, n, err, sizeof err)) amp_fail(err);
    free(keys);
    free(sections);
    return n ? variant->path : file;
}

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
