/* The files that a cfg names: tree=, map=. Darknet opens them without a check, and crashes if one
 * is missing. Both change what classes mean: a map translates a label's class into the head's, a
 * tree arranges classes in groups. */
#ifndef AMP_NAMED_FILES_H
#define AMP_NAMED_FILES_H

#include <stddef.h>

#include "cfg.h"

/* Finds a file that a cfg names: as written, else in the folder above the cfg's (a cfg stands in
 * DARKNET/cfg and names data/9k.tree), else in the cfg's own folder. 0, or -1 if it is in none of
 * them. */
int amp_named_file_find(const char *cfg_path, const char *name, char *found, size_t found_size);

/* Do all of them exist? -1 names file, line, key and the searched places. */
int amp_named_files_check(const struct amp_cfg_file *, char *err, size_t err_size);

/* The same for the place where Darknet itself will open them: as written, from the current folder
 * only. */
int amp_named_files_check_here(const struct amp_cfg_file *, char *err, size_t err_size);

struct amp_class_tree {
    int classes, groups;
    int *parent, *group, *group_offset, *group_size; /* parent[i] < i; -1 at the root */
};

/* Reads a map. name: as written in the cfg at cfg_path. -1 with file and line in err. The caller
 * frees *map. */
int amp_class_map_read(const char *cfg_path, const char *name, int **map, int *n, char *err,
                       size_t err_size);
/* Reads a tree as Darknet's read_tree does: every run of lines with the same parent is a group. */
int amp_class_tree_read(const char *cfg_path, const char *name, struct amp_class_tree *, char *err,
                        size_t err_size);
void amp_class_tree_free(struct amp_class_tree *);

#endif
