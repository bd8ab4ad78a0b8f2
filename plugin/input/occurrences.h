/* What occurs in a training list: images named more than once, classes without a box. Pure C. */
#ifndef AMP_OCCURRENCES_H
#define AMP_OCCURRENCES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "labels.h"

struct amp_occurrences {
    uint64_t *names; /* a hash of each name */
    size_t n_names, room;
    size_t *boxes; /* of each class; NULL: none was asked for */
    int classes;
};

/* classes: INT_MAX where they are not known. Without memory less is told. */
void amp_occurrences_begin(struct amp_occurrences *, int classes);
void amp_occurrences_add_name(struct amp_occurrences *, const char *name);
void amp_occurrences_add_boxes(struct amp_occurrences *, const struct amp_labels *);
/* list: the path, for the messages. */
void amp_occurrences_warn(struct amp_occurrences *, const char *list, FILE *warn);
void amp_occurrences_free(struct amp_occurrences *);

#endif
