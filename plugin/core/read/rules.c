/* Decides which settings of an update fit together, what each of them needs and which numbers it
 * gives. It must not know arrays (kept.c, gradients.c) nor kernels. */
#include "rules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "key_table.h"

const char *const amp_optimizer_words[AMP_OPTIMIZERS + 1] = {"sgd",  "adam", "adamw",
                                                             "lars", "lamb", 0};

const char *amp_optimizer_word(enum amp_optimizer optimizer)
{
    return amp_optimizer_words[optimizer];
}

/* ---- keys ---- */

/* Outside of these an update would be no mean of gradients, or divide by 0. */
static int check_betas(const struct amp_rules *r, const struct amp_complaints *c)
{
    const struct amp_cfg_section *net = c->cfg->sections;
    const struct amp_cfg_entry *eps = amp_cfg_find(net, "eps");
    if (!r->darknets_adam && !amp_rules_keep_moments(r)) return 0;
    /* As FP32, in which 0.99999999 is 1. */
    if (r->b1 < 0 || (float)r->b1 >= 1)
        return amp_fail_entry(c, amp_cfg_find(net, "B1"), "allowed: 0 to below 1");
    if (r->b2 < 0 || (float)r->b2 >= 1)
        return amp_fail_entry(c, amp_cfg_find(net, "B2"), "allowed: 0 to below 1");
    if (eps && r->eps <= 0) return amp_fail_entry(c, eps, "allowed: a number above 0");
    return 0;
}

static bool has_section(const struct amp_cfg_file *cfg, const char *name)
{
    for (int i = 0; i < cfg->n_sections; i++)
        if (!strcmp(cfg->sections[i].name, name)) return true;
    return false;
}

static void note_idle_keys(const struct amp_rules *r, const struct amp_complaints *c)
{
    static const char *const betas[] = {"B1", "B2", "eps", NULL};
    static const char *const momentum[] = {"momentum", NULL};
    struct amp_cfg_idle idle = {0};
    bool moments = r->darknets_adam || amp_rules_keep_moments(r);
    if (r->darknets_adam && has_section(c->cfg, "[local]")) return; /* Darknet moves it by SGD */
    for (const char *const *key = moments ? momentum : betas; *key; key++)
        amp_cfg_idle_add(&idle, amp_cfg_find(c->cfg->sections, *key));
    amp_note_idle(c, &idle, "has no effect with optimizer=%s%s", amp_optimizer_word(r->optimizer),
                  moments ? "; B1 is its momentum" : "");
}

/* AlexeyAB's Darknet averages from half of max_batches on, and takes the average 1000 iterations
 * before the end. */
static void time_average(struct amp_rules *r, const struct amp_complaints *c)
{
    int total = amp_net_int(c->cfg, "max_batches");
    if (c->cfg->dialect != AMP_DIALECT_FORK || r->ema_alpha == 0) return;
    r->ema_from = total / 2;
    r->ema_until = total - 1000;
    if (r->ema_from < r->ema_until) return;
    amp_note_entry(c, amp_cfg_find(c->cfg->sections, "ema_alpha"),
                   "has no effect: AlexeyAB's Darknet averages from half of max_batches to 1000 "
                   "iterations before the end, so max_batches=%d must be above 2000",
                   total);
    r->ema_alpha = r->ema_from = r->ema_until = 0;
}

int amp_rules_complete(struct amp_rules *r, const struct amp_complaints *c)
{
    const struct amp_cfg_file *cfg = c->cfg;
    const struct amp_cfg_section *net = cfg->sections;
    const struct amp_cfg_entry *e = amp_cfg_find(net, "optimizer");
    r->darknets_adam = amp_net_int(cfg, "adam"); /* 0 or 1: cfg_keys.c */
    if (r->darknets_adam && e && r->optimizer != AMP_OPTIMIZER_ADAM)
        return amp_fail_entry(c, e, "line %d has adam=1; allowed beside it: adam",
                              amp_cfg_line(net, "adam"));
    if (r->darknets_adam) r->optimizer = AMP_OPTIMIZER_ADAM;
    if (r->clip_norm > 0 && r->clip_value > 0)
        return amp_fail_entry(c, amp_cfg_find(net, "clip_grad_value"),
                              "line %d has clip_grad_norm; allowed: one of them",
                              amp_cfg_line(net, "clip_grad_norm"));
    r->b1 = amp_net_float(cfg, "B1");
    r->b2 = amp_net_float(cfg, "B2");
    /* Other optimizers of ours have an eps of their own. */
    r->eps = r->darknets_adam || amp_cfg_find(net, "eps") ? amp_net_float(cfg, "eps") : 0;
    note_idle_keys(r, c);
    time_average(r, c);
    return check_betas(r, c);
}

/* ---- what follows from them ---- */

bool amp_rules_keep_moments(const struct amp_rules *r)
{
    return r->optimizer == AMP_OPTIMIZER_ADAMW || r->optimizer == AMP_OPTIMIZER_LAMB ||
           (r->optimizer == AMP_OPTIMIZER_ADAM && !r->darknets_adam);
}

bool amp_rules_use_trust(const struct amp_rules *r)
{
    return r->optimizer == AMP_OPTIMIZER_LARS || r->optimizer == AMP_OPTIMIZER_LAMB;
}

double amp_rules_eps(const struct amp_rules *r)
{
    if (r->eps > 0) return r->eps;
    return r->optimizer == AMP_OPTIMIZER_LAMB    ? 1e-6
           : r->optimizer == AMP_OPTIMIZER_ADAMW ? 1e-8
                                                 : 1e-7;
}

double amp_rules_clip_factor(const struct amp_rules *r, double norm)
{
    if (r->clip_norm == 0) return 1;
    double factor = r->clip_norm / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

double amp_rules_average_rest(const struct amp_rules *r, int64_t n)
{
    return 1 - r->ema_alpha * (r->ema_until ? 1 : 1 - exp(-(double)n / AMP_EMA_RAMP));
}

enum amp_average_move amp_rules_average_move(const struct amp_rules *r, int64_t averaged,
                                             size_t iteration)
{
    if (!r->ema_until) return AMP_AVERAGE_FOLLOWS;
    if (iteration < (size_t)r->ema_from) return AMP_AVERAGE_RESTS;
    if (iteration < (size_t)r->ema_until)
        return averaged ? AMP_AVERAGE_FOLLOWS : AMP_AVERAGE_BEGINS;
    return averaged ? AMP_AVERAGE_REPLACES : AMP_AVERAGE_RESTS;
}
