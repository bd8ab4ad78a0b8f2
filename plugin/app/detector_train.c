#include "detector_train.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "darknet.h"
#include "plugin/input/check_train_inputs.h"
#include "train_watch.h"

int darknet_main(int argc, char **argv);

#ifdef GPU
static const bool on_gpu = true;
#else
static const bool on_gpu = false;
#endif
// Our own options, taken out of argv as Darknet takes out its own: what is behind them moves up.
struct own {
    int map;
    char *map_every, *chart;
};

static struct own take_own(int argc, char **argv)
{
    struct own own = {.map_every = find_char_arg(argc, argv, "-map_every", NULL),
                      .chart = find_char_arg(argc, argv, "-chart", NULL)};
    own.map = find_arg(argc, argv, "-map");
    return own;
}

// -1 after saying what is wrong. What Darknet's functions leave has no value.
static int check_own(const struct own *own, int argc, char **argv, int *map_every)
{
    char *end = "";
    long every = own->map_every ? strtol(own->map_every, &end, 10) : 0;
    for (int i = 3; i < argc && argv[i]; ++i)
        if (!strcmp(argv[i], "-map_every") || !strcmp(argv[i], "-chart")) {
            fprintf(stderr, "error: no value after %s\n", argv[i]);
            return -1;
        }
    if (own->chart && own->chart[0] == '-') { // the next option; "./-x.svg" is a file
        fprintf(stderr, "error: -chart %s: no file name after -chart\n", own->chart);
        return -1;
    }
    *map_every = (int)every;
    if (own->map_every && (*end || every < 1 || every > 1000000000)) {
        fprintf(stderr, "error: -map_every %s: allowed: iterations, 1 to 1000000000\n",
                own->map_every);
        return -1;
    }
    if (!own->map_every || own->map) return 0;
    fputs("error: -map_every has no effect without -map\n", stderr);
    return -1;
}

// Evaluating in between is for one network.
static int check_gpus(int argc, char **argv, const struct own *own)
{
    char **words = calloc((size_t)argc + 3, sizeof *words);
    if (!words) return -1;
    memcpy(words, argv, (size_t)argc * sizeof *words);
    const char *gpus = find_char_arg(argc, words, "-gpus", 0);
    free(words);
    if (!gpus || !strchr(gpus, ',') || (!own->map && !own->chart)) return 0;
    fputs("error: -map and -chart are for one GPU; leave out either them or -gpus\n", stderr);
    return -1;
}

// Takes out of argv what Darknet's main and run_detector take out of theirs, in their order.
// Returns whether -clear was there.
static int take_options(int argc, char **argv)
{
    static char *const with_value[] = {"-prefix", "-thresh", "-hier", "-c", "-s",  "-avg",
                                       "-gpus",   "-out",    "-w",    "-h", "-fps"};
    find_char_arg(argc, argv, "-i", 0);
    find_arg(argc, argv, "-nogpu");
    for (size_t i = 0; i < sizeof with_value / sizeof *with_value; ++i)
        find_char_arg(argc, argv, with_value[i], 0);
    find_arg(argc, argv, "-fullscreen");
    return find_arg(argc, argv, "-clear");
}

// As Darknet's main will do it; networks of ours are built before.
static void choose_gpu(int argc, char **argv)
{
    char **words = calloc((size_t)argc + 3, sizeof *words);
    if (!words) return;
    memcpy(words, argv, (size_t)argc * sizeof *words);
    gpu_index = find_int_arg(argc, words, "-i", 0);
    if (find_arg(argc, words, "-nogpu")) gpu_index = -1;
#ifdef GPU
    const char *gpus = find_char_arg(argc, words, "-gpus", NULL);
    if (gpus) gpu_index = atoi(gpus);
    if (gpu_index >= 0) cuda_set_device(gpu_index);
#else
    gpu_index = -1;
#endif
    free(words);
}

int amp_command_detector_train(int argc, char **argv)
{
    static char err[1 << 16];
    struct own own = take_own(argc, argv);
    int map_every;
    if (check_own(&own, argc, argv, &map_every) || check_gpus(argc, argv, &own)) return 1;
    char **words = calloc((size_t)argc + 6, sizeof *words);
    if (!words) return 1;
    memcpy(words, argv, (size_t)argc * sizeof *words);
    int clear = take_options(argc, words);
    char *data = words[3], *cfg = data ? words[4] : NULL, *weights = cfg ? words[5] : NULL;
    free(words);
    if (!cfg) {
        fprintf(stderr,
                "usage: %s detector train DATA CFG [WEIGHTS] [-clear] [-gpus 0,1]\n"
                "       [-map [-map_every ITERATIONS]] [-chart FILE.svg]\n",
                argv[0]);
        return 1;
    }
    if (amp_check_train_inputs(data, cfg, weights, clear, on_gpu, stderr, stderr, err,
                               sizeof err)) {
        amp_print_faults(err, stderr);
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    struct amp_train_watch watch = {.data = data,
                                    .cfg = cfg,
                                    .weights = weights,
                                    .clear = clear,
                                    .map = own.map,
                                    .map_every = map_every,
                                    .chart = own.chart};
    if (own.map) choose_gpu(argc, argv);
    amp_refuse_bad_images(0); // each is named
    if (amp_train_watch_start(&watch)) {
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    amp_refuse_bad_images(1);
    return darknet_main(argc, argv);
}
