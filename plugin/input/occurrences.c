/* Decides which images of a list are named again and which classes have no box. It must not know
 * files. */
#include "occurrences.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/files/file.h"

void amp_occurrences_begin(struct amp_occurrences *o, int classes)
{
    *o = (struct amp_occurrences){.classes = classes};
    if (classes > 0 && classes < INT_MAX) o->boxes = calloc((size_t)classes, sizeof *o->boxes);
}

void amp_occurrences_add_name(struct amp_occurrences *o, const char *name)
{
    struct amp_hash hash;
    if (o->n_names == o->room) {
        size_t room = o->room ? 2 * o->room : 1024;
        uint64_t *names = realloc(o->names, room * sizeof *names);
        if (!names) return;
        o->names = names;
        o->room = room;
    }
    amp_hash_begin(&hash);
    amp_hash_add(&hash, name, strlen(name));
    o->names[o->n_names++] = amp_hash_value(&hash);
}

void amp_occurrences_add_boxes(struct amp_occurrences *o, const struct amp_labels *labels)
{
    for (size_t i = 0; o->boxes && i < labels->count; i++)
        if (labels->rows[i].class_id < o->classes) o->boxes[labels->rows[i].class_id]++;
}

static int compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void warn_of_names(struct amp_occurrences *o, const char *list, FILE *warn)
{
    size_t again = 0;
    if (!o->n_names) return;
    qsort(o->names, o->n_names, sizeof *o->names, compare);
    for (size_t i = 1; i < o->n_names; i++)
        again += o->names[i] == o->names[i - 1];
    if (again)
        fprintf(warn,
                "warning: %s: lines that name an image again (%zu of %zu): it is trained more "
                "often than others\n",
                list, again, o->n_names);
}

/* A shift by one of all classes leaves the first without a box. */
static void warn_of_classes(const struct amp_occurrences *o, const char *list, FILE *warn)
{
    enum { NAMED = 10 };
    int without = 0, named = 0;
    for (int i = 0; o->boxes && i < o->classes; i++)
        without += !o->boxes[i];
    if (!without || without == o->classes) return; /* a list without boxes is told elsewhere */
    fprintf(warn, "warning: %s: classes without a box (%d of %d):", list, without, o->classes);
    for (int i = 0; i < o->classes && named < NAMED; i++)
        if (!o->boxes[i]) fprintf(warn, "%s %d", named++ ? "," : "", i);
    fprintf(warn, "%s (the first class is 0)\n", without > NAMED ? ", ..." : "");
}

void amp_occurrences_warn(struct amp_occurrences *o, const char *list, FILE *warn)
{
    warn_of_names(o, list, warn);
    warn_of_classes(o, list, warn);
}

void amp_occurrences_free(struct amp_occurrences *o)
{
    free(o->names);
    free(o->boxes);
    *o = (struct amp_occurrences){0};
}
