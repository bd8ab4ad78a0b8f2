/* Decides how images and boxes of a set are counted and which images are copies of others. It must
 * not know what is odd about a set: whoever prints it does. */
#define _GNU_SOURCE
#include "survey.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "image_files.h"
#include "labels.h"
#include "class_labels.h"
#include "plugin/core/files/file.h"
#include "plugin/core/read/text.h"

/* Of an image file, to find equal ones. */
struct bytes {
    size_t image;
    struct amp_file_id id; /* hash 0: not read, as no other file is as long */
};

struct surveyor {
    struct amp_survey *survey;
    const struct amp_survey_sources *sources;
    struct amp_labels labels;
    struct amp_progress progress;
    char *err;
    size_t err_size;
};

/* ---- labels ---- */

static bool find_labels(const struct surveyor *s, const char *image, char *path, size_t size)
{
    char err[AMP_LABEL_PATH_MAX];
    if (s->sources->dialect == AMP_DIALECT_FORK) return amp_labels_find(image, path, size);
    return !amp_label_path(image, path, size, err, sizeof err);
}

static int out_of_memory(const struct surveyor *s)
{
    snprintf(s->err, s->err_size, "out of memory for the images and boxes of %s",
             s->sources->train);
    return -1;
}

static int make_room(struct surveyor *s, size_t more)
{
    struct amp_survey *v = s->survey;
    if (v->n_boxes + more <= v->room) return 0;
    size_t room = 2 * (v->n_boxes + more);
    struct amp_surveyed_box *boxes = realloc(v->boxes, room * sizeof *boxes);
    if (!boxes) return out_of_memory(s);
    v->boxes = boxes;
    v->room = room;
    return 0;
}

/* An amp_tell; the first fault of a file is enough. */
static void take_fault(void *context, const char *message)
{
    struct surveyor *s = context;
    if (!*s->err) snprintf(s->err, s->err_size, "%s", message);
}

static int read_boxes(struct surveyor *s, size_t number)
{
    struct amp_surveyed_image *image = &s->survey->images[number];
    char path[AMP_LABEL_PATH_MAX];
    image->has_labels = find_labels(s, image->path, path, sizeof path);
    if (!image->has_labels) return 0;
    s->labels.any_class = true; /* the checks have told what is wrong with one */
    if (amp_labels_read(path, INT_MAX, &s->labels, take_fault, s) || make_room(s, s->labels.count))
        return -1;
    image->boxes = s->labels.count;
    for (size_t i = 0; i < s->labels.count; i++) {
        const struct amp_label *l = &s->labels.rows[i];
        s->survey->boxes[s->survey->n_boxes++] =
            (struct amp_surveyed_box){number, l->class_id, (float)l->width, (float)l->height};
    }
    return 0;
}

/* ---- images ---- */

static int look_at(struct surveyor *s, size_t number)
{
    struct amp_surveyed_image *image = &s->survey->images[number];
    const struct amp_lines *labels = s->sources->labels;
    if (!amp_image_file_size(image->path, &image->w, &image->h)) image->w = image->h = 0;
    if (labels) image->class_id = amp_class_of_path(image->path, labels->line, labels->count, 0);
    return s->sources->boxes ? read_boxes(s, number) : 0;
}

static int look_at_all(struct surveyor *s)
{
    struct amp_survey *v = s->survey;
    for (size_t i = 0; i < v->n_images; i++) {
        if (look_at(s, i)) return -1;
        if (i + 1 == v->n_train) v->n_train_boxes = v->n_boxes;
        amp_progress_update(&s->progress, i + 1);
    }
    return 0;
}

/* ---- equal files ---- */

static int by_length(const void *a, const void *b)
{
    const struct bytes *x = a, *y = b;
    return (x->id.bytes > y->id.bytes) - (x->id.bytes < y->id.bytes);
}

static int by_all(const void *a, const void *b)
{
    const struct bytes *x = a, *y = b;
    if (x->id.bytes != y->id.bytes) return by_length(a, b);
    if (x->id.hash != y->id.hash) return x->id.hash > y->id.hash ? 1 : -1;
    return (x->image > y->image) - (x->image < y->image);
}

static bool has_equal_length(const struct bytes *files, size_t n, size_t i)
{
    return (i && files[i - 1].id.bytes == files[i].id.bytes) ||
           (i + 1 < n && files[i + 1].id.bytes == files[i].id.bytes);
}

static int measure_lengths(struct surveyor *s, struct bytes *files)
{
    struct stat info;
    for (size_t i = 0; i < s->survey->n_images; i++) {
        const char *path = s->survey->images[i].path;
        if (stat(path, &info)) {
            snprintf(s->err, s->err_size, "image %s: %s", path, strerror(errno));
            return -1;
        }
        files[i] = (struct bytes){.image = i, .id = {.bytes = (uint64_t)info.st_size}};
    }
    return 0;
}

static int find_equal(struct surveyor *s, struct bytes *files)
{
    struct amp_survey *v = s->survey;
    size_t n = v->n_images;
    if (measure_lengths(s, files)) return -1;
    qsort(files, n, sizeof *files, by_length);
    for (size_t i = 0; i < n; i++) {
        if (has_equal_length(files, n, i) &&
            amp_file_identify(v->images[files[i].image].path, &files[i].id, s->err, s->err_size))
            return -1;
        amp_progress_update(&s->progress, i + 1);
    }
    qsort(files, n, sizeof *files, by_all);
    for (size_t i = 1; i < n; i++)
        if (files[i].id.bytes == files[i - 1].id.bytes && files[i].id.hash == files[i - 1].id.hash)
            v->images[files[i].image].same_as = v->images[files[i - 1].image].same_as;
    return 0;
}

/* ---- the whole ---- */

static int read_list(struct surveyor *s, int which, const char *path)
{
    const char *why;
    if (!path || !amp_lines_read(path, false, &s->survey->lists[which], &why)) return 0;
    snprintf(s->err, s->err_size, "image list %s: %s", path, why);
    return -1;
}

static int list_images(struct surveyor *s)
{
    struct amp_survey *v = s->survey;
    if (read_list(s, 0, s->sources->train) || read_list(s, 1, s->sources->valid)) return -1;
    v->n_train = (size_t)v->lists[0].count;
    v->n_images = v->n_train + (size_t)v->lists[1].count;
    v->images = calloc(v->n_images + 1, sizeof *v->images);
    if (!v->images) return out_of_memory(s);
    for (size_t i = 0; i < v->n_images; i++)
        v->images[i] = (struct amp_surveyed_image){
            .path = v->lists[i >= v->n_train].line[i < v->n_train ? i : i - v->n_train],
            .class_id = -1,
            .same_as = i};
    return 0;
}

int amp_survey_make(struct amp_survey *survey, const struct amp_survey_sources *sources,
                    FILE *progress, char *err, size_t err_size)
{
    struct surveyor s = {survey, sources, .err = err, .err_size = err_size};
    *survey = (struct amp_survey){0};
    *err = '\0';
    if (list_images(&s)) return -1;
    amp_progress_start(&s.progress, progress, "counting", survey->n_images);
    int failed = look_at_all(&s);
    amp_labels_free(&s.labels);
    if (failed) return -1;
    struct bytes *files = calloc(survey->n_images + 1, sizeof *files);
    amp_progress_start(&s.progress, progress, "looking for copies", survey->n_images);
    failed = files ? find_equal(&s, files) : out_of_memory(&s);
    free(files);
    return failed;
}

void amp_survey_free(struct amp_survey *s)
{
    for (int i = 0; i < 2; i++)
        amp_lines_free(&s->lists[i]);
    free(s->images);
    free(s->boxes);
    *s = (struct amp_survey){0};
}
