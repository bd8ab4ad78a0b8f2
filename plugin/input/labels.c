#define _GNU_SOURCE
#include "labels.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "plugin/core/file.h"

/* ---- the path ---- */

static int replace_first(char *text, size_t size, const char *from, const char *to)
{
    char *at = strstr(text, from);
    if (!at) return 0;
    const char *rest = at + strlen(from);
    size_t rest_size = strlen(rest) + 1;
    if ((size_t)(at - text) + strlen(to) + rest_size > size) return -1;
    memmove(at + strlen(to), rest, rest_size);
    memcpy(at, to, strlen(to));
    return 0;
}

int amp_label_path(const char *image_path, char *label_path, size_t label_path_size, char *err,
                   size_t err_size)
{
    static const char *const steps[][2] = {
        {"images", "labels"}, {"JPEGImages", "labels"}, {"raw", "labels"}, {".jpg", ".txt"},
        {".png", ".txt"},     {".JPG", ".txt"},         {".JPEG", ".txt"},
    };
    int failed = snprintf(label_path, label_path_size, "%s", image_path) >= (int)label_path_size;
    for (size_t i = 0; !failed && i < sizeof steps / sizeof *steps; ++i)
        failed = replace_first(label_path, label_path_size, steps[i][0], steps[i][1]);
    if (failed) {
        snprintf(err, err_size, "%.80s...: the label path is longer than %zu bytes", image_path,
                 label_path_size - 1);
        return -1;
    }
    if (strcmp(label_path, image_path) == 0) {
        snprintf(
            err, err_size,
            "%s: Darknet's rule gives no label file (it replaces .jpg .png .JPG .JPEG by .txt)",
            image_path);
        return -1;
    }
    return 0;
}

/* ---- the file ---- */

struct reader {
    const char *path;
    int line, classes;
    amp_tell *tell;
    void *context;
};

__attribute__((format(printf, 2, 3))) static int tell_fault(const struct reader *r,
                                                            const char *format, ...)
{
    char what[512], message[AMP_LABEL_PATH_MAX + 600];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (r->line)
        snprintf(message, sizeof message, "%s:%d: %s", r->path, r->line, what);
    else
        snprintf(message, sizeof message, "%s: %s", r->path, what);
    r->tell(r->context, message);
    return -1;
}

static const char blanks[] = " \t\r\n\v\f";

/* Cuts a line into fields, in place; returns how many there are, of which max are stored. */
static int split_fields(char *line, char **fields, int max)
{
    int count = 0;
    char *state = NULL;
    for (char *f = strtok_r(line, blanks, &state); f; f = strtok_r(NULL, blanks, &state)) {
        if (count < max) fields[count] = f;
        ++count;
    }
    return count;
}

static int read_class(const struct reader *r, const char *field, int *class_id)
{
    char *end;
    errno = 0;
    long value = strtol(field, &end, 10);
    if (end == field || *end || errno || value < 0 || value >= r->classes)
        return tell_fault(r, "class \"%.40s\": must be a whole number from 0 to %d", field,
                          r->classes - 1);
    *class_id = (int)value;
    return 0;
}

static int read_fraction(const struct reader *r, const char *name, const char *field, bool is_size,
                         double *value)
{
    char *end;
    *value = strtod(field, &end);
    if (end == field || *end || !isfinite(*value))
        return tell_fault(r, "%s \"%.40s\": must be a finite number", name, field);
    if (is_size && *value < 0)
        return tell_fault(r, "%s \"%.40s\": must not be below 0", name, field);
    if (fabs(*value) > AMP_LABEL_BOX_MAX)
        return tell_fault(r, "%s \"%.40s\": must be a fraction of the image (0 to 1), not pixels",
                          name, field);
    return 0;
}

static int read_row(const struct reader *r, char *line, struct amp_label *label)
{
    char *fields[5];
    int count = split_fields(line, fields, 5);
    if (count != 5) return tell_fault(r, "%d fields, must be 5: class x y width height", count);
    if (read_class(r, fields[0], &label->class_id)) return -1;
    if (read_fraction(r, "x", fields[1], false, &label->x)) return -1;
    if (read_fraction(r, "y", fields[2], false, &label->y)) return -1;
    if (read_fraction(r, "width", fields[3], true, &label->width)) return -1;
    return read_fraction(r, "height", fields[4], true, &label->height);
}

/* Past rounding of labels written with six decimals. */
static bool reaches_over_edge(const struct amp_label *l)
{
    const double slack = 1e-5;
    return l->x - l->width / 2 < -slack || l->x + l->width / 2 > 1 + slack ||
           l->y - l->height / 2 < -slack || l->y + l->height / 2 > 1 + slack;
}

static int append_row(const struct reader *r, struct amp_labels *labels, struct amp_label row)
{
    if (labels->count == labels->capacity) {
        size_t capacity = labels->capacity ? 2 * labels->capacity : 16;
        struct amp_label *rows = realloc(labels->rows, capacity * sizeof *rows);
        if (!rows) return tell_fault(r, "no memory for %zu labels", capacity);
        labels->rows = rows;
        labels->capacity = capacity;
    }
    labels->rows[labels->count++] = row;
    labels->over_edge += reaches_over_edge(&row);
    labels->no_area += row.width == 0 || row.height == 0;
    return 0;
}

static FILE *open_file(const struct reader *r)
{
    struct stat info;
    const char *why = amp_file_unreadable(r->path);
    if (!why && (stat(r->path, &info) || info.st_size > AMP_LABEL_FILE_MAX))
        why = "larger than 16 MiB, which no label file is";
    FILE *file = why ? NULL : fopen(r->path, "r");
    if (!file) tell_fault(r, "cannot read label file: %s", why ? why : strerror(errno));
    return file;
}

int amp_labels_read(const char *path, int classes, struct amp_labels *labels, amp_tell *tell,
                    void *context)
{
    struct reader r = {.path = path, .classes = classes, .tell = tell, .context = context};
    labels->count = labels->over_edge = labels->no_area = 0;
    FILE *file = open_file(&r);
    if (!file) return -1;
    char *line = NULL;
    size_t line_size = 0;
    int failed = 0;
    ssize_t length;
    while (errno = 0, (length = getline(&line, &line_size, file)) >= 0) {
        struct amp_label row;
        ++r.line;
        if (strlen(line) != (size_t)length)
            failed = tell_fault(&r, "NUL byte in a label line");
        else if (line[strspn(line, blanks)] == '\0')
            continue;
        else if (read_row(&r, line, &row) || append_row(&r, labels, row))
            failed = -1;
    }
    r.line = 0;
    if (ferror(file)) failed = tell_fault(&r, "cannot read label file: %s", strerror(errno));
    free(line);
    fclose(file);
    return failed;
}

void amp_labels_free(struct amp_labels *labels)
{
    free(labels->rows);
    *labels = (struct amp_labels){0};
}
