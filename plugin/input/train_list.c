/* Decides what is wrong with a training list: names that are not found and why, files that are no
 * images, faulty labels; and counts the boxes that Darknet will change. It must not know what a
 * label line means (labels.c) or how an image begins (image_files.c). */
#define _GNU_SOURCE
#include "train_list.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image_files.h"
#include "read_ahead.h"
#include "plugin/core/read/lines.h"
#include "plugin/core/read/text.h"

/* Looking into fewer images than this takes no time that is worth a file, or threads. */
#define MANY 2000

/* ---- faults ---- */

/* Faults of one kind: their number, and the first few in words. A list of a million images may have
 * a million faults. */
struct faults {
    const char *title; /* "images that cannot be read" */
    size_t count;
    char *named[AMP_FAULTS_NAMED];
    char hint[PATH_MAX]; /* of the one before */
};

enum { IMAGES, LABEL_FILES, LABELS, KINDS };

struct checker {
    const char *path;
    amp_image_rule *rule; /* what an image needs; NULL: boxes of these classes */
    void *rule_context;
    enum amp_dialect dialect;
    int classes;
    bool asks_for_rule; /* a label file was not found */
    bool has_forks;     /* but is where the fork's rules look */
    bool has_others;    /* but its annotation in another format is beside it or the image */
    struct faults faults[KINDS];
    struct amp_train_list *list;
    struct amp_labels labels;
    struct amp_known_images *known;
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

/* ---- names ---- */

/* True if the name, taken from the list's folder, is there. */
static bool is_beside(const char *list, const char *name)
{
    char path[PATH_MAX];
    const char *slash = strrchr(list, '/');
    if (!slash || *name == '/') return false;
    int n = snprintf(path, sizeof path, "%.*s%s", (int)(slash - list) + 1, list, name);
    return n < (int)sizeof path && !access(path, F_OK);
}

/* True if the name up to its first blank is there. */
static bool is_before_blank(const char *name)
{
    char path[PATH_MAX];
    size_t length = strcspn(name, " \t,");
    int n = snprintf(path, sizeof path, "%.*s", (int)length, name);
    return name[length] && n < (int)sizeof path && !access(path, F_OK);
}

void amp_list_name_hint(const char *list, const char *name, char *hint, size_t size)
{
    size_t length = strlen(name);
    const char *why = NULL;
    *hint = '\0';
    if (!length) return;
    if (name[length - 1] == '\r') /* of a pipe: lists have been looked at */
        why = "the name ends in a carriage return, as lines of Windows do: tr -d '\\r' takes them "
              "away";
    else if (strchr(" \t", name[length - 1]))
        why = "the name ends in a blank";
    else if (strchr(" \t", *name))
        why = "the name begins with a blank";
    else if (strchr("\"'", *name))
        why = "Darknet takes the quote for a part of the name";
    else if (strchr(name, '\\'))
        why = "a backslash is a part of the name here: write / between folders";
    else if (*name == '~')
        why = "only a shell knows what ~ is: write the whole path";
    else if (length < PATH_MAX && is_before_blank(name))
        why = "a name is all of its line: what stands behind the file's name is taken for a part "
              "of it";
    if (why)
        snprintf(hint, size, " (%s)", why);
    else if (is_beside(list, name))
        snprintf(
            hint, size,
            " (seen from the folder of %s it is there, but Darknet looks from the current one: "
            "write whole paths, or start there)",
            list);
}

int amp_list_name_visible(const char *path)
{
    size_t length = strlen(path);
    while (length && strchr(" \t\r", path[length - 1]))
        length--;
    return (int)length;
}

/* hint: of the name in the list, which is the cause of both files' absence. */
static void name_file(struct faults *f, size_t number, const char *path, const char *why,
                      const char *hint)
{
    bool again = *hint && !strcmp(hint, f->hint);
    name_fault(f, "line %zu: %.*s: %s%s", number, amp_list_name_visible(path), path, why,
               again ? " (as above)" : hint);
    snprintf(f->hint, sizeof f->hint, "%s", hint);
}

/* ---- boxes that Darknet changes ---- */

/* Keeps the files with the most boxes, in order. */
static void count_boxes(struct amp_box_count *c, const char *path, size_t boxes)
{
    int at = AMP_FILES_NAMED;
    if (!boxes) return;
    c->boxes += boxes;
    c->files++;
    while (at && c->most[at - 1].boxes < boxes)
        at--;
    if (at == AMP_FILES_NAMED) return;
    free(c->most[AMP_FILES_NAMED - 1].path);
    memmove(&c->most[at + 1], &c->most[at], (size_t)(AMP_FILES_NAMED - 1 - at) * sizeof *c->most);
    c->most[at].path = strdup(path);
    c->most[at].boxes = boxes;
}

static void count_labels(struct checker *k, const char *path)
{
    const struct amp_labels *l = &k->labels;
    size_t room = (size_t)k->list->room;
    k->list->boxes += l->count;
    k->list->trained += l->fates[AMP_LABEL_WHOLE] + l->fates[AMP_LABEL_OVER_EDGE];
    for (int fate = AMP_LABEL_WHOLE + 1; fate < AMP_LABEL_FATES; fate++)
        count_boxes(&k->list->fates[fate], path, l->fates[fate]);
    amp_occurrences_add_boxes(&k->list->occurrences, l);
    count_boxes(&k->list->beyond, path, l->count > room ? l->count - room : 0);
}

static void warn_of(const struct amp_box_count *c, const char *list, const char *which,
                    const char *what, FILE *warn)
{
    if (!c->boxes) return;
    fprintf(warn, "warning: %s: boxes %s (%zu): %s; in ", list, which, c->boxes, what);
    if (c->files > 1) fprintf(warn, "%zu label files, most in ", c->files);
    for (int i = 0; i < AMP_FILES_NAMED && c->most[i].boxes; i++)
        fprintf(warn, "%s%s (%zu)", i ? ", " : "", c->most[i].path ? c->most[i].path : "?",
                c->most[i].boxes);
    fputc('\n', warn);
}

void amp_train_list_warn(struct amp_train_list *list, const char *path, FILE *warn)
{
    static const char *const words[AMP_LABEL_FATES][2] = {
        [AMP_LABEL_NO_AREA] = {"without area", "Darknet leaves them out"},
        [AMP_LABEL_TINY] = {"smaller than 0.001 of their image's width or height",
                            "Darknet leaves them out"},
        [AMP_LABEL_OUTSIDE] = {"outside of their image", "Darknet leaves them out"},
        [AMP_LABEL_OVER_EDGE] = {"that reach over an edge of their image", "Darknet clips them"},
        [AMP_LABEL_NO_CLASS] = {"of a class that the net does not have",
                                "AlexeyAB's Darknet leaves them out, and so does this training"},
    };
    char beyond[80];
    size_t over = list->fates[AMP_LABEL_OVER_EDGE].boxes + list->fates[AMP_LABEL_OUTSIDE].boxes;
    for (int fate = AMP_LABEL_WHOLE + 1; fate < AMP_LABEL_FATES; fate++)
        warn_of(&list->fates[fate], path, words[fate][0], words[fate][1], warn);
    if (2 * over > list->boxes)
        fprintf(
            warn,
            "warning: %s: %zu of %zu boxes are not inside their images: a line of labels is class, "
            "x and y of the centre, width, height, not two corners\n",
            path, over, list->boxes);
    if (list->without_labels)
        fprintf(
            warn,
            "warning: %s: images without a label file (%zu of %zu): they train as images without "
            "objects, as in AlexeyAB's Darknet (" AMP_LABELS_LOOKED_FOR ")\n",
            path, list->without_labels, list->images);
    snprintf(beyond, sizeof beyond, "beyond %d in an image", list->room);
    warn_of(&list->beyond, path, beyond,
            "Darknet leaves so many out, others each time it loads the image", warn);
    amp_occurrences_warn(&list->occurrences, path, warn);
}

static void free_count(struct amp_box_count *c)
{
    for (int i = 0; i < AMP_FILES_NAMED; i++)
        free(c->most[i].path);
}

void amp_train_list_free(struct amp_train_list *list)
{
    for (int fate = 0; fate < AMP_LABEL_FATES; fate++)
        free_count(&list->fates[fate]);
    free_count(&list->beyond);
    amp_occurrences_free(&list->occurrences);
    *list = (struct amp_train_list){0};
}

/* ---- a line ---- */

static const char *image_fault(struct checker *k, const char *path)
{
    return k->known ? amp_known_images_fault(k->known, path) : amp_image_file_fault(path);
}

/* False: it cannot be read. Decoding a million images would take hours; what first bytes do not
 * show, training tells. */
static bool check_image(struct checker *k, const char *path, size_t number, const char *hint)
{
    struct faults *f = &k->faults[IMAGES];
    const char *why = *path ? image_fault(k, path) : "is empty";
    if (!*path)
        name_fault(f, "line %zu: is empty, which Darknet takes for the name of a file", number);
    else if (why)
        name_file(f, number, path, why, hint);
    return !why;
}

static bool is_annotation(const char *path)
{
    static const char *const endings[] = {".xml", ".json"};
    char other[AMP_LABEL_PATH_MAX + 8];
    const char *dot = strrchr(path, '.');
    for (int i = 0; dot && i < 2; i++) {
        snprintf(other, sizeof other, "%.*s%s", (int)(dot - path), path, endings[i]);
        if (!access(other, F_OK)) return true;
    }
    return false;
}

/* Names the steps of Darknet's rule, unless the image is not there either: then its name is the
 * cause. */
static void tell_missing(struct checker *k, const char *image, bool has_image, const char *path,
                         size_t number, const char *why, const char *hint)
{
    char steps[2000];
    amp_label_path_explain(image, steps, sizeof steps);
    if (!has_image || *hint) {
        name_file(&k->faults[LABEL_FILES], number, path, why, hint);
        return;
    }
    char other[AMP_LABEL_PATH_MAX];
    k->asks_for_rule = true;
    k->has_forks = k->has_forks || amp_labels_find(image, other, sizeof other);
    k->has_others = k->has_others || is_annotation(image) || is_annotation(path);
    name_fault(&k->faults[LABEL_FILES], "line %zu: %s: %s (%s)", number, path, why, steps);
}

static void read_labels(struct checker *k, const char *path)
{
    if (!amp_labels_read(path, k->classes, &k->labels, add_fault, &k->faults[LABELS]))
        count_labels(k, path);
}

static void check_fork_labels(struct checker *k, const char *image, bool has_image)
{
    char path[AMP_LABEL_PATH_MAX];
    if (amp_labels_find(image, path, sizeof path))
        read_labels(k, path);
    else
        k->list->without_labels += has_image;
}

static void check_labels(struct checker *k, const char *image, size_t number, bool has_image,
                         const char *hint)
{
    char path[AMP_LABEL_PATH_MAX], err[2 * AMP_LABEL_PATH_MAX];
    struct faults *missing = &k->faults[LABEL_FILES];
    if (amp_label_path(image, path, sizeof path, err, sizeof err)) {
        name_fault(missing, "line %zu: %s", number, err);
        return;
    }
    const char *why = amp_file_unreadable(path);
    if (why && !strcmp(why, strerror(ENOENT)))
        tell_missing(k, image, has_image, path, number, why, hint);
    else if (why)
        name_file(missing, number, path, why, hint);
    else
        read_labels(k, path);
}

static void check_rule(struct checker *k, const char *image, size_t number)
{
    char why[2 * AMP_LABEL_PATH_MAX];
    if (!k->rule(k->rule_context, image, why, sizeof why))
        name_fault(&k->faults[LABELS], "line %zu: %s", number, why);
}

static void check_files(struct checker *k, const char *line, size_t number)
{
    char hint[PATH_MAX];
    amp_list_name_hint(k->path, line, hint, sizeof hint);
    bool has_image = check_image(k, line, number, hint);
    if (!k->rule) amp_occurrences_add_name(&k->list->occurrences, line);
    if (*line && k->rule)
        check_rule(k, line, number);
    else if (*line && k->dialect == AMP_DIALECT_FORK)
        check_fork_labels(k, line, has_image);
    else if (*line)
        check_labels(k, line, number, has_image, hint);
}

/* ---- the list ---- */

#define LIST_NEEDED                                                                                \
    "; allowed: a text file with the path of one image a line, as by find FOLDER -name '*.jpg' "   \
    ">LIST"

static bool is_folder(const char *path)
{
    struct stat info;
    return !stat(path, &info) && S_ISDIR(info.st_mode);
}

/* All but the line's end belongs to the name, as in Darknet. */
static void check_line(struct checker *k, char *line, size_t length)
{
    size_t number = ++k->list->images;
    bool has_nul = strlen(line) != length;
    length = amp_line_cut(line);
    if (has_nul) {
        name_fault(&k->faults[IMAGES], "line %zu: has a NUL byte", number);
    } else if (length >= AMP_LABEL_PATH_MAX) {
        name_fault(&k->faults[IMAGES], "line %zu: %.80s...: longer than %d bytes", number, line,
                   AMP_LABEL_PATH_MAX - 1);
    } else {
        check_files(k, line, number);
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
    size_t size = 0, lines = count_lines(file);
    ssize_t length;
    struct amp_read_ahead *ahead =
        lines < MANY ? NULL : amp_read_ahead_start(k->path, k->dialect, k->known);
    amp_progress_start(&progress, out, "checking images and labels", lines);
    while ((length = getline(&line, &size, file)) >= 0) {
        check_line(k, line, (size_t)length);
        amp_progress_update(&progress, k->list->images);
        amp_read_ahead_advance(ahead, k->list->images);
    }
    int failed = feof(file) ? 0 : errno ? errno : EIO;
    amp_read_ahead_stop(ahead);
    free(line);
    errno = failed;
    return failed ? -1 : 0;
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

/* The rule is said once, below the files that it explains. */
static int report_all(struct checker *k, amp_tell *tell, void *context)
{
    int failed = 0;
    for (int i = 0; i < KINDS; i++) {
        if (report(&k->faults[i], k->path, tell, context)) failed = -1;
        if (i == LABEL_FILES && k->asks_for_rule) say(tell, context, "  " AMP_LABEL_RULE);
        if (i == LABEL_FILES && k->has_forks)
            say(tell, context,
                "  Labels lie beside the images, where AlexeyAB's rules look: mixed_precision=1 "
                "and amp_dialect=fork under [net]");
        if (i == LABEL_FILES && k->has_others)
            say(tell, context,
                "  Of some there is an .xml or .json file, as for PASCAL VOC or LabelMe, which "
                "Darknet does not "
                "read: convert it to such a label file, with a line \"class x y width height\" for "
                "each box, in fractions of the image");
    }
    return failed;
}

/* A cache that cannot be written costs time, and nothing else. */
static void end_known(struct amp_known_images *known)
{
    if (known && amp_known_images_new(known) >= MANY) amp_known_images_keep(known);
    amp_known_images_free(known);
}

static int check_list(struct checker *k, FILE *progress, amp_tell *tell, void *context)
{
    const char *why;
    FILE *file = amp_text_open(k->path, &why);
    if (!file)
        return say(tell, context, "image list %s: %s%s", k->path, why,
                   is_folder(k->path) ? LIST_NEEDED : "");
    k->known = amp_known_images_open(amp_known_images_place());
    int failed = 0;
    if (check_lines(k, file, progress))
        failed = say(tell, context, "image list %s: %s", k->path, strerror(errno));
    else if (!k->list->images)
        failed = say(tell, context, "image list %s: names no image", k->path);
    else if (k->list->without_labels == k->list->images)
        failed = say(
            tell, context,
            "image list %s: none of its %zu images has a label file (" AMP_LABELS_LOOKED_FOR ")",
            k->path, k->list->images);
    fclose(file);
    end_known(k->known);
    amp_labels_free(&k->labels);
    return report_all(k, tell, context) ? -1 : failed;
}

#define NO_IMAGES "images that cannot be read"

int amp_train_list_check(const char *path, enum amp_dialect dialect, int classes, int room,
                         FILE *progress, struct amp_train_list *list, amp_tell *tell, void *context)
{
    struct checker k = {.path = path,
                        .dialect = dialect,
                        .classes = classes,
                        .list = list,
                        .faults = {{.title = NO_IMAGES},
                                   {.title = "label files that cannot be read"},
                                   {.title = "faults in label files"}}};
    *list = (struct amp_train_list){.room = room};
    k.labels.any_class = dialect == AMP_DIALECT_FORK;
    amp_occurrences_begin(&list->occurrences, classes);
    return check_list(&k, progress, tell, context);
}

int amp_image_list_check(const char *path, const char *title, amp_image_rule *rule,
                         void *rule_context, FILE *progress, amp_tell *tell, void *context)
{
    struct amp_train_list list = {0};
    struct checker k = {.path = path,
                        .rule = rule,
                        .rule_context = rule_context,
                        .list = &list,
                        .faults = {[IMAGES] = {.title = NO_IMAGES}, [LABELS] = {.title = title}}};
    return check_list(&k, progress, tell, context);
}
