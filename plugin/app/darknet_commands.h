/* Darknet's own commands: which there are, and what must be there before one of them starts.
 *
 * darknet_commands.c has the table of them, over darknet_checks.c, darknet_data.c and
 * darknet_net.c, which look at files and networks, over darknet_line.c, which reads a command line,
 * and darknet_stdin.c. Darknet itself looks at almost nothing: most of what is refused here ends
 * with a crash there, or with status 0.
 */
#ifndef AMP_DARKNET_COMMANDS_H
#define AMP_DARKNET_COMMANDS_H

#include <stdbool.h>
#include <stdio.h>

/* What a command takes from the data file, and does with it. */
enum {
    AMP_NAMES = 1 << 0,      /* names=: as many as the last layer has classes */
    AMP_OUTPUTS = 1 << 1,    /* names=, else labels=: as many as outputs; and top= of them */
    AMP_LABELS = 1 << 2,     /* labels=: as many as classes=, which the network has as outputs */
    AMP_VALID = 1 << 3,      /* valid=: a list of images */
    AMP_TEST = 1 << 4,       /* test=: a list of images */
    AMP_RESULTS = 1 << 5,    /* results=: a folder */
    AMP_NO_DEFAULT = 1 << 6, /* names= has none */
    /* and what else is special about it */
    AMP_TRAINS = 1 << 7,     /* amp_check_trainer_inputs looks at everything */
    AMP_GPU_ONLY = 1 << 8,   /* does nothing in a build for CPUs */
    AMP_READS_TEXT = 1 << 9, /* feeds the bytes of its standard input to the network */
    AMP_ONE_IMAGE = 1 << 10, /* feeds one image, or byte, whatever the cfg's batch is */
    AMP_FLIPS = 1 << 11,     /* feeds two images */
    AMP_PARTS = 1 << 12,     /* loads some layers of another network's file on purpose */
    AMP_STOCK = 1 << 13      /* replaces or cuts off layers, which a plan does not follow */
};

struct amp_darknet_command {
    const char *words[2]; /* words[1] NULL: the command has one word */
    const char *files;    /* as the usage gives them: "DATA CFG [WEIGHTS]" */
    const char *options;  /* "thresh=F prefix= clear": a = stands behind those with a value, then:
                           * F a number, G one above 0, U one from 0 to 1, I a whole one, N from 0
                           * on, P from 1  on, L whole ones with commas between them; else a text */
    unsigned takes;       /* AMP_... */
    const char *needs;    /* fixed files, and folders, which end in a slash */
    const char *hint;     /* what to do where one of those is missing */
    const char *data;     /* the fixed data file; NULL: none */
    int classes;          /* the last layer must be a [detection] of so many; 0: any */
    int least_images;     /* in its list */
    int outputs;          /* of the network, of which it reads so many; 0: what its group reads */
};

#define AMP_DARKNET_FILES 16

/* A command line that fits the table. */
struct amp_darknet_line {
    const struct amp_darknet_command *command;
    int n;                               /* files given */
    const char *kind[AMP_DARKNET_FILES]; /* "CFG", of each; without brackets */
    const char *file[AMP_DARKNET_FILES];
    int argc; /* what is left of the command line without ours, for Darknet */
    char **argv;
    const char **options; /* the words that were options and their values; NULL behind the last */
};

/* ---- darknet_line.c ---- */

/* "Usage: darknet WORDS FILES", without the end of the line; and with options and end. */
void amp_darknet_print_files(const struct amp_darknet_command *, FILE *);
void amp_darknet_print_usage(const struct amp_darknet_command *, FILE *);

/* Fills a line, of which only the command is set, from main's argv, of which first and second are
 * the places of the command's words. 0, or -1 after telling on stderr what is wrong. */
int amp_darknet_read(struct amp_darknet_line *, int argc, char **argv, int first, int second);

/* The value of an option, "" of one without; NULL: it is not given. */
const char *amp_darknet_option(const struct amp_darknet_line *, const char *name);
/* The first file of this kind; NULL: none. */
const char *amp_darknet_file(const struct amp_darknet_line *, const char *kind);

/* ---- darknet_checks.c ---- */

/* True if it may start; else every fault has been told on stderr. */
bool amp_darknet_check(const struct amp_darknet_line *);

/* ---- darknet_stdin.c ---- */

/* For a command that reads its standard input: where that is empty the program ends with status 1,
 * and where `go test`, which would crash there, comes to its end, with 0. Of names of images it
 * gets those of files that can be one; the others are told. without_returns: lines of Windows are
 * read as those of Unix. */
void amp_darknet_watch_stdin(const struct amp_darknet_line *, bool without_returns);
/* Whether one was told. */
bool amp_darknet_names_were_wrong(void);

/* ---- darknet_commands.c ---- */

/* main's argv, as above. Checks it, then hands over to Darknet's main. */
int amp_command_darknet(int argc, char **argv, int first, int second);

#endif
