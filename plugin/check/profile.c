#include "profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOP = 8 };

/* ---- counting ---- */

static bool is_matrix(const struct amp_layer_desc *l)
{
    return l->type == AMP_CONVOLUTIONAL || l->type == AMP_CONNECTED;
}

static double inputs_of(const struct amp_profile *p, int i)
{
    const struct amp_layer_desc *l = &p->net->layers[i];
    double n = 0;
    for (int k = 0; k < l->n_sources; ++k)
        n += l->sources[k] < 0 ? p->net->inputs : p->net->layers[l->sources[k]].outputs;
    return n;
}

/* Backward reads what forward read and wrote and the delta; it writes the source's delta. */
static void count_bytes(const struct amp_profile *p, int i, enum amp_profile_way way)
{
    struct amp_profile_layer *t = &p->layers[i];
    const struct amp_layer_desc *l = &p->net->layers[i];
    const struct amp_plan_layer *plan = &p->plan->layers[i];
    bool mixed = way == AMP_PROFILE_MIXED;
    double in = (mixed ? (double)amp_format_bytes(plan->in) : 4) * inputs_of(p, i) * p->net->batch;
    double out = (mixed ? (double)amp_format_bytes(plan->out) : 4) * l->outputs * p->net->batch;
    double weights = (mixed ? (double)amp_format_bytes(plan->in) : 4) * (double)l->n_weights;
    t->bytes[way][AMP_PROFILE_FORWARD] = in + out + weights;
    t->bytes[way][AMP_PROFILE_BACKWARD] = 2 * in + 2 * out + weights + 4 * (double)l->n_weights;
}

void amp_profile_count(struct amp_profile *p)
{
    for (int i = 0; i < p->net->n; ++i) {
        const struct amp_layer_desc *l = &p->net->layers[i];
        double flop = l->forward_flop * p->net->batch;
        bool wanted = false; /* a source wants its delta */
        for (int k = 0; k < l->n_sources; ++k)
            wanted = wanted || p->plan->layers[i].source_wanted[k];
        p->layers[i].flop[AMP_PROFILE_FORWARD] = flop;
        p->layers[i].flop[AMP_PROFILE_BACKWARD] =
            is_matrix(l) && p->plan->layers[i].backward ? (wanted ? 2 : 1) * flop : 0;
        count_bytes(p, i, AMP_PROFILE_FP32);
        count_bytes(p, i, AMP_PROFILE_MIXED);
    }
}

/* ---- sums ---- */

static void add(struct amp_profile_layer *sum, const struct amp_profile_layer *x)
{
    for (int pass = 0; pass < AMP_PROFILE_PASSES; ++pass) {
        sum->flop[pass] += x->flop[pass];
        for (int way = 0; way < AMP_PROFILE_WAYS; ++way) {
            sum->seconds[way][pass] += x->seconds[way][pass];
            sum->bytes[way][pass] += x->bytes[way][pass];
        }
    }
}

static struct amp_profile_layer sum_all(const struct amp_profile *p)
{
    struct amp_profile_layer sum = {0};
    for (int i = 0; i < p->net->n; ++i)
        add(&sum, &p->layers[i]);
    return sum;
}

static double both(const double passes[AMP_PROFILE_PASSES])
{
    return passes[AMP_PROFILE_FORWARD] + passes[AMP_PROFILE_BACKWARD];
}

/* ---- words ---- */

enum { NAME_WIDTH = 29 };

static void print_head(FILE *f, const char *first)
{
    fprintf(f, "%-*s %34s %34s %32s\n", NAME_WIDTH, "", "-- Darknet's FP32, milliseconds --",
            "-- mixed precision, milliseconds --", "---- GB/s ----");
    fprintf(f, "%-*s %8s %8s %8s %7s %8s %8s %8s %7s %6s %8s %9s %6s %6s\n", NAME_WIDTH, first,
            "forward", "backward", "both", "share", "forward", "backward", "both", "share", "gain",
            "GFLOP", "GFLOP/s", "FP32", "mixed");
}

static double over(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void print_row(const char *name, const struct amp_profile_layer *t,
                      const struct amp_profile_layer *all, FILE *f)
{
    fprintf(f, "%-*s", NAME_WIDTH, name);
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way) {
        const double *s = t->seconds[way];
        fprintf(f, " %8.3f %8.3f %8.3f %6.1f%%", 1e3 * s[AMP_PROFILE_FORWARD],
                1e3 * s[AMP_PROFILE_BACKWARD], 1e3 * both(s),
                100 * over(both(s), both(all->seconds[way])));
    }
    double mixed = both(t->seconds[AMP_PROFILE_MIXED]), fp32 = both(t->seconds[AMP_PROFILE_FP32]);
    fprintf(f, " %5.1fx %8.3f %9.1f %6.2f %6.2f\n", over(fp32, mixed), both(t->flop) / 1e9,
            over(both(t->flop), mixed) / 1e9, over(both(t->bytes[AMP_PROFILE_FP32]), fp32) / 1e9,
            over(both(t->bytes[AMP_PROFILE_MIXED]), mixed) / 1e9);
}

static void name_layer(const struct amp_profile *p, int i, char *name, size_t size)
{
    const struct amp_layer_desc *l = &p->net->layers[i];
    if (l->out_w)
        snprintf(name, size, "%3d %s %dx%dx%d", i, amp_layer_type_name(l->type), l->out_w, l->out_h,
                 l->out_c);
    else
        snprintf(name, size, "%3d %s %d", i, amp_layer_type_name(l->type), l->outputs);
}

static void print_layer(const struct amp_profile *p, int i, const struct amp_profile_layer *all,
                        FILE *f)
{
    char name[64];
    name_layer(p, i, name, sizeof name);
    print_row(name, &p->layers[i], all, f);
}

static void print_types(const struct amp_profile *p, const struct amp_profile_layer *all, FILE *f)
{
    print_head(f, "type");
    for (int type = 0; type <= AMP_BLANK; ++type) {
        struct amp_profile_layer sum = {0};
        char name[64];
        int count = 0;
        for (int i = 0; i < p->net->n; ++i) {
            if ((int)p->net->layers[i].type != type) continue;
            add(&sum, &p->layers[i]);
            ++count;
        }
        snprintf(name, sizeof name, "%s x %d", amp_layer_type_name((enum amp_layer_type)type),
                 count);
        if (count) print_row(name, &sum, all, f);
    }
}

/* The layer that takes longest among those that are not marked. */
static int longest(const struct amp_profile *p, const bool *marked)
{
    int found = -1;
    for (int i = 0; i < p->net->n; ++i)
        if (!marked[i] && (found < 0 || both(p->layers[i].seconds[AMP_PROFILE_MIXED]) >
                                            both(p->layers[found].seconds[AMP_PROFILE_MIXED])))
            found = i;
    return found;
}

static void print_top(const struct amp_profile *p, const struct amp_profile_layer *all, FILE *f)
{
    bool *marked = calloc((size_t)p->net->n, sizeof *marked);
    fputc('\n', f);
    print_head(f, "longest layers");
    for (int k = 0; marked && k < TOP && k < p->net->n; ++k) {
        int i = longest(p, marked);
        marked[i] = true;
        print_layer(p, i, all, f);
    }
    free(marked);
}

void amp_profile_print(const struct amp_profile *p, bool all_layers, FILE *f)
{
    struct amp_profile_layer all = sum_all(p);
    const double *fp32 = all.seconds[AMP_PROFILE_FP32], *mixed = all.seconds[AMP_PROFILE_MIXED];
    fprintf(f,
            "\namp profile: %s, %d images a pass, CPU, medians of %d rounds, random weights and "
            "images\n\n",
            p->net->cfg_path, p->net->batch, p->rounds);
    if (all_layers) {
        print_head(f, "layer");
        for (int i = 0; i < p->net->n; ++i)
            print_layer(p, i, &all, f);
    } else {
        print_types(p, &all, f);
        print_top(p, &all, f);
    }
    fputc('\n', f);
    print_row("forward and backward", &all, &all, f);
    fprintf(
        f, "update: FP32 %.3f ms, mixed precision %.3f ms; all: %.3f ms, %.3f ms (%.1fx)\n",
        1e3 * p->update[AMP_PROFILE_FP32], 1e3 * p->update[AMP_PROFILE_MIXED],
        1e3 * (both(fp32) + p->update[AMP_PROFILE_FP32]),
        1e3 * (both(mixed) + p->update[AMP_PROFILE_MIXED]),
        over(both(fp32) + p->update[AMP_PROFILE_FP32], both(mixed) + p->update[AMP_PROFILE_MIXED]));
    fprintf(f, "GB/s: what a layer reads and writes at least, by its time.\n");
}

/* ---- JSON ---- */

static void json_way(FILE *f, const char *name, const struct amp_profile_layer *t,
                     enum amp_profile_way way, const char *format)
{
    fprintf(f,
            ", \"%s\": {\"format\": \"%s\", \"forward_seconds\": %.9g, \"backward_seconds\": %.9g, "
            "\"forward_bytes\": %.0f, \"backward_bytes\": %.0f}",
            name, format, t->seconds[way][AMP_PROFILE_FORWARD],
            t->seconds[way][AMP_PROFILE_BACKWARD], t->bytes[way][AMP_PROFILE_FORWARD],
            t->bytes[way][AMP_PROFILE_BACKWARD]);
}

void amp_profile_print_json(const struct amp_profile *p, FILE *f)
{
    fprintf(f,
            "{\"batch\": %d, \"rounds\": %d, \"update_seconds\": {\"fp32\": %.9g, \"mixed\": %.9g},"
            "\n \"layers\": [",
            p->net->batch, p->rounds, p->update[AMP_PROFILE_FP32], p->update[AMP_PROFILE_MIXED]);
    for (int i = 0; i < p->net->n; ++i) {
        const struct amp_profile_layer *t = &p->layers[i];
        fprintf(f,
                "%s\n  {\"layer\": %d, \"type\": \"%s\", \"forward_flop\": %.0f, "
                "\"backward_flop\": %.0f",
                i ? "," : "", i, amp_layer_type_name(p->net->layers[i].type),
                t->flop[AMP_PROFILE_FORWARD], t->flop[AMP_PROFILE_BACKWARD]);
        json_way(f, "fp32", t, AMP_PROFILE_FP32, "FP32 NCHW");
        json_way(f, "mixed", t, AMP_PROFILE_MIXED, amp_format_name(p->plan->layers[i].out));
        fputc('}', f);
    }
    fprintf(f, "]}\n");
}
