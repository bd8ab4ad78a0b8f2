#include "named_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int try_path(const char *folder, int folder_length, const char *below, const char *name,
                    char *found, size_t found_size)
{
    int n = snprintf(found, found_size, "%.*s%s%s", folder_length, folder, below, name);
    return n > 0 && (size_t)n < found_size && access(found, R_OK) == 0 ? 0 : -1;
}

int amp_named_file_find(const char *cfg_path, const char *name, char *found, size_t found_size)
{
    if (try_path("", 0, "", name, found, found_size) == 0) return 0;
    if (name[0] == '/') return -1;
    const char *slash = strrchr(cfg_path, '/');
    int length = slash ? (int)(slash - cfg_path) + 1 : 0;
    if (try_path(cfg_path, length, "../", name, found, found_size) == 0) return 0;
    return try_path(cfg_path, length, "", name, found, found_size);
}

/* The first entry that names a file which is not there; NULL: none. */
static const struct amp_cfg_entry *find_missing(const struct amp_cfg_file *cfg, bool here)
{
    static const char *const keys[] = {"tree", "map"};
    char found[4096];
    for (int i = 0; i < cfg->n_sections; i++)
        for (int k = 0; k < 2; k++) {
            const struct amp_cfg_entry *e = amp_cfg_find(&cfg->sections[i], keys[k]);
            if (!e) continue;
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
