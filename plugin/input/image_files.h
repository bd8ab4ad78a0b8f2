/* Whether a file can be an image, by its size and first bytes: no image is decoded. What is found
 * good can be remembered from run to run. Pure C. */
#ifndef AMP_IMAGE_FILES_H
#define AMP_IMAGE_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* NULL if it is a regular file that can be read and begins as an image does that OpenCV reads; a
 * JPEG, PNG or WebP must not end before its pixels begin, and the size that a JPEG, PNG or BMP says
 * must be one that OpenCV reads. Else the reason, as the end of a sentence whose
 * subject is the file ("is an HTML or XML page"). */
const char *amp_image_file_fault(const char *path);

/* True, and the size in pixels, where the header of a JPEG, PNG or BMP says it; of a picture that
 * is turned by its EXIF data, w and h are those before. */
bool amp_image_file_size(const char *path, int *w, int *h);

/* ---- files that were found good ----
 *
 * One file holds a number for each image: a hash of its whole path, size, time of change and inode.
 * An image that is replaced or written to has another number. */

struct amp_known_images;

/* The default place, $XDG_CACHE_HOME/darknet-amp/images or ~/.cache/darknet-amp/images; NULL: the
 * environment names none. */
const char *amp_known_images_place(void);

/* path NULL, or a file that cannot be read or is none of ours: nothing is known. NULL: no memory.
 */
struct amp_known_images *amp_known_images_open(const char *path);
/* amp_image_file_fault, which does not open a file that is known. */
const char *amp_known_images_fault(struct amp_known_images *, const char *image_path);
bool amp_known_images_has(const struct amp_known_images *, const char *image_path);
/* How many were looked into, and found good, since it was opened. */
size_t amp_known_images_new(const struct amp_known_images *);
/* Adds them to the file, whose folder is made. 0 or -1: it is a matter of speed alone. */
int amp_known_images_keep(struct amp_known_images *);
void amp_known_images_free(struct amp_known_images *);

#endif
