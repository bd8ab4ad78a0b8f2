/* Decides whether a run may save where it wants to: two processes that train cfgs of one name in
 * one folder would overwrite each other's backup and final weights, so the second one is refused.
 * It must not know what a run saves, nor when. */

#define _GNU_SOURCE
#include "claim.h"

#include "plugin/attach/fail.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

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

void amp_claim_folder(const char *cfg_path, const char *in, const char *base)
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
             cfg_path, pid, base, in);
    amp_fail(message);
}
