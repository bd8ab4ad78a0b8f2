/* Takes the text of a cfg or .data file apart into lines, and looks things up in them. It decides
 * which lines are well formed. It must not know any key: what a key or value means is the business
 * of key_table.c, cfg_values.c and options.c. */
#define _GNU_SOURCE
#include "cfg_text.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "complaints.h"
#include "lines.h"

struct reader {
    struct amp_complaints complaints;
    struct amp_cfg_file *file;
    bool sectioned; /* a cfg; else a .data file */
    int line;       /* 0: the whole file */
};

/* Makes room for one more element. The array grows at powers of two, so no capacity needs to be
 * stored. */
static void *grow(void *array, int n, size_t element)
{
    if (n & (n - 1)) return array;
    return realloc(array, (n ? 2 * (size_t)n : 1) * element);
}

/* Darknet's strip(): drops blanks and tabs anywhere in a line, so "a = b" is "a=b". */
static void strip(char *s)
{
    char *to = s;
    for (; *s; s++)
        if (*s != ' ' && *s != '\t') *to++ = *s;
    *to = '\0';
}

static int add_section(struct reader *r, char *name)
{
    struct amp_cfg_file *f = r->file;
    struct amp_cfg_section *grown = grow(f->sections, f->n_sections, sizeof *grown);
    if (!grown) return amp_fail_line(&r->complaints, r->line, "out of memory");
    f->sections = grown;
    f->sections[f->n_sections++] = (struct amp_cfg_section){.name = name, .line = r->line};
    return 0;
}

/* The value as it stands in the file, between the blanks around it. */
static char *written_value(char *raw)
{
    char *value = strchr(raw, '=') + 1;
    value += strspn(value, " \t");
    size_t length = strlen(value);
    while (length && strchr(" \t", value[length - 1]))
        length--;
    value[length] = '\0';
    return value;
}

/* Files of other kinds in a cfg's place, and in a data file's. */
static const char *hint_at_cfg(const char *line)
{
    if (strchr(line, '=')) return ". If this is a data file: the order is DATA CFG";
    return strpbrk(line, ":{") ? ". A model of another framework (YAML, prototxt, JSON) has to be "
                                 "written anew as a "
                                 "cfg of sections, as [net] and [convolutional]"
                               : "";
}

#define DATA_LINES                                                                                 \
    "classes=2, train=LIST, valid=LIST, names=FILE and backup=FOLDER, where LIST has the path of " \
    "one image a line"

static const char *hint_at_data(const char *line)
{
    if (*line == '[') return ". If this is a cfg: the order is DATA CFG";
    if (strpbrk(line, ":{") || *line == '-')
        return ". YAML and JSON, as Ultralytics' data.yaml, have to be written anew as lines such "
               "as " DATA_LINES;
    return strchr(line, '/') || strchr(line, '.') ? ". If this is a list of images: DATA is a file "
                                                    "that names it, in lines such as " DATA_LINES
                                                  : "";
}

/* raw: the same line with its blanks. */
static int add_entry(struct reader *r, char *line, char *raw)
{
    struct amp_cfg_file *f = r->file;
    if (!f->n_sections)
        return amp_fail_line(&r->complaints, r->line,
                             "\"%.60s\" stands before the first section; the first must be [net]%s",
                             line, hint_at_cfg(line));
    /* Cut in place: key and value stay in the file's text, which the result keeps. */
    char *equals = strchr(line, '=');
    if (!equals)
        return amp_fail_line(&r->complaints, r->line,
                             "\"%.60s\" has no \"=\"; allowed: key=value%s", line,
                             r->sectioned ? "" : hint_at_data(line));
    if (equals == line)
        return amp_fail_line(&r->complaints, r->line, "\"%.60s\" has no key before \"=\"", line);
    *equals = '\0';
    if (!equals[1])
        return amp_fail_line(&r->complaints, r->line, "key %.60s has no value after \"=\"", line);

    struct amp_cfg_section *s = &f->sections[f->n_sections - 1];
    struct amp_cfg_entry *grown = grow(s->entries, s->n_entries, sizeof *grown);
    if (!grown) return amp_fail_line(&r->complaints, r->line, "out of memory");
    s->entries = grown;
    s->entries[s->n_entries++] = (struct amp_cfg_entry){
        .key = line, .value = equals + 1, .written = written_value(raw), .line = r->line};
    return 0;
}

static bool drop_carriage_return(char *line)
{
    size_t length = strlen(line);
    bool has = length && line[length - 1] == '\r';
    if (has) line[length - 1] = '\0';
    return has;
}

static int read_line(struct reader *r, char *line, char *raw)
{
    bool returns = drop_carriage_return(line) && drop_carriage_return(raw);
    strip(line);
    if (*line == '#' || *line == ';') return 0;
    /* Whether they are allowed the cfg says (cfg.c, plugin/input/checker.c). */
    if (returns && !r->file->carriage_return) r->file->carriage_return = r->line;
    if (*line == '\0') return 0;
    for (const char *c = line; *c; c++)
        if (iscntrl((unsigned char)*c) && *c != '\r')
            return amp_fail_line(&r->complaints, r->line, "has a control character; not text");
    if (strchr(line, '\r')) return amp_fail_line(&r->complaints, r->line, AMP_CFG_CARRIAGE_RETURN);
    /* In a .data file "[" is a character like any other. */
    if (*line != '[' || !r->sectioned) return add_entry(r, line, raw);
    if (line[strlen(line) - 1] != ']')
        return amp_fail_line(
            &r->complaints, r->line, "section \"%.60s\" does not end with \"]\"%s", line,
            strpbrk(line, "#;") ? "; a remark is not allowed behind a section: put "
                                  "it on a line of its own"
                                : "");
    return add_section(r, line);
}

static int read_lines(struct reader *r, size_t size)
{
    char *text = r->file->text, *raw = r->file->raw;
    const char *why = amp_text_encoding(text, size);
    if (why) return amp_fail_line(&r->complaints, r->line, "%s", why);
    for (size_t start = 0; start < size;) {
        char *newline = memchr(text + start, '\n', size - start);
        size_t end = newline ? (size_t)(newline - text) : size;
        r->line++;
        /* A NUL would end the line for Darknet and hide the rest of it. */
        if (memchr(text + start, '\0', end - start))
            return amp_fail_line(&r->complaints, r->line, "has a NUL byte; not text");
        text[end] = raw[end] = '\0';
        if (read_line(r, text + start, raw + start)) return -1;
        start = end + 1;
    }
    /* Errors after this concern the whole file, not a line. */
    r->line = 0;
    return r->file->n_sections
               ? 0
               : amp_fail_line(&r->complaints, r->line, "has no section; the first must be [net]");
}

static char *copy_text(const char *text, size_t size)
{
    char *result = malloc(size + 1);
    if (!result) return NULL;
    memcpy(result, text, size);
    /* The last line may lack its newline. */
    result[size] = '\0';
    return result;
}

struct amp_cfg_file *amp_cfg_text_parse(const char *path, const char *text, size_t size,
                                        bool sectioned, char *err, size_t err_size)
{
    struct amp_cfg_file *file = calloc(1, sizeof *file);
    /* Two copies: one loses its blanks. */
    if (file)
        *file = (struct amp_cfg_file){
            .path = strdup(path), .text = copy_text(text, size), .raw = copy_text(text, size)};
    if (!file || !file->path || !file->text || !file->raw) {
        snprintf(err, err_size, "%s: out of memory", path);
        amp_cfg_free(file);
        return NULL;
    }
    struct reader r = {.complaints = {.cfg = file, .err = err, .err_size = err_size},
                       .file = file,
                       .sectioned = sectioned};
    /* The one section of a .data file; its name is the empty string at the end of text. */
    if ((!sectioned && add_section(&r, file->text + size)) || read_lines(&r, size)) {
        amp_cfg_free(file);
        return NULL;
    }
    return file;
}

void amp_cfg_free(struct amp_cfg_file *file)
{
    if (!file) return;
    for (int i = 0; i < file->n_sections; i++)
        free(file->sections[i].entries);
    free(file->sections);
    free(file->text);
    free(file->raw);
    free(file->path);
    free(file);
}

/* ---- looking up ---- */

const struct amp_cfg_section *amp_cfg_layer(const struct amp_cfg_file *file, int i)
{
    return &file->sections[i + 1];
}

const struct amp_cfg_entry *amp_cfg_find(const struct amp_cfg_section *section, const char *key)
{
    for (int i = 0; i < section->n_entries; i++)
        if (!strcmp(section->entries[i].key, key)) return &section->entries[i];
    return NULL;
}

int amp_cfg_line(const struct amp_cfg_section *section, const char *key)
{
    const struct amp_cfg_entry *entry = amp_cfg_find(section, key);
    return entry ? entry->line : section->line;
}

int amp_cfg_int(const struct amp_cfg_section *section, const char *key, int def)
{
    const struct amp_cfg_entry *entry = amp_cfg_find(section, key);
    return entry ? (int)strtol(entry->value, NULL, 10) : def; /* glibc's atoi, but defined */
}

double amp_cfg_float(const struct amp_cfg_section *section, const char *key, double def)
{
    const struct amp_cfg_entry *entry = amp_cfg_find(section, key);
    return entry ? strtod(entry->value, NULL) : def;
}

const char *amp_cfg_string(const struct amp_cfg_section *section, const char *key, const char *def)
{
    const struct amp_cfg_entry *entry = amp_cfg_find(section, key);
    return entry ? entry->value : def;
}

int amp_cfg_put(struct amp_cfg_section *section, char *key, char *value)
{
    const struct amp_cfg_entry *given = amp_cfg_find(section, key);
    struct amp_cfg_entry *entries = calloc((size_t)section->n_entries + 1, sizeof *entries);
    if (!entries) return -1;
    if (section->n_entries)
        memcpy(entries, section->entries, (size_t)section->n_entries * sizeof *entries);
    entries[given ? given - section->entries : section->n_entries] = (struct amp_cfg_entry){
        .key = key, .value = value, .written = value, .line = given ? given->line : section->line};
    section->n_entries += !given;
    section->entries = entries;
    return 0;
}

int amp_list_count(const char *list)
{
    int n = 1;
    for (; *list; list++)
        n += *list == ',';
    return n;
}

const char *amp_list_next(const char *element)
{
    const char *comma = strchr(element, ',');
    return comma ? comma + 1 : NULL;
}

bool amp_number_vanishes(const char *value)
{
    errno = 0;
    double size = fabs(strtod(value, NULL));
    return size < (double)FLT_MIN && (size > 0 || errno == ERANGE);
}

const char *amp_cfg_remark_hint(const char *value)
{
    if (value[strcspn(value, "#;")] || strstr(value, "//"))
        return " (a remark is not allowed after a value: put it on a line of its own)";
    for (; *value; value++)
        if ((unsigned char)*value >= 0x80)
            return " (it holds a character that is not ASCII, such as the quotes, dashes and "
                   "blanks "
                   "of web pages: type it anew)";
    return "";
}

const char *amp_cfg_default_hint(const struct amp_cfg_section *s, const char *key)
{
    return amp_cfg_find(s, key) ? "" : " (the default)";
}
