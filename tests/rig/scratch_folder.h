/* A folder of the test's own, removed with its files when the program ends. Include after
 * tests/rig/harness.h. */
#ifndef AMP_TEST_SCRATCH_FOLDER_H
#define AMP_TEST_SCRATCH_FOLDER_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

static void scratch_remove(void)
{
    if (getpid() != scratch_owner) return;
    scratch_empty();
    rmdir(scratch_path);
}

/* The path of a file in it, good until eight more were asked for. */
static const char *scratch(const char *name)
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

__attribute__((unused)) static void scratch_write(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(scratch(name), "wb");
    REQUIRE(f != NULL);
    size_t written = fwrite(bytes, 1, n, f);
    REQUIRE(fclose(f) == 0 && written == n);
}

/* The file's bytes and a 0 after them, at most size - 1; their count, -1 where there is no file. */
__attribute__((unused)) static long scratch_read(const char *name, char *bytes, size_t size)
{
    FILE *f = fopen(scratch(name), "rb");
    if (!f) return -1;
    size_t n = fread(bytes, 1, size - 1, f);
    fclose(f);
    bytes[n] = 0;
    return (long)n;
}

/* How many files are in it. */
__attribute__((unused)) static int scratch_count(void)
{
    int n = 0;
    DIR *dir = opendir(scratch_path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += e->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
}

#endif
