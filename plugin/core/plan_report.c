/* The plan in words (for people) and as JSON (for programs), and the command that prints it from a
 * cfg alone, without Darknet and without a network in memory. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "layers.h"
#include "named_files.h"
#include "plan.h"

static const char *arithmetic(const struct amp_plan_layer *p, const struct amp_layer_desc *l)
{
    return p->ours && amp_layer_is_matrix(l) ? amp_compute_name(p->compute) : "FP32";
}

static void print_shape(const struct amp_layer_desc *l, FILE *f)
{
    char shape[40];
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
}

void amp_plan_print(const struct amp_plan *plan, const struct amp_net_desc *net, FILE *f)
{
    fprintf(f, "mixed precision plan\n%5s %-15s %-18s %-5s %-10s %s\n", "layer", "type", "output",
            "math", "storage", "reason");
    for (int i = 0; i < plan->n; i++) {
        const struct amp_plan_layer *p = &plan->layers[i];
        fprintf(f, "%5d %-15s ", i, amp_layer_type_name(net->layers[i].type));
        print_shape(&net->layers[i], f);
        fprintf(f, " %-5s %-10s %s\n", arithmetic(p, &net->layers[i]), amp_format_name(p->out),
                p->reason);
    }
    print_totals(plan, net, f);
}

void amp_plan_print_json(const struct amp_plan *plan, const struct amp_net_desc *net, FILE *f)
{
    fprintf(f, "{\"batch\": %d, \"layers\": [", net->batch);
    for (int i = 0; i < plan->n; i++) {
        const struct amp_plan_layer *p = &plan->layers[i];
        const struct amp_layer_desc *l = &net->layers[i];
        fprintf(
            f,
            "%s\n  {\"index\": %d, \"type\": \"%s\", \"output\": [%d, %d, %d], \"outputs\": %d, ",
            i ? "," : "", i, amp_layer_type_name(l->type), l->out_w, l->out_h, l->out_c,
            l->outputs);
        fprintf(f,
                "\"executor\": \"%s\", \"math\": \"%s\", \"storage\": \"%s\", \"flop\": %.0f, "
                "\"reason\": ",
                p->ours ? "amp" : "darknet", arithmetic(p, l), amp_format_name(p->out),
                l->forward_flop);
        amp_json_string(f, p->reason);
        fputc('}', f);
    }
    fprintf(f,
            "\n], \"flop\": %.0f, \"flop_reduced\": %.0f, \"activation_bytes_fp32\": %zu, "
            "\"activation_bytes_mixed\": %zu}\n",
            plan->flop, plan->flop_reduced, plan->darknet_bytes, plan->mixed_bytes);
}

/* ---- darknet amp plan ---- */

struct request {
    const char *cfg_path;
    int json;
};

static int read_arguments(int argc, char **argv, struct request *r)
{
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            r->json = 1;
        else if (argv[i][0] == '-' || r->cfg_path)
            return -1;
        else
            r->cfg_path = argv[i];
    }
    return r->cfg_path ? 0 : -1;
}

static int print_plan(const struct amp_cfg_file *cfg, int json, char *err, size_t err_size)
{
    struct amp_options options;
    char notes[4096] = "";
    if (amp_named_files_check(cfg, err, err_size) ||
        amp_options_read(cfg, &options, notes, sizeof notes, err, err_size))
        return -1;
    /* Without the key, reading the options has left Darknet's own keys to Darknet. */
    if (!options.mixed_precision &&
        amp_options_check_all_keys(cfg, notes, sizeof notes, err, err_size))
        return -1;
    if (notes[0]) fprintf(stderr, "darknet-amp: %s", notes); /* whole lines */
    if (!options.mixed_precision)
        fprintf(stderr,
                "darknet-amp: %s: mixed precision is off, mixed_precision=1 is missing under "
                "[net]; with it the plan would be:\n",
                cfg->path);
    struct amp_net_desc *net = amp_net_describe(cfg, 0, 0, true, err, err_size);
    struct amp_plan *plan =
        net ? amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, err_size) : NULL;
    if (plan && json)
        amp_plan_print_json(plan, net, stdout);
    else if (plan)
        amp_plan_print(plan, net, stdout);
    int result = plan ? 0 : -1;
    amp_plan_free(plan);
    amp_net_desc_free(net);
    return result;
}

int amp_command_plan(int argc, char **argv)
{
    struct request r = {NULL, 0};
    char err[1024];
    if (read_arguments(argc, argv, &r)) {
        fprintf(stderr, "usage: %s amp plan CFG [--json]\n", argv[0]);
        return 1;
    }
    struct amp_cfg_file *cfg = amp_cfg_read(r.cfg_path, err, sizeof err);
    int failed = !cfg || print_plan(cfg, r.json, err, sizeof err);
    if (!failed && (fflush(stdout) || ferror(stdout))) {
        snprintf(err, sizeof err, "the plan cannot be written: %s", strerror(errno));
        failed = 1;
    }
    if (failed) fprintf(stderr, "darknet-amp: %s\n", err);
    amp_cfg_free(cfg);
    return failed;
}
