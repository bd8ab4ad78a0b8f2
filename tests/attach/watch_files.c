/* For LD_PRELOAD: notes in the file named by WATCH_LOG everything that a program writes, flushes,
 * renames, removes or starts, one line each: WHAT FLAGS PATH [PATH]. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(const char *what, const char *flags, const char *path, const char *other)
{
    char line[9000];
    const char *log = getenv("WATCH_LOG");
    if (!log) return;
    int n = snprintf(line, sizeof line, "%s %s %s %s\n", what, flags, path ? path : "",
                     other ? other : "");
    int fd =
        (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t)n) != n) abort();
    close(fd);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* ---- opening ---- */

static void note_open(const char *path, int flags)
{
    if ((flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC))) return;
    note("open", flags & O_EXCL ? "new" : flags & O_CREAT ? "create" : "-", path, NULL);
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;                    \
        va_end(args);                                                                              \
        note_open(path, flags);                                                                    \
        return REAL(name)(path, flags, mode);                                                      \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                               \
    int name(int folder, const char *path, int flags, ...)                                         \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;                    \
        va_end(args);                                                                              \
        note_open(path, flags);                                                                    \
        return REAL(name)(folder, path, flags, mode);                                              \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                                \
    FILE *name(const char *path, const char *mode)                                                 \
    {                                                                                              \
        if (strpbrk(mode, "wa+")) note("open", strchr(mode, 'x') ? "new" : "create", path, NULL);  \
        return REAL(name)(path, mode);                                                             \
    }
FOPEN(fopen)
FOPEN(fopen64)

#define FREOPEN(name)                                                                              \
    FILE *name(const char *path, const char *mode, FILE *file)                                     \
    {                                                                                              \
        if (path && strpbrk(mode, "wa+")) note("open", "create", path, NULL);                      \
        return REAL(name)(path, mode, file);                                                       \
    }
FREOPEN(freopen)
FREOPEN(freopen64)

int creat(const char *path, mode_t mode)
{
    note("open", "create", path, NULL);
    return REAL(creat)(path, mode);
}

/* ---- temporary files: the name that was made ---- */

int mkstemp(char *path)
{
    int fd = REAL(mkstemp)(path);
    note("open", "new", path, NULL);
    return fd;
}

int mkostemp(char *path, int flags)
{
    int fd = REAL(mkostemp)(path, flags);
    note("open", "new", path, NULL);
    return fd;
}

char *mkdtemp(char *path)
{
    char *made = REAL(mkdtemp)(path);
    note("mkdir", "new", path, NULL);
    return made;
}

FILE *tmpfile(void)
{
    note("tmpfile", "new", "", NULL);
    return REAL(tmpfile)();
}

/* ---- names ---- */

#define ONE(name, parameters, arguments)                                                           \
    int name parameters                                                                            \
    {                                                                                              \
        note(#name, "-", path, NULL);                                                              \
        return REAL(name) arguments;                                                               \
    }
ONE(unlink, (const char *path), (path))
ONE(unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
ONE(rmdir, (const char *path), (path))
ONE(remove, (const char *path), (path))
ONE(mkdir, (const char *path, mode_t mode), (path, mode))
ONE(mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode))
ONE(truncate, (const char *path, off_t size), (path, size))
ONE(chmod, (const char *path, mode_t mode), (path, mode))
ONE(chdir, (const char *path), (path))

#define TWO(name)                                                                                  \
    int name(const char *from, const char *to)                                                     \
    {                                                                                              \
        note(#name, "-", from, to);                                                                \
        return REAL(name)(from, to);                                                               \
    }
TWO(rename)
TWO(link)
TWO(symlink)

/* ---- the disk ---- */

int fsync(int fd)
{
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    note("fsync", "-", path, NULL);
    return REAL(fsync)(fd);
}

/* ---- other programs ---- */

/* Unless it is replaced: only what gets to the C library starts a shell. */
int system(const char *command)
{
    Dl_info next;
    if (dladdr((void *)REAL(system), &next) && strstr(next.dli_fname, "/libc.so"))
        note("system", "-", command, NULL);
    return REAL(system)(command);
}

FILE *popen(const char *command, const char *mode)
{
    note("popen", "-", command, NULL);
    return REAL(popen)(command, mode);
}

int execve(const char *path, char *const argv[], char *const env[])
{
    note("execve", "-", path, NULL);
    return REAL(execve)(path, argv, env);
}

int execv(const char *path, char *const argv[])
{
    note("execve", "-", path, NULL);
    return REAL(execv)(path, argv);
}

int execvp(const char *path, char *const argv[])
{
    note("execve", "-", path, NULL);
    return REAL(execvp)(path, argv);
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const argv[], char *const env[])
{
    note("execve", "-", path, NULL);
    return REAL(posix_spawn)(pid, path, actions, attributes, argv, env);
}
