/* The images of a data file's lists, and what `amp shrink` calls their copies. Opens no image. Pure
 * C. */
#ifndef AMP_SHRINK_NAMES_H
#define AMP_SHRINK_NAMES_H

#include <stdbool.h>
#include <stddef.h>

struct amp_shrink_image {
    char *path;     /* as its list has it */
    char *real;     /* absolute, and its folder is no link */
    char *label;    /* its label file, likewise */
    char *label_to; /* where Darknet will look for the labels of the copy */
    bool again;     /* an earlier line is the same image */
};

struct amp_shrink_set {
    const char *folder; /* of the copies */
    struct amp_shrink_image *images;
    size_t count, capacity;
    size_t different; /* images without those that come again */
    size_t common; /* bytes that all `real` begin with: the folder above all images, and a slash */
};

/* Is this absolute path good for the copies? Their labels must come to lie in it, and its name must
 * stay whole in a data file. 0, or -1 with text in err. */
int amp_shrink_folder_check(const char *folder, char *err, size_t err_size);

/* Adds a list's images, after amp_train_list_check of input/labels.h has found no fault in it. 0,
 * or -1 with text in err. */
int amp_shrink_list_add(struct amp_shrink_set *, const char *list, char *err, size_t err_size);

/* When all lists are in: names the copies. A copy keeps its name and the folders below the one that
 * is above all images. 0, or -1 with text in err: two images would get the same name or label file
 * (a.png and a.jpg). */
int amp_shrink_name(struct amp_shrink_set *, char *err, size_t err_size);

/* The path of image i's copy. The result is snprintf's; amp_shrink_name makes sure that
 * AMP_LABEL_PATH_MAX bytes are enough. */
int amp_shrink_path(const struct amp_shrink_set *, size_t i, char *path, size_t size);

void amp_shrink_set_free(struct amp_shrink_set *);

#endif
