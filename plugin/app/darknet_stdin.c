/* Decides what becomes of a command of Darknet's that reads its standard input where there is none,
 * or no more. It must not know what is read. `go test` hands what is not there to sscanf; the
 * commands of rnn end with status 0 and nothing done, or generate from an output that is nowhere.
 */

#define _GNU_SOURCE
#include "darknet_commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct amp_darknet_command *reader;
static size_t bytes; /* read so far */

static _Noreturn void leave(int status)
{
    fflush(stdout);
    fflush(stderr);
    _exit(status);
}

/* Of a text, valid compares each byte with the one before it. */
static ssize_t read_on(void *cookie, char *buffer, size_t size)
{
    (void)cookie;
    size_t needed = strncmp(reader->words[1], "valid", 5) ? 1 : 2;
    ssize_t n = read(STDIN_FILENO, buffer, size);
    if (n < 0 && errno != EINTR) fprintf(stderr, "error: standard input: %s\n", strerror(errno));
    if (n < 0) return n;
    bytes += (size_t)n;
    if (n) return n;
    if (bytes < needed) {
        fprintf(stderr, "error: %s %s: the standard input is empty: it reads its %s there\n",
                reader->words[0], reader->words[1],
                strcmp(reader->words[0], "go") ? "text" : "moves");
        leave(1);
    }
    if (!strcmp(reader->words[0], "go")) leave(0);
    return 0;
}

void amp_darknet_watch_stdin(const struct amp_darknet_command *c)
{
    bool moves = !strcmp(c->words[0], "go") && !strcmp(c->words[1], "test");
    if (!moves && !(c->takes & AMP_READS_TEXT)) return;
    FILE *watched = fopencookie(NULL, "r", (cookie_io_functions_t){.read = read_on});
    if (!watched) return;
    reader = c;
    stdin = watched;
}
