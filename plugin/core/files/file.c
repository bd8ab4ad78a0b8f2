/* Decides how a file is checked, written and replaced, so that no reader ever sees half of it. It
 * must not know what a file holds, nor in which order several of them are replaced (checkpoint.c).
 */
#define _GNU_SOURCE
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* The library's functions become part of this file, so that nobody who links the archive
 * libdarknet_amp_wrap.a has to link the library too. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#define TEMP_MARK   ".part-"
#define TEMP_DIGITS 16

/* ---- checks ---- */

/* Reserves the bytes in nameless files and flushes them. All files exist at once (hence the
 * recursion), since they must fit beside each other. Returns 0 or an errno. */
static int try_to_write(const char *folder, const uint64_t *bytes, int files)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/.amp-probe-XXXXXX", folder) >= (int)sizeof path)
        return ENAMETOOLONG;
    int file = mkstemp(path);
    if (file < 0) return errno;
    /* At once: a killed program leaves no probe behind. */
    unlink(path);
    /* Beyond a limit on file sizes the system sends SIGXFSZ, which would end the process; ignored,
     * it is an error code. */
    void (*on_limit)(int) = signal(SIGXFSZ, SIG_IGN);
    /* fallocate instead of a free-space query: quotas count too. */
    int why = *bytes > INT64_MAX ? EFBIG : posix_fallocate(file, 0, (off_t)*bytes);
    if (!why && fsync(file)) why = errno;
    if (!why && files > 1) why = try_to_write(folder, bytes + 1, files - 1);
    if (close(file) && !why) why = errno;
    signal(SIGXFSZ, on_limit);
    return why;
}

/* For the message; absurd sizes must not wrap to small ones. */
static uint64_t sum_of(const uint64_t *bytes, int files)
{
    uint64_t sum = 0;
    for (int i = 0; i < files; i++)
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

/* ---- folders of whole files ---- */

/* Reads errno, so call it before anything else can change it. */
static int fail(const char *path, const char *what, char *err, size_t err_size)
{
    snprintf(err, err_size, "%s: %s: %s", path, what, strerror(errno));
    return -1;
}

/* "." for a bare name, "/" for a file in the root. */
static void folder_of(const char *path, char folder[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= PATH_MAX) length = PATH_MAX - 1;
    memcpy(folder, path, length);
    folder[length] = 0;
    if (!length) strcpy(folder, slash ? "/" : ".");
}

int amp_folder_flush(const char *path, char *err, size_t err_size)
{
    char folder[PATH_MAX];
    folder_of(path, folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: this file system cannot flush folders, and nothing better exists. */
    int failed = fd < 0 || (fsync(fd) && errno != EINVAL);
    if (failed) fail(folder, "cannot flush the folder", err, err_size);
    if (fd >= 0) close(fd);
    return failed ? -1 : 0;
}

/* ---- what killed programs left ---- */

/* The length of NAME in NAME.part-...; 0 if the name has another form. */
static size_t find_stem(const char *name)
{
    size_t length = strlen(name), end = strlen(TEMP_MARK) + TEMP_DIGITS;
    if (length <= end || strncmp(name + length - end, TEMP_MARK, strlen(TEMP_MARK))) return 0;
    if (strspn(name + length - TEMP_DIGITS, "0123456789abcdef") != TEMP_DIGITS) return 0;
    return length - end;
}

/* Whether NAME is the base name, or that of any other file of a training. The latter matters for
 * numbered files: each is written once, so its own begin never comes again. */
static int is_ours(const char *name, const char *base)
{
    static const char *const ends[] = {".weights", ".backup", ".amp", ".prev", "_best.json"};
    size_t stem = find_stem(name);
    int found = stem && stem == strlen(base) && !memcmp(name, base, stem);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]);
        found |= stem > n && !memcmp(name + stem - n, ends[i], n);
    }
    return found;
}

/* AT_SYMLINK_NOFOLLOW: nobody may make us remove what a link points to. */
static int is_regular(int folder, const char *name)
{
    struct stat info;
    return !fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) && S_ISREG(info.st_mode);
}

static void remove_abandoned(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    folder_of(path, folder);
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!is_ours(e->d_name, base) || !is_regular(dirfd(dir), e->d_name)) continue;
        int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) continue;
        /* Its writer holds the lock as long as it lives; the system drops it with the process. */
        if (!flock(fd, LOCK_EX | LOCK_NB)) unlinkat(dirfd(dir), e->d_name, 0);
        close(fd);
    }
    if (dir) closedir(dir);
}

/* ---- writing ---- */

/* Locks a new file. False if another program took it for abandoned and removed it before it was
 * locked. */
static int lock(int fd)
{
    struct stat info;
    flock(fd, LOCK_EX | LOCK_NB);
    return !fstat(fd, &info) && info.st_nlink > 0;
}

/* Not mkstemp: its files are always 0600, while Darknet's get the rights that the umask leaves. */
static int create_temp(struct amp_whole_file *f)
{
    /* A random name is taken almost never; the limit only keeps a broken file system from hanging
     * us. */
    for (int tries = 0; tries < 100; tries++) {
        uint64_t number;
        if (getrandom(&number, sizeof number, 0) != sizeof number) return -1;
        int n = snprintf(f->temp, sizeof f->temp, "%s" TEMP_MARK "%0*" PRIx64, f->path, TEMP_DIGITS,
                         number);
        if (n >= (int)sizeof f->temp) {
            errno = ENAMETOOLONG;
            return -1;
        }
        f->fd = open(f->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        /* EEXIST, or a lost lock: another number may do. */
        if (f->fd < 0 && errno != EEXIST) return -1;
        if (f->fd >= 0 && lock(f->fd)) return f->fd;
        if (f->fd >= 0) close(f->fd);
        f->fd = -1;
    }
    return -1;
}

int amp_whole_begin(struct amp_whole_file *f, const char *path, char *err, size_t err_size)
{
    struct stat old;
    f->fd = -1;
    f->temp[0] = 0;
    if (snprintf(f->path, sizeof f->path, "%s", path) >= (int)sizeof f->path) {
        errno = ENAMETOOLONG;
        return fail(path, "cannot write", err, err_size);
    }
    /* A rename replaces a read-only file without a word, while fopen, as Darknet does it, would
     * fail. */
    if (!faccessat(AT_FDCWD, path, F_OK, AT_EACCESS) && faccessat(AT_FDCWD, path, W_OK, AT_EACCESS))
        return fail(path, "cannot write", err, err_size);
    bool is_there = !stat(path, &old);
    if (is_there && S_ISDIR(old.st_mode)) {
        errno = EISDIR;
        return fail(path, "cannot write", err, err_size);
    }
    if (is_there && !S_ISREG(old.st_mode)) {
        snprintf(err, err_size, "cannot write %s: a device or pipe, which a file would replace",
                 path);
        return -1;
    }
    /* Before the new file: the leftovers may hold the space that it needs. */
    remove_abandoned(path);
    if (create_temp(f) < 0) {
        fail(path, "cannot write a file beside it", err, err_size);
        /* No file of ours has that name. */
        f->temp[0] = 0;
        return -1;
    }
    /* The new file replaces the old one for everybody who could read it. */
    if (is_there) fchmod(f->fd, old.st_mode & 0777);
    return 0;
}

/* fclose closes its descriptor, and amp_whole_place needs one that is open. */
FILE *amp_whole_stream(struct amp_whole_file *f, char *err, size_t err_size)
{
    int copy = dup(f->fd);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "w");
    if (!stream) fail(f->path, "cannot be written", err, err_size);
    if (!stream && copy >= 0) close(copy);
    return stream;
}

int amp_whole_end_stream(struct amp_whole_file *f, FILE *stream, char *err, size_t err_size)
{
    int cut_off = ferror(stream);
    return fclose(stream) || cut_off ? fail(f->path, "cannot be written", err, err_size) : 0;
}

int amp_whole_try(const char *path, char *err, size_t err_size)
{
    struct amp_whole_file f = {.fd = -1};
    int failed = amp_whole_begin(&f, path, err, err_size);
    amp_whole_drop(&f);
    return failed;
}

int amp_whole_try_marked(const char *path, const char *mark, char *err, size_t err_size)
{
    struct stat info;
    char begin[AMP_MARK_WITHIN];
    if (lstat(path, &info)) return amp_whole_try(path, err, err_size);
    if (!S_ISREG(info.st_mode)) { /* a link would be replaced by a file */
        snprintf(err, err_size, "cannot write %s: exists and is not a regular file", path);
        return -1;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, begin, sizeof begin) : 0;
    if (fd >= 0) close(fd);
    if (n <= 0 || memmem(begin, (size_t)n, mark, strlen(mark)))
        return amp_whole_try(path, err, err_size);
    snprintf(err, err_size,
             "%s: is there and is another kind of file (one of this command's has \"%s\" near its "
             "beginning): choose another name, or remove it",
             path, mark);
    return -1;
}

int amp_whole_flush(struct amp_whole_file *f, char *err, size_t err_size)
{
    return fsync(f->fd) ? fail(f->temp, "cannot write", err, err_size) : 0;
}

int amp_whole_place(struct amp_whole_file *f, char *err, size_t err_size)
{
    if (rename(f->temp, f->path)) return fail(f->path, "cannot be replaced", err, err_size);
    f->temp[0] = 0;
    return 0;
}

void amp_whole_drop(struct amp_whole_file *f)
{
    if (f->fd < 0) return;
    if (f->temp[0]) unlink(f->temp);
    close(f->fd);
    f->fd = -1;
}

int amp_whole_print(const char *path, int (*print)(FILE *, const void *user), const void *user,
                    char *err, size_t err_size)
{
    struct amp_whole_file f = {.fd = -1};
    if (amp_whole_begin(&f, path, err, err_size)) return -1;
    FILE *stream = amp_whole_stream(&f, err, err_size);
    int failed = !stream;
    if (stream) {
        bool printed = !print(stream, user);
        failed = amp_whole_end_stream(&f, stream, err, err_size);
        if (!printed && !failed) snprintf(err, err_size, "%s: not written: out of memory", path);
        failed = failed || !printed;
    }
    failed = failed || amp_whole_flush(&f, err, err_size) || amp_whole_place(&f, err, err_size);
    amp_whole_drop(&f);
    return failed ? -1 : 0;
}

/* ---- a second name ---- */

/* write may take less than all. */
static int write_all(int fd, const char *p, ssize_t left)
{
    for (ssize_t n; left > 0; p += n, left -= n)
        if ((n = write(fd, p, (size_t)left)) <= 0) return -1;
    return 0;
}

static int copy_rest(int from, int to)
{
    char buffer[1 << 14];
    ssize_t n;
    while ((n = read(from, buffer, sizeof buffer)) > 0)
        if (write_all(to, buffer, n)) return -1;
    return n < 0 ? -1 : 0;
}

static int copy_bytes(const char *from, int to)
{
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    int failed = fd < 0 || copy_rest(fd, to);
    if (fd >= 0) close(fd);
    return failed ? -1 : 0;
}

static int copy(const char *path, const char *other, char *err, size_t err_size)
{
    struct amp_whole_file f;
    if (amp_whole_begin(&f, other, err, err_size)) return -1;
    int failed = copy_bytes(path, f.fd)
                     ? fail(other, "cannot write", err, err_size)
                     : amp_whole_flush(&f, err, err_size) || amp_whole_place(&f, err, err_size);
    amp_whole_drop(&f);
    return failed ? -1 : 0;
}

int amp_whole_keep(const char *path, const char *other, char *err, size_t err_size)
{
    /* link never replaces a file. */
    if (unlink(other) && errno != ENOENT) return fail(other, "cannot be replaced", err, err_size);
    if (!link(path, other)) return 0;
    return copy(path, other, err, err_size);
}

/* ---- hashes ---- */

_Static_assert(sizeof(XXH64_state_t) <= sizeof(struct amp_hash), "a hash has room for its state");

static XXH64_state_t *state_of(struct amp_hash *h)
{
    return (XXH64_state_t *)h->state;
}

void amp_hash_begin(struct amp_hash *h)
{
    memset(h, 0, sizeof *h);
    XXH64_reset(state_of(h), 0);
}

void amp_hash_add(struct amp_hash *h, const void *data, size_t bytes)
{
    XXH64_update(state_of(h), data, bytes);
}

uint64_t amp_hash_value(const struct amp_hash *h)
{
    return XXH64_digest((const XXH64_state_t *)h->state);
}

int amp_file_identify(const char *path, struct amp_file_id *id, char *err, size_t err_size)
{
    /* Per thread, since several threads may save at once; not on the stack, where 64 KiB may be
     * much. */
    static _Thread_local unsigned char buffer[1 << 16];
    struct amp_hash h;
    uint64_t bytes = 0;
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    amp_hash_begin(&h);
    for (; fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0; bytes += (uint64_t)n)
        amp_hash_add(&h, buffer, (size_t)n);
    if (n < 0) snprintf(err, err_size, "%s: cannot read: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    *id = (struct amp_file_id){bytes, amp_hash_value(&h)};
    return n < 0 ? -1 : 0;
}
