/* Decides what becomes of a result that cannot be written: Darknet's commands look at no write, and
 * end with status 0 on a full disk. It must not know what a file holds.
 *
 * The linker gives what is linked into the program, Darknet's commands included, these functions
 * for fopen and fclose (--wrap in CMakeLists.txt). */

#define _GNU_SOURCE
#include "results.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Visible: under ASan the linker wants them so, since its library has an fopen of its own. */
#pragma GCC visibility push(default)
FILE *__wrap_fopen(const char *path, const char *mode);
int __wrap_fclose(FILE *);
#pragma GCC visibility pop
FILE *__real_fopen(const char *path, const char *mode);
int __real_fclose(FILE *);

struct result {
    struct result *next;
    FILE *file;
    char path[];
};

static struct result *open_results;
static char *first_lost; /* and why */
static int lost;

static _Noreturn void give_up(const char *path, int why)
{
    fflush(stdout);
    fprintf(stderr, "error: %s: cannot be written: %s%s\n", path, strerror(why),
            why == EMFILE ? ": raise the limit (ulimit -n)" : "");
    fflush(stderr);
    _exit(1);
}

/* Darknet would write to NULL. */
FILE *__wrap_fopen(const char *path, const char *mode)
{
    FILE *f = __real_fopen(path, mode);
    if (*mode == 'r') return f;
    struct result *r = f ? malloc(sizeof *r + strlen(path) + 1) : NULL;
    if (!r) give_up(path, errno);
    r->file = f;
    strcpy(r->path, path);
    r->next = open_results;
    open_results = r;
    return f;
}

static void note_loss(const char *path, int why)
{
    if (!lost++ && asprintf(&first_lost, "%s: not written in full: %s", path,
                            why ? strerror(why) : "a write failed (is the disk full?)") < 0)
        first_lost = NULL;
}

int __wrap_fclose(FILE *f)
{
    struct result **place = &open_results;
    while (*place && (*place)->file != f)
        place = &(*place)->next;
    struct result *r = *place;
    if (!r) return __real_fclose(f);
    bool cut = ferror(f);
    errno = 0;
    int failed = __real_fclose(f);
    if (failed || cut) note_loss(r->path, errno);
    *place = r->next;
    free(r);
    return failed;
}

int amp_results_end(void)
{
    while (open_results)
        __wrap_fclose(open_results->file);
    if (!lost) return 0;
    fprintf(stderr, "error: %s", first_lost ? first_lost : "results: not written in full");
    if (lost > 1) fprintf(stderr, " (and %d other file%s)", lost - 1, lost > 2 ? "s" : "");
    fputc('\n', stderr);
    return -1;
}
