/* Decides which lines of the lists are the same image, and what the copies are called so that
 * Darknet finds their labels. It must not know what becomes of the images. */
#define _GNU_SOURCE
#include "shrink_names.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/input/labels.h"

static int fail(char *err, size_t err_size, const char *path)
{
    snprintf(err, err_size, "%s: %s", path, strerror(errno));
    return -1;
}

/* ---- the folder ---- */

int amp_shrink_folder_check(const char *folder, char *err, size_t err_size)
{
    char image[AMP_LABEL_PATH_MAX], wanted[AMP_LABEL_PATH_MAX], found[AMP_LABEL_PATH_MAX];
    for (const char *c = folder; *c; c++)
        if (isspace((unsigned char)*c) || iscntrl((unsigned char)*c)) {
            snprintf(err, err_size,
                     "%s: has a blank or a control character; Darknet drops those from the paths "
                     "in a data file",
                     folder);
            return -1;
        }
    snprintf(image, sizeof image, "%s/images/a.jpg", folder);
    snprintf(wanted, sizeof wanted, "%s/labels/a.txt", folder);
    if (amp_label_path(image, found, sizeof found, err, err_size)) return -1;
    if (!strcmp(found, wanted)) return 0;
    snprintf(err, err_size,
             "%s: Darknet would look for labels in %.*s; allowed: a path without images, "
             "JPEGImages, raw, .jpg, .png, .JPG and .JPEG",
             folder, (int)(strrchr(found, '/') - found), found);
    return -1;
}

/* ---- the lists ---- */

/* Two ways to the same folder give the same path. NULL with the reason in errno. */
static char *real_path(const char *path)
{
    char folder[PATH_MAX], real[PATH_MAX], *result;
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    if (!realpath(folder, real)) return NULL;
    return asprintf(&result, "%s/%s", real[1] ? real : "", base) < 0 ? NULL : result;
}

static int add_image(struct amp_shrink_set *set, const char *path)
{
    if (set->count == set->capacity) {
        size_t capacity = set->capacity ? 2 * set->capacity : 1024;
        struct amp_shrink_image *images = realloc(set->images, capacity * sizeof *images);
        if (!images) return -1;
        set->images = images;
        set->capacity = capacity;
    }
    char label[AMP_LABEL_PATH_MAX], unused[1]; /* the check of the list has told its faults */
    amp_label_path(path, label, sizeof label, unused, sizeof unused);
    struct amp_shrink_image image = {
        .path = strdup(path), .real = real_path(path), .label = real_path(label)};
    set->images[set->count++] = image;
    return image.path && image.real && image.label ? 0 : -1;
}

int amp_shrink_list_add(struct amp_shrink_set *set, const char *list, char *err, size_t err_size)
{
    char *line = NULL;
    size_t size = 0;
    int failed = 0;
    FILE *file = fopen(list, "r");
    if (!file) return fail(err, err_size, list);
    for (ssize_t length; !failed && (length = getline(&line, &size, file)) >= 0;) {
        if (length && line[length - 1] == '\n') line[length - 1] = '\0';
        failed = add_image(set, line);
        if (failed) fail(err, err_size, line);
    }
    if (!failed && ferror(file)) failed = fail(err, err_size, list);
    free(line);
    fclose(file);
    return failed;
}

/* ---- the names ---- */

static size_t find_common(const struct amp_shrink_set *set)
{
    const char *first = set->images[0].real;
    size_t common = (size_t)(strrchr(first, '/') - first) + 1;
    for (size_t i = 1; i < set->count; i++) {
        size_t same = 0;
        while (same < common && set->images[i].real[same] == first[same])
            same++;
        if (same == common) continue;
        while (first[same - 1] != '/')
            same--;
        common = same;
    }
    return common;
}

/* Without the suffix. */
static int name_length(const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    const char *dot = strrchr(base, '.');
    return (int)(dot && dot > base ? (size_t)(dot - name) : strlen(name));
}

int amp_shrink_path(const struct amp_shrink_set *set, size_t i, char *path, size_t size)
{
    const char *name = set->images[i].real + set->common;
    return snprintf(path, size, "%s/images/%.*s.jpg", set->folder, name_length(name), name);
}

static int name_label(struct amp_shrink_set *set, size_t i, char *err, size_t err_size)
{
    char image[AMP_LABEL_PATH_MAX], label[AMP_LABEL_PATH_MAX];
    if (amp_shrink_path(set, i, image, sizeof image) >= (int)sizeof image)
        errno = ENAMETOOLONG;
    else if (amp_label_path(image, label, sizeof label, err, err_size))
        return -1;
    else if ((set->images[i].label_to = strdup(label)))
        return 0;
    return fail(err, err_size, set->images[i].path);
}

/* One after the other by label file; those with the same one in the order of the lists. */
static int compare(const void *a, const void *b)
{
    const struct amp_shrink_image *one = *(struct amp_shrink_image *const *)a;
    const struct amp_shrink_image *two = *(struct amp_shrink_image *const *)b;
    int order = strcmp(one->label_to, two->label_to);
    return order ? order : one < two ? -1 : one > two;
}

/* By two ways to it, an image may have two label files. */
static bool is_same(const struct amp_shrink_image *a, const struct amp_shrink_image *b)
{
    return !strcmp(a->real, b->real) && !strcmp(a->label, b->label);
}

static int find_same(struct amp_shrink_set *set, struct amp_shrink_image **sorted, char *err,
                     size_t err_size)
{
    struct amp_shrink_image *first = NULL;
    for (size_t i = 0; i < set->count; i++)
        sorted[i] = &set->images[i];
    qsort(sorted, set->count, sizeof *sorted, compare);
    for (size_t i = 0; i < set->count; i++) {
        struct amp_shrink_image *image = sorted[i];
        if (!first || strcmp(image->label_to, first->label_to)) {
            first = image;
            set->different++;
        } else if (!(image->again = is_same(first, image))) {
            snprintf(err, err_size, "%s and %s: their copies would share the label file %s",
                     first->path, image->path, image->label_to);
            return -1;
        }
    }
    return 0;
}

int amp_shrink_name(struct amp_shrink_set *set, char *err, size_t err_size)
{
    set->common = find_common(set);
    for (size_t i = 0; i < set->count; i++)
        if (name_label(set, i, err, err_size)) return -1;
    struct amp_shrink_image **sorted = malloc(set->count * sizeof *sorted);
    if (!sorted) return fail(err, err_size, set->folder);
    int failed = find_same(set, sorted, err, err_size);
    free(sorted);
    return failed;
}

void amp_shrink_set_free(struct amp_shrink_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        free(set->images[i].path);
        free(set->images[i].real);
        free(set->images[i].label);
        free(set->images[i].label_to);
    }
    free(set->images);
    *set = (struct amp_shrink_set){0};
}
