/* Decides which words behind `detector` are those of AlexeyAB's and hank-ai's Darknet, and which of
 * them mean something here. It must not know what a word does: train_words.c and map.c read those
 * that stay. */
#include "fork_words.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/lines.h"
#include "plugin/spread/launcher.h"

/* The commands for which a word means something. */
enum { TRAIN = 1, MAP = 2, OTHERS = 4, ALL = TRAIN | MAP | OTHERS };

static const struct word {
    char *name; /* as it is read here */
    bool value; /* one follows */
    int means;
} words[] = {
    {"-map", false, TRAIN},
    {"-mAP_epochs", true, TRAIN},
    {"-chart", true, TRAIN},
    {"-clear", false, ALL},
    {"-iou_thresh", true, TRAIN | MAP},
    {"-points", true, TRAIN | MAP},
    {"-thresh", true, ALL},
    {"-gpus", true, ALL},
    {"-out", true, ALL},
    {"-prefix", true, ALL},
    {"-hier", true, ALL},
    {"-avg", true, ALL},
    {"-fps", true, ALL},
    {"-c", true, ALL},
    {"-s", true, ALL},
    {"-half", false, ALL}, /* ours */
    /* Windows, servers, files that are not written, and what the cfg says here (letter_box=1). */
    {"-dont_show", false, 0},
    {"-show_imgs", false, 0},
    {"-show", false, 0},
    {"-letter_box", false, 0},
    {"-ext_output", false, 0},
    {"-save_labels", false, 0},
    {"-benchmark", false, 0},
    {"-benchmark_layers", false, 0},
    {"-verbose", false, 0},
    {"-dontdraw_bbox", false, 0},
    {"-check_mistakes", false, 0},
    {"-cuda_debug_sync", false, 0},
    {"-mjpeg_port", true, 0},
    {"-json_port", true, 0},
    {"-http_post_host", true, 0},
    {"-out_filename", true, 0},
    {"-json_file_output", true, 0},
    {"-avgframes", true, 0},
    {"-time_limit_sec", true, 0},
    {"-width", true, 0},
    {"-height", true, 0},
    {"-num_of_clusters", true, 0},
    {"-log", true, 0},
};
enum { WORDS = sizeof words / sizeof *words };

/* ---- spellings ---- */

static const char *skip_marks(const char *p)
{
    while (*p == '-' || *p == '_')
        p++;
    return p;
}

static bool is_same(const char *a, const char *b)
{
    for (a = skip_marks(a), b = skip_marks(b); *a && *b;
         a = skip_marks(a + 1), b = skip_marks(b + 1))
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return false;
    return *a == *b;
}

/* A file may be called "-show". */
static const struct word *find(const char *given)
{
    for (int i = 0; *given == '-' && i < WORDS; i++)
        if (is_same(given, words[i].name)) return amp_file_unreadable(given) ? &words[i] : NULL;
    return NULL;
}

/* ---- which command ---- */

/* Users type `-clear 1`; those Darknets take the flag and never look at the number. */
static bool is_idle_number(const char *word)
{
    return *word && !word[strspn(word, "0123456789")] && amp_file_unreadable(word);
}

/* How many words belong together here: an option and its value or idle number, or 1. */
static int length_at(int argc, char **argv, int i)
{
    const struct word *w = find(argv[i]);
    bool value = w ? w->value : !strcmp(argv[i], "-i");
    if (i + 1 >= argc) return 1;
    return (value ? argv[i + 1][0] != '-' : w && is_idle_number(argv[i + 1])) ? 2 : 1;
}

/* The place of the first word from `from` on that is no option, or argc. */
static int next_name(int argc, char **argv, int from)
{
    int i = from;
    while (i < argc && argv[i][0] == '-')
        i += length_at(argc, argv, i);
    return i < argc ? i : argc;
}

static int kind_of(const char *command)
{
    return !strcmp(command, "train") ? TRAIN : !strcmp(command, "map") ? MAP : OTHERS;
}

/* ---- the words ---- */

struct settled {
    char **words, **last; /* the new command line; what goes to its end */
    int n, n_last;
    char left_out[1000];
};

/* between: stands before the second word. */
static void note(struct settled *s, char **given, int n, const char *between)
{
    size_t used = strlen(s->left_out);
    snprintf(s->left_out + used, sizeof s->left_out - used, "%s%s%s%s", used ? ", " : "", given[0],
             n > 1 ? between : "", n > 1 ? given[1] : "");
}

static void settle(struct settled *s, int argc, char **argv, int command)
{
    int means = kind_of(argv[command]);
    for (int i = 0, n; i < argc; i += n) {
        const struct word *w = i ? find(argv[i]) : NULL;
        n = w ? length_at(argc, argv, i) : 1;
        if (w && !(w->means & means)) {
            note(s, argv + i, n, " ");
            continue;
        }
        bool idle = w && !w->value && n > 1;
        if (idle) note(s, (char *[]){argv[i + 1], w->name}, 2, " behind ");
        for (int k = 0; k < n - idle; k++) {
            char *word = w && !k ? w->name : argv[i + k];
            if (w && i < command)
                s->last[s->n_last++] = word;
            else
                s->words[s->n++] = word;
        }
    }
}

int amp_fork_words_settle(int argc, char **argv)
{
    int first = next_name(argc, argv, 1), command = next_name(argc, argv, first + 1);
    if (command >= argc || strcmp(argv[first], "detector")) return argc;
    struct settled s = {.words = calloc((size_t)argc, sizeof *s.words),
                        .last = calloc((size_t)argc, sizeof *s.last)};
    int n = argc;
    if (s.words && s.last) {
        settle(&s, argc, argv, command);
        n = s.n + s.n_last;
        memcpy(argv, s.words, (size_t)s.n * sizeof *argv);
        memcpy(argv + s.n, s.last, (size_t)s.n_last * sizeof *argv);
        argv[n] = NULL;
    }
    if (*s.left_out && !amp_launch_read(getenv).rank)
        fprintf(stderr, "darknet-amp: left out, without a meaning here: %s%s\n", s.left_out,
                strstr(s.left_out, "-letter_box") ? " (letter_box=1 under [net] keeps the aspect "
                                                    "of pictures, which are stretched else)"
                                                  : "");
    free(s.words);
    free(s.last);
    return n;
}
