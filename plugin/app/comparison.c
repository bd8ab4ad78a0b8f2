/* Decides which batches are compared, how both networks are built, and when a pass counts. It must
 * not judge: numbers go to precision.c through the callbacks.
 *
 * Both networks run through the plugin, with the same weights, images and random numbers; one has
 * amp_dtype=fp32. So a difference between them is the precision's and nothing else's. */

#define _GNU_SOURCE
#include "precision.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "darknet.h"

#include "plugin/core/host.h"
#include "plugin/core/read/text.h"
#include "plugin/core/plan/plan.h"
#include "measuring.h"

enum { BATCHES = 4, LEAST_BATCHES = 2, TRIES = 4 };
static const double enough_seconds = 20; /* after that no further batch is begun */

void amp_comparison_tell(struct amp_comparison *c, const char *what, ...)
{
    double now = amp_clock_seconds();
    va_list args;
    if (now - c->told < AMP_PROGRESS_SECONDS) return;
    c->told = now;
    va_start(args, what);
    fprintf(stderr, "amp check: ");
    vfprintf(stderr, what, args);
    fprintf(stderr, " (%.0f s)\n", now - c->began);
    va_end(args);
}

/* ---- two networks ---- */

enum { NET_KEYS = 16, NUMBER = 32 };

/* The keys under [net] that a network of the comparison has instead of the cfg's. */
struct net_keys {
    struct amp_cfg_key keys[NET_KEYS];
    int n;
    char numbers[NET_KEYS][NUMBER];
};

static void set(struct net_keys *k, const char *key, const char *value)
{
    k->keys[k->n++] = (struct amp_cfg_key){.key = key, .value = value};
}

/* Numbers are kept in the struct, since a key only points to its value. */
static void set_number(struct net_keys *k, const char *key, double value)
{
    snprintf(k->numbers[k->n], NUMBER, "%.0f", value);
    set(k, key, k->numbers[k->n]);
}

/* Keys of the loss scale that have no effect in a network are removed: the options' reader would
 * warn about them. */
static void set_scale_keys(struct net_keys *k, const struct amp_options *o, bool scaled)
{
    bool dynamic = scaled && o->loss_scale_dynamic;
    if (scaled && !dynamic)
        set_number(k, "loss_scale", o->loss_scale);
    else
        set(k, "loss_scale", dynamic ? "dynamic" : NULL);
    set(k, "loss_scale_init", NULL); /* the first pass searches the scale */
    if (dynamic) {
        set_number(k, "loss_scale_min", o->loss_scale_min);
        set_number(k, "loss_scale_max", o->loss_scale_max);
        return;
    }
    static const char *const others[] = {"loss_scale_min", "loss_scale_max", "loss_scale_window",
                                         "loss_scale_growth", "loss_scale_backoff"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        set(k, others[i], NULL);
}

/* One pass is a whole step, so that nothing accumulates between them. The seed is the same for
 * both: equal initial weights, images and dropout. No log: nothing is trained. */
static void set_net_keys(struct net_keys *k, const struct amp_precision *p, bool fp32)
{
    const struct amp_net_desc *net = p->net;
    const struct amp_options *o = &p->options;
    k->n = 0;
    set(k, "mixed_precision", "1");
    /* Darknet multiplies batch by time_steps; the description has the product. */
    set_number(k, "batch", net->batch / (net->time_steps > 1 ? net->time_steps : 1));
    set(k, "subdivisions", "1");
    snprintf(k->numbers[k->n], NUMBER, "%llu", (unsigned long long)o->seed);
    set(k, "seed", k->numbers[k->n]);
    set(k, "amp_log", NULL);
    set(k, "amp_log_layers", NULL);
    set(k, "amp_log_noise", NULL);
    if (fp32) set(k, "amp_dtype", "fp32");
    if (o->level) { /* it stands for keys that are set here */
        set(k, "amp_level", NULL);
        if (!fp32) set(k, "amp_dtype", amp_dtype_word(o->dtype));
    }
    set_scale_keys(k, o, !fp32 && o->dtype == AMP_DTYPE_FP16);
}

static int build(struct amp_comparison *c, bool fp32, network **net)
{
    struct net_keys own;
    set_net_keys(&own, c->precision, fp32);
    *net = amp_variant_load(fp32 ? "amp check: the network in FP32"
                                 : "amp check: the network in mixed precision",
                            c->cfg, own.keys, own.n, c->weights);
    return *net ? 0 : -1;
}

/* Darknet sets nweights for convolutions and deconvolutions only; 0: it has none that we round. */
static size_t weight_count(const layer *l)
{
    switch (l->type) {
    case CONVOLUTIONAL:
    case DECONVOLUTIONAL:
        return (size_t)l->nweights;
    case CONNECTED:
        return (size_t)l->inputs * (size_t)l->outputs;
    case LOCAL:
        return (size_t)l->c * (size_t)l->size * (size_t)l->size * (size_t)l->outputs;
    default:
        return 0;
    }
}

/* Only layers that compute in FP16 round their weights to it. */
static void see_weights(struct amp_comparison *c)
{
    const struct amp_plan *plan = amp_plan_in_use(c->mixed);
    for (int i = 0; plan && i < plan->n; i++) {
        const layer *l = &c->mixed->layers[i];
        bool fp16 = plan->layers[i].ours && plan->layers[i].compute == AMPK_COMPUTE_FP16;
        size_t n = weight_count(l);
        if (fp16 && n) amp_precision_weights(c->precision, i, l->weights, n);
    }
}

/* ---- batches ---- */

/* Takes every BATCHES-th image of the list, from number k on; all of them if the list is very
 * short. */
static char **choose_paths(const load_args *all, int k, int *n)
{
    bool few = all->m < BATCHES;
    char **chosen = calloc((size_t)all->m, sizeof *chosen);
    *n = 0;
    for (int i = few ? 0 : k; chosen && i < all->m; i += few ? 1 : BATCHES)
        chosen[(*n)++] = all->paths[i];
    return chosen;
}

/* Loads a batch as detector train does: images drawn at random from those, augmented. The same rows
 * go into both networks. */
static int load_batch(struct amp_comparison *c, const load_args *all, int k)
{
    network *net = c->mixed;
    data loaded;
    load_args args = *all;
    args.d = &loaded;
    args.paths = choose_paths(all, k, &args.m);
    if (!args.paths) return amp_complain("out of memory");
    *net->seen = (size_t)k * (size_t)net->batch; /* tells one batch of the seed from another */
    pthread_join(load_data(args), NULL);
    get_next_batch(loaded, net->batch, 0, c->fp32->input, c->fp32->truth);
    get_next_batch(loaded, net->batch, 0, net->input, net->truth);
    free_data(loaded);
    free(args.paths);
    return 0;
}

/* ---- passes over one batch ---- */

/* All passes over a batch draw the same random numbers, because these follow from the count of
 * images seen. */
static void pass_over(struct amp_comparison *c, network *net, amp_see_function *see,
                      struct amp_pass *pass)
{
    *net->seen = (size_t)c->precision->batches * (size_t)net->batch;
    amp_pass(net, see, c->precision, pass);
}

static int report_not_clean(const char *what, const struct amp_pass *pass)
{
    char message[300];
    snprintf(message, sizeof message,
             "a pass in %s is not finite: %s of layer %d, largest magnitude %.3g. Training would "
             "fail there: check the weights file and the labels",
             what, pass->tensor, pass->layer, pass->magnitude);
    return amp_complain(message);
}

static void note_left(struct amp_comparison *c, const struct amp_pass *pass)
{
    struct amp_precision *p = c->precision;
    if (amp_left_fp16(c->mixed, pass->layer)) /* it comes before its readers in the advice */
        amp_precision_left(p, pass->layer, pass->tensor, pass->magnitude);
    for (int i = 0; i < p->net->n; i++)
        if (amp_left_fp16(c->mixed, i)) amp_precision_left(p, i, "input's copy", pass->magnitude);
}

/* Runs passes until every value fits: layers leave FP16 one after the other, and the loss scale
 * falls. In training this takes the first steps. */
static void settle(struct amp_comparison *c, struct amp_pass *pass)
{
    double scale = INFINITY;
    bool again = true;
    while (again) {
        pass_over(c, c->mixed, NULL, pass);
        c->redone += pass->redone;
        if (!pass->clean && pass->left_fp16) note_left(c, pass);
        bool falls = c->precision->options.loss_scale_dynamic && pass->scale < scale;
        again = !pass->clean && (pass->left_fp16 || (pass->gradient && falls));
        scale = pass->scale;
    }
    c->precision->scale = scale;
}

/* Returns 0; 1: gradients overflow and there is nothing to compare; or -1. */
static int compare_batch(struct amp_comparison *c)
{
    struct amp_precision *p = c->precision;
    struct amp_pass pass, seen = {0};
    pass_over(c, c->fp32, amp_precision_see_fp32, &pass);
    if (!pass.clean) return report_not_clean("FP32", &pass);
    /* A pass that is seen may still move the scale; then its numbers belong to another scale than
     * p->scale, and it is settled again. */
    for (int i = 0; i < TRIES && !seen.clean; i++) {
        settle(c, &pass);
        pass_over(c, c->mixed, amp_precision_see_mixed, &seen);
        if (!pass.clean) break;
        seen.clean = seen.clean && seen.scale == p->scale;
    }
    if (seen.clean) {
        amp_precision_end_batch(p);
        c->images += c->mixed->batch;
        return 0;
    }
    if (!pass.gradient) return report_not_clean("mixed precision", &pass);
    amp_precision_overflow(p, pass.layer, pass.tensor, pass.magnitude);
    return 1;
}

/* ---- the whole ---- */

/* Returns what compare_batch does. Two batches at least, more while there is time. */
static int compare_batches(struct amp_comparison *c)
{
    double start = amp_clock_seconds();
    load_args all;
    int result = 0;
    amp_training_args(c->mixed, c->data, &all);
    for (int k = 0; k < BATCHES && !result; k++) {
        if (k >= LEAST_BATCHES && amp_clock_seconds() - start > enough_seconds) break;
        amp_comparison_tell(c, "comparing batch %d of %d", k + 1, BATCHES);
        result = load_batch(c, &all, k) ? -1 : compare_batch(c);
    }
    return result;
}

int amp_comparison_run(struct amp_comparison *c)
{
    struct amp_precision *p = c->precision;
    c->began = c->told = amp_clock_seconds();
    if (build(c, true, &c->fp32) || build(c, false, &c->mixed)) return -1;
    see_weights(c);
    /* Weights that FP16 cannot hold spoil every number after them, so nothing else is judged
     * then. */
    bool weights_fit = !p->n_advice;
    int result = compare_batches(c);
    if (!result && weights_fit) amp_precision_judge(p);
    if (result > 0 && !p->n_advice && p->left < 0)
        return amp_complain(
            "gradients are not finite, whatever the precision: check the weights file "
            "and the labels");
    return result < 0 ? -1 : 0;
}

void amp_comparison_free(struct amp_comparison *c)
{
    if (c->mixed) free_network(c->mixed);
    if (c->fp32) free_network(c->fp32);
}
