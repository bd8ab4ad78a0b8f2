/* Decides what of its standard input a command of Darknet's gets to read, and what becomes of it
 * where there is none, or no more. It must not know what is done with it. `go test` hands what is
 * not there to sscanf; the commands of rnn end with status 0 and nothing done, or generate from an
 * output that is nowhere; of names of images the first that is none would end the command.
 */

#define _GNU_SOURCE
#include "darknet_commands.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/input/image_files.h"
#include "plugin/input/train_list.h"

static const struct amp_darknet_command *reader;
static size_t bytes; /* read so far */

static _Noreturn void leave(int status)
{
    fflush(stdout);
    fflush(stderr);
    _exit(status);
}

/* vec takes them for places of its input, as char, which has a sign; the others as they are. */
static void check_ascii(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isascii((unsigned char)text[i])) {
            fprintf(stderr,
                    "error: rnn vec: byte %zu of the standard input is not ASCII; Darknet would "
                    "write in front of the network's input: leave such letters out\n",
                    bytes + i + 1);
            leave(1);
        }
}

/* Of a text, valid compares each byte with the one before it. */
static ssize_t read_on(void *cookie, char *buffer, size_t size)
{
    (void)cookie;
    size_t needed = strncmp(reader->words[1], "valid", 5) ? 1 : 2;
    ssize_t n = read(STDIN_FILENO, buffer, size);
    if (n < 0 && errno != EINTR) fprintf(stderr, "error: standard input: %s\n", strerror(errno));
    if (n < 0) return n;
    if (!strcmp(reader->words[1], "vec")) check_ascii(buffer, (size_t)n);
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

/* ---- names of images ---- */

static FILE *names;         /* the standard input itself */
static bool cuts_line_ends; /* of Windows */
static bool some_wrong;

static const char *name_fault(const char *name, size_t length, char *hint, size_t hint_size)
{
    enum { MOST = 254 }; /* of Darknet's buffer */
    const char *why = !length                  ? "is empty: allowed: the name of an image"
                      : length > MOST          ? "is longer than 254 bytes"
                      : length != strlen(name) ? "has a NUL byte"
                                               : amp_image_file_fault(name);
    if (why && length <= MOST) amp_list_name_hint("", name, hint, hint_size);
    return why;
}

/* Darknet gets a line at a time, as it would from a terminal. It asks for each in these words. */
static ssize_t read_name(void *cookie, char *buffer, size_t size)
{
    char *line = NULL, hint[500] = "";
    size_t room = 0;
    ssize_t given = 0;
    (void)cookie;
    while (!given) {
        ssize_t n = getline(&line, &room, names);
        if (n <= 0) break;
        size_t length = (size_t)n - (line[n - 1] == '\n');
        if (cuts_line_ends && length && line[length - 1] == '\r') length--;
        line[length] = '\0';
        const char *why = name_fault(line, length, hint, sizeof hint);
        if (!why) {
            given = snprintf(buffer, size, "%s\n", line);
            continue;
        }
        some_wrong = true;
        fflush(stdout);
        int visible = amp_list_name_visible(line);
        fprintf(stderr, "\nerror: image \"%.*s\": %s%s\n", visible < 254 ? visible : 254, line, why,
                hint);
        fputs("Enter Image Path: ", stdout);
        fflush(stdout);
    }
    free(line);
    return given;
}

bool amp_darknet_names_were_wrong(void)
{
    return some_wrong;
}

/* ---- both ---- */

static void replace_stdin(cookie_read_function_t *read)
{
    FILE *watched = fopencookie(NULL, "r", (cookie_io_functions_t){.read = read});
    if (watched) stdin = watched;
}

void amp_darknet_watch_stdin(const struct amp_darknet_line *l, bool without_returns)
{
    reader = l->command;
    cuts_line_ends = without_returns;
    bool moves = !strcmp(reader->words[0], "go") && !strcmp(reader->words[1], "test");
    names = stdin;
    if (moves || (reader->takes & AMP_READS_TEXT))
        replace_stdin(read_on);
    else if (strstr(reader->files, "[IMAGE]") && !amp_darknet_file(l, "IMAGE"))
        replace_stdin(read_name);
}
