/* Finds and reads the files that a cfg names. It decides where they are looked for and which
 * contents would overrun Darknet's memory. It must not know the losses that use them. */
#include "named_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "key_table.h"
#include "lines.h"

#define DARKNET_NAME_MAX 255 /* longest name of a class that Darknet has room for */

/* ---- where they are ---- */

static int try_path(const char *folder, int folder_length, const char *below, const char *name,
                    char *found, size_t found_size)
{
    int n = snprintf(found, found_size, "%.*s%s%s", folder_length, folder, below, name);
    return n > 0 && (size_t)n < found_size && access(found, R_OK) == 0 ? 0 : -1;
}

int amp_named_file_find(const char *cfg_path, const char *name, char *found, size_t found_size)
{
    if (try_path("", 0, "", name, found, found_size) == 0) return 0;
    /* An absolute path has no other place. */
    if (name[0] == '/') return -1;
    const char *slash = strrchr(cfg_path, '/');
    /* Including the slash, so that a cfg without a folder gives "". */
    int length = slash ? (int)(slash - cfg_path) + 1 : 0;
    if (try_path(cfg_path, length, "../", name, found, found_size) == 0) return 0;
    return try_path(cfg_path, length, "", name, found, found_size);
}

/* The first entry whose file is missing; NULL: none. */
static const struct amp_cfg_entry *find_missing(const struct amp_cfg_file *cfg, bool here)
{
    static const char *const keys[] = {"tree", "map"};
    char found[4096];
    for (int i = 0; i < cfg->n_sections; i++)
        for (int k = 0; k < 2; k++) {
            const struct amp_cfg_section *s = &cfg->sections[i];
            const struct amp_cfg_entry *e = amp_cfg_find(s, keys[k]);
            /* Elsewhere nobody reads it, which is noted (cfg_keys.c). */
            if (!e || !amp_key_find(keys[k], amp_cfg_section_type(cfg, s))) continue;
            if (here ? access(e->value, R_OK)
                     : amp_named_file_find(cfg->path, e->value, found, sizeof found))
                return e;
        }
    return NULL;
}

static int check(const struct amp_cfg_file *cfg, bool here, const char *where, char *err,
                 size_t err_size)
{
    const struct amp_cfg_entry *e = find_missing(cfg, here);
    if (e)
        snprintf(err, err_size, "%s:%d: %s=%s: there is no such file, %s", cfg->path, e->line,
                 e->key, e->value, where);
    return e ? -1 : 0;
}

int amp_named_files_check(const struct amp_cfg_file *cfg, char *err, size_t err_size)
{
    return check(cfg, false,
                 "neither from the current folder nor beside the cfg or its parent folder", err,
                 err_size);
}

int amp_named_files_check_here(const struct amp_cfg_file *cfg, char *err, size_t err_size)
{
    return check(cfg, true, "and the current folder is where Darknet looks for it", err, err_size);
}

/* ---- what they hold ---- */

static FILE *open_named(const char *cfg_path, const char *name, char *path, size_t size, char *err,
                        size_t err_size)
{
    const char *why = NULL;
    FILE *file = NULL;
    if (amp_named_file_find(cfg_path, name, path, size) == 0) file = amp_text_open(path, &why);
    if (!file)
        snprintf(err, err_size, "%s: %s cannot be read%s%s", cfg_path, name, why ? ": " : "",
                 why ? why : "");
    return file;
}

/* Makes room for n + 1 numbers. The array grows at powers of two only. */
static int grow(int **array, int n)
{
    if (*array && (n & (n - 1))) return 0;
    int *grown = realloc(*array, 2 * ((size_t)n + 1) * sizeof **array);
    if (!grown) return -1;
    *array = grown;
    return 0;
}

/* ---- map ---- */

static int read_map(FILE *file, int **map, int *n)
{
    char *line = NULL;
    size_t size = 0;
    int result = 0;
    while (result == 0 && getline(&line, &size, file) >= 0) {
        result = grow(map, *n);
        /* atoi, as in Darknet: a line without a number is class 0. */
        if (result == 0) (*map)[(*n)++] = atoi(line);
    }
    free(line);
    return result;
}

int amp_class_map_read(const char *cfg_path, const char *name, int **map, int *n, char *err,
                       size_t err_size)
{
    char path[4096];
    FILE *file = open_named(cfg_path, name, path, sizeof path, err, err_size);
    *map = NULL;
    *n = 0;
    if (!file) return -1;
    int result = read_map(file, map, n);
    fclose(file);
    if (result == 0) return 0;
    snprintf(err, err_size, "%s: out of memory", path);
    free(*map);
    *map = NULL;
    return -1;
}

/* ---- tree ---- */

/* A group is known only when the next one begins. */
static int end_group(struct amp_class_tree *t, int size)
{
    if (grow(&t->group_offset, t->groups) || grow(&t->group_size, t->groups)) return -1;
    /* The group ends at the class before the present one. */
    t->group_offset[t->groups] = t->classes - size;
    t->group_size[t->groups++] = size;
    return 0;
}

/* Adds a class. parent: the class's own; size: classes of the group so far. */
static int add_class(struct amp_class_tree *t, int parent, int last_parent, int *size)
{
    if (parent != last_parent) {
        if (end_group(t, *size)) return -1;
        *size = 0;
    }
    if (grow(&t->parent, t->classes) || grow(&t->group, t->classes)) return -1;
    t->parent[t->classes] = parent;
    t->group[t->classes++] = t->groups;
    ++*size;
    return 0;
}

static int read_tree(FILE *file, const char *path, struct amp_class_tree *t, char *err,
                     size_t err_size)
{
    char *line = NULL;
    size_t room = 0;
    int size = 0, last_parent = -1, result = 0;
    while (result == 0 && getline(&line, &room, file) >= 0) {
        int parent = -1, from = 0, name = 0;
        /* %n before and after the name gives its length; the name itself is not needed. */
        sscanf(line, " %n%*s%n %d", &from, &name, &parent);
        if (name - from > DARKNET_NAME_MAX) {
            snprintf(err, err_size, "%s:%d: a name of %d bytes; this Darknet has room for %d", path,
                     t->classes + 1, name - from, DARKNET_NAME_MAX);
            result = -1;
            /* A parent must come first, so that following parents always ends at a root. */
        } else if (parent >= t->classes) {
            snprintf(err, err_size, "%s:%d: parent %d; allowed: a line before this one, or -1",
                     path, t->classes + 1, parent);
            result = -1;
        } else {
            /* Every negative number means the root. */
            result = add_class(t, parent < 0 ? -1 : parent, last_parent, &size);
            last_parent = parent < 0 ? -1 : parent;
        }
    }
    free(line);
    return result ? result : end_group(t, size);
}

int amp_class_tree_read(const char *cfg_path, const char *name, struct amp_class_tree *t, char *err,
                        size_t err_size)
{
    char path[4096];
    *t = (struct amp_class_tree){0};
    FILE *file = open_named(cfg_path, name, path, sizeof path, err, err_size);
    if (!file) return -1;
    /* For every failure below that does not write its own reason. */
    snprintf(err, err_size, "%s: out of memory", path);
    int result = read_tree(file, path, t, err, err_size);
    fclose(file);
    if (result) amp_class_tree_free(t);
    return result;
}

void amp_class_tree_free(struct amp_class_tree *t)
{
    free(t->parent);
    free(t->group);
    free(t->group_offset);
    free(t->group_size);
    *t = (struct amp_class_tree){0};
}
