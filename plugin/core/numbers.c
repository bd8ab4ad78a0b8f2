#include "numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double magnitude(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return ampk_amax_is_finite(bits) ? (double)value : NAN;
}

void amp_numbers_read(struct amp_graph *g, bool backward, struct amp_layer_numbers *layers)
{
    size_t n = (size_t)g->n;
    uint32_t *words = calloc(n, AMP_INSPECTED * sizeof *words), *rows[AMP_INSPECTED];
    for (int r = 0; words && r < AMP_INSPECTED; r++)
        rows[r] = words + (size_t)r * n;
    if (words) amp_graph_inspected(g, rows);
    for (int i = 0; i < g->n; i++) {
        bool has_delta = words && backward && amp_graph_has_delta(g, i);
        bool has_out = words && amp_plan_writes(g->plan, i) == i;
        double elements = (double)g->net->batch * g->net->layers[i].outputs;
        layers[i] = (struct amp_layer_numbers){
            .type = amp_layer_type_name(g->net->layers[i].type),
            .format = ampk_dtype_name(amp_format_dtype(g->plan->layers[i].out)),
            .out_max = has_out ? magnitude(rows[AMP_INSPECTED_OUT_MAX][i]) : NAN,
            .delta_max = has_delta ? magnitude(rows[AMP_INSPECTED_DELTA_MAX][i]) : NAN,
            .delta_zero = has_delta ? rows[AMP_INSPECTED_DELTA_ZEROS][i] / elements : NAN,
        };
    }
    free(words);
}
