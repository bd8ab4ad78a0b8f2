/* Opens cfg and .data files, and writes a cfg with some keys changed, for a second network beside
 * the user's own. How a text is taken apart is cfg_text.c's business. */
#define _GNU_SOURCE
#include "cfg.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "complaints.h"
#include "dialect.h"
#include "lines.h"

/* Before opening: a pipe or a device could wait or never end. */
static int check_readable(const char *path, size_t *size, char *err, size_t err_size)
{
    struct stat info;
    const char *why = NULL;
    if (!*path)
        why = "the name is empty";
    else if (stat(path, &info))
        why = strerror(errno);
    else if (!S_ISREG(info.st_mode))
        why = amp_file_irregular(info.st_mode);
    else if (info.st_size > AMP_CFG_MAX_BYTES)
        why = "larger than 16 MiB, which no cfg or data file is";
    if (why) snprintf(err, err_size, "cannot read %s: %s", *path ? path : "\"\"", why);
    *size = why ? 0 : (size_t)info.st_size;
    return why ? -1 : 0;
}

static char *read_text(const char *path, size_t *size, char *err, size_t err_size)
{
    if (check_readable(path, size, err, err_size)) return NULL;
    FILE *fp = fopen(path, "rb");
    if (!fp) {
        snprintf(err, err_size, "cannot read %s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = malloc(*size + 1);
    if (text) *size = fread(text, 1, *size, fp);
    /* fclose may change errno. */
    int why = !text ? ENOMEM : ferror(fp) ? errno : 0;
    fclose(fp);
    if (!why) return text;
    snprintf(err, err_size, "cannot read %s: %s", path, strerror(why));
    free(text);
    return NULL;
}

struct amp_cfg_file *amp_cfg_read_data(const char *path, char *err, size_t err_size)
{
    size_t size;
    char *text = read_text(path, &size, err, err_size);
    struct amp_cfg_file *file =
        text ? amp_cfg_text_parse(path, text, size, false, err, err_size) : NULL;
    free(text);
    return file;
}

/* Files from Windows are common. With mixed_precision=1 Darknet reads their lines without the
 * carriage returns (amp_cut_line_ends); the fork always does. */
static int check_line_ends(const struct amp_cfg_file *file, char *err, size_t err_size)
{
    const struct amp_complaints c = {.cfg = file, .err = err, .err_size = err_size};
    if (!file->carriage_return || amp_cfg_int(file->sections, "mixed_precision", 0) == 1) return 0;
    return amp_fail_line(&c, file->carriage_return,
                         AMP_CFG_CARRIAGE_RETURN ", or set mixed_precision=1, which reads both");
}

static struct amp_cfg_file *parse(const char *path, const char *text, size_t size, bool asked,
                                  char *err, size_t err_size)
{
    if (size > AMP_CFG_MAX_BYTES) {
        snprintf(err, err_size, "%s: larger than 16 MiB, which no cfg is", path);
        return NULL;
    }
    struct amp_cfg_file *file = amp_cfg_text_parse(path, text, size, true, err, err_size);
    if (!file) return NULL;
    amp_dialect_settle(file);
    if (asked || check_line_ends(file, err, err_size) == 0) return file;
    amp_cfg_free(file);
    return NULL;
}

struct amp_cfg_file *amp_cfg_parse(const char *path, const char *text, size_t size, char *err,
                                   size_t err_size)
{
    return parse(path, text, size, false, err, err_size);
}

struct amp_cfg_file *amp_cfg_read_asked(const char *path, bool asked, char *err, size_t err_size)
{
    size_t size;
    char *text = read_text(path, &size, err, err_size);
    struct amp_cfg_file *file = text ? parse(path, text, size, asked, err, err_size) : NULL;
    free(text);
    return file;
}

struct amp_cfg_file *amp_cfg_read(const char *path, char *err, size_t err_size)
{
    return amp_cfg_read_asked(path, false, err, err_size);
}

/* ---- a cfg with some keys changed ---- */

#define VARIANT_NAME "darknet-amp cfg"

/* Darknet reads the first of two equal keys, so the replacement comes first and the old key is left
 * out. */
static bool is_replaced(int section, const char *key, const struct amp_cfg_key *keys, int n)
{
    for (int i = 0; i < n; i++)
        if (keys[i].section == section && keys[i].key && !strcmp(key, keys[i].key)) return true;
    return false;
}

static void write_section(FILE *f, const struct amp_cfg_file *cfg, int section,
                          const struct amp_cfg_key *keys, int n)
{
    const struct amp_cfg_section *s = &cfg->sections[section];
    for (int i = 0; i < n; i++)
        if (keys[i].section == section && !keys[i].key) {
            fputs(keys[i].value, f);
            return;
        }
    fprintf(f, "%s\n", s->name);
    for (int i = 0; i < n; i++)
        if (keys[i].section == section && keys[i].value)
            fprintf(f, "%s=%s\n", keys[i].key, keys[i].value);
    for (int i = 0; i < s->n_entries; i++)
        if (!is_replaced(section, s->entries[i].key, keys, n))
            fprintf(f, "%s=%s\n", s->entries[i].key, s->entries[i].value);
}

int amp_cfg_variant_open(struct amp_cfg_variant *v, const struct amp_cfg_file *cfg,
                         const struct amp_cfg_key *keys, int n, char *err, size_t err_size)
{
    /* In memory: no file to name, to clean up, or to leave behind when the program is killed. */
    v->fd = memfd_create(VARIANT_NAME, MFD_CLOEXEC);
    /* fclose closes the copy; v->fd must stay open, since path refers to it. */
    int copy = v->fd < 0 ? -1 : dup(v->fd);
    FILE *f = copy < 0 ? NULL : fdopen(copy, "w");
    for (int i = 0; f && i < cfg->n_sections; i++)
        write_section(f, cfg, i, keys, n);
    /* A full memory shows in ferror or in fclose. */
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

/* By the name that the kernel keeps, as the opener may be another copy of this file. */
bool amp_cfg_is_variant(const char *path)
{
    static const char start[] = "/memfd:" VARIANT_NAME;
    char name[sizeof start];
    ssize_t length = readlink(path, name, sizeof start - 1);
    return length == (ssize_t)sizeof start - 1 && !memcmp(name, start, sizeof start - 1);
}
