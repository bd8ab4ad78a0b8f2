/* `darknet amp bench-inference`: how long inference takes by batch and precision. It decides the
 * order of the passes, and which of their times count; it must not know what is inferred. */

#define _GNU_SOURCE
#include <limits.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "darknet.h"
#include "measuring.h"
#include "plugin/core/host.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/core/read/json.h"

enum { PRECISIONS = 3, LEAST_ROUNDS = 5, MOST_ROUNDS = 200, MOST_BATCH = 64, BATCHES = 7 };
static const char *const precisions[PRECISIONS] = {"fp32", "fp16", "bf16"};
static const double enough_seconds = 3; /* of passes of one batch, all precisions */

struct bench {
    const char *cfg, *weights;
    int batch; /* 0: 1, 2, 4 ... 64 */
    int gpu;
    bool json;
    struct amp_measured subject;
};

/* One network of one batch. */
struct runner {
    network *net;
    float *images;
    double seconds[MOST_ROUNDS];
    long bytes; /* that the network took, with its first pass */
};

static void read_arguments(int argc, char **argv, struct bench *b)
{
    const struct amp_argument options[] = {
        {.name = "batch",
         .value = "N",
         .help = "Only this batch, 1 to 64 (default: 1, 2, 4 ... 64)",
         .kind = AMP_ARGUMENT_COUNT,
         .target = &b->batch,
         .low = 1,
         .high = MOST_BATCH},
        {.name = "json", .help = "Print one JSON object", .target = &b->json},
        AMP_GPU_ARGUMENTS(&b->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "CFG [WEIGHTS]",
        .help = "Times inference on random images in FP32, FP16 and BF16, in turns: seconds of a "
                "batch, images a second, and the memory that each network takes.",
        .file = {&b->cfg, &b->weights},
        .least_files = 1,
        .options = options};
    amp_arguments_read(&line, argc, argv);
}

static long resident_bytes(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

static int check_weights(const struct bench *b)
{
    char err[2 * PATH_MAX];
    struct amp_weights_info info;
    if (!b->weights) return 0;
    if (amp_weights_check(b->weights, b->subject.net, &info, err, sizeof err))
        return amp_complain(err);
    return 0;
}

/* The program has promised to tell of writes to weights, so they are packed once. */
static int build(const struct bench *b, int batch, const char *precision, struct runner *r)
{
    char number[12];
    snprintf(number, sizeof number, "%d", batch);
    const struct amp_cfg_key keys[] = {{"batch", number, 0},       {"subdivisions", "1", 0},
                                       {"seed", NULL, 0},          {"amp_log", NULL, 0},
                                       {"amp_level", NULL, 0},     {"mixed_precision", "1", 0},
                                       {"amp_dtype", precision, 0}};
    long before = resident_bytes();
    r->net = amp_variant_load("amp bench-inference: a network", b->subject.cfg, keys,
                              sizeof keys / sizeof *keys, b->weights);
    size_t n = (size_t)b->subject.net->inputs * (size_t)batch;
    r->images = calloc(n, sizeof(float));
    if (!r->net || !r->images) return -1;
    for (size_t i = 0; i < n; i++)
        r->images[i] = (float)rand() / (float)RAND_MAX;
    set_batch_network(r->net, batch);
    network_predict(r->net, r->images);
    r->bytes = resident_bytes() - before;
    return 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A B C A B C: what else the machine does meets all alike. Returns the rounds. */
static int time_in_turns(struct runner *runners)
{
    int n = 0;
    double begin = amp_clock_seconds();
    while (n < MOST_ROUNDS && (n < LEAST_ROUNDS || amp_clock_seconds() - begin < enough_seconds)) {
        for (int k = 0; k < PRECISIONS; k++) {
            double start = amp_clock_seconds();
            network_predict(runners[k].net, runners[k].images);
            runners[k].seconds[n] = amp_clock_seconds() - start;
        }
        n++;
    }
    for (int k = 0; k < PRECISIONS; k++)
        qsort(runners[k].seconds, (size_t)n, sizeof(double), ascending);
    return n;
}

static void print(const struct bench *b, struct amp_json *j, int batch,
                  const struct runner *runners, int rounds)
{
    for (int k = 0; k < PRECISIONS; k++) {
        double median = runners[k].seconds[rounds / 2], least = runners[k].seconds[0];
        if (!b->json) {
            printf("%5d  %s  %9.2f ms  %9.1f images/s  %7.1f MiB\n", batch, precisions[k],
                   1000 * median, batch / median, (double)runners[k].bytes / (1 << 20));
            continue;
        }
        amp_json_begin(j, NULL, '{');
        amp_json_put(j, "batch", "%d", batch);
        amp_json_string(j, "precision", precisions[k]);
        amp_json_number(j, "median_seconds", median);
        amp_json_number(j, "fastest_seconds", least);
        amp_json_number(j, "images_per_second", batch / median);
        amp_json_put(j, "bytes", "%ld", runners[k].bytes);
        amp_json_put(j, "rounds", "%d", rounds);
        amp_json_end(j, '}');
    }
}

static int bench_batch(const struct bench *b, struct amp_json *j, int batch)
{
    struct runner *runners = calloc(PRECISIONS, sizeof *runners);
    int failed = !runners, rounds = 0, kept = amp_quiet_begin();
    for (int k = 0; k < PRECISIONS && !failed; k++)
        failed = build(b, batch, precisions[k], &runners[k]);
    if (!failed) rounds = time_in_turns(runners);
    amp_quiet_end(kept);
    if (!failed) print(b, j, batch, runners, rounds);
    for (int k = 0; k < PRECISIONS && runners; k++) {
        if (runners[k].net) free_network(runners[k].net);
        free(runners[k].images);
    }
    free(runners);
    return failed ? -1 : 0;
}

int amp_command_bench_inference(int argc, char **argv)
{
    struct bench b = {0};
    struct amp_json j = {.out = stdout, .digits = AMP_JSON_FLOAT};
    read_arguments(argc, argv, &b);
    amp_machine_choose(b.gpu);
    int failed = amp_measured_read(&b.subject, b.cfg, b.gpu) || check_weights(&b);
    if (!failed && b.json) {
        amp_json_begin(&j, NULL, '{');
        amp_json_put(&j, "threads", "%d", omp_get_max_threads());
        amp_json_begin(&j, "results", '[');
    }
    for (int k = 0; k < (b.batch ? 1 : BATCHES) && !failed; k++)
        failed = bench_batch(&b, &j, b.batch ? b.batch : 1 << k);
    if (!failed && b.json) {
        amp_json_end(&j, ']');
        amp_json_end(&j, '}');
        putchar('\n');
    }
    failed = failed || amp_result_flush();
    amp_measured_free(&b.subject);
    return failed ? 1 : 0;
}
