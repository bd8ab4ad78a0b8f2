/* The result of `amp profile` as a table and as JSON, with the FLOPs that follow from the
 * description. It must not measure anything (profile.c). */

#include "profile.h"

#include <math.h>

#include "plugin/core/read/json.h"

enum { NAME_WIDTH = 29 };

/* ---- counting and sums ---- */

/* Backward has one product for the weights, and one more if a delta is wanted. */
void amp_profile_count(struct amp_profile *p)
{
    for (int i = 0; i < p->net->n; i++) {
        const struct amp_layer_desc *l = &p->net->layers[i];
        double flop = l->forward_flop * p->net->batch;
        bool wanted =
            false; /* a layer before wants its delta: a second product as large as forward */
        for (int k = 0; k < l->n_sources; k++)
            wanted = wanted || p->plan->layers[i].source_wanted[k];
        p->layers[i].flop[AMP_PROFILE_FORWARD] = flop;
        p->layers[i].flop[AMP_PROFILE_BACKWARD] =
            p->plan->layers[i].backward ? (wanted ? 2 : 1) * flop : 0;
    }
}

struct amp_profile_layer amp_profile_total(const struct amp_profile *p)
{
    struct amp_profile_layer sum = p->other;
    for (int i = 0; i < p->net->n; i++)
        for (int pass = 0; pass < AMP_PROFILE_PASSES; pass++) {
            sum.flop[pass] += p->layers[i].flop[pass];
            for (int way = 0; way < AMP_PROFILE_WAYS; way++)
                sum.seconds[way][pass] += p->layers[i].seconds[way][pass];
        }
    return sum;
}

const char *amp_profile_unit(const struct amp_net_desc *net)
{
    return net->time_steps > 1 ? "inputs (sequences x time_steps)" : "images";
}

double amp_profile_both(const double passes[AMP_PROFILE_PASSES])
{
    return passes[AMP_PROFILE_FORWARD] + passes[AMP_PROFILE_BACKWARD];
}

/* a / b; NaN if b is not above zero. */
static double over(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

/* ---- the table ---- */

/* Prints "-" if there is no number. */
static void cell(FILE *f, int width, int decimals, double x, const char *unit)
{
    if (isnan(x))
        fprintf(f, " %*s", width, "-");
    else
        fprintf(f, " %*.*f%s", width - (int)(unit[0] != 0), decimals, x, unit);
}

/* A layer without products has no work to show. */
static void work_cell(FILE *f, int width, int decimals, double x)
{
    cell(f, width, decimals, x > 0 ? x : NAN, "");
}

static void share_cell(FILE *f, double part, double whole)
{
    cell(f, 7, 1, 100 * over(part, whole), "%");
}

/* How many times faster mixed precision is. */
static void gain_cell(FILE *f, const double of_ways[AMP_PROFILE_WAYS])
{
    cell(f, 7, 1, over(of_ways[AMP_PROFILE_FP32], of_ways[AMP_PROFILE_MIXED]), "x");
}

/* Connected layers have no width and height. */
static void name_layer(const struct amp_profile *p, int i, char *name, size_t size)
{
    const struct amp_layer_desc *l = &p->net->layers[i];
    if (l->out_w)
        snprintf(name, size, "%3d %s %dx%dx%d", i, amp_layer_type_name(l->type), l->out_w, l->out_h,
                 l->out_c);
    else
        snprintf(name, size, "%3d %s %d", i, amp_layer_type_name(l->type), l->outputs);
}

/* Stock Darknet has no step by AlexeyAB's rules. */
static const char *whose_fp32(const struct amp_profile *p)
{
    return p->net->dialect == AMP_DIALECT_FORK ? "-- amp_dtype=fp32, milliseconds --"
                                               : "-- Darknet's FP32, milliseconds --";
}

static void print_head(const struct amp_profile *p, FILE *f)
{
    fprintf(f, "%-*s %34s %34s\n", NAME_WIDTH, "", whose_fp32(p),
            "-- mixed precision, milliseconds --");
    fprintf(f, "%-*s %8s %8s %8s %7s %8s %8s %8s %7s %7s %8s %9s\n", NAME_WIDTH, "layer", "forward",
            "backward", "both", "share", "forward", "backward", "both", "share", "gain", "GFLOP",
            "GFLOP/s");
}

static void print_row(const char *name, const struct amp_profile_layer *t,
                      const struct amp_profile_layer *total, FILE *f)
{
    double flop = amp_profile_both(t->flop), seconds[AMP_PROFILE_WAYS];
    fprintf(f, "%-*s", NAME_WIDTH, name);
    for (int way = 0; way < AMP_PROFILE_WAYS; way++) {
        seconds[way] = amp_profile_both(t->seconds[way]);
        cell(f, 8, 3, 1e3 * t->seconds[way][AMP_PROFILE_FORWARD], "");
        cell(f, 8, 3, 1e3 * t->seconds[way][AMP_PROFILE_BACKWARD], "");
        cell(f, 8, 3, 1e3 * seconds[way], "");
        share_cell(f, seconds[way], amp_profile_both(total->seconds[way]));
    }
    gain_cell(f, seconds);
    work_cell(f, 8, 3, flop / 1e9);
    work_cell(f, 9, 1, over(flop, seconds[AMP_PROFILE_MIXED]) / 1e9);
    fputc('\n', f);
}

/* Everything that a number depends on is printed with it. */
static void print_title(const struct amp_profile *p, FILE *f)
{
    const struct amp_machine *m = &p->machine;
    fprintf(f, "\namp profile: %s, %d %s a pass, ", p->net->cfg_path, p->net->batch,
            amp_profile_unit(p->net));
    if (m->device[0])
        fprintf(f, "%s\n", m->device);
    else
        fprintf(f, "CPU, %d thread%s\n", m->threads, m->threads > 1 ? "s" : "");
    fprintf(f, "fastest of %d rounds, random weights and images", p->rounds);
    for (int i = 0; i < m->n_versions; i++)
        fprintf(f, ", %s %s", m->versions[i].name, m->versions[i].number);
    fputc('\n', f);
    if (p->no_fp32) fprintf(f, "Darknet's FP32 is not timed: %s\n", p->no_fp32);
    fputc('\n', f);
}

static void print_times(const char *what, const double seconds[AMP_PROFILE_WAYS], FILE *f)
{
    fprintf(f, "%s: ", what);
    if (isnan(seconds[AMP_PROFILE_FP32]))
        fprintf(f, "mixed precision %.3f ms", 1e3 * seconds[AMP_PROFILE_MIXED]);
    else
        fprintf(f, "FP32 %.3f ms, mixed precision %.3f ms (%.1fx)", 1e3 * seconds[AMP_PROFILE_FP32],
                1e3 * seconds[AMP_PROFILE_MIXED],
                over(seconds[AMP_PROFILE_FP32], seconds[AMP_PROFILE_MIXED]));
}

void amp_profile_print(const struct amp_profile *p, FILE *f)
{
    struct amp_profile_layer total = amp_profile_total(p);
    print_title(p, f);
    print_head(p, f);
    for (int i = 0; i < p->net->n; i++) {
        char name[64];
        name_layer(p, i, name, sizeof name);
        print_row(name, &p->layers[i], &total, f);
    }
    print_row("other", &p->other, &total, f);
    print_row("all", &total, &total, f);
    fputc('\n', f);
    print_times("update", p->update, f);
    print_times("; whole step", p->step, f);
    fputs("\nGFLOP: convolutions and matrix products. other: what no layer does, as taking and "
          "checking the images,\nclearing gradients and judging the pass.\n",
          f);
    if (p->machine.device[0])
        fputs("Every layer was waited for; training does not wait, and its step takes less.\n", f);
    if (p->loading) amp_loading_print(p->loading, f);
}

/* ---- JSON ---- */

static void write_machine(const struct amp_machine *m, struct amp_json *j)
{
    amp_json_string(j, "backend", m->backend);
    amp_json_string(j, "device", m->device[0] ? m->device : NULL);
    amp_json_put(j, "threads", "%d", m->threads);
    amp_json_begin(j, "versions", '{');
    for (int i = 0; i < m->n_versions; i++)
        amp_json_string(j, m->versions[i].name, m->versions[i].number);
    amp_json_end(j, '}');
}

static void write_pair(struct amp_json *j, const char *key, const double of_ways[AMP_PROFILE_WAYS])
{
    amp_json_begin(j, key, '{');
    amp_json_number(j, "fp32", of_ways[AMP_PROFILE_FP32]);
    amp_json_number(j, "mixed", of_ways[AMP_PROFILE_MIXED]);
    amp_json_end(j, '}');
}

/* "fp32" or "mixed"; null if it was not timed. format NULL: the row is no layer's. */
static void write_way(const struct amp_profile_layer *t, const struct amp_profile_layer *total,
                      int way, const char *format, struct amp_json *j)
{
    const char *key = way == AMP_PROFILE_FP32 ? "fp32" : "mixed";
    amp_json_line(j, 3);
    if (isnan(total->seconds[way][AMP_PROFILE_FORWARD])) {
        amp_json_string(j, key, NULL);
        return;
    }
    amp_json_begin(j, key, '{');
    if (format) amp_json_string(j, "format", format);
    amp_json_number(j, "forward_seconds", t->seconds[way][AMP_PROFILE_FORWARD]);
    amp_json_number(j, "backward_seconds", t->seconds[way][AMP_PROFILE_BACKWARD]);
    amp_json_number(j, "share",
                    over(amp_profile_both(t->seconds[way]), amp_profile_both(total->seconds[way])));
    amp_json_end(j, '}');
}

/* The members of a row. plan, fp32 NULL: it is no layer's. fp32: format of the output there. */
static void write_row(const struct amp_profile_layer *t, const struct amp_profile_layer *total,
                      const struct amp_plan_layer *plan, const char *fp32, struct amp_json *j)
{
    amp_json_put(j, "forward_flop", "%.0f", t->flop[AMP_PROFILE_FORWARD]);
    amp_json_put(j, "backward_flop", "%.0f", t->flop[AMP_PROFILE_BACKWARD]);
    amp_json_number(j, "gain",
                    over(amp_profile_both(t->seconds[AMP_PROFILE_FP32]),
                         amp_profile_both(t->seconds[AMP_PROFILE_MIXED])));
    write_way(t, total, AMP_PROFILE_FP32, fp32, j);
    write_way(t, total, AMP_PROFILE_MIXED, plan ? amp_format_name(plan->out) : NULL, j);
}

static void write_layers(const struct amp_profile *p, const struct amp_profile_layer *total,
                         struct amp_json *j)
{
    amp_json_line(j, 1);
    const char *fp32 = p->net->dialect == AMP_DIALECT_FORK ? "FP32" : "FP32 NCHW";
    amp_json_begin(j, "layers", '[');
    for (int i = 0; i < p->net->n; i++) {
        const struct amp_layer_desc *l = &p->net->layers[i];
        amp_json_line(j, 2);
        amp_json_begin(j, NULL, '{');
        amp_json_put(j, "layer", "%d", i);
        amp_json_string(j, "type", amp_layer_type_name(l->type));
        amp_json_put(j, "outputs", "%d", l->outputs);
        write_row(&p->layers[i], total, &p->plan->layers[i], fp32, j);
        amp_json_end(j, '}');
    }
    amp_json_end(j, ']');
}

static void write_sum(struct amp_json *j, const char *key, const struct amp_profile_layer *t,
                      const struct amp_profile_layer *total)
{
    amp_json_line(j, 1);
    amp_json_begin(j, key, '{');
    write_row(t, total, NULL, NULL, j);
    amp_json_end(j, '}');
}

void amp_profile_print_json(const struct amp_profile *p, FILE *f)
{
    struct amp_profile_layer total = amp_profile_total(p);
    struct amp_json j = {.out = f, .digits = AMP_JSON_FLOAT};
    amp_json_begin(&j, NULL, '{');
    amp_json_string(&j, "cfg", p->net->cfg_path);
    write_machine(&p->machine, &j);
    amp_json_line(&j, 1);
    amp_json_put(&j, "batch", "%d", p->net->batch);
    amp_json_put(&j, "rounds", "%d", p->rounds);
    amp_json_string(&j, "no_fp32", p->no_fp32);
    amp_json_line(&j, 1);
    write_pair(&j, "update_seconds", p->update);
    write_pair(&j, "step_seconds", p->step);
    write_layers(p, &total, &j);
    write_sum(&j, "other", &p->other, &total);
    write_sum(&j, "total", &total, &total);
    amp_json_line(&j, 1);
    if (p->loading)
        amp_loading_write_json(p->loading, &j, "loading");
    else
        amp_json_string(&j, "loading", NULL);
    amp_json_end(&j, '}');
    fputc('\n', f);
}
