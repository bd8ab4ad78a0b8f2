/* The profile as tables. */
#include "profile.h"

#include <math.h>
#include <stdlib.h>

enum { TOP = 8, NAME_WIDTH = 29 };

/* ---- cells ---- */

/* "-" where there is no such number. */
static void cell(FILE *f, int width, int decimals, double x, const char *unit)
{
    if (isnan(x))
        fprintf(f, " %*s", width, "-");
    else
        fprintf(f, " %*.*f%s", width - (int)(unit[0] != 0), decimals, x, unit);
}

/* Of work there may be none. */
static void work_cell(FILE *f, int width, int decimals, double x)
{
    cell(f, width, decimals, x > 0 ? x : NAN, "");
}

static void share_cell(FILE *f, double part, double whole)
{
    cell(f, 7, 1, 100 * amp_profile_over(part, whole), "%");
}

static void gain_cell(FILE *f, const double of_ways[AMP_PROFILE_WAYS])
{
    cell(f, 7, 1, amp_profile_over(of_ways[AMP_PROFILE_FP32], of_ways[AMP_PROFILE_MIXED]), "x");
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

/* ---- forward and backward in one row ---- */

static void print_head(FILE *f, const char *first)
{
    fprintf(f, "%-*s %34s %34s %8s%19s %13s\n", NAME_WIDTH, "",
            "-- Darknet's FP32, milliseconds --", "-- mixed precision, milliseconds --", "", "",
            "--- GB/s ---");
    fprintf(f, "%-*s %8s %8s %8s %7s %8s %8s %8s %7s %7s %8s %9s %6s %6s\n", NAME_WIDTH, first,
            "forward", "backward", "both", "share", "forward", "backward", "both", "share", "gain",
            "GFLOP", "GFLOP/s", "FP32", "mixed");
}

static void print_row(const char *name, const struct amp_profile_layer *t,
                      const struct amp_profile_layer *total, FILE *f)
{
    double flop = amp_profile_both(t->flop), seconds[AMP_PROFILE_WAYS];
    fprintf(f, "%-*s", NAME_WIDTH, name);
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way) {
        seconds[way] = amp_profile_both(t->seconds[way]);
        cell(f, 8, 3, 1e3 * t->seconds[way][AMP_PROFILE_FORWARD], "");
        cell(f, 8, 3, 1e3 * t->seconds[way][AMP_PROFILE_BACKWARD], "");
        cell(f, 8, 3, 1e3 * seconds[way], "");
        share_cell(f, seconds[way], amp_profile_both(total->seconds[way]));
    }
    gain_cell(f, seconds);
    work_cell(f, 8, 3, flop / 1e9);
    work_cell(f, 9, 1, amp_profile_over(flop, seconds[AMP_PROFILE_MIXED]) / 1e9);
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        work_cell(f, 6, 2, amp_profile_over(amp_profile_both(t->bytes[way]), seconds[way]) / 1e9);
    fputc('\n', f);
}

static void print_types(const struct amp_profile *p, const struct amp_profile_layer *total, FILE *f)
{
    print_head(f, "type");
    for (int type = 0; type <= AMP_BLANK; ++type) {
        struct amp_profile_layer sum = {0};
        char name[64];
        int count = 0;
        for (int i = 0; i < p->net->n; ++i) {
            if ((int)p->net->layers[i].type != type) continue;
            amp_profile_add(&sum, &p->layers[i]);
            ++count;
        }
        snprintf(name, sizeof name, "%s x %d", amp_layer_type_name((enum amp_layer_type)type),
                 count);
        if (count) print_row(name, &sum, total, f);
    }
    print_row("other", &p->other, total, f);
    print_row("forward and backward", total, total, f);
}

/* The layer that takes longest among those that are not marked. */
static int longest(const struct amp_profile *p, const bool *marked)
{
    int found = -1;
    double most = -1;
    for (int i = 0; i < p->net->n; ++i) {
        double seconds = amp_profile_both(p->layers[i].seconds[AMP_PROFILE_MIXED]);
        if (marked[i] || seconds <= most) continue;
        found = i;
        most = seconds;
    }
    return found;
}

static void print_top(const struct amp_profile *p, const struct amp_profile_layer *total, FILE *f)
{
    bool *marked = calloc((size_t)p->net->n, sizeof *marked);
    fputc('\n', f);
    print_head(f, "longest layers");
    for (int k = 0; marked && k < TOP && k < p->net->n; ++k) {
        char name[64];
        int i = longest(p, marked);
        marked[i] = true;
        name_layer(p, i, name, sizeof name);
        print_row(name, &p->layers[i], total, f);
    }
    free(marked);
}

/* ---- one pass ---- */

static void print_pass_head(FILE *f, const char *pass)
{
    fprintf(f, "%-*s %17s %17s %7s %8s %17s %17s %15s\n", NAME_WIDTH, pass, "-- FP32 --",
            "-- mixed --", "", "", "----- MB -----", "--- GFLOP/s ---", "---- GB/s ----");
    fprintf(f, "%-*s %9s %7s %9s %7s %7s %8s %8s %8s %8s %8s %7s %7s\n", NAME_WIDTH, "layer", "ms",
            "share", "ms", "share", "gain", "GFLOP", "FP32", "mixed", "FP32", "mixed", "FP32",
            "mixed");
}

static void print_pass_row(const char *name, const struct amp_profile_layer *t,
                           const struct amp_profile_layer *total, enum amp_profile_pass pass,
                           FILE *f)
{
    double seconds[] = {t->seconds[AMP_PROFILE_FP32][pass], t->seconds[AMP_PROFILE_MIXED][pass]};
    double bytes[] = {t->bytes[AMP_PROFILE_FP32][pass], t->bytes[AMP_PROFILE_MIXED][pass]};
    fprintf(f, "%-*s", NAME_WIDTH, name);
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way) {
        cell(f, 9, 3, 1e3 * seconds[way], "");
        share_cell(f, seconds[way], total->seconds[way][pass]);
    }
    gain_cell(f, seconds);
    work_cell(f, 8, 3, t->flop[pass] / 1e9);
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        work_cell(f, 8, 2, bytes[way] / 1e6);
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        work_cell(f, 8, 1, amp_profile_over(t->flop[pass], seconds[way]) / 1e9);
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        work_cell(f, 7, 2, amp_profile_over(bytes[way], seconds[way]) / 1e9);
    fputc('\n', f);
}

static void print_pass(const struct amp_profile *p, const struct amp_profile_layer *total,
                       enum amp_profile_pass pass, const char *pass_name, FILE *f)
{
    char name[64];
    print_pass_head(f, pass_name);
    for (int i = 0; i < p->net->n; ++i) {
        name_layer(p, i, name, sizeof name);
        print_pass_row(name, &p->layers[i], total, pass, f);
    }
    print_pass_row("other", &p->other, total, pass, f);
    print_pass_row("all", total, total, pass, f);
}

/* ---- the whole ---- */

static void print_title(const struct amp_profile *p, FILE *f)
{
    const struct amp_machine *m = &p->machine;
    fprintf(f, "\namp profile: %s, %d %s a pass, ", p->net->cfg_path, p->net->batch,
            amp_profile_unit(p->net));
    if (m->device[0])
        fprintf(f, "%s\n", m->device);
    else
        fprintf(f, "CPU, %d thread%s\n", m->threads, m->threads > 1 ? "s" : "");
    fprintf(f, "medians of %d rounds, random weights and images", p->rounds);
    for (int i = 0; i < m->n_versions; ++i)
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
                amp_profile_over(seconds[AMP_PROFILE_FP32], seconds[AMP_PROFILE_MIXED]));
}

/* Medians of parts need not add up to the median of the whole; by so much they differ only where
 * most layers were held up in some rounds. */
static bool was_disturbed(const struct amp_profile *p)
{
    struct amp_profile_layer total = amp_profile_total(p);
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        if (p->step[way] > 1.3 * (amp_profile_both(total.seconds[way]) + p->update[way]))
            return true;
    return false;
}

static void print_foot(const struct amp_profile *p, FILE *f)
{
    fputc('\n', f);
    print_times("update", p->update, f);
    print_times("; whole step", p->step, f);
    fputs(
        "\nGFLOP: convolutions and matrix products. MB, GB/s: what a layer reads and writes at "
        "least. other: beside the layers,\nas taking and checking the images, clearing gradients, "
        "judging the pass.\n",
        f);
    if (was_disturbed(p))
        fputs("The machine was busy with other things: the whole step took longer than its parts "
              "usually do. "
              "Run this again.\n",
              f);
    if (p->machine.device[0])
        fprintf(f,
                "Every layer was waited for; training does not wait, and its step takes less.\n");
}

void amp_profile_print(const struct amp_profile *p, bool all, FILE *f)
{
    struct amp_profile_layer total = amp_profile_total(p);
    print_title(p, f);
    if (all) {
        print_pass(p, &total, AMP_PROFILE_FORWARD, "forward", f);
        fputc('\n', f);
        print_pass(p, &total, AMP_PROFILE_BACKWARD, "backward", f);
    } else {
        print_types(p, &total, f);
        print_top(p, &total, f);
    }
    print_foot(p, f);
}
