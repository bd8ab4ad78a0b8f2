#include "bootstrap.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/progress.h"
#include "plugin/core/stream.h"

void amp_bootstrap_draw(int b, int n_images, int *draws)
{
    struct amp_stream stream;
    amp_stream_open(&stream, 0, AMP_STREAM_DRAW, (uint64_t)b, 0);
    memset(draws, 0, (size_t)n_images * sizeof *draws);
    for (int i = 0; i < n_images; ++i)
        ++draws[((uint64_t)amp_stream_bits(&stream) * (uint64_t)n_images) >> 32];
}

static void draw_all(struct amp_ap_outcomes *outcomes, int n_images, int *draws,
                     struct amp_bootstrap *bootstrap, FILE *log)
{
    struct amp_progress progress;
    amp_progress_start(&progress, log, "drawing", (size_t)bootstrap->count);
    progress.unit = "drawings";
    for (int b = 0; b < bootstrap->count; ++b) {
        amp_bootstrap_draw(b, n_images, draws);
        bootstrap->means[b] = amp_ap_outcomes_means(outcomes, draws);
        amp_progress_update(&progress, (size_t)b + 1);
    }
}

int amp_bootstrap_run(const struct amp_ap_set *set, int n_images, int count,
                      struct amp_bootstrap *bootstrap, FILE *log, char *err, size_t err_size)
{
    *bootstrap = (struct amp_bootstrap){0};
    if (count == 0) return 0;
    int *draws = malloc(((size_t)n_images + 1) * sizeof *draws);
    bootstrap->means = malloc((size_t)count * sizeof *bootstrap->means);
    struct amp_ap_outcomes *outcomes = amp_ap_outcomes_new(set, err, err_size);
    if (outcomes && (!draws || !bootstrap->means))
        snprintf(err, err_size, "no memory for %d drawings", count);
    bool ready = outcomes && draws && bootstrap->means;
    if (ready) {
        bootstrap->count = count;
        draw_all(outcomes, n_images, draws, bootstrap, log);
    } else {
        amp_bootstrap_free(bootstrap);
    }
    amp_ap_outcomes_free(outcomes);
    free(draws);
    return ready ? 0 : -1;
}

void amp_bootstrap_free(struct amp_bootstrap *bootstrap)
{
    free(bootstrap->means);
    *bootstrap = (struct amp_bootstrap){0};
}
