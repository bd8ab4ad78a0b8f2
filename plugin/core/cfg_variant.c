#define _GNU_SOURCE
#include "cfg_variant.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool is_replaced(int section, const char *key, const struct amp_cfg_key *keys, int n)
{
    for (int i = 0; i < n; ++i)
        if (keys[i].section == section && !strcmp(key, keys[i].key)) return true;
    return false;
}

static void write_section(FILE *f, const struct amp_cfg_file *cfg, int section,
                          const struct amp_cfg_key *keys, int n)
{
    const struct amp_cfg_section *s = &cfg->sections[section];
    fprintf(f, "%s\n", s->name);
    for (int i = 0; i < n; ++i)
        if (keys[i].section == section && keys[i].value)
            fprintf(f, "%s=%s\n", keys[i].key, keys[i].value);
    for (int i = 0; i < s->n_entries; ++i)
        if (!is_replaced(section, s->entries[i].key, keys, n))
            fprintf(f, "%s=%s\n", s->entries[i].key, s->entries[i].value);
}

int amp_cfg_variant_open(struct amp_cfg_variant *v, const struct amp_cfg_file *cfg,
                         const struct amp_cfg_key *keys, int n, char *err, size_t err_size)
{
    v->fd = memfd_create("cfg", MFD_CLOEXEC);
    int copy = v->fd < 0 ? -1 : dup(v->fd);
    FILE *f = copy < 0 ? NULL : fdopen(copy, "w");
    for (int i = 0; f && i < cfg->n_sections; ++i)
        write_section(f, cfg, i, keys, n);
    bool written = f && !ferror(f);
    if (!f && copy >= 0) close(copy);
    if (f) written = !fclose(f) && written;
    if (written) {
        snprintf(v->path, sizeof v->path, "/proc/self/fd/%d", v->fd);
        return 0;
    }
    snprintf(err, err_size, "%s: no copy of it in memory: %s", cfg->path, strerror(errno));
    amp_cfg_variant_close(v);
    return -1;
}

void amp_cfg_variant_close(struct amp_cfg_variant *v)
{
    if (v->fd >= 0) close(v->fd);
    v->fd = -1;
}
