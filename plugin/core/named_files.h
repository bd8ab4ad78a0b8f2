/* The files that a cfg names: tree=, map=. Darknet opens them without looking, and crashes where
 * one is missing. Both give classes another meaning: a map gives a label's class the head's, a tree
 * arranges classes in groups. */
#ifndef AMP_NAMED_FILES_H
#define AMP_NAMED_FILES_H

#include <stddef.h>

#include "cfg.h"

/* Where a file named in a cfg is: as written, else in the folder above the cfg's (a cfg stands in
 * DARKNET/cfg and names data/9k.tree), else in the cfg's own. 0, or -1 where it is nowhere. */
int amp_named_file_find(const char *cfg_path, const char *name, char *found, size_t found_size);

/* All of them exist? -1 names file, line, key and the places looked at. */
int amp_named_files_check(const struct amp_cfg_file *, char *err, size_t err_size);

/* The same where Darknet itself will open them: as written, from the current folder only. */
int amp_named_files_check_here(const struct amp_cfg_file *, char *err, size_t err_size);

struct amp_class_tree {
    int classes, groups;
    int *parent, *group, *group_offset, *group_size; /* parent[i] < i; -1 at the root */
};

/* name: as the cfg at cfg_path has it. -1 with file and line in err. *map is the caller's to free.
 */
int amp_class_map_read(const char *cfg_path, const char *name, int **map, int *n, char *err,
                       size_t err_size);
/* Darknet's read_tree, which numbers a group for every run of lines with the same parent. */
int amp_class_tree_read(const char *cfg_path, const char *name, struct amp_class_tree *, char *err,
                        size_t err_size);
void amp_class_tree_free(struct amp_class_tree *);

#endif
