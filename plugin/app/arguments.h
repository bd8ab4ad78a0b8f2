/* Reads the command lines of our own commands with glibc's argp: --help on stdout with status 0,
 * usage errors on stderr with status 1. It knows options and files, not what a command does with
 * them. */
#ifndef AMP_ARGUMENTS_H
#define AMP_ARGUMENTS_H

#include <stdbool.h>

enum amp_argument_kind {
    AMP_ARGUMENT_FLAG,   /* target: bool */
    AMP_ARGUMENT_NUMBER, /* target: double */
    AMP_ARGUMENT_COUNT,  /* target: int */
    AMP_ARGUMENT_TEXT,   /* target: const char * */
    AMP_ARGUMENT_NO_GPU, /* target: int, which becomes -1 */
};

struct amp_argument {
    const char *name;  /* "iou", which may be written --iou or -iou; one letter: -i */
    const char *value; /* name of the value in the help; NULL: the option has none */
    const char *help;
    enum amp_argument_kind kind;
    void *target;     /* keeps its value if the option is not given */
    double low, high; /* of a number or count */
    bool low_open, high_open;
};

struct amp_command_line {
    const char *files;    /* for the help: "DATA CFG [WEIGHTS]" */
    const char *help;     /* what the command does */
    const char **file[3]; /* where the files go, in order; NULL behind the last */
    int least_files;
    const struct amp_argument *options; /* the last row has no name */
};

/* argv[0] is the command's name, "darknet amp plan". Ends the program after --help, and after an
 * error: an unknown option is named with the nearest known one. */
void amp_arguments_read(const struct amp_command_line *, int argc, char **argv);

/* Rows for a command that runs a network; gpu: an int. */
#define AMP_GPU_ARGUMENTS(gpu)                                                                     \
    {.name = "i",                                                                                  \
     .value = "N",                                                                                 \
     .help = "Use GPU number N, in a build for GPUs (default: 0)",                                 \
     .kind = AMP_ARGUMENT_COUNT,                                                                   \
     .target = (gpu),                                                                              \
     .high = 1023},                                                                                \
    {                                                                                              \
        .name = "nogpu", .help = "Use the CPU", .kind = AMP_ARGUMENT_NO_GPU, .target = (gpu)       \
    }

#endif
