/* Decides which lines of a label file are good, and what Darknet makes of each box. It must not
 * open images or call Darknet. Darknet reads labels with fscanf, stops at the first surprise and
 * trains on what it has; here every such line is a fault, named with file and line. */

#define _GNU_SOURCE
#include "labels.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/core/read/lines.h"

/* ---- the file ---- */

struct reader {
    const char *path;
    int line, classes;
    bool any_class;
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
    bool known = value < r->classes || (r->any_class && value <= INT_MAX);
    if (end == field || *end || errno || value < 0 || !known)
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

/* What other programs write behind a class. */
static const char *hint_at_fields(int count)
{
    if (count == 6) return " (leave out a sixth, such as the score of a detector)";
    if (count < 7) return "";
    return count % 2
               ? " (class and points of an outline, as for segmentation or turned boxes: write "
                 "the upright box around them)"
               : " (leave out what follows the box, such as key points)";
}

static int read_row(const struct reader *r, char *line, struct amp_label *label)
{
    char *fields[5];
    bool commas = strchr(line, ',');
    int count = split_fields(line, fields, 5);
    if (commas)
        return report_fault(r, "has a comma; allowed: blanks between the fields, and points in "
                               "fractions, as \"0 0.5 0.5 0.25 0.25\"");
    if (count != 5)
        return report_fault(r, "%d fields, must be 5: class x y width height%s", count,
                            hint_at_fields(count));
    if (read_class(r, fields[0], &label->class_id)) return -1;
    if (read_fraction(r, "x", fields[1], false, &label->x)) return -1;
    if (read_fraction(r, "y", fields[2], false, &label->y)) return -1;
    if (read_fraction(r, "width", fields[3], true, &label->width)) return -1;
    if (read_fraction(r, "height", fields[4], true, &label->height)) return -1;
    /* Darknet reads floats. */
    if ((float)label->x != 0 || (float)label->y != 0) return 0;
    return report_fault(r, "x and y are both 0, which Darknet takes for the mark of no box and "
                           "makes a box at 999999 of it; a centre has to lie in the image");
}

/* ---- what becomes of a box ---- */

/* The part of a side of the box that lies in the image. */
static double inside(double centre, double size)
{
    return fmin(centre + size / 2, 1) - fmax(centre - size / 2, 0);
}

/* True if the box reaches over an edge by more than rounding: labels often have six decimals. */
static bool reaches_over_edge(const struct amp_label *l)
{
    const double slack = 1e-5;
    return l->x - l->width / 2 < -slack || l->x + l->width / 2 > 1 + slack ||
           l->y - l->height / 2 < -slack || l->y + l->height / 2 > 1 + slack;
}

/* As fill_truth_detection does with an image that is neither moved nor scaled. */
static enum amp_label_fate fate_of(const struct amp_label *l, int classes)
{
    if (l->class_id >= classes) return AMP_LABEL_NO_CLASS;
    if (l->width == 0 || l->height == 0) return AMP_LABEL_NO_AREA;
    if (l->width < AMP_LABEL_LEAST || l->height < AMP_LABEL_LEAST) return AMP_LABEL_TINY;
    if (!reaches_over_edge(l)) return AMP_LABEL_WHOLE;
    bool gone =
        inside(l->x, l->width) < AMP_LABEL_LEAST || inside(l->y, l->height) < AMP_LABEL_LEAST;
    return gone ? AMP_LABEL_OUTSIDE : AMP_LABEL_OVER_EDGE;
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
    labels->fates[fate_of(&row, r->classes)]++;
    return 0;
}

/* A list may name a video or an archive by mistake; those are not read to the end. */
static FILE *open_file(const struct reader *r)
{
    struct stat info;
    const char *why = NULL;
    FILE *file = NULL;
    if (!stat(r->path, &info) && S_ISREG(info.st_mode) && info.st_size > AMP_LABEL_FILE_MAX)
        why = "larger than 16 MiB, which no label file is";
    else
        file = amp_text_open(r->path, &why);
    if (!file) report_fault(r, "cannot read label file: %s", why);
    return file;
}

/* Annotations in other formats, which were given a label file's name. */
static int check_format(const struct reader *r, FILE *file)
{
    char begin[64] = "";
    size_t n = fread(begin, 1, sizeof begin - 1, file);
    const char *first = begin + strspn(begin, blanks);
    rewind(file);
    if (!n || !*first || !strchr("<{[", *first)) return 0;
    return report_fault(r,
                        "is %s, not labels: it has to be converted to a line \"class x y width "
                        "height\" for each box, in fractions of the image",
                        *first == '<' ? "XML, as PASCAL VOC's annotations are"
                                      : "JSON, as COCO's and LabelMe's annotations are");
}

int amp_labels_read(const char *path, int classes, struct amp_labels *labels, amp_tell *tell,
                    void *context)
{
    struct reader r = {.path = path,
                       .classes = classes,
                       .any_class = labels->any_class,
                       .tell = tell,
                       .context = context};
    labels->count = 0;
    memset(labels->fates, 0, sizeof labels->fates);
    FILE *file = open_file(&r);
    if (!file) return -1;
    if (check_format(&r, file)) {
        fclose(file);
        return -1;
    }
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

/* ---- where they are ---- */

bool amp_labels_find(const char *image, char *path, size_t size)
{
    for (int place = 0; place < AMP_LABEL_PLACES; place++)
        if (amp_label_path_in((enum amp_label_place)place, image, path, size) &&
            !access(path, F_OK))
            return true;
    if (!amp_label_path_in(AMP_LABELS_BESIDE, image, path, size)) snprintf(path, size, "%s", image);
    return false;
}
