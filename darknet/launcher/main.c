// The `darknet` program: runs our own sub-commands, and hands everything else to Darknet's main.

#include <stddef.h>
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

int main(int argc, char **argv)
{
    const struct command *c = find_command(argc, argv);
    return c ? c->run(argc, argv) : darknet_main(argc, argv);
}
