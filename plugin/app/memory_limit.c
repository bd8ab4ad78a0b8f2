/* Where memory is limited (ulimit -v), a library that cannot go on without more ends the program by
 * a signal: an exception that nobody catches, or NULL used as memory. Here that becomes a message
 * and status 1. From before the libraries' own constructors on. Without a limit nothing is done. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { STACK_BYTES = 1 << 16, MIB = 1 << 20 };

static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS};
static unsigned char stack[STACK_BYTES]; /* the thread's own may be what cannot grow */
static unsigned long limit;              /* MiB */

/* MiB of address space in use, without asking for any. */
static unsigned long used(void)
{
    char text[64] = "";
    unsigned long pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    for (ssize_t i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++)
        pages = pages * 10 + (unsigned long)(text[i] - '0');
    if (fd >= 0) close(fd);
    return pages * (unsigned long)sysconf(_SC_PAGESIZE) / MIB;
}

static void on_crash(int number)
{
    char text[300];
    int n = snprintf(text, sizeof text,
                     "\ndarknet-amp: ended by %s with %lu of %lu MiB of memory in use: raise the "
                     "limit of memory (ulimit -v), lower batch or raise subdivisions\n",
                     number == SIGABRT ? "SIGABRT" : "a wrong address", used(), limit);
    if (write(2, text, (size_t)n) < 0) _exit(1);
    _exit(1);
}

static void watch_memory(void)
{
    struct rlimit most;
    struct sigaction ours = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK};
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    if (getrlimit(RLIMIT_AS, &most) || most.rlim_cur == RLIM_INFINITY) return;
    limit = most.rlim_cur / MIB;
    sigaltstack(&other, NULL);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &ours, NULL);
}

__attribute__((used, section(".preinit_array"))) static void (*const first)(void) = watch_memory;
