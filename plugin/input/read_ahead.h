/* Threads that read what a check of a list will look at soon, so that the disk has several requests
 * at a time: a check by itself waits for each. They find nothing out and tell nothing. Pure C. */
#ifndef AMP_READ_AHEAD_H
#define AMP_READ_AHEAD_H

#include <stddef.h>

#include "image_files.h"
#include "plugin/core/read/cfg_text.h"

struct amp_read_ahead;

/* Of the images and label files that the list names; known (may be NULL) must stay until the stop,
 * and its images are not read. NULL: there is no memory or no thread, and the check does without.
 */
struct amp_read_ahead *amp_read_ahead_start(const char *list, enum amp_dialect,
                                            const struct amp_known_images *known);
/* So many lines have been checked. */
void amp_read_ahead_advance(struct amp_read_ahead *, size_t lines);
void amp_read_ahead_stop(struct amp_read_ahead *);

#endif
