/* The files of classes that a head names: a map (label's class to the head's) and a tree. */
#ifndef AMP_CLASS_FILES_H
#define AMP_CLASS_FILES_H

#include <stddef.h>

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
