// The `darknet` program: runs our own sub-commands, and hands everything else to Darknet's main.

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "darknet.h"
#include "detector_train.h"
#include "check_command.h"
#include "profile_command.h"
#include "plugin/core/plan.h"
#include "detector_map.h"

int darknet_main(int argc, char **argv);

// A sub-command `darknet WORD1 WORD2 ...`; run() gets the whole command line and returns the exit
// status.
struct command {
    const char *words[2];
    int (*run)(int argc, char **argv);
};

// `darknet amp` with no sub-command of ours.
static int amp_command_usage(int argc, char **argv)
{
    (void)argc;
    fprintf(stderr,
            "usage: %s amp plan CFG [--json]\n"
            "           what runs in which precision, and why\n"
            "       %s amp check DATA CFG [WEIGHTS] [--json]\n"
            "           batches of your own images in mixed precision and in FP32, compared\n"
            "       %s amp profile CFG [--all] [--json]\n"
            "           seconds, FLOPs, bytes and share of every layer in FP32 and in mixed "
            "precision\n",
            argv[0], argv[0], argv[0]);
    return 1;
}

static const struct command commands[] = {
    {{"amp", "check"}, amp_command_check},
    {{"amp", "plan"}, amp_command_plan},
    {{"amp", "profile"}, amp_command_profile},
    {{"amp", ""}, amp_command_usage},
    {{"detector", "map"}, amp_command_detector_map},
    {{"detector", "train"}, amp_command_detector_train},
    {{NULL, NULL}, NULL},
};

// The words are the first two after Darknet's general options, -i N and -nogpu, which may stand
// anywhere.
static const struct command *find_command(int argc, char **argv)
{
    char **words = calloc((size_t)argc + 3, sizeof *words);
    if (!words) return NULL;
    memcpy(words, argv, (size_t)argc * sizeof *words);
    find_char_arg(argc, words, "-i", 0);
    find_arg(argc, words, "-nogpu");
    const struct command *found = NULL;
    for (const struct command *c = commands; c->run && words[1] && !found; ++c) {
        bool any = !c->words[1][0];
        if (strcmp(words[1], c->words[0])) continue;
        if (any || (words[2] && strcmp(words[2], c->words[1]) == 0)) found = c;
    }
    free(words);
    return found;
}

// Darknet's training returns while its loader threads still decode the next batch, into a variable
// of the function that has returned. An ordinary exit would run the destructors of OpenCV under
// them, and its own frames would be overwritten; both crash now and then. quick_exit runs only what
// was registered with at_quick_exit, and here below the frames that Darknet has left.
static _Noreturn void leave(int status)
{
    __attribute__((unused)) volatile char frames_of_darknet[1 << 16];
    frames_of_darknet[0] = 0;
    fflush(NULL);
    quick_exit(status);
}

int main(int argc, char **argv)
{
    const struct command *c = find_command(argc, argv);
    leave(c ? c->run(argc, argv) : darknet_main(argc, argv));
}
