/* Decides how a run without a session obeys a signal. It must not know what a signal's handler does
 * (signals.c) or how a file is written whole (save.c). One network trains, on one thread, as in
 * Darknet's trainers. */

#include "stock.h"

#include "amp.h"
#include "plugin/attach/interposed.h"
#include "plugin/attach/session.h"
#include "plugin/core/files/checkpoint.h"
#include "plugin/core/net/weights_file.h"
#include "ranks.h"
#include "run.h"
#include "save.h"
#include "signals.h"

#include "parser.h"

#include <limits.h>
#include <stdatomic.h>

static atomic_bool asked; /* amp_obey_signals */

void amp_obey_signals(void)
{
    asked = true;
}

/* ---- the networks without a session ---- */

struct stock {
    struct stock *next;
    const network *net;
    char cfg[PATH_MAX], backup[PATH_MAX];
};

static struct stock *all;
static const network *trains; /* the one that trains; NULL: none yet, or none is watched */
static bool several;

static struct stock *find(const network *net)
{
    struct stock *s = all;
    while (s && s->net != net)
        s = s->next;
    return s;
}

void amp_stock_parsed(network *net, const char *cfg_path)
{
    if (!asked || amp_session_of(net->layers)) return;
    struct stock *s = amp_allocate(1, sizeof *s);
    s->net = net;
    s->next = all;
    snprintf(s->cfg, sizeof s->cfg, "%s", cfg_path);
    all = s;
}

void amp_stock_file(network *net, const char *path)
{
    struct stock *s = find(net);
    if (s && amp_weights_is_backup(path)) snprintf(s->backup, sizeof s->backup, "%s", path);
}

void amp_stock_freed(network *net)
{
    struct stock **s = &all;
    while (*s && (*s)->net != net)
        s = &(*s)->next;
    struct stock *gone = *s;
    if (gone) *s = gone->next;
    free(gone);
    if (trains == net) amp_stock_give_up();
}

/* ---- the run ---- */

void amp_stock_give_up(void)
{
    if (trains) amp_run_take_signals(false);
    trains = NULL;
    several = true;
}

void amp_stock_begin(network *net)
{
    char path[PATH_MAX];
    struct stock *s = several || trains == net ? NULL : find(net);
    if (!s) return;
    if (trains) {
        amp_stock_give_up();
    } else if (!amp_run_place(s->cfg, s->backup, ".backup", path)) {
        trains = net;
        amp_run_take_signals(true);
    }
}

/* Of the first layers. -1: Darknet's are not known well enough to say how long its file is. */
static int64_t saved_bytes(const char *cfg_path, const network *net, int layers)
{
    char err[2 * PATH_MAX];
    struct amp_cfg_file *cfg = amp_cfg_read(cfg_path, err, sizeof err);
    struct amp_net_desc *desc = cfg ? amp_net_describe(cfg, 0, 0, false, err, sizeof err) : NULL;
    for (int i = 0; desc && i < desc->n; i++) {
        /* `normalize` and `denormalize` change it. */
        enum amp_layer_type t = desc->layers[i].type;
        if (t == AMP_CONVOLUTIONAL || t == AMP_CONNECTED || t == AMP_GRU)
            desc->layers[i].batch_normalize = net->layers[i].batch_normalize;
        desc->layers[i].dontsave = desc->layers[i].dontsave || i >= layers;
    }
    uint64_t bytes = desc ? amp_weights_saved_bytes(desc) : UINT64_MAX;
    amp_net_desc_free(desc);
    amp_cfg_free(cfg);
    return bytes > INT64_MAX ? -1 : (int64_t)bytes;
}

void amp_stock_save(network *net, const char *path, int layers)
{
    char err[2 * PATH_MAX], behind[PATH_MAX];
    struct stock *stock = find(net);
    struct amp_session *s = amp_session_of(net->layers);
    const char *cfg = s ? s->cfg->path : stock ? stock->cfg : NULL;
    int64_t bytes = cfg && !amp_weights_is_special(path) ? saved_bytes(cfg, net, layers) : -1;
    if (bytes < 0)
        AMP_REAL(save_weights_upto)(net, (char *)path, layers);
    else if (!amp_save_stock(net, amp_weights_behind(path, behind), layers, (uint64_t)bytes, err,
                             sizeof err))
        return;
    else if (net == trains && !amp_weights_is_final(path))
        amp_tell(err); /* there will be another save */
    else
        amp_fail(err);
}

void amp_stock_obey(network *net)
{
    char path[PATH_MAX], message[3 * PATH_MAX];
    int number = net == trains ? amp_signals_asked() : 0;
    /* Between the passes of a step its gradients are in no file. */
    if (!number || *net->seen / (size_t)net->batch % (size_t)net->subdivisions) return;
    struct stock *s = find(net);
    size_t iteration = amp_iterations_in(net, *net->seen);
    if (net->max_batches && iteration >= (size_t)net->max_batches)
        return; /* Darknet is about to write the final weights and end */
    if (amp_run_place(s->cfg, s->backup, ".backup", path)) return;
    trains = NULL; /* this save is the last one */
    amp_stock_save(net, path, net->n);
    snprintf(message, sizeof message,
             "stopped by %s after iteration %zu. To go on from there, give the same command with "
             "the weights file after the cfg, without -clear: %s %s",
             amp_signals_name(number), iteration, s->cfg, path);
    amp_ranks_exit(message, 128 + number);
}
