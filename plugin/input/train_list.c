#define _GNU_SOURCE
#include "train_list.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/file.h"
#include "plugin/core/progress.h"

/* Faults of one kind: a count, and the first few in words. */
struct faults {
    const char *title; /* "images that cannot be read" */
    size_t count;
    char *named[AMP_FAULTS_NAMED];
};

enum { IMAGES, LABEL_FILES, LABELS, KINDS };

struct checker {
    int classes;
    struct faults faults[KINDS];
    struct amp_train_list *list;
    struct amp_labels labels;
};

/* Also the amp_tell of labels.h. */
static void add_fault(void *context, const char *message)
{
    struct faults *f = context;
    if (f->count < AMP_FAULTS_NAMED) f->named[f->count] = strdup(message);
    ++f->count;
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

/* Without the white space at the end, which a message would hide, and what to say of it. */
static int visible_length(const char *path, const char **hint)
{
    size_t length = strlen(path), visible = length;
    while (visible && strchr(" \t\r", path[visible - 1]))
        --visible;
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

static void check_image(struct checker *k, const char *path, size_t number)
{
    struct faults *f = &k->faults[IMAGES];
    const char *why = amp_file_unreadable(path);
    if (!*path)
        name_fault(f, "line %zu: is empty, which Darknet takes for the name of a file", number);
    else if (why)
        name_file(f, number, path, why);
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
        if (length) check_labels(k, line, number);
    }
}

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

static int report(struct faults *f, const char *path, amp_tell *tell, void *context)
{
    if (!f->count) return 0;
    say(tell, context, "%s: %s (%zu):", path, f->title, f->count);
    for (size_t i = 0; i < f->count && i < AMP_FAULTS_NAMED; ++i) {
        say(tell, context, "  %s", f->named[i] ? f->named[i] : "out of memory");
        free(f->named[i]);
    }
    if (f->count > AMP_FAULTS_NAMED)
        say(tell, context, "  ... and %zu more", f->count - AMP_FAULTS_NAMED);
    return -1;
}

int amp_train_list_check(const char *path, int classes, FILE *progress, struct amp_train_list *list,
                         amp_tell *tell, void *context)
{
    struct checker k = {.classes = classes,
                        .list = list,
                        .faults = {{.title = "images that cannot be read"},
                                   {.title = "label files that cannot be read"},
                                   {.title = "faults in label files"}}};
    *list = (struct amp_train_list){0};
    const char *why = amp_text_unreadable(path);
    FILE *file = why ? NULL : fopen(path, "r");
    if (!file) return say(tell, context, "image list %s: %s", path, why ? why : strerror(errno));
    int failed = 0;
    if (check_lines(&k, file, progress))
        failed = say(tell, context, "image list %s: %s", path, strerror(errno));
    else if (!list->images)
        failed = say(tell, context, "image list %s: names no image", path);
    fclose(file);
    amp_labels_free(&k.labels);
    for (int i = 0; i < KINDS; ++i)
        if (report(&k.faults[i], path, tell, context)) failed = -1;
    return failed;
}
