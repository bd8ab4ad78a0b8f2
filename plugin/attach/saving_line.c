// Darknet prints the name that it opens, to stderr. While it saves, stderr is a stream of ours that
// passes everything on to the real one, that name exchanged. Not a file descriptor: other threads
// keep writing to 2, and what they print to our stream arrives as well. The stream stays for good,
// since one of them may still hold it.

#define _GNU_SOURCE
#include "saving_line.h"

#include "symbols.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "parser.h"

static pthread_mutex_t saving = PTHREAD_MUTEX_INITIALIZER;
static FILE *real;
static const char *printed, *wanted;

static ssize_t pass_on(void *cookie, const char *text, size_t length)
{
    const char *found = printed ? memmem(text, length, printed, strlen(printed)) : NULL;
    size_t before = found ? (size_t)(found - text) : length;
    (void)cookie;
    fwrite(text, 1, before, real);
    if (found) {
        const char *after = found + strlen(printed);
        fputs(wanted, real);
        fwrite(after, 1, length - (size_t)(after - text), real);
    }
    return (ssize_t)length;
}

// Whole lines at a time. NULL where there is no memory for it.
static FILE *open_stream(void)
{
    FILE *f = fopencookie(NULL, "w", (cookie_io_functions_t){.write = pass_on});
    if (f) setvbuf(f, NULL, _IOLBF, BUFSIZ);
    return f;
}

// Under the stream's lock, as is pass_on.
static void exchange(FILE *ours, const char *from, const char *to)
{
    flockfile(ours);
    fflush(ours);
    printed = from;
    wanted = to;
    funlockfile(ours);
}

void amp_save_as(network *net, char *temp, const char *name)
{
    static FILE *ours;
    pthread_mutex_lock(&saving);
    if (!ours) ours = open_stream();
    real = stderr;
    if (ours) {
        exchange(ours, temp, name);
        stderr = ours;
    }
    AMP_REAL(save_weights)(net, temp);
    stderr = real;
    if (ours) exchange(ours, NULL, NULL);
    pthread_mutex_unlock(&saving);
}
