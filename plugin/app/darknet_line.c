/* Decides which words of a command line are files and which are options, by the row that says what
 * its command takes; the usage follows from the same row. It must not know which commands there are
 * (darknet_commands.c) or look into a file. */

#include "darknet_commands.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/lines.h"

/* ---- the usage ---- */

void amp_darknet_print_files(const struct amp_darknet_command *c, FILE *f)
{
    const char *second = c->words[1] ? c->words[1] : "";
    fprintf(f, "Usage: darknet %s%s%s %s", c->words[0], *second ? " " : "", second, c->files);
}

void amp_darknet_print_usage(const struct amp_darknet_command *c, FILE *f)
{
    amp_darknet_print_files(c, f);
    for (const char *o = c->options; *o; o += strcspn(o, " "), o += strspn(o, " ")) {
        int length = (int)strcspn(o, "= ");
        if (length) fprintf(f, " [-%.*s%s]", length, o, o[length] == '=' ? " X" : "");
    }
    fputc('\n', f);
}

/* ---- options ---- */

/* What stands behind the option's name in the row, "=F" or "" or a blank; NULL: no such option. */
static const char *find_option(const struct amp_darknet_command *c, const char *word)
{
    size_t length = strlen(word) - 1;
    if (word[0] != '-' || !length) return NULL;
    for (const char *o = c->options; *o; o += strcspn(o, " "), o += strspn(o, " "))
        if (!strncmp(o, word + 1, length) && strchr(" =", o[length])) return o + length;
    return NULL;
}

/* 0: no such option; 1: one without a value; 2: one with. */
static int width_of(const struct amp_darknet_command *c, const char *word)
{
    const char *found = find_option(c, word);
    return !found ? 0 : *found == '=' ? 2 : 1;
}

/* The whole text, where Darknet's atof takes what is no number for 0. */
static bool is_number(const char *text)
{
    char *end;
    double x = strtod(text, &end);
    return end != text && !*end && isfinite(x);
}

static bool is_whole(const char *text, long least)
{
    char *end;
    errno = 0;
    long x = strtol(text, &end, 10);
    return end != text && !*end && !errno && x >= least && x <= INT_MAX;
}

static bool are_gpus(const char *text)
{
    for (;; text++) {
        size_t digits = strspn(text, "0123456789");
        if (!digits || digits > 4) return false;
        text += digits;
        if (*text != ',') return !*text;
    }
}

/* What the value must be; NULL: it is right. */
static const char *value_fault(char kind, const char *value)
{
    switch (kind) {
    case 'F':
        return is_number(value) ? NULL : "a number";
    case 'G':
        return is_number(value) && strtof(value, NULL) > 0 ? NULL : "a number above 0";
    case 'U':
        return is_number(value) && strtod(value, NULL) >= 0 && strtod(value, NULL) <= 1
                   ? NULL
                   : "a number from 0 to 1";
    case 'L':
        return are_gpus(value) ? NULL : "whole numbers with commas between them";
    case 'I':
        return is_whole(value, INT_MIN) ? NULL : "a whole number";
    case 'N':
        return is_whole(value, 0) ? NULL : "a whole number, at least 0";
    case 'P':
        return is_whole(value, 1) ? NULL : "a whole number, at least 1";
    default:
        return NULL;
    }
}

/* Of main: -i, which every command takes, is the number of a GPU. */
static int check_value(const struct amp_darknet_command *c, const char *option, const char *value)
{
    const char *found = find_option(c, option);
    const char *why = value_fault(found ? found[1] : 'I', value);
    if (why) fprintf(stderr, "error: %s %s: allowed: %s\n", option, value, why);
    return why ? -1 : 0;
}

/* ---- which words are files ---- */

static int refuse_option(const struct amp_darknet_command *c, const char *word, const char *why)
{
    fprintf(stderr, "error: %s%s\n", why, word);
    amp_darknet_print_usage(c, stderr);
    return -1;
}

/* Words of ours, which Darknet does not see. */
static bool is_ours(const char *option)
{
    static const char *const ours[] = {"-backup", "-topk",  "-topk_every", "-patience",
                                       "-chart",  "-quiet", "-half"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcmp(option, ours[i])) return true;
    return false;
}

/* Places of the words that follow the command's own: files, and options with their values. */
static int sort_words(struct amp_darknet_line *l, char **all, int argc, int first, int second)
{
    int options = 0;
    for (int i = 1; i < argc; i++) {
        bool of_main = !strcmp(all[i], "-nogpu") || (!strcmp(all[i], "-i") && i + 1 < argc);
        int width = of_main ? (all[i][1] == 'i') + 1 : width_of(l->command, all[i]);
        if (i + width > argc) return refuse_option(l->command, all[i], "no value after ");
        if (width == 2 && check_value(l->command, all[i], all[i + 1])) return -1;
        bool ours = width && is_ours(all[i]);
        for (int j = 0; j < (width ? width : 1) && !ours; j++)
            l->argv[l->argc++] = all[i + j];
        if (width) {
            for (int j = 0; j < width; j++)
                l->options[options++] = all[i + j];
            i += width - 1;
        } else if (i != first && (i != second || !l->command->words[1])) {
            if (all[i][0] == '-' && amp_file_unreadable(all[i]))
                return refuse_option(l->command, all[i], "unknown option ");
            if (l->n < AMP_DARKNET_FILES) l->file[l->n++] = all[i];
        }
    }
    return 0;
}

/* Gives each file its kind. -1: there are too few, or too many, which is told. A last kind with
 * dots stands for all that follow. */
static int name_kinds(struct amp_darknet_line *l)
{
    static char text[200]; /* of one command line per process; the kinds point into it */
    char *state = NULL, *word;
    int n = 0;
    snprintf(text, sizeof text, "%s", l->command->files);
    for (word = strtok_r(text, " ", &state); word; word = strtok_r(NULL, " ", &state)) {
        bool optional = *word == '[', many = strstr(word, "...") != NULL;
        word += optional;
        word[strcspn(word, ".]")] = '\0';
        if (n >= l->n && !optional) return -1;
        do {
            if (n < l->n) l->kind[n] = word;
        } while (++n < l->n && many);
    }
    if (n >= l->n) return 0;
    fprintf(stderr, "error: \"%s\" is a word too many\n", l->file[n]);
    return -1;
}

int amp_darknet_read(struct amp_darknet_line *l, int argc, char **argv, int first, int second)
{
    l->argv = calloc((size_t)argc + 2, sizeof *l->argv);
    l->options = calloc((size_t)argc + 1, sizeof *l->options);
    if (!l->argv || !l->options) return -1;
    l->argv[l->argc++] = argv[0];
    if (sort_words(l, argv, argc, first, second)) return -1;
    if (!name_kinds(l)) return 0;
    amp_darknet_print_usage(l->command, stderr);
    return -1;
}

/* ---- what it gives ---- */

const char *amp_darknet_option(const struct amp_darknet_line *l, const char *name)
{
    for (const char **o = l->options; *o; o++)
        if (!strcmp(*o, name))
            return width_of(l->command, name) == 2 || !strcmp(name, "-i") ? o[1] : "";
    return NULL;
}

const char *amp_darknet_file(const struct amp_darknet_line *l, const char *kind)
{
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->kind[i], kind)) return l->file[i];
    return NULL;
}
