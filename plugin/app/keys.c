/* `darknet amp keys`: prints the keys that a cfg may have, ours and Darknet's, from the same tables
 * that cfgs are read by. It must not know what a key does. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "commands.h"
#include "measuring.h"
#include "plugin/core/read/key_table.h"
#include "plugin/core/read/layer_types.h"
#include "plugin/core/read/options.h"
#include "plugin/core/read/schedule.h"
#include "plugin/core/read/text.h"

enum { WIDTH = 96, INDENT = 4 };

/* ---- text ---- */

/* Text of a page without its marks: `word` is word, [text](place) is text. */
static void strip_marks(const char *from, char *to, size_t size)
{
    size_t n = 0;
    for (; *from && n + 1 < size; from++) {
        const char *end = *from == ']' && from[1] == '(' ? strchr(from, ')') : NULL;
        bool link = *from == '[' && strstr(from, "](");
        if (end)
            from = end;
        else if (*from != '`' && !link)
            to[n++] = *from;
    }
    to[n] = '\0';
}

static void print_wrapped(const char *text)
{
    int column = 0;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column && column + 1 + length > WIDTH) {
            putchar('\n');
            column = 0;
        }
        column += printf("%*s%.*s", column ? 1 : INDENT, "", length, text);
        text += length + (text[length] == ' ');
    }
    putchar('\n');
}

/* ---- a key ---- */

static bool matches(const char *key, const char *word)
{
    size_t n = strlen(word);
    for (; *key; key++)
        if (!strncasecmp(key, word, n)) return true;
    return !n;
}

static void print_own(const struct amp_option_row *row)
{
    static const char *const places[] = {[AMP_IN_NET] = "[net]",
                                         [AMP_IN_LAYERS] = "a layer's section",
                                         [AMP_IN_BOTH] = "[net] or a layer's section"};
    char text[1024];
    strip_marks(row->default_text, text, sizeof text);
    printf("%s   %s; default: %s; in %s\n", row->key, row->range, text, places[row->place]);
    strip_marks(row->help, text, sizeof text);
    print_wrapped(text);
}

static void print_sections(uint64_t sections)
{
    const uint64_t net = UINT64_C(1) << AMP_NETWORK, layers = ~net;
    const char *comma = "";
    if (sections & net) printf("[net]");
    if (sections & net) comma = ", ";
    if ((sections & layers) == layers) {
        printf("%severy layer", comma);
        return;
    }
    for (int type = 0; type <= AMP_BLANK; type++)
        if (type != AMP_NETWORK && (sections >> type & 1)) {
            printf("%s[%s]", comma, amp_layer_type_name((enum amp_layer_type)type));
            comma = ", ";
        }
}

static void print_words(const char *const *words)
{
    for (int i = 0; words[i]; i++)
        printf("%s%s", !i ? "" : words[i + 1] ? ", " : " or ", words[i]);
}

static void print_value(const struct amp_key_row *row)
{
    static const char *const kinds[] = {[AMP_CFG_UNKNOWN] = "a value",
                                        [AMP_CFG_SWITCH] = "0 or 1",
                                        [AMP_CFG_INTEGER] = "integer",
                                        [AMP_CFG_NUMBER] = "number",
                                        [AMP_CFG_INTEGERS] = "integers with commas",
                                        [AMP_CFG_NUMBERS] = "numbers with commas",
                                        [AMP_CFG_WORD] = "word"};
    enum amp_cfg_kind kind = row->kind ? row->kind : row->fork_kind;
    printf("%s   ", row->name);
    if (row->words) print_words(row->words);
    if (!strcmp(row->name, "policy"))
        printf("; with mixed_precision=1 also %s", amp_policy_words());
    if (!row->words)
        printf("%s%s%s", kinds[kind], row->allowed ? ", " : "", row->allowed ? row->allowed : "");
}

static void print_darknets(const struct amp_key_row *row)
{
    print_value(row);
    if (row->def && row->def[0] == '=')
        printf("; default: that of %s", row->def + 1);
    else if (row->def && row->def[0] && row->reader == AMP_READ_BY_ALL)
        printf("; default: %s", row->def);
    if (row->fork_def) printf("; default by AlexeyAB's rules: %s", row->fork_def);
    printf("; in ");
    print_sections(row->sections);
    if (row->reader == AMP_READ_BY_FORK) printf("; by AlexeyAB's rules only");
    putchar('\n');
}

/* Those that a cfg gains nothing from are left out: keys that no rules of ours read. */
static bool is_read(const struct amp_key_row *row)
{
    return row->reader == AMP_READ_BY_ALL ||
           (row->reader == AMP_READ_BY_FORK && row->use == AMP_KEY_USED);
}

/* ---- the command ---- */

static int count_matches(const char *word)
{
    int n, found = 0;
    size_t m;
    const struct amp_option_row *own = amp_option_rows(&n);
    const struct amp_key_row *rows = amp_key_rows(&m);
    for (int i = 0; i < n; i++)
        found += matches(own[i].key, word);
    for (size_t i = 0; i < m; i++)
        found += is_read(&rows[i]) && matches(rows[i].name, word);
    return found;
}

static void print_matches(const char *word)
{
    int n;
    size_t m;
    const char *title = "Keys of darknet-amp:\n\n";
    const struct amp_option_row *own = amp_option_rows(&n);
    const struct amp_key_row *rows = amp_key_rows(&m);
    for (int i = 0; i < n; i++) {
        if (!matches(own[i].key, word)) continue;
        printf("%s", title);
        title = "";
        print_own(&own[i]);
    }
    title = *title ? "Keys of Darknet:\n\n" : "\nKeys of Darknet:\n\n";
    for (size_t i = 0; i < m; i++) {
        if (!is_read(&rows[i]) || !matches(rows[i].name, word)) continue;
        printf("%s", title);
        title = "";
        print_darknets(&rows[i]);
    }
}

static const char *nearest_key(const char *word)
{
    static const char *known[1024];
    int n;
    size_t m, count = 0, most = sizeof known / sizeof *known;
    const struct amp_option_row *own = amp_option_rows(&n);
    const struct amp_key_row *rows = amp_key_rows(&m);
    for (int i = 0; i < n && count < most; i++)
        known[count++] = own[i].key;
    for (size_t i = 0; i < m && count < most; i++)
        if (is_read(&rows[i])) known[count++] = rows[i].name;
    return amp_nearest_word(word, known, count);
}

int amp_command_keys(int argc, char **argv)
{
    const char *word = "";
    int gpu = 0; /* Darknet's -i and -nogpu are taken by every command */
    const struct amp_argument options[] = {AMP_GPU_ARGUMENTS(&gpu), {.name = NULL}};
    const struct amp_command_line line = {
        .files = "[WORD]",
        .help = "Prints the keys that a cfg may have, darknet-amp's and Darknet's: which values "
                "are allowed, what holds without the key, and where it stands. WORD: those with "
                "it in their names.",
        .file = {&word},
        .options = options};
    amp_arguments_read(&line, argc, argv);
    if (!count_matches(word)) {
        const char *nearest = nearest_key(word);
        fprintf(stderr, "error: no key has \"%s\" in its name%s%s%s\n", word,
                nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
        return 1;
    }
    print_matches(word);
    return amp_result_flush() ? 1 : 0;
}
