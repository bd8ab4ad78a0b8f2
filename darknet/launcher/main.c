// The `darknet` program: runs our own sub-commands, and hands everything else to Darknet's main.

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/decide/plan_command.h"
#include "plugin/eval/detector_map.h"

int darknet_main(int argc, char **argv);

// A sub-command `darknet WORD1 WORD2 ...`; run() gets the whole command line and returns the exit
// status.
struct command {
    const char *words[2];
    int (*run)(int argc, char **argv);
};

static const struct command commands[] = {
    {{"amp", "plan"}, amp_command_plan},
    {{"detector", "map"}, amp_command_detector_map},
    {{NULL, NULL}, NULL},
};

static const struct command *find_command(int argc, char **argv)
{
    if (argc < 3) return NULL;
    for (const struct command *c = commands; c->run; ++c) {
        if (strcmp(argv[1], c->words[0]) == 0 && strcmp(argv[2], c->words[1]) == 0) return c;
    }
    return NULL;
}

// Darknet's training returns while its loader threads still decode the next batch. An ordinary exit
// would run the destructors of OpenCV under them, which crashes now and then; quick_exit runs only
// what was registered with at_quick_exit.
int main(int argc, char **argv)
{
    const struct command *c = find_command(argc, argv);
    int status = c ? c->run(argc, argv) : darknet_main(argc, argv);
    fflush(NULL);
    quick_exit(status);
}
