/* `darknet detector train`: looks at everything that the training needs, then hands over to
 * Darknet's own command. It must not know which words of the command line are mistakes
 * (train_words.c), what an input must be (plugin/input) or what happens beside the training
 * (watch.c). */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "commands.h"
#include "darknet.h"
#include "measuring.h"
#include "processes.h"
#include "evaluation.h"
#include "train.h"
#include "watch.h"

#include "plugin/input/check_train.h"
#include "plugin/spread/launcher.h"

int darknet_main(int argc, char **argv);

#ifdef GPU
static const bool on_gpu = true;
#else
static const bool on_gpu = false;
#endif

static const char help[] =
    "Usage: darknet detector train DATA CFG [WEIGHTS] [OPTION...]\n"
    "Trains a detector on the images that the data file's train= lists. Looks at all inputs "
    "first:\n"
    "with a fault in one of them nothing is trained. The line mixed_precision=1 under [net] of "
    "the\n"
    "cfg turns mixed precision on.\n"
    "\n"
    "  -clear                Begin at iteration 0 with these weights\n"
    "  -map                  Measure mAP on the images of valid= after every epoch (at least 100\n"
    "                        iterations), and keep the best weights as NAME_best.weights\n"
    "  -map_every N          Measure it every N iterations instead\n"
    "  -mAP_epochs N         Measure it every N epochs (at least 100 iterations) instead\n"
    "  -patience N           End after N measurements without a better mAP, as a finished run "
    "does\n"
    "  -iou_thresh X         With a cfg of AlexeyAB's rules: IoU of -map's first number (default: "
    "0.5)\n"
    "  -points N             The same: 0 (area under the curve, the default), 11 or 101 recalls\n"
    "  -chart FILE.svg       Draw loss, mAP and loss scale\n"
    "  -quiet                Leave out Darknet's lines: a progress line about every ten seconds "
    "stays\n"
    "  -gpus 0,1             GPUs to train on: with mixed_precision=1 a process for each, which\n"
    "                        mpirun starts\n"
    "  -i N                  Use GPU number N (default: 0)\n"
    "  -nogpu                Use the CPU\n"
    "      --help            Give this help list\n"
    "Darknet's other options are accepted too: those of its `detector test` and `demo`. Of\n"
    "AlexeyAB's, those without a meaning here are left out and named (-dont_show, ...).\n";

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-help")) return true;
    return false;
}

static char **copy_words(int argc, char **argv)
{
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    if (copy) memcpy(copy, argv, (size_t)argc * sizeof *copy);
    return copy;
}

/* Gives this process of several its GPU by -i, in place of -gpus. Without -gpus, a user's own -i or
 * -nogpu stays. */
static int take_gpu(int *argc, char ***argv, const char *gpus, int local)
{
    static char number[20];
    char err[200], who[120];
    char **words = calloc((size_t)*argc + 3, sizeof *words);
    if (!words) return -1;
    memcpy(words, *argv, (size_t)*argc * sizeof *words);
    if (gpus) {
        find_char_arg(*argc, words, "-gpus", NULL);
        *argc -= 2;
    }
    int gpu = amp_gpu_of_process(gpus, local, err, sizeof err);
    if (gpu < 0) {
        amp_launch_who(who, sizeof who);
        fprintf(stderr, "error: %s%s\n", who, err);
        return -1;
    }
    bool chosen = false;
    for (int i = 1; i < *argc; i++)
        chosen = chosen || !strcmp(words[i], "-i") || !strcmp(words[i], "-nogpu");
    if (on_gpu && !chosen) {
        snprintf(number, sizeof number, "%d", gpu);
        words[(*argc)++] = "-i";
        words[(*argc)++] = number;
    }
    *argv = words;
    return 0;
}

int amp_command_detector_train(int argc, char **argv)
{
    static char err[1 << 16];
    if (asks_for_help(argc, argv)) {
        fputs(help, stdout);
        return fflush(stdout) ? 1 : 0;
    }
    struct amp_train_words words;
    int given = argc;
    char **all = copy_words(argc, argv); /* ours are taken out */
    if (!all || amp_train_words_read(&argc, argv, &words)) {
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    if (!words.cfg) {
        fputs(help, stderr);
        return 1;
    }
    struct amp_launch launch = amp_launch_read(getenv);
    if (words.gpus && words.mixed && launch.size == 1) {
        amp_start_processes(given, all, words.gpus);
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    /* With the key several GPUs are several processes, which a build for CPUs has, too. */
    const char *idle = words.gpus && !words.mixed ? words.gpus : words.one_gpu;
    if (!on_gpu && idle && !launch.rank)
        fprintf(stderr, "darknet-amp: -gpus %s: this build has no CUDA; it trains on the CPU\n",
                idle);
    if (words.mixed && launch.size > 1 && take_gpu(&argc, &argv, words.gpus, launch.local))
        return 1;
    /* Of several processes, rank 0 looks at the inputs and draws; the others wait for it when they
     * make their network. */
    const struct amp_trainer_inputs in = {.data = words.data,
                                          .cfg = words.cfg,
                                          .weights = words.weights,
                                          .clear = words.clear,
                                          .on_gpu = on_gpu};
    if (!launch.rank && amp_check_train_inputs(&in, stderr, stderr, err, sizeof err)) {
        amp_print_faults(err, stderr);
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    if (words.mixed && !launch.rank)
        amp_machine_report_limit(words.cfg, on_gpu ? 0 : -1, launch.size);
    if (amp_watch_training(&words, &amp_measure_map, argc, argv)) {
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    amp_refuse_bad_images(1);
    if (words.mixed) amp_cut_line_ends();
    if (words.quiet) amp_watch_quietly();
    return darknet_main(argc, argv);
}
