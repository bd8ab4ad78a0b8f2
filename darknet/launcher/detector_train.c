#include "detector_train.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "darknet.h"
#include "plugin/data/check_train_inputs.h"

int darknet_main(int argc, char **argv);

#ifdef GPU
static const bool on_gpu = true;
#else
static const bool on_gpu = false;
#endif

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

// One "error: " for each fault; indented lines belong to the one before.
static void print_faults(char *err)
{
    for (char *line = strtok(err, "\n"); line; line = strtok(NULL, "\n"))
        fprintf(stderr, "%s%s\n", *line == ' ' ? "" : "error: ", line);
    fputs("nothing was trained\n", stderr);
}

int amp_command_detector_train(int argc, char **argv)
{
    static char err[1 << 16];
    char **words = calloc((size_t)argc + 6, sizeof *words);
    if (!words) return 1;
    memcpy(words, argv, (size_t)argc * sizeof *words);
    int clear = take_options(argc, words);
    char *data = words[3], *cfg = data ? words[4] : NULL, *weights = cfg ? words[5] : NULL;
    free(words);
    if (!cfg) {
        fprintf(stderr, "usage: %s detector train DATA CFG [WEIGHTS] [-clear] [-gpus 0,1]\n",
                argv[0]);
        return 1;
    }
    if (amp_check_train_inputs(data, cfg, weights, clear, on_gpu, stderr, stderr, err,
                               sizeof err)) {
        print_faults(err);
        return 1;
    }
    amp_refuse_bad_images(1);
    return darknet_main(argc, argv);
}
