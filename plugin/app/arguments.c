/* Decides what a command line of ours means and which error it is. It must not know any command:
 * options, targets and limits come in a table.
 *
 * glibc's argp does the work, except for names: users write Darknet's `-iou` with one dash, argp
 * wants two, and it accepts any beginning of a name. */

#define _GNU_SOURCE
#include "commands.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/text.h"

/* FIRST_KEY is above every character: argp takes a smaller key for a letter. */
enum { MOST_OPTIONS = 16, FIRST_KEY = 1000 };

/* ---- values ---- */

/* NaN fails both comparisons and is refused like any other bad number. argp_error prints the usage
 * and ends the program. */
static void take_number(const struct amp_argument *a, const char *text, double *number,
                        struct argp_state *state)
{
    char *end;
    *number = strtod(text, &end);
    bool above = a->low_open ? *number > a->low : *number >= a->low;
    bool below = a->high_open ? *number < a->high : *number <= a->high;
    if (end == text || *end || !above || !below)
        argp_error(state, "--%s %s: must be a number %s %.10g, %s %.10g", a->name, text,
                   a->low_open ? "above" : "at least", a->low, a->high_open ? "below" : "at most",
                   a->high);
}

static void take_count(const struct amp_argument *a, const char *text, int *count,
                       struct argp_state *state)
{
    char *end;
    long number = strtol(text, &end, 10);
    if (end == text || *end || (double)number < a->low || (double)number > a->high)
        argp_error(state, "%s%s %s: must be a whole number from %.0f to %.0f",
                   a->name[1] ? "--" : "-", a->name, text, a->low, a->high);
    *count = (int)number;
}

/* Targets keep their values if the option is not given, so defaults are set by the command. */
static void take_option(const struct amp_argument *a, char *text, struct argp_state *state)
{
    switch (a->kind) {
    case AMP_ARGUMENT_FLAG:
        *(bool *)a->target = true;
        break;
    case AMP_ARGUMENT_NUMBER:
        take_number(a, text, a->target, state);
        break;
    case AMP_ARGUMENT_COUNT:
        take_count(a, text, a->target, state);
        break;
    case AMP_ARGUMENT_TEXT:
        *(const char **)a->target = text;
        break;
    case AMP_ARGUMENT_NO_GPU:
        *(int *)a->target = -1;
        break;
    }
}

static void take_file(const struct amp_command_line *line, char *word, struct argp_state *state)
{
    unsigned i = state->arg_num;
    if (i >= AMP_MOST_FILES || !line->file[i]) argp_error(state, "unexpected word \"%s\"", word);
    *line->file[i] = word;
}

/* argp calls this once for every word, and with ARGP_KEY_END after the last. */
static error_t take(int key, char *text, struct argp_state *state)
{
    const struct amp_command_line *line = state->input;
    if (key == ARGP_KEY_ARG) {
        take_file(line, text, state);
        return 0;
    }
    if (key == ARGP_KEY_END && (int)state->arg_num < line->least_files)
        argp_error(state, "needed: %s", line->files);
    for (const struct amp_argument *a = line->options; a->name; a++) {
        if (key != (a->name[1] ? FIRST_KEY + (int)(a - line->options) : a->name[0])) continue;
        take_option(a, text, state);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

/* ---- names, before argp sees them ---- */

static const struct amp_argument of_argp[] = {{.name = "help"}, {.name = "usage"}, {.name = "?"}};
enum { OF_ARGP = sizeof of_argp / sizeof *of_argp };

static const struct amp_argument *find(const struct amp_command_line *line, const char *name)
{
    for (const struct amp_argument *a = line->options; a->name; a++)
        if (!strcmp(a->name, name)) return a;
    for (int i = 0; i < OF_ARGP; i++)
        if (!strcmp(of_argp[i].name, name)) return &of_argp[i];
    return NULL;
}

static _Noreturn void refuse_unknown(const struct amp_command_line *line, const char *command,
                                     const char *word, const char *name)
{
    const char *names[MOST_OPTIONS + OF_ARGP];
    size_t n = 0;
    for (const struct amp_argument *a = line->options; a->name; a++)
        names[n++] = a->name;
    names[n++] = of_argp[0].name;
    const char *nearest = amp_nearest_word(name, names, n);
    fprintf(stderr, "%s: unknown option \"%s\"", command, word);
    if (nearest) fprintf(stderr, "; did you mean %s%s?", nearest[1] ? "--" : "-", nearest);
    fprintf(stderr, "\nTry `%s --help' for more information.\n", command);
    exit(1);
}

/* argp accepts beginnings of names and suggests no near one, so every name is looked at here first.
 * One dash becomes two, as argp wants. */
static void check_names(const struct amp_command_line *line, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        char *word = argv[i], name[40];
        if (word[0] != '-' || !word[1]) continue;
        /* A word like "-" alone is a file name. */
        const char *begin = word + 1 + (word[1] == '-');
        snprintf(name, sizeof name, "%.*s", (int)strcspn(begin, "="), begin);
        const struct amp_argument *a = find(line, name);
        if (!a) refuse_unknown(line, argv[0], word, name);
        /* argv lasts as long as the program, so the copy must, too. */
        if (name[1] && word[1] != '-' && asprintf(&argv[i], "-%s", word) < 0) exit(1);
        if (!a->value || strchr(begin, '=')) continue;
        if (++i < argc) continue;
        fprintf(stderr, "%s: no value after \"%s\"\nTry `%s --help' for more information.\n",
                argv[0], word, argv[0]);
        exit(1);
    }
}

void amp_arguments_read(const struct amp_command_line *line, int argc, char **argv)
{
    struct argp_option rows[MOST_OPTIONS + 1] = {0};
    for (int i = 0; line->options[i].name && i < MOST_OPTIONS; i++) {
        const struct amp_argument *a = &line->options[i];
        rows[i] = (struct argp_option){.name = a->name[1] ? a->name : NULL,
                                       .key = a->name[1] ? FIRST_KEY + i : a->name[0],
                                       .arg = a->value,
                                       .doc = a->help};
    }
    const struct argp argp = {
        .options = rows, .parser = take, .args_doc = line->files, .doc = line->help};
    argp_err_exit_status = 1;
    check_names(line, argc, argv);
    if (argp_parse(&argp, argc, argv, 0, NULL, (void *)line)) exit(1);
}
