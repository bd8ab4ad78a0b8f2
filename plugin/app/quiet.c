#define _GNU_SOURCE
#include "quiet.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int amp_quiet_begin(void)
{
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (kept >= 0 && nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
    if (nowhere >= 0) close(nowhere);
    return kept;
}

void amp_quiet_end(int kept)
{
    fflush(stdout);
    if (kept < 0) return;
    dup2(kept, STDOUT_FILENO);
    close(kept);
}

/* ---- stderr, line by line ---- */

/* Not the file descriptor: what ends the program must still be said. The stream stays for good,
 * since another thread may hold it. */
static FILE *real;
static char line[8192];
static size_t length;

static bool was_said(const char *text)
{
    static struct said {
        struct said *next;
        char text[];
    } * said;
    for (const struct said *s = said; s; s = s->next)
        if (!strcmp(s->text, text)) return true;
    struct said *s = malloc(sizeof *s + strlen(text) + 1);
    if (!s) return false;
    s->next = said;
    strcpy(s->text, text);
    said = s;
    return false;
}

static bool is_for_the_user(const char *text)
{
    static const char *const beginnings[] = {"darknet-amp: ", "Unused field: "};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; ++i)
        if (!strncmp(text, beginnings[i], strlen(beginnings[i]))) return !was_said(text);
    return false;
}

static ssize_t take(void *cookie, const char *text, size_t n)
{
    (void)cookie;
    for (size_t i = 0; i < n; ++i) {
        if (length < sizeof line - 1) line[length++] = text[i];
        if (text[i] != '\n') continue;
        line[length - 1] = '\n';
        line[length] = '\0';
        if (is_for_the_user(line)) fputs(line, real);
        length = 0;
    }
    return (ssize_t)n;
}

void amp_hush_begin(void)
{
    static FILE *ours;
    real = stderr;
    if (!ours) ours = fopencookie(NULL, "w", (cookie_io_functions_t){.write = take});
    if (!ours) return;
    setvbuf(ours, NULL, _IOLBF, BUFSIZ);
    stderr = ours;
}

void amp_hush_end(void)
{
    if (stderr != real) fflush(stderr);
    stderr = real;
    length = 0;
}
