/* Reads and writes the file of plans. Knows lines, keys and values, but not what they mean. The
 * file has a first line that says what it is, then one line per plan,
 *      <checksum, 16 hex digits> TAB <key> TAB <value> */
#define _GNU_SOURCE /* mkostemp */
#include "plan_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Version 1 has plans that were not asked whether they carry infinities. */
#define FIRST_LINE "darknet-amp plans, version 2"
enum {
    LINE = 2048, /* bytes at most */
    CHECKSUM = 16,
    SLOTS = 64, /* programs that can try something at a time */
};

struct entry {
    char *key, *value;
};

struct ampk_plan_cache {
    char path[PATH_MAX]; /* "": nothing is kept */
    struct entry *entries;
    size_t count, room;
    bool changed, unwritable;
    int slot; /* our file of what is tried, from the first try on; else -1 */
};

/* FNV-1a. It finds damage; nobody attacks this file. */
static uint64_t checksum(const char *text)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (; *text; text++)
        sum = (sum ^ (unsigned char)*text) * 0x100000001b3u;
    return sum;
}

/* Relative paths in the environment do not count: the file would depend on the current folder. */
bool ampk_plan_cache_default_path(char *path, size_t path_size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(path, path_size, "%s/darknet-amp/plans", cache);
    else if (home && home[0] == '/')
        n = snprintf(path, path_size, "%s/.cache/darknet-amp/plans", home);
    return n > 0 && (size_t)n < path_size;
}

/* ---- entries ---- */

/* Linear: entries are looked up when a convolution is made, not in a pass. */
static struct entry *find(const struct ampk_plan_cache *cache, const char *key)
{
    for (size_t i = 0; i < cache->count; i++)
        if (!strcmp(cache->entries[i].key, key)) return &cache->entries[i];
    return NULL;
}

static struct entry *add_entry(struct ampk_plan_cache *cache, const char *key)
{
    if (cache->count == cache->room) {
        size_t room = cache->room ? 2 * cache->room : 64;
        struct entry *more = realloc(cache->entries, room * sizeof *more);
        if (!more) return NULL;
        cache->entries = more;
        cache->room = room;
    }
    char *copy = strdup(key);
    if (!copy) return NULL;
    struct entry *e = &cache->entries[cache->count++];
    *e = (struct entry){.key = copy};
    return e;
}

/* Takes copies of key and value. Without memory, the old value stays. */
static bool set(struct ampk_plan_cache *cache, const char *key, const char *value)
{
    char *copy = strdup(value);
    struct entry *e = find(cache, key);
    if (copy && !e) e = add_entry(cache, key);
    if (!copy || !e) {
        free(copy);
        return false;
    }
    free(e->value);
    e->value = copy;
    return true;
}

const char *ampk_plan_cache_find(const struct ampk_plan_cache *cache, const char *key)
{
    const struct entry *e = find(cache, key);
    return e ? e->value : NULL;
}

/* Entries are lines: a tab or newline inside would break the file. */
void ampk_plan_cache_add(struct ampk_plan_cache *cache, const char *key, const char *value)
{
    if (strlen(key) + strlen(value) + CHECKSUM + 4 > LINE) return;
    if (strpbrk(key, "\t\n") || strpbrk(value, "\t\n")) return;
    if (set(cache, key, value)) cache->changed = true;
}

/* ---- reading ---- */

/* Splits a line, without its newline, into key and value; false if it is damaged. */
static bool split(char *line, char **key, char **value)
{
    char sum[CHECKSUM + 1];
    char *tab = strchr(line, '\t'), *second = tab ? strchr(tab + 1, '\t') : NULL;
    if (!second || tab - line != CHECKSUM) return false;
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)checksum(tab + 1));
    if (memcmp(sum, line, CHECKSUM)) return false;
    *second = 0;
    *key = tab + 1;
    *value = second + 1;
    return true;
}

/* Adds what the file has and this cache lacks; our own entries are newer. Returns how many lines
 * were damaged, or -1 for another kind of file. */
static int read_lines(struct ampk_plan_cache *cache, FILE *f)
{
    char line[LINE], *key, *value;
    int damaged = 0;
    if (!fgets(line, sizeof line, f)) return 0;
    if (strcmp(line, FIRST_LINE "\n")) return -1;
    while (fgets(line, sizeof line, f)) {
        size_t end = strcspn(line, "\n");
        bool whole = line[end] == '\n' && strlen(line) == end + 1;
        line[end] = 0;
        if (!whole || !split(line, &key, &value))
            damaged++;
        else if (!find(cache, key))
            set(cache, key, value);
    }
    return damaged;
}

/* A missing file is no error: nothing has been timed yet. */
static void read_file(struct ampk_plan_cache *cache, char *warning, size_t warning_size)
{
    FILE *f = fopen(cache->path, "re");
    if (!f) {
        if (errno != ENOENT && errno != ENOTDIR)
            snprintf(warning, warning_size, "%s: cannot be read (%s); plans are timed again",
                     cache->path, strerror(errno));
        return;
    }
    int damaged = read_lines(cache, f);
    fclose(f);
    if (damaged < 0)
        snprintf(warning, warning_size,
                 "%s: not a plan file of this version; it will be replaced, plans are timed again",
                 cache->path);
    else if (damaged)
        snprintf(warning, warning_size, "%s: %d damaged lines were left out", cache->path, damaged);
}

void ampk_plan_cache_refresh(struct ampk_plan_cache *cache)
{
    char ignored[1]; /* what is damaged was said when the file was opened */
    if (cache->path[0]) read_file(cache, ignored, sizeof ignored);
}

struct ampk_plan_cache *ampk_plan_cache_open(const char *path, char *warning, size_t warning_size)
{
    struct ampk_plan_cache *cache = calloc(1, sizeof *cache);
    if (warning_size) warning[0] = 0;
    if (cache) cache->slot = -1;
    if (!cache || !path) return cache;
    if (strlen(path) + 16 > sizeof cache->path) {
        snprintf(warning, warning_size, "%.60s...: too long a name; no plans are kept", path);
        return cache;
    }
    strcpy(cache->path, path);
    read_file(cache, warning, warning_size);
    return cache;
}

void ampk_plan_cache_close(struct ampk_plan_cache *cache)
{
    if (!cache) return;
    for (size_t i = 0; i < cache->count; i++) {
        free(cache->entries[i].key);
        free(cache->entries[i].value);
    }
    if (cache->slot >= 0) close(cache->slot);
    free(cache->entries);
    free(cache);
}

/* ---- writing ---- */

/* Creates the folders on the way to the file. */
static bool make_folders(const char *path)
{
    char folder[PATH_MAX];
    strcpy(folder, path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0777) && errno != EEXIST) return false;
        *slash = '/';
    }
    return true;
}

/* Syncs before the rename: after a crash, the name leads to the old file or to a whole new one. */
static bool write_lines(const struct ampk_plan_cache *cache, FILE *f)
{
    fputs(FIRST_LINE "\n", f);
    for (size_t i = 0; i < cache->count; i++) {
        char text[LINE];
        snprintf(text, sizeof text, "%s\t%s", cache->entries[i].key, cache->entries[i].value);
        fprintf(f, "%016llx\t%s\n", (unsigned long long)checksum(text), text);
    }
    return fflush(f) == 0 && !ferror(f) && fsync(fileno(f)) == 0;
}

/* Writes a new file beside the old one and renames it: readers see the old or the new file, never
 * a part. */
static bool replace_file(const struct ampk_plan_cache *cache)
{
    char temp[PATH_MAX + 8];
    snprintf(temp, sizeof temp, "%s.XXXXXX", cache->path);
    int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) return false;
    FILE *f = fdopen(fd, "w");
    if (!f) close(fd);
    bool written = f && write_lines(cache, f);
    int error = errno;
    if (f && fclose(f)) written = false;
    if (written && rename(temp, cache->path) == 0) return true;
    if (written) error = errno;
    unlink(temp);
    errno = error;
    return false;
}

/* Keeps other programs from saving while this one reads and replaces the file. The lock is a file
 * of its own, because the plan file itself is replaced. Where files cannot be locked, the last one
 * wins. */
static int lock(const struct ampk_plan_cache *cache)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s.lock", cache->path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0) flock(fd, LOCK_EX);
    return fd;
}

/* Reads the file again under the lock, so that saving loses nothing that others added. */
bool ampk_plan_cache_save(struct ampk_plan_cache *cache, char *err, size_t err_size)
{
    if (!cache->changed || !cache->path[0] || cache->unwritable) return true;
    int locked = -1;
    bool saved = make_folders(cache->path);
    if (saved) {
        locked = lock(cache);
        ampk_plan_cache_refresh(cache);
        saved = replace_file(cache);
    }
    if (!saved)
        snprintf(err, err_size, "%s: cannot be written (%s); plans are timed again in every run",
                 cache->path, strerror(errno));
    if (locked >= 0) close(locked);
    cache->unwritable = !saved;
    cache->changed = false;
    return saved;
}

bool ampk_plan_cache_is_saved(const struct ampk_plan_cache *cache)
{
    return cache->path[0] && !cache->unwritable && !cache->changed;
}

/* ---- what is tried ----
 *
 * Each program that tries something has a slot, a file of one line as the file of plans has it,
 * without a value, or empty. It locks the file as long as it lives. What stands in a slot that
 * nobody locks is of a program that has ended. Nothing is synced: it must outlive a program, not
 * the machine. */

/* -1: no such file; -2: another program has locked it, or files cannot be locked here. */
static int open_slot(const struct ampk_plan_cache *cache, int slot, int flags)
{
    char path[PATH_MAX + sizeof ".trying.-2147483648"];
    snprintf(path, sizeof path, "%s.trying.%d", cache->path, slot);
    int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0666);
    if (fd < 0) return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    close(fd);
    return -2;
}

/* The key in a slot, in `line`; NULL: none, or damaged. */
static const char *read_slot(int fd, char line[LINE])
{
    char *key, *value;
    ssize_t n = pread(fd, line, LINE - 1, 0);
    line[n > 0 ? n : 0] = 0;
    return split(line, &key, &value) ? key : NULL;
}

static void clear_slot(int fd)
{
    if (ftruncate(fd, 0)) return; /* then it is found once more */
}

/* Only an empty slot is taken: what a program that has ended left in one is for
 * ampk_plan_cache_take_up. */
static void take_slot(struct ampk_plan_cache *cache)
{
    char line[LINE];
    bool possible = make_folders(cache->path);
    for (int i = 0; possible && cache->slot < 0 && i < SLOTS; i++) {
        int fd = open_slot(cache, i, O_CREAT);
        possible = fd != -1;
        if (fd < 0) continue;
        if (read_slot(fd, line))
            close(fd);
        else
            cache->slot = fd;
    }
}

void ampk_plan_cache_try(struct ampk_plan_cache *cache, const char *key)
{
    char text[LINE - CHECKSUM - 1], line[LINE];
    if (!cache->path[0] || cache->unwritable) return;
    if (cache->slot < 0 && key) take_slot(cache);
    if (cache->slot < 0) return;
    clear_slot(cache->slot);
    if (!key || strlen(key) + 2 > sizeof text) return;
    snprintf(text, sizeof text, "%s\t", key);
    int n = snprintf(line, sizeof line, "%016llx\t%s", (unsigned long long)checksum(text), text);
    if (pwrite(cache->slot, line, (size_t)n, 0) != n) clear_slot(cache->slot);
}

int ampk_plan_cache_take_up(struct ampk_plan_cache *cache, const char *value, char *first,
                            size_t first_size)
{
    char line[LINE], err[PATH_MAX + 200];
    int found = 0, fd = 0;
    for (int i = 0; cache->path[0] && fd != -1 && i < SLOTS; i++) {
        fd = open_slot(cache, i, 0);
        const char *key = fd >= 0 ? read_slot(fd, line) : NULL;
        const char *known = key ? ampk_plan_cache_find(cache, key) : NULL;
        bool is_new = key && !(known && !strcmp(known, value));
        if (is_new) ampk_plan_cache_add(cache, key, value);
        if (is_new && !found++) snprintf(first, first_size, "%s", key);
        if (key && ampk_plan_cache_save(cache, err, sizeof err)) clear_slot(fd);
        if (fd >= 0) close(fd);
    }
    return found;
}
