/* Prints a plan: a table for people and JSON for programs. It decides nothing. */
#include <stdio.h>

#include "plan.h"
#include "plugin/core/read/json.h"

const char *amp_format_name(enum amp_format f)
{
    static const char *const names[AMP_FORMATS] = {"FP32 NCHW", "FP32", "FP16", "BF16"};
    return f < AMP_FORMATS ? names[f] : "none";
}

const char *amp_compute_name(enum ampk_compute c)
{
    static const char *const names[] = {"FP32", "TF32", "FP16", "BF16"};
    return names[c];
}

/* Only matrix products compute in reduced precision; every other layer computes in FP32, whatever
 * it stores. */
static const char *arithmetic(const struct amp_plan_layer *p, const struct amp_layer_desc *l)
{
    bool multiplies = p->products || (p->ours && amp_layer_is_matrix(l));
    return multiplies ? amp_compute_name(p->compute) : "FP32";
}

static void print_shape(const struct amp_layer_desc *l, FILE *f)
{
    char shape[40];
    /* Darknet leaves some layers without an image shape. */
    if (l->out_w)
        snprintf(shape, sizeof shape, "%d x %d x %d", l->out_w, l->out_h, l->out_c);
    else
        snprintf(shape, sizeof shape, "%d", l->outputs);
    fprintf(f, "%-18s", shape);
}

static void print_totals(const struct amp_plan *plan, const struct amp_net_desc *net, FILE *f)
{
    double mb = 1024.0 * 1024.0;
    fprintf(f,
            "mixed precision: %.1f %% of %.3f GFLOP per image in reduced precision; activation "
            "memory for %d images "
            "per pass: FP32 %.1f MiB, mixed %.1f MiB (%.2fx)\n",
            plan->flop > 0 ? 100 * plan->flop_reduced / plan->flop : 0, plan->flop / 1e9,
            net->batch, (double)plan->darknet_bytes / mb, (double)plan->mixed_bytes / mb,
            (double)plan->mixed_bytes / (double)plan->darknet_bytes);
    if (plan->n_recomputed || plan->over_budget)
        fprintf(f,
                "mixed precision: checkpoint: backward computes %d layer%s again, %.1f %% of "
                "forward's arithmetic%s\n",
                plan->n_recomputed, plan->n_recomputed == 1 ? "" : "s",
                plan->flop > 0 ? 100 * plan->flop_again / plan->flop : 0,
                plan->over_budget ? "; no choice of layers fits in what checkpoint=auto allows, "
                                    "this is the least: lower batch, or raise subdivisions"
                                  : "");
}

/* Nothing where the update is stock Darknet's. */
static void print_update(const struct amp_plan *plan, const struct amp_net_desc *net, FILE *f)
{
    const struct amp_rules *r = &plan->rules;
    size_t kept = amp_plan_kept_bytes(plan, net);
    bool clips = r->clip_norm > 0 || r->clip_value > 0, averages = r->ema_alpha > 0;
    bool decays = r->decay_bn >= 0; /* the key is written */
    if (r->optimizer == AMP_OPTIMIZER_SGD && !clips && !averages && !decays) return;
    fprintf(f, "update: optimizer=%s", amp_optimizer_word(r->optimizer));
    if (decays) fprintf(f, ", decay_bn=%d", r->decay_bn);
    if (clips)
        fprintf(f, ", clip_grad_%s=%g", r->clip_norm > 0 ? "norm" : "value",
                r->clip_norm > 0 ? r->clip_norm : r->clip_value);
    if (averages) fprintf(f, ", ema_alpha=%g", r->ema_alpha);
    if (averages && r->ema_until)
        fprintf(f, " (from iteration %d on; at %d the weights become the average)", r->ema_from,
                r->ema_until);
    if (kept) fprintf(f, "; its moments and averages take %.1f MiB", (double)kept / (1 << 20));
    fputc('\n', f);
}

static void print_synced(const struct amp_plan *plan, FILE *f)
{
    if (!plan->synced_forward) return;
    fprintf(f,
            "amp_sync_bn: in several processes each pass has %d exchanges of batch-norm in forward "
            "and %d in backward, in which each process sends %.1f KiB, and two of some 300 bytes "
            "that judge it\n",
            plan->synced_forward, plan->synced_backward, (double)plan->synced_bytes / 1024);
}

void amp_plan_print(const struct amp_plan *plan, const struct amp_net_desc *net, FILE *f)
{
    if (net->dialect == AMP_DIALECT_FORK)
        fprintf(f, "rules: fork (%s)%s\n", net->dialect_reason,
                amp_net_has_forks_head(net)
                    ? ""
                    : "; images, loss and boxes by stock's: the net does not "
                      "end in [yolo]");
    fprintf(f, "mixed precision plan: %s", plan->dtype);
    if (plan->dtype_reason) fprintf(f, " (amp_dtype=auto: %s)", plan->dtype_reason);
    if (plan->level)
        fprintf(f, "; amp_level=%s stands for %s%s", amp_level_word(plan->level),
                amp_level_keys(plan->level),
                plan->level == AMP_LEVEL_O3 ? ": O2 with a fixed loss scale of 1" : "");
    fprintf(f, "\n%5s %-15s %-18s %-5s %-10s %s\n", "layer", "type", "output", "math", "storage",
            "reason");
    for (int i = 0; i < plan->n; i++) {
        const struct amp_plan_layer *p = &plan->layers[i];
        fprintf(f, "%5d %-15s ", i, amp_layer_type_name(net->layers[i].type));
        print_shape(&net->layers[i], f);
        fprintf(f, " %-5s %-10s %s\n", arithmetic(p, &net->layers[i]), amp_format_name(p->out),
                p->reason);
    }
    print_totals(plan, net, f);
    if (plan->train) print_update(plan, net, f);
    print_synced(plan, f);
}

static void layer_json(const struct amp_plan_layer *p, const struct amp_layer_desc *l, int index,
                       struct amp_json *j)
{
    amp_json_line(j, 2);
    amp_json_begin(j, NULL, '{');
    amp_json_put(j, "index", "%d", index);
    amp_json_string(j, "type", amp_layer_type_name(l->type));
    amp_json_put(j, "output", "[%d, %d, %d]", l->out_w, l->out_h, l->out_c);
    amp_json_put(j, "outputs", "%d", l->outputs);
    amp_json_string(j, "executor", p->ours ? "amp" : "darknet");
    amp_json_string(j, "math", arithmetic(p, l));
    amp_json_string(j, "storage", amp_format_name(p->out));
    amp_json_put(j, "flop", "%.0f", l->forward_flop);
    amp_json_bool(j, "recomputed", p->recomputed);
    amp_json_string(j, "reason", p->reason);
    amp_json_end(j, '}');
}

void amp_plan_write_json(const struct amp_plan *plan, const struct amp_net_desc *net,
                         struct amp_json *j)
{
    if (net->dialect == AMP_DIALECT_FORK) {
        amp_json_string(j, "rules", "fork");
        amp_json_string(j, "rules_reason", net->dialect_reason);
    }
    amp_json_string(j, "precision", plan->dtype);
    amp_json_string(j, "precision_reason", plan->dtype_reason);
    amp_json_put(j, "batch", "%d", net->batch);
    amp_json_begin(j, "layers", '[');
    for (int i = 0; i < plan->n; i++)
        layer_json(&plan->layers[i], &net->layers[i], i, j);
    amp_json_line(j, 0);
    amp_json_end(j, ']');
    amp_json_put(j, "flop", "%.0f", plan->flop);
    amp_json_put(j, "flop_reduced", "%.0f", plan->flop_reduced);
    amp_json_put(j, "flop_again", "%.0f", plan->flop_again);
    amp_json_put(j, "activation_bytes_fp32", "%zu", plan->darknet_bytes);
    amp_json_put(j, "activation_bytes_mixed", "%zu", plan->mixed_bytes);
    amp_json_string(j, "optimizer", amp_optimizer_word(plan->rules.optimizer));
    amp_json_put(j, "kept_bytes", "%zu", amp_plan_kept_bytes(plan, net));
    amp_json_put(j, "sync_bn_exchanges", "%d", plan->synced_forward + plan->synced_backward);
    amp_json_put(j, "sync_bn_bytes", "%zu", plan->synced_bytes);
}
