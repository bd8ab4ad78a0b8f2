/* Files around a test: a folder of its own, Darknet's cfgs, and what the program prints. Include
 * after tests/rig/harness.h. */
#ifndef AMP_TEST_FILES_H
#define AMP_TEST_FILES_H

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* ---- a folder that is removed with its files when the program ends ---- */

static char scratch_path[64];
static pid_t scratch_owner;

static void scratch_empty(void)
{
    char path[400];
    DIR *dir = opendir(scratch_path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", scratch_path, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (dir) closedir(dir);
}

/* Not at the end of a child, which has it from its parent. */
static void scratch_remove(void)
{
    if (getpid() != scratch_owner) return;
    scratch_empty();
    rmdir(scratch_path);
}

/* The path of a file in it, good until eight more were asked for. */
UNUSED static const char *scratch(const char *name)
{
    static char paths[8][300];
    static int next;
    if (!scratch_path[0]) {
        snprintf(scratch_path, sizeof scratch_path, "/tmp/amp-test-XXXXXX");
        REQUIRE(mkdtemp(scratch_path) != NULL);
        scratch_owner = getpid();
        atexit(scratch_remove);
    }
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_path, name);
    return path;
}

UNUSED static void scratch_write(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(scratch(name), "wb");
    REQUIRE(f != NULL);
    size_t written = fwrite(bytes, 1, n, f);
    REQUIRE(fclose(f) == 0 && written == n);
}

/* The file's bytes and a 0 after them, at most size - 1; their count, -1 where there is no file. */
UNUSED static long scratch_read(const char *name, char *bytes, size_t size)
{
    FILE *f = fopen(scratch(name), "rb");
    if (!f) return -1;
    size_t n = fread(bytes, 1, size - 1, f);
    fclose(f);
    bytes[n] = 0;
    return (long)n;
}

/* Files end there, as on a full disk; RLIM_INFINITY: nowhere. */
UNUSED static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    REQUIRE(!getrlimit(RLIMIT_FSIZE, &limit));
    limit.rlim_cur = bytes;
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &limit));
}

/* How many files are in it. */
UNUSED static int scratch_count(void)
{
    int n = 0;
    DIR *dir = opendir(scratch_path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += e->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
}

/* ---- the cfgs that Darknet ships (AMP_STOCK_CFG: their folder) ---- */

#ifdef AMP_STOCK_CFG
#define STOCK_MOST 100

static int stock_is_cfg(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 4 && strcmp(e->d_name + n - 4, ".cfg") == 0;
}

/* Their paths, sorted; returns how many. */
static int stock_cfgs(char paths[STOCK_MOST][4096])
{
    struct dirent **list;
    int n = scandir(AMP_STOCK_CFG, &list, stock_is_cfg, alphasort);
    if (n > STOCK_MOST) n = STOCK_MOST;
    for (int i = 0; i < n; i++) {
        snprintf(paths[i], 4096, "%s/%s", AMP_STOCK_CFG, list[i]->d_name);
        free(list[i]);
    }
    if (n >= 0) free(list);
    return n;
}
#endif

/* ---- what the program prints ---- */

struct capture {
    FILE *file;
    int fd, console;
};

/* What is written to the descriptor (1 or 2) goes into a file until capture_end. */
UNUSED static struct capture capture_begin(int fd)
{
    struct capture c = {tmpfile(), fd, dup(fd)};
    REQUIRE(c.file && c.console >= 0);
    fflush(NULL);
    dup2(fileno(c.file), fd);
    return c;
}

/* Appends it to text, which has room for size bytes. */
UNUSED static void capture_end(struct capture c, char *text, size_t size)
{
    size_t used = strlen(text);
    fflush(NULL);
    dup2(c.console, c.fd);
    close(c.console);
    rewind(c.file);
    text[used + fread(text + used, 1, size - used - 1, c.file)] = 0;
    fclose(c.file);
}

#undef UNUSED
#endif
