#include "give_up.h"

#include "gpus.h"
#include "interrupt.h"
#include "iteration.h"
#include "save.h"

#include <stdio.h>

static bool is_random(const network *net)
{
    return net->layers[net->n - 1].random; /* the layer that Darknet's trainers ask */
}

static void tell_remedy(const struct amp_session *s, const char *why)
{
    const struct amp_cfg_entry *w = amp_cfg_find(s->cfg->sections, "width");
    const struct amp_cfg_entry *h = amp_cfg_find(s->cfg->sections, "height");
    fprintf(stderr, "darknet-amp: %s\n", why);
    if (is_random(s->net))
        fprintf(stderr,
                "darknet-amp: with random=1 every size from 320x320 to 608x608 must fit; random=0 "
                "keeps %sx%s\n",
                w ? w->value : "?", h ? h->value : "?");
}

_Noreturn void amp_give_up(struct amp_session *failed, const char *why)
{
    char path[PATH_MAX], message[2 * PATH_MAX + 300];
    struct amp_session *s = amp_gpus_first(failed);
    *failed->net->seen -= failed->pass_images;
    fflush(stdout);
    tell_remedy(failed, why);
    if (!amp_gpus_wait(failed)) amp_fail("nothing was saved: several networks train");
    bool learned = s->log.iterations > 0;
    amp_gpus_close_logs(s);
    if (!learned || amp_backup_place(s, path))
        amp_fail(learned ? "nothing was saved: it is not known where to" : "nothing was trained");
    amp_gpus_average(s->net);
    amp_save_last(s, path);
    snprintf(message, sizeof message,
             "the state after iteration %zu is saved. To go on from there, change %s as told above "
             "and give the same command with the weights file after the cfg, without -clear: %s %s",
             amp_iterations_in(s->net, *s->net->seen), s->cfg->path, s->cfg->path, path);
    amp_fail(message);
}

/* Bytes that Darknet asked for and did not get; 0: none. */
static size_t missing(const network *net, const layer *l, bool had_delta)
{
    size_t bytes = (size_t)l->batch * (size_t)l->outputs * sizeof(float);
    if (!l->output || (l->batch_normalize && l->type == CONVOLUTIONAL && (!l->x || !l->x_norm)))
        return bytes;
    if (had_delta && !l->delta) return bytes;
    return net->workspace ? 0 : l->workspace_size;
}

void amp_check_resized(struct amp_session *s)
{
    const network *net = s->net;
    char why[300];
    size_t bytes = net->input ? 0 : (size_t)net->inputs * (size_t)net->batch * sizeof(float);
    for (int i = 0; i < net->n && !bytes; i++)
        bytes = missing(net, &net->layers[i], s->saved[i].delta);
    if (!bytes && net->truth) return;
    snprintf(why, sizeof why,
             "no memory for %.1f MiB of Darknet's own arrays at %dx%d (%d images in a pass): lower "
             "batch or raise subdivisions",
             (double)bytes / (1 << 20), net->w, net->h, net->batch);
    amp_give_up(s, why);
}
