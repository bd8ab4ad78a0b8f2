/* Decides under which name a run's state is saved when it must end, and keeps a second process away
 * from that name. It must not know when that happens (run.c) or what is written (save.c).
 *
 * Darknet builds the names in its trainers and tells nobody: the folder is seen when a trainer
 * reads the option "backup", the rest follows from the cfg's name. */

#define _GNU_SOURCE
#include "backup_folder.h"

#include "symbols.h"

#include "option_list.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* The folder belongs to the process: a data file is read once, before any network exists. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX]; /* "": not known */

/* Darknet's trainers read their backup folder with it, so its answer for that key is noted. */
AMP_INTERPOSE(char *, option_find_str, (list * options, char *key, char *def))
{
    char *value = AMP_REAL(option_find_str)(options, key, def);
    if (!value || strcmp(key, "backup") != 0) return value;
    pthread_mutex_lock(&lock);
    snprintf(folder, sizeof folder, "%s", value);
    pthread_mutex_unlock(&lock);
    return value;
}

static void copy_folder(char to[PATH_MAX])
{
    pthread_mutex_lock(&lock);
    memcpy(to, folder, sizeof folder);
    pthread_mutex_unlock(&lock);
}

/* True if the file is another run's: it exists, and this run neither loaded nor wrote it. Compared
 * by inode, since two names may be one file. */
static bool is_foreign(const struct amp_session *s, const char *path)
{
    struct stat there, ours;
    if (stat(path, &there)) return false;
    return !*s->backup || stat(s->backup, &ours) || there.st_ino != ours.st_ino ||
           there.st_dev != ours.st_dev;
}

int amp_backup_place(const struct amp_session *s, char path[PATH_MAX])
{
    /* Darknet's own basecfg, so that the name is the one that its trainers use. */
    char in[PATH_MAX], *base = AMP_USE(basecfg)(s->cfg->path);
    copy_folder(in);
    int n = in[0] ? snprintf(path, PATH_MAX, "%s/%s.backup", in, base)
                  : snprintf(path, PATH_MAX, "%s", s->backup);
    if (in[0] && n < PATH_MAX && is_foreign(s, path))
        n = snprintf(path, PATH_MAX, "%s/%s_stopped.backup", in, base);
    free(base);
    return n > 0 && n < PATH_MAX ? 0 : -1;
}

/* ---- one process at a time ---- */

/* Address of an abstract socket that stands for folder and name. Such a socket leaves no file in
 * the folder, and goes with the process however that ends. The folder counts by device and inode.
 * Two containers do not see each other's sockets. */
static socklen_t name_claim(const char *in, const char *base, struct sockaddr_un *name)
{
    struct stat info;
    if (stat(in, &info)) return 0;
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "darknet-amp %llx %llx %.60s",
                     (unsigned long long)info.st_dev, (unsigned long long)info.st_ino, base);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Process that holds the claim; 0: unknown. */
static int holder(const struct sockaddr_un *name, socklen_t length)
{
    struct ucred who = {.pid = 0};
    socklen_t size = sizeof who;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!connect(fd, (const struct sockaddr *)name, length))
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
    close(fd);
    return who.pid;
}

static void claim(const struct amp_session *s, const char *in, const char *base)
{
    char message[2 * PATH_MAX + 300];
    struct sockaddr_un name;
    socklen_t length = name_claim(in, base, &name);
    if (!length) return; /* no folder: every save will fail, and say so */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    if (!bind(fd, (const struct sockaddr *)&name, length) && !listen(fd, 1)) return;
    bool taken = errno == EADDRINUSE;
    int pid = holder(&name, length);
    close(fd);
    if (!taken || pid == getpid())
        return; /* another network of this process may have the same cfg */
    snprintf(message, sizeof message,
             "%s: process %d is training %s and saves to the same folder, %s: each would overwrite "
             "the other's weights. Give this run a folder of its own (backup= in the data file)",
             s->cfg->path, pid, base, in);
    amp_fail(message);
}

void amp_backup_claim(const struct amp_session *s)
{
    char in[PATH_MAX];
    copy_folder(in);
    if (!in[0]) return;
    char *base = AMP_USE(basecfg)(s->cfg->path);
    claim(s, in, base);
    free(base);
}
