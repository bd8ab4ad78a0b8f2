/* The set that `detector map` measures on: the images of a data file's `valid` list and their truth
 * boxes. Pure C: reads text files only, no image is decoded.
 *
 * Keys of the data file (paths are relative to the working directory, as in Darknet):
 *   valid    list of image files, one a line; blank lines are skipped
 *   names    class names, one a line
 *   classes  how many; must equal the number of names
 *   map      optional, for a [region] head with a tree: exactly AMP_MAP_CLASSES lines, class of the
 *            head for each class of the labels (Darknet reads that many). Labels then name classes
 *            0 .. AMP_MAP_CLASSES - 1, and `classes` and `names` are those of the head. */
#ifndef AMP_EVAL_SET_H
#define AMP_EVAL_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "average_precision.h"

#define AMP_MAP_CLASSES 200

struct amp_lines {
    char **line;
    int *number; /* line number in the file, from 1 */
    int count;
};

struct amp_eval_set {
    char *valid_path;
    struct amp_lines images;  /* image files */
    struct amp_lines names;   /* [n_head_classes] */
    int n_head_classes;       /* classes of the network's heads */
    int n_classes;            /* classes of the labels and of the result */
    int *map;                 /* [n_classes] class of the head, or NULL: the same */
    struct amp_truth *truths; /* by image, then in the order of the label file; the boxes are
                                 fractions of the image, not clipped */
    size_t n_truths, truth_capacity;
    size_t over_edge; /* truths that reach over an edge of their image */
    size_t no_area;   /* truths without width or height, which no detection can match */
};

/* Reads and checks all of it: every missing image and label file and every bad label line is named
 * in log before it gives up. 0 or -1. Progress on stderr. */
int amp_eval_set_load(const char *data_path, struct amp_eval_set *set, FILE *log);
void amp_eval_set_free(struct amp_eval_set *set);

const char *amp_eval_set_class_name(const struct amp_eval_set *set, int class_id);

/* Checks whether this cfg with these weights can be measured on this set. Call it before Darknet
 * builds anything: Darknet reads or writes out of bounds for most of what is refused here.
 *
 * 0, or -1 after naming in log, one line each: a cfg or options with a fault; a last layer that is
 * no [yolo], [region] or [detection] head; a head whose classes differ from the set's, or with a
 * map= or tree= that does not fit or cannot be read; other than 3 channels; weights of another
 * network or cut off. Weights that end exactly between layers are accepted with a warning: later
 * layers keep random weights. weights_path NULL: not looked at. on_gpu: Darknet will use a GPU;
 * only there it computes trees right. */
int amp_map_check_network(const char *cfg_path, const char *weights_path,
                          const struct amp_eval_set *set, bool on_gpu, FILE *log);

#endif
