/* Decides which signals ask a run to stop, what a handler does, and when a second signal ends the
 * program at once. It must not know sessions or saves: run.c and stock.c act on what was asked. */

#define _GNU_SOURCE
#include "signals.h"

#include "plugin/spread/group.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Programs that stop others send two signals at once: `timeout` sends one to the program and one to
 * its process group; systemd sends SIGHUP right behind SIGTERM; a closed terminal sends one beside
 * its shell's. The user asked once, so the pair counts as one. */
#define SAME_REQUEST_MS 200

static const struct {
    int number;
    const char *name;
} handled[] = {{SIGINT, "SIGINT"},
               {SIGTERM, "SIGTERM"},
               {SIGHUP, "SIGHUP"},
               {SIGPIPE, "SIGPIPE"},
               {SIGXCPU, "SIGXCPU"}};
enum { SIGNALS = sizeof handled / sizeof *handled };

static pid_t process;         /* that set the handlers */
static _Atomic int64_t first; /* the first signal: 256 * milliseconds + number; 0: none yet */

/* ---- in a handler: only what is safe there, and no lock ---- */

/* Milliseconds. Monotonic: a change of the clock must not turn one request into two. */
static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* SIGPIPE comes again at every write, SIGXCPU every second: neither is a second request. */
static bool is_second(int number)
{
    return number != SIGPIPE && number != SIGXCPU && now() - first / 256 >= SAME_REQUEST_MS;
}

/* Open MPI's mpirun reads no more of what its processes print (on a pseudoterminal and a pipe) once
 * it ends them: whoever prints would wait until it is killed, and save nothing. So from now on
 * writes do not wait, also the one that does now and is taken up again (SA_RESTART); lines may be
 * lost. Not on the terminal of this process, which a shell shares. */
static void print_without_waiting(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && tcgetpgrp(fd) < 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static void say(const char *text)
{
    if (amp_group_rank()) return;
    if (write(2, text, strlen(text)) < 0) return; /* nobody listens */
}

/* errno is kept, because the thread may be between a failed call and its look at errno. A forked
 * child inherits the handler; its signals are no request to us. */
static void on_signal(int number)
{
    int before = errno;
    int64_t none = 0;
    if (getpid() != process) { /* a child that inherited the handler */
        signal(number, SIG_DFL);
        raise(number);
    } else if (atomic_compare_exchange_strong(&first, &none, now() * 256 + number)) {
        for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && amp_group_is_on(); fd++)
            print_without_waiting(fd);
        say("\ndarknet-amp: told to stop: this iteration is finished first, then saved; a second "
            "signal ends at once\n");
    } else if (is_second(number)) {
        _exit(128 + number);
    }
    errno = before;
}

/* ---- taking and giving back ---- */

/* Whether the signal has this handler now. A handler with SA_SIGINFO is never one of ours. */
static bool has_handler(int number, void (*handler)(int))
{
    struct sigaction is;
    return !sigaction(number, NULL, &is) && !(is.sa_flags & SA_SIGINFO) && is.sa_handler == handler;
}

/* SA_RESTART: Darknet checks no read for EINTR. The mask keeps one handler from running in the
 * middle of another. */
void amp_signals_take(void)
{
    struct sigaction ours = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&ours.sa_mask);
    for (int i = 0; i < SIGNALS; i++)
        sigaddset(&ours.sa_mask, handled[i].number);
    process = getpid();
    for (int i = 0; i < SIGNALS; i++)
        if (has_handler(handled[i].number, SIG_DFL)) sigaction(handled[i].number, &ours, NULL);
}

void amp_signals_release(void)
{
    for (int i = 0; i < SIGNALS; i++)
        if (has_handler(handled[i].number, on_signal)) signal(handled[i].number, SIG_DFL);
    if (amp_signals_asked()) raise(amp_signals_asked());
}

void amp_signals_let_writes_fail(void)
{
    if (has_handler(SIGXFSZ, SIG_DFL)) signal(SIGXFSZ, SIG_IGN);
}

/* ---- what was asked ---- */

int amp_signals_asked(void)
{
    return (int)(first % 256);
}

/* Every handled signal is in the list, so the last one needs no comparison. */
const char *amp_signals_name(int number)
{
    int i = 0;
    while (i < SIGNALS - 1 && handled[i].number != number)
        i++;
    return handled[i].name;
}
