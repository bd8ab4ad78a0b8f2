/* Our commands. Each returns the exit status: 0, or 1 after saying on stderr why not. */
#ifndef AMP_COMMANDS_H
#define AMP_COMMANDS_H

#include <stdbool.h>

/* argv[0] is the command's name, "darknet amp plan", and what follows it are its arguments. */

/* Prints what runs in which precision, without training, weights or activations. */
int amp_command_plan(int argc, char **argv);
/* Looks at a data set. Writes no files but those that it is asked for. */
int amp_command_data(int argc, char **argv);
/* Checks whether a training is fit for mixed precision. Writes no file. Status 2: there is
 * advice. */
int amp_command_check(int argc, char **argv);
/* Times every layer on this machine, and loading beside it. Writes no file. */
int amp_command_profile(int argc, char **argv);
/* Suggests a learning rate. Writes no file but the picture that it is asked for. */
int amp_command_lr_find(int argc, char **argv);
/* Writes a trained network as ONNX: starts a script, and returns only where that fails. */
int amp_command_export(int argc, char **argv);
/* Runs a network on given numbers. Writes the file that it is asked for. */
int amp_command_predict(int argc, char **argv);
/* Prints the keys that a cfg may have. */
int amp_command_keys(int argc, char **argv);
/* Times inference. Writes no file. */
int amp_command_bench_inference(int argc, char **argv);
/* Measures what a detector finds. Writes no files but those that it is asked for. */
int amp_command_detector_map(int argc, char **argv);

/* argv as main's. Checks everything that the training needs, then hands over to Darknet's own
 * command. With -map and -chart it is called after iterations. */
int amp_command_detector_train(int argc, char **argv);

/* Prints versions, and the CPU and GPUs of this machine. */
int amp_print_version(void);

/* ---- their command lines, by glibc's argp (arguments.c) ----
 *
 * --help goes to stdout with status 0, usage errors to stderr with status 1. */

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

#define AMP_MOST_FILES 4

struct amp_command_line {
    const char *files;                 /* for the help: "DATA CFG [WEIGHTS]" */
    const char *help;                  /* what the command does */
    const char **file[AMP_MOST_FILES]; /* where the files go, in order; NULL behind the last */
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
