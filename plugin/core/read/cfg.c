/* Reads and writes the lines of a cfg or .data file. It decides which lines are well formed. It
 * must not know any key: what a key or value means is the business of cfg_keys.c, cfg_values.c and
 * options.c. */
#define _GNU_SOURCE
#include "cfg.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lines.h"

struct reader {
    struct amp_cfg_file *file;
    bool sectioned; /* a cfg; else a .data file */
    int line;
    char *err;
    size_t err_size;
};

__attribute__((format(printf, 2, 3))) static int fail(struct reader *r, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (r->line > 0)
        snprintf(r->err, r->err_size, "%s:%d: %s", r->file->path, r->line, what);
    else
        snprintf(r->err, r->err_size, "%s: %s", r->file->path, what);
    return -1;
}

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
    if (!grown) return fail(r, "out of memory");
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

/* raw: the same line with its blanks. */
static int add_entry(struct reader *r, char *line, char *raw)
{
    struct amp_cfg_file *f = r->file;
    if (!f->n_sections)
        return fail(
            r,
            "\"%.60s\" stands before the first section; the first must be [net]. If this is "
            "a data file: the order is DATA CFG",
            line);
    /* Cut in place: key and value stay in the file's text, which the result keeps. */
    char *equals = strchr(line, '=');
    if (!equals)
        return fail(r, "\"%.60s\" has no \"=\"; allowed: key=value%s", line,
                    *line == '[' ? ". If this is a cfg: the order is DATA CFG" : "");
    if (equals == line) return fail(r, "\"%.60s\" has no key before \"=\"", line);
    *equals = '\0';
    if (!equals[1]) return fail(r, "key %.60s has no value after \"=\"", line);

    struct amp_cfg_section *s = &f->sections[f->n_sections - 1];
    struct amp_cfg_entry *grown = grow(s->entries, s->n_entries, sizeof *grown);
    if (!grown) return fail(r, "out of memory");
    s->entries = grown;
    s->entries[s->n_entries++] = (struct amp_cfg_entry){
        .key = line, .value = equals + 1, .written = written_value(raw), .line = r->line};
    return 0;
}

static int read_line(struct reader *r, char *line, char *raw)
{
    strip(line);
    if (*line == '\0' || *line == '#' || *line == ';') return 0;
    /* Named on its own, since files from Windows are common and the way out is simple. */
    if (strchr(line, '\r'))
        return fail(r, "has a carriage return (Windows line end), which Darknet takes as part of "
                       "the value; save the file with Unix line ends (dos2unix FILE)");
    for (const char *c = line; *c; c++)
        if (iscntrl((unsigned char)*c)) return fail(r, "has a control character; not text");
    /* In a .data file "[" is a character like any other. */
    if (*line != '[' || !r->sectioned) return add_entry(r, line, raw);
    if (line[strlen(line) - 1] != ']')
        return fail(r, "section \"%.60s\" does not end with \"]\"%s", line,
                    strpbrk(line, "#;") ? "; a remark is not allowed behind a section: put it on a "
                                          "line of its own"
                                        : "");
    return add_section(r, line);
}

static int read_lines(struct reader *r, size_t size)
{
    char *text = r->file->text, *raw = r->file->raw;
    const char *why = amp_text_encoding(text, size);
    if (why) return fail(r, "%s", why);
    for (size_t start = 0; start < size;) {
        char *newline = memchr(text + start, '\n', size - start);
        size_t end = newline ? (size_t)(newline - text) : size;
        r->line++;
        /* A NUL would end the line for Darknet and hide the rest of it. */
        if (memchr(text + start, '\0', end - start)) return fail(r, "has a NUL byte; not text");
        text[end] = raw[end] = '\0';
        if (read_line(r, text + start, raw + start)) return -1;
        start = end + 1;
    }
    /* Errors after this concern the whole file, not a line. */
    r->line = 0;
    return r->file->n_sections ? 0 : fail(r, "has no section; the first must be [net]");
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

static struct amp_cfg_file *parse(const char *path, const char *text, size_t size, bool sectioned,
                                  char *err, size_t err_size)
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
    struct reader r = {file, sectioned, 0, err, err_size};
    /* The one section of a .data file; its name is the empty string at the end of text. */
    if ((!sectioned && add_section(&r, file->text + size)) || read_lines(&r, size)) {
        amp_cfg_free(file);
        return NULL;
    }
    return file;
}

/* Before opening: a pipe or a device could wait or never end. */
static int check_readable(const char *path, size_t *size, char *err, size_t err_size)
{
    struct stat info;
    const char *why = NULL;
    if (stat(path, &info))
        why = strerror(errno);
    else if (!S_ISREG(info.st_mode))
        why = "not a regular file";
    else if (info.st_size > AMP_CFG_MAX_BYTES)
        why = "larger than 16 MiB, which no cfg or data file is";
    if (why) snprintf(err, err_size, "cannot read %s: %s", path, why);
    *size = why ? 0 : (size_t)info.st_size;
    return why ? -1 : 0;
}

static char *read_text(const char *path, size_t *size, char *err, size_t err_size)
{
    if (check_readable(path, size, err, err_size)) return NULL;
    FILE *fp = fopen(path, "rb");
    if (!fp) {
        snprintf(err, err_size, "cannot read %s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = malloc(*size + 1);
    if (text) *size = fread(text, 1, *size, fp);
    /* fclose may change errno. */
    int why = !text ? ENOMEM : ferror(fp) ? errno : 0;
    fclose(fp);
    if (!why) return text;
    snprintf(err, err_size, "cannot read %s: %s", path, strerror(why));
    free(text);
    return NULL;
}

struct amp_cfg_file *amp_cfg_read(const char *path, char *err, size_t err_size)
{
    size_t size;
    char *text = read_text(path, &size, err, err_size);
    struct amp_cfg_file *file = text ? amp_cfg_parse(path, text, size, err, err_size) : NULL;
    free(text);
    return file;
}

struct amp_cfg_file *amp_cfg_read_data(const char *path, char *err, size_t err_size)
{
    size_t size;
    char *text = read_text(path, &size, err, err_size);
    struct amp_cfg_file *file = text ? parse(path, text, size, false, err, err_size) : NULL;
    free(text);
    return file;
}

struct amp_cfg_file *amp_cfg_parse(const char *path, const char *text, size_t size, char *err,
                                   size_t err_size)
{
    if (size > AMP_CFG_MAX_BYTES) {
        snprintf(err, err_size, "%s: larger than 16 MiB, which no cfg is", path);
        return NULL;
    }
    return parse(path, text, size, true, err, err_size);
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

void amp_cfg_describe(const struct amp_cfg_file *file, const struct amp_cfg_entry *entry, char *out,
                      size_t size, const char *format, va_list args)
{
    char what[256];
    vsnprintf(what, sizeof what, format, args);
    snprintf(out, size, "%s:%d: %s=%.80s: %s", file->path, entry->line, entry->key, entry->written,
             what);
}

int amp_cfg_fail(const struct amp_cfg_file *file, const struct amp_cfg_entry *entry, char *err,
                 size_t err_size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    amp_cfg_describe(file, entry, err, err_size, format, args);
    va_end(args);
    return -1;
}

void amp_cfg_idle_add(struct amp_cfg_idle *idle, const struct amp_cfg_entry *entry)
{
    if (entry && idle->n < (int)(sizeof idle->keys / sizeof *idle->keys))
        idle->keys[idle->n++] = entry;
}

void amp_cfg_idle_note(const struct amp_cfg_idle *idle, const struct amp_cfg_file *file,
                       char *notes, size_t size, const char *format, ...)
{
    if (!idle->n || !size) return;
    char *end = notes + strlen(notes), *limit = notes + size;
    va_list args;
    va_start(args, format);
    amp_cfg_describe(file, idle->keys[0], end, (size_t)(limit - end), format, args);
    va_end(args);
    for (int i = 1; i < idle->n; i++) {
        end += strlen(end);
        snprintf(end, (size_t)(limit - end), "%s %s=%.40s (line %d)", i == 1 ? "; likewise" : ",",
                 idle->keys[i]->key, idle->keys[i]->written, idle->keys[i]->line);
    }
    strncat(notes, "\n", size - strlen(notes) - 1);
}

bool amp_number_vanishes(const char *value)
{
    errno = 0;
    double size = fabs(strtod(value, NULL));
    return size < (double)FLT_MIN && (size > 0 || errno == ERANGE);
}

const char *amp_cfg_remark_hint(const char *value)
{
    return value[strcspn(value, "#;")]
               ? " (a remark is not allowed after a value: put it on a line "
                 "of its own)"
               : "";
}

/* ---- a cfg with some keys changed ---- */

#define VARIANT_NAME "darknet-amp cfg"

/* Darknet reads the first of two equal keys, so the replacement comes first and the old key is left
 * out. */
static bool is_replaced(int section, const char *key, const struct amp_cfg_key *keys, int n)
{
    for (int i = 0; i < n; i++)
        if (keys[i].section == section && !strcmp(key, keys[i].key)) return true;
    return false;
}

static void write_section(FILE *f, const struct amp_cfg_file *cfg, int section,
                          const struct amp_cfg_key *keys, int n)
{
    const struct amp_cfg_section *s = &cfg->sections[section];
    fprintf(f, "%s\n", s->name);
    for (int i = 0; i < n; i++)
        if (keys[i].section == section && keys[i].value)
            fprintf(f, "%s=%s\n", keys[i].key, keys[i].value);
    for (int i = 0; i < s->n_entries; i++)
        if (!is_replaced(section, s->entries[i].key, keys, n))
            fprintf(f, "%s=%s\n", s->entries[i].key, s->entries[i].value);
}

int amp_cfg_variant_open(struct amp_cfg_variant *v, const struct amp_cfg_file *cfg,
                         const struct amp_cfg_key *keys, int n, char *err, size_t err_size)
{
    /* In memory: no file to name, to clean up, or to leave behind when the program is killed. */
    v->fd = memfd_create(VARIANT_NAME, MFD_CLOEXEC);
    /* fclose closes the copy; v->fd must stay open, since path refers to it. */
    int copy = v->fd < 0 ? -1 : dup(v->fd);
    FILE *f = copy < 0 ? NULL : fdopen(copy, "w");
    for (int i = 0; f && i < cfg->n_sections; i++)
        write_section(f, cfg, i, keys, n);
    /* A full memory shows in ferror or in fclose. */
    bool written = f && !ferror(f);
    if (!f && copy >= 0) close(copy);
    if (f) written = !fclose(f) && written;
    if (written) {
        snprintf(v->path, sizeof v->path, "/proc/self/fd/%d", v->fd);
        return 0;
    }
    snprintf(err, err_size, "%s: no copy of it in memory: %s", cfg->path, strerror(errno));
    amp_cfg_variant_close(v);
    return -1;
}

void amp_cfg_variant_close(struct amp_cfg_variant *v)
{
    if (v->fd >= 0) close(v->fd);
    v->fd = -1;
}

/* By the name that the kernel keeps, as the opener may be another copy of this file. */
bool amp_cfg_is_variant(const char *path)
{
    static const char start[] = "/memfd:" VARIANT_NAME;
    char name[sizeof start];
    ssize_t length = readlink(path, name, sizeof start - 1);
    return length == (ssize_t)sizeof start - 1 && !memcmp(name, start, sizeof start - 1);
}
