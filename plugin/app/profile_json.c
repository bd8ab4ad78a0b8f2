/* The profile as JSON. */
#include "profile.h"

#include <math.h>

#include "plugin/core/json.h"

static const char *const pass_names[AMP_PROFILE_PASSES] = {"forward", "backward"};
static const char *const way_names[AMP_PROFILE_WAYS] = {"fp32", "mixed"};

/* ---- the parts ---- */

static void print_machine(const struct amp_machine *m, FILE *f)
{
    fprintf(f, "\"backend\": \"%s\", \"device\": ", m->backend);
    if (m->device[0])
        amp_json_string(f, m->device);
    else
        fputs("null", f);
    fprintf(f, ", \"threads\": %d, \"versions\": {", m->threads);
    for (int i = 0; i < m->n_versions; ++i)
        fprintf(f, "%s\"%s\": \"%s\"", i ? ", " : "", m->versions[i].name, m->versions[i].number);
    fputs("}", f);
}

/* {"fp32": x, "mixed": y} */
static void print_pair(const char *key, const double of_ways[AMP_PROFILE_WAYS], FILE *f)
{
    fprintf(f, "\"%s\": {\"fp32\": ", key);
    amp_json_number(f, of_ways[AMP_PROFILE_FP32], 9);
    fputs(", \"mixed\": ", f);
    amp_json_number(f, of_ways[AMP_PROFILE_MIXED], 9);
    fputs("}", f);
}

static void print_pass(const struct amp_profile_layer *t, const struct amp_profile_layer *total,
                       int way, int pass, FILE *f)
{
    double seconds = t->seconds[way][pass];
    fprintf(f, "\"%s\": {\"seconds\": ", pass_names[pass]);
    amp_json_number(f, seconds, 9);
    fputs(", \"share\": ", f);
    amp_json_number(f, amp_profile_over(seconds, total->seconds[way][pass]), 9);
    fprintf(f, ", \"bytes\": %.0f, \"flop_per_second\": ", t->bytes[way][pass]);
    amp_json_number(f, amp_profile_over(t->flop[pass], seconds), 9);
    fputs(", \"bytes_per_second\": ", f);
    amp_json_number(f, amp_profile_over(t->bytes[way][pass], seconds), 9);
    fputs("}", f);
}

/* format: NULL where it is no layer's. */
static void print_way(const struct amp_profile_layer *t, const struct amp_profile_layer *total,
                      int way, const char *format, FILE *f)
{
    fprintf(f, ",\n   \"%s\": ", way_names[way]);
    if (isnan(total->seconds[way][AMP_PROFILE_FORWARD])) {
        fputs("null", f);
        return;
    }
    fputs("{", f);
    if (format) fprintf(f, "\"format\": \"%s\", ", format);
    print_pass(t, total, way, AMP_PROFILE_FORWARD, f);
    fputs(", ", f);
    print_pass(t, total, way, AMP_PROFILE_BACKWARD, f);
    fputs(", \"share\": ", f);
    amp_json_number(
        f,
        amp_profile_over(amp_profile_both(t->seconds[way]), amp_profile_both(total->seconds[way])),
        9);
    fputs("}", f);
}

/* plan: NULL where it is no layer's. */
static void print_layer(const struct amp_profile_layer *t, const struct amp_profile_layer *total,
                        const struct amp_plan_layer *plan, FILE *f)
{
    fprintf(f, "\"forward_flop\": %.0f, \"backward_flop\": %.0f, \"gain\": ",
            t->flop[AMP_PROFILE_FORWARD], t->flop[AMP_PROFILE_BACKWARD]);
    amp_json_number(f,
                    amp_profile_over(amp_profile_both(t->seconds[AMP_PROFILE_FP32]),
                                     amp_profile_both(t->seconds[AMP_PROFILE_MIXED])),
                    9);
    print_way(t, total, AMP_PROFILE_FP32, plan ? "FP32 NCHW" : NULL, f);
    print_way(t, total, AMP_PROFILE_MIXED, plan ? amp_format_name(plan->out) : NULL, f);
    fputs("}", f);
}

static void print_layers(const struct amp_profile *p, const struct amp_profile_layer *total,
                         FILE *f)
{
    for (int i = 0; i < p->net->n; ++i) {
        const struct amp_layer_desc *l = &p->net->layers[i];
        fprintf(f, "%s\n  {\"layer\": %d, \"type\": \"%s\", \"outputs\": %d, ", i ? "," : "", i,
                amp_layer_type_name(l->type), l->outputs);
        print_layer(&p->layers[i], total, &p->plan->layers[i], f);
    }
}

void amp_profile_print_json(const struct amp_profile *p, FILE *f)
{
    struct amp_profile_layer total = amp_profile_total(p);
    fputs("{\"cfg\": ", f);
    amp_json_string(f, p->net->cfg_path);
    fputs(", ", f);
    print_machine(&p->machine, f);
    fprintf(f, ",\n \"batch\": %d, \"rounds\": %d, \"no_fp32\": ", p->net->batch, p->rounds);
    if (p->no_fp32)
        amp_json_string(f, p->no_fp32);
    else
        fputs("null", f);
    fputs(",\n ", f);
    print_pair("update_seconds", p->update, f);
    fputs(", ", f);
    print_pair("step_seconds", p->step, f);
    fputs(",\n \"layers\": [", f);
    print_layers(p, &total, f);
    fputs("],\n \"other\": {", f);
    print_layer(&p->other, &total, NULL, f);
    fputs(",\n \"total\": {", f);
    print_layer(&total, &total, NULL, f);
    fputs("}\n", f);
}
