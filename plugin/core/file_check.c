#define _GNU_SOURCE
#include "file_check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *amp_file_unreadable(const char *path)
{
    struct stat info;
    if (stat(path, &info)) return strerror(errno);
    if (!S_ISREG(info.st_mode)) return "not a regular file";
    return faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) ? strerror(errno) : NULL;
}

const char *amp_text_unreadable(const char *path)
{
    struct stat info;
    const char *why = amp_file_unreadable(path);
    if (why || stat(path, &info)) return why ? why : strerror(errno);
    return info.st_size > 1 << 30 ? "larger than 1 GiB" : NULL;
}

/* 0 or an errno: reserves the bytes in nameless files, all there at once, and flushes them. */
static int try_to_write(const char *folder, const uint64_t *bytes, int files)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/.amp-probe-XXXXXX", folder) >= (int)sizeof path)
        return ENAMETOOLONG;
    int file = mkstemp(path);
    if (file < 0) return errno;
    unlink(path);
    /* A limit on file sizes must be an error here, not the end of the process. */
    void (*on_limit)(int) = signal(SIGXFSZ, SIG_IGN);
    int why = *bytes > INT64_MAX ? EFBIG : posix_fallocate(file, 0, (off_t)*bytes);
    if (!why && fsync(file)) why = errno;
    if (!why && files > 1) why = try_to_write(folder, bytes + 1, files - 1);
    if (close(file) && !why) why = errno;
    signal(SIGXFSZ, on_limit);
    return why;
}

static uint64_t sum_of(const uint64_t *bytes, int files)
{
    uint64_t sum = 0;
    for (int i = 0; i < files; ++i)
        if (__builtin_add_overflow(sum, bytes[i], &sum)) return UINT64_MAX;
    return sum;
}

int amp_folder_check(const char *path, const uint64_t *bytes, int files, const char *what,
                     char *err, size_t err_size)
{
    struct stat info;
    if (stat(path, &info)) {
        snprintf(err, err_size, "folder %s: %s", path, strerror(errno));
        return -1;
    }
    if (!S_ISDIR(info.st_mode)) {
        snprintf(err, err_size, "%s: not a folder", path);
        return -1;
    }
    int why = try_to_write(path, bytes, files);
    if (!why) return 0;
    snprintf(err, err_size, "folder %s: %" PRIu64 " bytes of %s cannot be written: %s", path,
             sum_of(bytes, files), what, strerror(why));
    return -1;
}
