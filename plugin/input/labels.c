/* Decides where an image's labels are, and which lines of a label file are good. It must not open
 * images or call Darknet. Darknet reads labels with fscanf, stops at the first surprise and trains
 * on what it has; here every such line is a fault, named with file and line. */

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

#include "plugin/core/files/file.h"
#include "plugin/core/read/text.h"

/* ---- the path ---- */

/* Darknet replaces the first match too, wherever in the path it is. */
int amp_replace_first(char *text, size_t size, const char *from, const char *to)
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
    /* Darknet's own list, in its order (fill_truth_detection); one step may undo what a user meant
     * by a folder name, and then Darknet does so as well. */
    static const char *const steps[][2] = {
        {"images", "labels"}, {"JPEGImages", "labels"}, {"raw", "labels"}, {".jpg", ".txt"},
        {".png", ".txt"},     {".JPG", ".txt"},         {".JPEG", ".txt"},
    };
    int failed = snprintf(label_path, label_path_size, "%s", image_path) >= (int)label_path_size;
    for (size_t i = 0; !failed && i < sizeof steps / sizeof *steps; i++)
        failed = amp_replace_first(label_path, label_path_size, steps[i][0], steps[i][1]);
    if (failed) {
        snprintf(err, err_size, "%.80s...: the label path is longer than %zu bytes", image_path,
                 label_path_size - 1);
        return -1;
    }
    /* Darknet would read the image file as labels. */
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

__attribute__((format(printf, 2, 3))) static int report_fault(const struct reader *r,
                                                              const char *format, ...)
{
    char what[512], message[AMP_LABEL_PATH_MAX + 600];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    /* Line 0: the fault is the whole file's. */
    if (r->line)
        snprintf(message, sizeof message, "%s:%d: %s", r->path, r->line, what);
    else
        snprintf(message, sizeof message, "%s: %s", r->path, what);
    r->tell(r->context, message);
    return -1;
}

/* The white space that fscanf skips. */
static const char blanks[] = " \t\r\n\v\f";

/* Cuts a line into fields, in place; returns how many there are, of which max are stored. */
static int split_fields(char *line, char **fields, int max)
{
    int count = 0;
    char *state = NULL;
    for (char *f = strtok_r(line, blanks, &state); f; f = strtok_r(NULL, blanks, &state)) {
        if (count < max) fields[count] = f;
        count++;
    }
    return count;
}

/* strtol and a look at the end: "1.5" and "1e3" are no classes, though fscanf would take their
 * beginnings. */
static int read_class(const struct reader *r, const char *field, int *class_id)
{
    char *end;
    errno = 0;
    long value = strtol(field, &end, 10);
    if (end == field || *end || errno || value < 0 || value >= r->classes)
        return r->classes == 1
                   ? report_fault(r, "class \"%.40s\": must be 0, the only class", field)
                   : report_fault(r, "class \"%.40s\": must be a whole number from 0 to %d", field,
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
        return report_fault(r, "%s \"%.40s\": must be a finite number", name, field);
    if (is_size && *value < 0)
        return report_fault(r, "%s \"%.40s\": must not be below 0", name, field);
    /* Pixels instead of fractions are the usual mistake, so the message names it. */
    if (fabs(*value) > AMP_LABEL_BOX_MAX)
        return report_fault(r, "%s \"%.40s\": must be a fraction of the image (0 to 1), not pixels",
                            name, field);
    return 0;
}

static int read_row(const struct reader *r, char *line, struct amp_label *label)
{
    char *fields[5];
    int count = split_fields(line, fields, 5);
    if (count != 5) return report_fault(r, "%d fields, must be 5: class x y width height", count);
    if (read_class(r, fields[0], &label->class_id)) return -1;
    if (read_fraction(r, "x", fields[1], false, &label->x)) return -1;
    if (read_fraction(r, "y", fields[2], false, &label->y)) return -1;
    if (read_fraction(r, "width", fields[3], true, &label->width)) return -1;
    return read_fraction(r, "height", fields[4], true, &label->height);
}

/* True if the box reaches over an edge by more than rounding: labels often have six decimals. */
static bool reaches_over_edge(const struct amp_label *l)
{
    const double slack = 1e-5;
    return l->x - l->width / 2 < -slack || l->x + l->width / 2 > 1 + slack ||
           l->y - l->height / 2 < -slack || l->y + l->height / 2 > 1 + slack;
}

/* Rows are kept from file to file, so a list needs few allocations. */
static int append_row(const struct reader *r, struct amp_labels *labels, struct amp_label row)
{
    if (labels->count == labels->capacity) {
        size_t capacity = labels->capacity ? 2 * labels->capacity : 16;
        struct amp_label *rows = realloc(labels->rows, capacity * sizeof *rows);
        if (!rows) return report_fault(r, "no memory for %zu labels", capacity);
        labels->rows = rows;
        labels->capacity = capacity;
    }
    labels->rows[labels->count++] = row;
    labels->over_edge += reaches_over_edge(&row);
    labels->no_area += row.width == 0 || row.height == 0;
    return 0;
}

/* A list may name a video or an archive by mistake; those are not read to the end. */
static FILE *open_file(const struct reader *r)
{
    struct stat info;
    const char *why = amp_file_unreadable(r->path);
    if (!why && (stat(r->path, &info) || info.st_size > AMP_LABEL_FILE_MAX))
        why = "larger than 16 MiB, which no label file is";
    FILE *file = why ? NULL : fopen(r->path, "r");
    if (!file) report_fault(r, "cannot read label file: %s", why ? why : strerror(errno));
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
    /* A bad line is told and the next one read: all faults of a file in one go. */
    while (errno = 0, (length = getline(&line, &line_size, file)) >= 0) {
        struct amp_label row;
        r.line++;
        if (strlen(line) != (size_t)length)
            failed = report_fault(&r, "NUL byte in a label line");
        else if (line[strspn(line, blanks)] == '\0')
            continue;
        else if (read_row(&r, line, &row) || append_row(&r, labels, row))
            failed = -1;
    }
    r.line = 0;
    if (ferror(file)) failed = report_fault(&r, "cannot read label file: %s", strerror(errno));
    free(line);
    fclose(file);
    return failed;
}

void amp_labels_free(struct amp_labels *labels)
{
    free(labels->rows);
    *labels = (struct amp_labels){0};
}

/* ---- the list of images ---- */

/* Faults of one kind: their number, and the first few in words. A list of a million images may have
 * a million faults. */
struct faults {
    const char *title; /* "images that cannot be read" */
    size_t count;
    char *named[AMP_FAULTS_NAMED];
};

enum { IMAGES, LABEL_FILES, LABELS, KINDS };

struct checker {
    amp_image_rule *rule; /* what an image needs; NULL: boxes of these classes */
    void *rule_context;
    int classes;
    struct faults faults[KINDS];
    struct amp_train_list *list;
    struct amp_labels labels;
};

/* Counts a fault and keeps the first ones. amp_labels_read calls it, too. */
static void add_fault(void *context, const char *message)
{
    struct faults *f = context;
    if (f->count < AMP_FAULTS_NAMED) f->named[f->count] = strdup(message);
    f->count++;
}

__attribute__((format(printf, 2, 3))) static void name_fault(struct faults *f, const char *format,
                                                             ...)
{
    char message[2 * AMP_LABEL_PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    add_fault(f, message);
}

/* Length of a path without the white space at its end, which a message would hide; hint says what
 * was left out. */
static int visible_length(const char *path, const char **hint)
{
    size_t length = strlen(path), visible = length;
    while (visible && strchr(" \t\r", path[visible - 1]))
        visible--;
    *hint = "";
    if (visible < length)
        *hint = path[length - 1] == '\r' ? " (the name ends in a carriage return)"
                                         : " (the name ends in a blank)";
    return (int)visible;
}

static void name_file(struct faults *f, size_t number, const char *path, const char *why)
{
    const char *hint;
    int length = visible_length(path, &hint);
    name_fault(f, "line %zu: %.*s: %s%s", number, length, path, why, hint);
}

/* Only whether it can be read: decoding a million images would take hours, and training tells
 * then. */
static void check_image(struct checker *k, const char *path, size_t number)
{
    struct faults *f = &k->faults[IMAGES];
    const char *why = amp_file_unreadable(path);
    if (!*path)
        name_fault(f, "line %zu: is empty, which Darknet takes for the name of a file", number);
    else if (why)
        name_file(f, number, path, why);
}

static void check_rule(struct checker *k, const char *image_path, size_t number)
{
    char why[2 * AMP_LABEL_PATH_MAX];
    if (!k->rule(k->rule_context, image_path, why, sizeof why))
        name_fault(&k->faults[LABELS], "line %zu: %s", number, why);
}

static void check_labels(struct checker *k, const char *image_path, size_t number)
{
    char path[AMP_LABEL_PATH_MAX], err[2 * AMP_LABEL_PATH_MAX];
    struct faults *missing = &k->faults[LABEL_FILES];
    if (amp_label_path(image_path, path, sizeof path, err, sizeof err)) {
        name_fault(missing, "line %zu: %s", number, err);
        return;
    }
    const char *why = amp_file_unreadable(path);
    if (why) {
        name_file(missing, number, path, why);
        return;
    }
    amp_labels_read(path, k->classes, &k->labels, add_fault, &k->faults[LABELS]);
    k->list->over_edge += k->labels.over_edge;
    k->list->no_area += k->labels.no_area;
}

/* The line's last byte but the newline belongs to the name, as in Darknet. */
static void check_line(struct checker *k, char *line, size_t length)
{
    size_t number = ++k->list->images;
    if (length && line[length - 1] == '\n') line[--length] = '\0';
    if (strlen(line) != length) {
        name_fault(&k->faults[IMAGES], "line %zu: has a NUL byte", number);
    } else if (length >= AMP_LABEL_PATH_MAX) {
        name_fault(&k->faults[IMAGES], "line %zu: %.80s...: longer than %d bytes", number, line,
                   AMP_LABEL_PATH_MAX - 1);
    } else {
        check_image(k, line, number);
        if (length) (k->rule ? check_rule : check_labels)(k, line, number);
    }
}

/* Counted first, for the progress lines. A last line without a newline counts. */
static size_t count_lines(FILE *file)
{
    size_t lines = 0;
    int c, last = '\n';
    while ((c = getc(file)) != EOF) {
        lines += c == '\n';
        last = c;
    }
    rewind(file);
    return lines + (last != '\n');
}

/* feof tells the end of the file from a read error; getline returns -1 for both. */
static int check_lines(struct checker *k, FILE *file, FILE *out)
{
    struct amp_progress progress;
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    amp_progress_start(&progress, out, "checking images and labels", count_lines(file));
    while ((length = getline(&line, &size, file)) >= 0) {
        check_line(k, line, (size_t)length);
        amp_progress_update(&progress, k->list->images);
    }
    free(line);
    return feof(file) ? 0 : -1;
}

__attribute__((format(printf, 3, 4))) static int say(amp_tell *tell, void *context,
                                                     const char *format, ...)
{
    char message[2 * AMP_LABEL_PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    tell(context, message);
    return -1;
}

/* The title first, then indented lines; amp_print_faults keeps them together. */
static int report(struct faults *f, const char *path, amp_tell *tell, void *context)
{
    if (!f->count) return 0;
    say(tell, context, "%s: %s (%zu):", path, f->title, f->count);
    for (size_t i = 0; i < f->count && i < AMP_FAULTS_NAMED; i++) {
        say(tell, context, "  %s", f->named[i] ? f->named[i] : "out of memory");
        free(f->named[i]);
    }
    if (f->count > AMP_FAULTS_NAMED)
        say(tell, context, "  ... and %zu more", f->count - AMP_FAULTS_NAMED);
    return -1;
}

static int check_list(struct checker *k, const char *path, FILE *progress, amp_tell *tell,
                      void *context)
{
    *k->list = (struct amp_train_list){0};
    const char *why = amp_text_unreadable(path);
    FILE *file = why ? NULL : fopen(path, "r");
    if (!file) return say(tell, context, "image list %s: %s", path, why ? why : strerror(errno));
    int failed = 0;
    if (check_lines(k, file, progress))
        failed = say(tell, context, "image list %s: %s", path, strerror(errno));
    else if (!k->list->images)
        failed = say(tell, context, "image list %s: names no image", path);
    fclose(file);
    amp_labels_free(&k->labels);
    for (int i = 0; i < KINDS; i++)
        if (report(&k->faults[i], path, tell, context)) failed = -1;
    return failed;
}

#define NO_IMAGES "images that cannot be read"

int amp_train_list_check(const char *path, int classes, FILE *progress, struct amp_train_list *list,
                         amp_tell *tell, void *context)
{
    struct checker k = {.classes = classes,
                        .list = list,
                        .faults = {{.title = NO_IMAGES},
                                   {.title = "label files that cannot be read"},
                                   {.title = "faults in label files"}}};
    return check_list(&k, path, progress, tell, context);
}

int amp_image_list_check(const char *path, const char *title, amp_image_rule *rule,
                         void *rule_context, FILE *progress, amp_tell *tell, void *context)
{
    struct amp_train_list list;
    struct checker k = {.rule = rule,
                        .rule_context = rule_context,
                        .list = &list,
                        .faults = {[IMAGES] = {.title = NO_IMAGES}, [LABELS] = {.title = title}}};
    return check_list(&k, path, progress, tell, context);
}
