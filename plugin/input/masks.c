/* Decides whether a text of masks can be read by Darknet, which reads the runs into a buffer, and
 * draws them into an image, without a look at the end of either. It must not know which file
 * belongs to which image. */

#include "masks.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 32788 }; /* of Darknet's buffer */

struct reader {
    FILE *file;
    char word[ROOM + 1]; /* of a longer one, what fits */
    int line, column;    /* where the word begins; from 1 */
    int next_line, next_column;
    char *why;
    size_t size;
};

/* ---- words ---- */

static int next(struct reader *r)
{
    int c = getc(r->file);
    r->next_column++;
    if (c == '\n') {
        r->next_line++;
        r->next_column = 1;
    }
    return c;
}

/* False: there is no further one. */
static bool read_word(struct reader *r)
{
    size_t n = 0;
    int c;
    do {
        r->line = r->next_line;
        r->column = r->next_column;
        c = next(r);
    } while (isspace(c));
    for (; c != EOF && !isspace(c); c = next(r))
        if (n < ROOM) r->word[n++] = (char)c;
    r->word[n] = '\0';
    return n > 0;
}

/* at: characters from the word's begin. */
__attribute__((format(printf, 3, 4))) static bool fault(const struct reader *r, size_t at,
                                                        const char *format, ...)
{
    va_list args;
    int used = snprintf(r->why, r->size, "line %d, column %zu: ", r->line, (size_t)r->column + at);
    if (used < 0 || (size_t)used >= r->size) return false;
    va_start(args, format);
    vsnprintf(r->why + used, r->size - (size_t)used, format, args);
    va_end(args);
    return false;
}

/* ---- an object ---- */

static bool check_class(const struct reader *r, int classes)
{
    char *end;
    errno = 0;
    long id = strtol(r->word, &end, 10);
    if (*end) return fault(r, 0, "\"%.20s\": not `class run,run,...`", r->word);
    if (errno || id < 0 || id >= classes)
        return fault(r, 0, "class %.20s; allowed: 0 to %d", r->word, classes - 1);
    return true;
}

/* The sum cannot pass 64 bits: there are fewer runs than characters. */
static bool check_runs(const struct reader *r, uint64_t pixels)
{
    uint64_t sum = 0;
    if (strlen(r->word) >= ROOM)
        return fault(r, 0, "a mask of more than %d characters: Darknet has no room for it",
                     ROOM - 1);
    for (const char *p = r->word;; p++) {
        char *end;
        errno = 0;
        long run = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : -1;
        if (run < 0 || errno || run > INT_MAX || (*end && *end != ','))
            return fault(r, (size_t)(p - r->word),
                         "run \"%.20s\"; allowed: whole numbers, at least 0, with commas between "
                         "them",
                         p);
        sum += (uint64_t)run;
        if (sum > pixels)
            return fault(r, (size_t)(p - r->word),
                         "with this run of %ld the mask has %" PRIu64 " pixels; allowed: %" PRIu64
                         ", those of the image",
                         run, sum, pixels);
        p = end;
        if (!*p) return true;
    }
}

/* ---- all ---- */

bool amp_masks_check(FILE *file, int classes, uint64_t pixels, int *objects, char *why, size_t size)
{
    struct reader r = {.file = file, .next_line = 1, .next_column = 1, .why = why, .size = size};
    for (*objects = 0; read_word(&r); ++*objects) {
        if (!check_class(&r, classes)) return false;
        if (!read_word(&r)) return fault(&r, 0, "a class without runs: not `class run,run,...`");
        if (!check_runs(&r, pixels)) return false;
    }
    return true;
}
