/* Decides what the words after `detector train` mean and which of them are mistakes. It must not
 * know what is trained, measured or drawn.
 *
 * Darknet ignores a word that it does not know, and reads 0 where a number should stand. A run that
 * asks for anything of ours (mixed_precision=1, -map or -chart) is refused with such a word; any
 * other is Darknet's own, so there the word is told and left to Darknet. */
#include "measuring.h"
#include "train.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "darknet.h"

#include "plugin/core/read/lines.h"
#include "plugin/core/read/text.h"
#include "plugin/core/read/options.h"
#include "plugin/spread/launcher.h"

enum value { NO_VALUE, TEXT, NUMBER, WHOLE, WHOLES };

/* Words that Darknet takes out of a command line wherever they stand, in its order: main first,
 * then run_detector. The order matters: taking one word out changes what stands behind another. */
static const struct word {
    char *name;
    enum value value;
} of_darknet[] = {{"-i", WHOLE},       {"-nogpu", NO_VALUE}, {"-prefix", TEXT},
                  {"-thresh", NUMBER}, {"-hier", NUMBER},    {"-c", WHOLE},
                  {"-s", WHOLE},       {"-avg", WHOLE},      {"-gpus", WHOLES},
                  {"-out", TEXT},      {"-clear", NO_VALUE}, {"-fullscreen", NO_VALUE},
                  {"-w", WHOLE},       {"-h", WHOLE},        {"-fps", WHOLE}};
/* fork_words.c has given those of AlexeyAB's Darknet this spelling. */
static const struct word ours[] = {
    {"-map", NO_VALUE}, {"-map_every", WHOLE},   {"-chart", TEXT},     {"-mAP_epochs", WHOLE},
    {"-points", WHOLE}, {"-iou_thresh", NUMBER}, {"-patience", WHOLE}, {"-quiet", NO_VALUE}};
enum { OF_DARKNET = sizeof of_darknet / sizeof *of_darknet, OURS = sizeof ours / sizeof *ours };

static const struct word *find_word(const struct word *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, list[i].name)) return &list[i];
    return NULL;
}

static const struct word *find_known(const char *name)
{
    const struct word *own = find_word(ours, OURS, name);
    return own ? own : find_word(of_darknet, OF_DARKNET, name);
}

/* A file may be called "-x". */
static bool is_option(const char *word)
{
    return word[0] == '-' && amp_file_unreadable(word);
}

/* ---- our words ---- */

__attribute__((format(printf, 1, 2))) static int fail(const char *format, ...)
{
    char who[120];
    va_list args;
    va_start(args, format);
    amp_launch_who(who, sizeof who);
    fprintf(stderr, "error: %s", who);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return -1;
}

/* Takes a word and its value out of argv. NULL in *value: it is not there. */
static int take_own(int *argc, char **argv, char *name, const char **value)
{
    *value = find_char_arg(*argc, argv, name, NULL);
    if (*value) *argc -= 2;
    for (int i = 1; i < *argc; i++)
        if (!strcmp(argv[i], name))
            return *value ? fail("%s is given twice", name) : fail("no value after %s", name);
    return 0;
}

static int take_switch(int *argc, char **argv, char *name, bool *there)
{
    *there = find_arg(*argc, argv, name);
    *argc -= *there;
    return *there && find_arg(*argc, argv, name) ? fail("%s is given twice", name) : 0;
}

/* AlexeyAB's Darknet draws a PNG. */
static const char *name_chart(const char *given)
{
    static char name[PATH_MAX];
    const char *slash = strrchr(given, '/'), *dot = strrchr(given, '.');
    size_t length = strlen(given);
    if (length >= 4 && !strcmp(given + length - 4, ".svg")) return given;
    if (dot && (!slash || dot > slash)) length = (size_t)(dot - given);
    snprintf(name, sizeof name, "%.*s.svg", (int)length, given);
    if (!amp_launch_read(getenv).rank)
        fprintf(stderr, "darknet-amp: -chart %s: the chart is an SVG image: %s is written\n", given,
                name);
    return name;
}

static int read_chart(struct amp_train_words *w)
{
    if (!w->chart) return 0;
    if (w->chart[0] == '-') /* the next option; "./-x.svg" is a file */
        return fail("-chart %s: no file name after -chart", w->chart);
    w->chart = name_chart(w->chart);
    return 0;
}

/* text NULL: the word is not there, and the number stays. */
static int read_number(const char *name, const char *text, const char *of_what, int *number)
{
    char *end;
    if (!text) return 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1 || n > 1000000000)
        return fail("%s %s: allowed: %s, 1 to 1000000000", name, text, of_what);
    *number = (int)n;
    return 0;
}

static int read_iou(const char *text, double *iou)
{
    char *end;
    if (!text) return 0;
    *iou = (double)strtof(text, &end); /* AlexeyAB's Darknet compares floats */
    if (end == text || *end || !(*iou > 0 && *iou <= 1))
        return fail("-iou_thresh %s: allowed: above 0, at most 1", text);
    return 0;
}

static int read_points(const char *text, int *points)
{
    if (!text) return 0;
    *points = atoi(text);
    if (strcmp(text, "0") && strcmp(text, "11") && strcmp(text, "101"))
        return fail("-points %s: allowed: 0 (the area under the curve), 11, 101", text);
    return 0;
}

/* What follows the words that say how -map measures. */
static int read_measuring(int *argc, char **argv, struct amp_train_words *w)
{
    const char *every, *epochs, *iou, *points, *patience;
    if (take_own(argc, argv, "-map_every", &every) ||
        take_own(argc, argv, "-mAP_epochs", &epochs) || take_own(argc, argv, "-iou_thresh", &iou) ||
        take_own(argc, argv, "-points", &points) || take_own(argc, argv, "-patience", &patience) ||
        read_number("-patience", patience, "evaluations", &w->patience) ||
        read_number("-map_every", every, "iterations", &w->map_every) ||
        read_number("-mAP_epochs", epochs, "epochs", &w->map_epochs) || read_iou(iou, &w->iou) ||
        read_points(points, &w->points))
        return -1;
    if (every && epochs) return fail("-map_every and -mAP_epochs are two answers; leave out one");
    return 0;
}

static int read_own(int *argc, char **argv, struct amp_train_words *w)
{
    if (read_measuring(argc, argv, w) || take_own(argc, argv, "-chart", &w->chart)) return -1;
    if (take_switch(argc, argv, "-map", &w->map) || take_switch(argc, argv, "-quiet", &w->quiet) ||
        read_chart(w))
        return -1;
    if (w->patience && !w->map) return fail("-patience has no effect without -map");
    /* AlexeyAB's words have no effect then either, and are no reason to stop. */
    return w->map_every && !w->map ? fail("-map_every has no effect without -map") : 0;
}

/* ---- Darknet's words ---- */

/* What is left of a command line without Darknet's words, and their values. */
struct rest {
    char **words;
    const char *values[OF_DARKNET];
    bool strict; /* what is odd is an error */
    bool failed;
};

static char absent[] = "";

/* Takes words out as Darknet will do it: it does not count those that it has taken, so a last word
 * without a value may get NULL for one. */
static void take_darknets(int argc, struct rest *r)
{
    for (int i = 0; i < OF_DARKNET; i++) {
        r->values[i] = absent;
        if (of_darknet[i].value == NO_VALUE)
            r->values[i] = find_arg(argc, r->words, of_darknet[i].name) ? "1" : absent;
        else
            r->values[i] = find_char_arg(argc, r->words, of_darknet[i].name, absent);
    }
}

static const char *value_of(const struct rest *r, const char *name)
{
    const char *value = r->values[find_word(of_darknet, OF_DARKNET, name) - of_darknet];
    return value == absent ? NULL : value;
}

/* Says what is wrong; then `ending`, if the word is left to Darknet, which the first of several
 * processes says for all. */
__attribute__((format(printf, 4, 5))) static void tell(struct rest *r, bool refused,
                                                       const char *ending, const char *format, ...)
{
    char who[120];
    va_list args;
    amp_launch_who(who, sizeof who);
    if (*who && !refused) return;
    va_start(args, format);
    fprintf(stderr, "%s%s", refused ? "error: " : "warning: ", who);
    vfprintf(stderr, format, args);
    fprintf(stderr, "%s\n", refused ? "" : ending);
    va_end(args);
    r->failed |= refused;
}

/* The part of a value that is no such number; NULL: none. */
static const char *find_wrong(const char *text, enum value kind)
{
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        double number = kind == NUMBER ? strtod(p, &end) : (double)strtol(p, &end, 10);
        bool fits = kind == NUMBER ? number >= 0 && number <= 1 : !errno && fabs(number) <= INT_MAX;
        if (end == p || !fits || (*end && (kind != WHOLES || *end != ','))) return p;
        if (!*end) return NULL;
        p = end;
    }
}

static void check_value(struct rest *r, const struct word *w, const char *value)
{
    static const char *const allowed[] = {[TEXT] = "a name",
                                          [NUMBER] = "a number from 0 to 1",
                                          [WHOLE] = "a whole number",
                                          [WHOLES] = "whole numbers with commas between them"};
    char ending[60];
    if (w->value == TEXT) {
        if (find_known(value))
            tell(r, r->strict, " (Darknet takes the option for a name)", "no value after %s: %s",
                 w->name, value);
        return;
    }
    const char *wrong = find_wrong(value, w->value);
    if (!wrong) return;
    snprintf(ending, sizeof ending, " (Darknet reads %g)",
             w->value == NUMBER ? atof(wrong) : atoi(wrong));
    tell(r, r->strict, ending, "%s %s: allowed: %s", w->name, value, allowed[w->value]);
}

static void check_values(struct rest *r)
{
    for (int i = 0; i < OF_DARKNET; i++) {
        const struct word *w = &of_darknet[i];
        const char *value = r->values[i];
        if (value == absent || w->value == NO_VALUE) continue;
        if (value)
            check_value(r, w, value);
        else /* Darknet crashes on a number that is not there */
            tell(r, r->strict || w->value == NUMBER || w->value == WHOLE,
                 " (ignored, as Darknet ignores it)", "no value after %s", w->name);
    }
}

/* ---- words that nobody knows ---- */

static const struct word *nearest_word(const char *word)
{
    const char *known[OURS + OF_DARKNET];
    for (int i = 0; i < OURS + OF_DARKNET; i++)
        known[i] = i < OURS ? ours[i].name : of_darknet[i - OURS].name;
    const char *nearest = amp_nearest_word(word, known, OURS + OF_DARKNET);
    return nearest ? find_known(nearest) : NULL;
}

static void report_unknown(struct rest *r, const char *word, const char *next, bool refused)
{
    static const char ending[] = " (ignored, as Darknet ignores it)";
    const struct word *known = find_known(word), *nearest = nearest_word(word);
    if (known && known->value != NO_VALUE && !next)
        tell(r, refused, ending, "no value after %s", word);
    else if (known)
        tell(r, refused, ending, "%s is given twice", word);
    else if (nearest)
        tell(r, refused, ending, "unknown word \"%s\"; did you mean %s?", word, nearest->name);
    else
        tell(r, refused, ending,
             "unknown word \"%s\"; allowed: DATA CFG [WEIGHTS], -clear, -gpus, -i, -nogpu, -map, "
             "-map_every, -mAP_epochs, -iou_thresh, -points, -patience, -quiet, -chart",
             word);
}

/* Before the place of the weights an unknown option stands where a file should be, so it is always
 * refused; and so is one that was meant to be ours. */
static void check_unknown(struct rest *r)
{
    int files = 0;
    for (int i = 3; r->words[i]; i++) {
        char *word = r->words[i], *next = r->words[i + 1];
        bool option = is_option(word);
        files += !option;
        if (!option && files <= 3) continue;
        const struct word *nearest = nearest_word(word);
        bool meant_ours = nearest && find_word(ours, OURS, nearest->name);
        report_unknown(r, word, next, r->strict || i <= 5 || meant_ours);
        bool value = option && nearest && nearest->value != NO_VALUE;
        if (value && next && next[0] != '-') i++;
    }
}

/* ---- all ---- */

/* The second file; NULL: there is none. */
static const char *find_cfg(char **words)
{
    int files = 0;
    for (int i = 3; words[i]; i++)
        if (!is_option(words[i]) && ++files == 2) return words[i];
    return NULL;
}

static int read_words(int argc, struct rest *r, struct amp_train_words *w)
{
    take_darknets(argc, r);
    const char *gpus = value_of(r, "-gpus");
    w->gpus = gpus && strchr(gpus, ',') ? gpus : NULL;
    w->one_gpu = w->gpus ? NULL : gpus;
    w->mixed = amp_trains_mixed(find_cfg(r->words));
    if (w->gpus && !w->mixed && (w->map || w->chart))
        return fail("-map and -chart are for one GPU, or for mixed_precision=1; leave out either "
                    "them or -gpus");
    if (w->quiet && !w->mixed) return fail(AMP_QUIET_REFUSED);
    w->clear = value_of(r, "-clear");
    w->data = r->words[3];
    w->cfg = w->data ? r->words[4] : NULL;
    w->weights = w->cfg ? r->words[5] : NULL;
    r->strict = w->map || w->chart || w->mixed;
    check_values(r);
    check_unknown(r);
    return r->failed ? -1 : 0;
}

int amp_train_words_read(int *argc, char **argv, struct amp_train_words *w)
{
    *w = (struct amp_train_words){.iou = .5};
    if (read_own(argc, argv, w)) return -1;
    /* Darknet takes its words out of argv itself. */
    struct rest r = {.words = calloc((size_t)*argc + 6, sizeof *r.words)};
    if (!r.words) return fail("out of memory");
    memcpy(r.words, argv, (size_t)*argc * sizeof *r.words);
    int result = read_words(*argc, &r, w);
    free(r.words);
    return result;
}
