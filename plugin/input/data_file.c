#define _GNU_SOURCE
#include "data_file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/nearest.h"

/* What a Darknet reads from a data file: the detector's commands, the classifier's, and
 * AlexeyAB's, so that one file may serve them all. */
static const char *const known[] = {"classes", "train",  "valid", "names",    "backup",
                                    "results", "eval",   "map",   "test",     "labels",
                                    "top",     "leaves", "tree",  "difficult"};
enum { KNOWN = sizeof known / sizeof *known };

static bool is_known(const char *key)
{
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(key, known[i])) return true;
    return false;
}

static void check_key(const struct amp_cfg_file *data, const struct amp_cfg_entry *e, bool refuse,
                      amp_tell *tell, void *context, FILE *warn)
{
    char message[2 * PATH_MAX];
    const char *nearest = amp_nearest_word(e->key, known, KNOWN);
    if (is_known(e->key)) return;
    int n = snprintf(message, sizeof message, "%s:%d: %.80s=: Darknet knows no such key",
                     data->path, e->line, e->key);
    if (nearest && n < (int)sizeof message)
        snprintf(message + n, sizeof message - (size_t)n, "; the nearest known one is %s", nearest);
    if (nearest && refuse)
        tell(context, message);
    else if (warn)
        fprintf(warn, "warning: %s\n", message);
}

/* The value as it stands in the file, without the blanks around it; NULL where it has none inside.
 */
static char *value_with_blank(char *line)
{
    static const char blanks[] = " \t\r\n";
    char *value = strchr(line, '='), first = line[strspn(line, blanks)];
    if (!value || first == '#' || first == ';') return NULL;
    value += 1 + strspn(value + 1, blanks);
    size_t length = strlen(value);
    while (length && strchr(blanks, value[length - 1]))
        length--;
    value[length] = '\0';
    return strpbrk(value, " \t") ? value : NULL;
}

/* cfg.h gives values as Darknet sees them: the blanks are gone there. */
static void check_blanks(const struct amp_cfg_file *data, FILE *warn)
{
    char *line = NULL;
    size_t size = 0;
    FILE *f = fopen(data->path, "r");
    for (int number = 1; f && getline(&line, &size, f) >= 0; number++) {
        const char *value = value_with_blank(line);
        for (int i = 0; value && i < data->sections[0].n_entries; i++) {
            const struct amp_cfg_entry *e = &data->sections[0].entries[i];
            if (e->line == number)
                fprintf(warn, "warning: %s:%d: %s=%s: Darknet drops blanks and reads %s\n",
                        data->path, number, e->key, value, e->value);
        }
    }
    free(line);
    if (f) fclose(f);
}

void amp_data_file_check(const struct amp_cfg_file *data, bool refuse, amp_tell *tell,
                         void *context, FILE *warn)
{
    for (int i = 0; i < data->sections[0].n_entries; i++)
        check_key(data, &data->sections[0].entries[i], refuse, tell, context, warn);
    if (warn) check_blanks(data, warn);
}

const char *amp_data_file_default(const struct amp_cfg_file *data, const char *key)
{
    static _Thread_local char text[PATH_MAX + 100];
    if (amp_cfg_find(&data->sections[0], key)) return "";
    snprintf(text, sizeof text, " (%s has no %s= line: this is Darknet's default)", data->path,
             key);
    return text;
}
