/* What amp_log costs: training steps of one network without a log, with one, and with one that
 * tells of every layer, in turns (A B C A B C ...) on one preloaded batch.
 *
 *   bench_log CFG [ROUNDS]        CFG with mixed_precision=1; its amp_log is written
 *
 * Prints a JSON line with the median seconds of each, of the processor (which other programs do not
 * disturb as they do the clock; threads must wait without spinning, OMP_WAIT_POLICY=passive), and
 * the cost of the defaults.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "darknet.h"
#include "plugin/attach/session.h"

enum { WITHOUT, LOGGED, LAYERS, KINDS, MOST_ROUNDS = 10000, WARM_UP = 3 };

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fill_batch(network *net)
{
    srand(7);
    for (int i = 0; i < net->inputs * net->batch; i++)
        net->input[i] = (float)(rand() % 256) / 255;
    for (int b = 0; b < net->batch; b++) {
        float *t = net->truth + b * net->truths;
        t[0] = t[1] = .5f;
        t[2] = t[3] = .3f;
    }
}

static double time_step(network *net, struct amp_session *s, FILE *log, int kind)
{
    s->log.json = kind == WITHOUT ? NULL : log;
    s->log.layers_every = kind == LAYERS;
    s->options.log_path[0] = 0; /* not opened again */
    double start = processor_seconds();
    train_network_datum(net);
    return processor_seconds() - start;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static double seconds[KINDS][MOST_ROUNDS];
    int rounds = argc > 2 ? atoi(argv[2]) : 20;
    if (argc < 2 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: bench_log CFG [ROUNDS]\n");
        return 1;
    }
    gpu_index = -1;
    srand(1);
    network *net = parse_network_cfg(argv[1]);
    struct amp_session *s = amp_session_of(net->layers);
    FILE *log = s ? fopen(s->options.log_path, "w") : NULL;
    if (!log) {
        fprintf(stderr, "bench_log: %s: needs mixed_precision=1 and an amp_log\n", argv[1]);
        return 1;
    }
    net->subdivisions = s->step.subdivisions = 1;
    net->train = 1;
    fill_batch(net);
    for (int i = 0; i < WARM_UP; i++)
        time_step(net, s, log, i % KINDS);
    for (int i = 0; i < rounds; i++)
        for (int kind = 0; kind < KINDS; kind++)
            seconds[kind][i] = time_step(net, s, log, kind);
    for (int kind = 0; kind < KINDS; kind++)
        qsort(seconds[kind], (size_t)rounds, sizeof(double), by_value);
    double without = seconds[WITHOUT][rounds / 2], logged = seconds[LOGGED][rounds / 2],
           layers = seconds[LAYERS][rounds / 2];
    printf("\n{\"cfg\": \"%s\", \"rounds\": %d, \"without\": %.6f, \"logged\": %.6f, "
           "\"layers\": %.6f, \"cost_percent\": %.3f}\n",
           argv[1], rounds, without, logged, layers,
           100 * ((.99 * logged + .01 * layers) / without - 1));
    s->log.json = NULL;
    return fclose(log) != 0;
}
