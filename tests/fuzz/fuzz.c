#define _GNU_SOURCE /* memfd_create */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

static void write_all(int fd, const void *data, size_t size)
{
    FUZZ_REQUIRE(size == 0 || pwrite(fd, data, size, 0) == (ssize_t)size);
}

const char *fuzz_file(const void *data, size_t size)
{
    static char path[40];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        FUZZ_REQUIRE(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    FUZZ_REQUIRE(ftruncate(fd, 0) == 0);
    write_all(fd, data, size);
    return path;
}

static char folder[PATH_MAX];

static void leave_folder(void)
{
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.') unlinkat(dirfd(dir), e->d_name, 0);
    if (dir) closedir(dir);
    rmdir(folder);
}

void fuzz_enter_folder(void)
{
    const char *parent = getenv("TMPDIR");
    if (folder[0]) return;
    snprintf(folder, sizeof folder, "%s/amp-fuzz-XXXXXX", parent && *parent ? parent : "/tmp");
    FUZZ_REQUIRE(mkdtemp(folder) && chdir(folder) == 0);
    atexit(leave_folder);
}

void fuzz_write(const char *name, const void *data, size_t size)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_REQUIRE(fd >= 0);
    write_all(fd, data, size);
    close(fd);
}

/* The index of the name that "@NAME\n" at p begins, or -1. */
static int header_at(const char *const *names, const uint8_t *p, size_t left)
{
    for (int i = 0; left && *p == '@' && names[i]; i++) {
        size_t n = strlen(names[i]);
        if (left >= n + 2 && !memcmp(p + 1, names[i], n) && p[n + 1] == '\n') return i;
    }
    return -1;
}

void fuzz_write_files(const char *const *names, const uint8_t *data, size_t size)
{
    for (int i = 0; names[i]; i++)
        fuzz_write(names[i], NULL, 0);
    size_t start = 0;
    int file = -1;
    for (size_t at = 0; at <= size; at++) {
        bool line_start = at == 0 || data[at - 1] == '\n';
        int next = line_start ? header_at(names, data + at, size - at) : -1;
        if (next < 0 && at < size) continue;
        if (file >= 0) fuzz_write(names[file], data + start, at - start);
        if (next < 0) continue;
        file = next;
        start = at + strlen(names[next]) + 2;
    }
}

FILE *fuzz_nowhere(void)
{
    static FILE *file;
    if (!file) file = fopen("/dev/null", "w");
    FUZZ_REQUIRE(file);
    return file;
}

void fuzz_require_reason(const char *err, const char *name)
{
    FUZZ_REQUIRE(*err);
    if (name && !strstr(err, name)) {
        fprintf(stderr, "\"%s\" does not name %s\n", err, name);
        abort();
    }
}
