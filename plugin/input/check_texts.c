/* Decides what is wrong with the files that rnn and go train on: texts of bytes, of whole numbers,
 * and moves. It must not know where the network that reads them ends. */

#define _GNU_SOURCE
#include "checker.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "plugin/core/read/lines.h"

/* ---- texts ---- */

/* Darknet takes a text to its first zero byte, and numbers to the first word that is none. */
struct text {
    long least, most; /* bytes, or tokens */
    size_t count;
    int line; /* where it ends too early; 0: nowhere */
};

static void add(struct text *t, long x)
{
    t->least = x < t->least ? x : t->least;
    t->most = x > t->most ? x : t->most;
    t->count++;
}

static struct text read_text(FILE *file, bool tokenized)
{
    struct text t = {.least = LONG_MAX};
    int c, line = 1;
    while ((c = getc(file)) != EOF) {
        long x = c;
        bool blank = tokenized && strchr(" \t\n\v\f\r", c) && c;
        line += c == '\n';
        if (blank) continue;
        if (tokenized) ungetc(c, file);
        if (tokenized ? fscanf(file, "%ld", &x) != 1 : !c) {
            t.line = line;
            break;
        }
        add(&t, x);
    }
    return t;
}

void amp_checker_text(struct amp_checker *k, const char *path, bool tokenized)
{
    const char *why = NULL, *kind = tokenized ? "token" : "byte";
    FILE *file = amp_text_open(path, &why);
    if (!file) {
        amp_checker_fault(k, "%s: %s (-file TEXT names the text)", path, why);
        return;
    }
    struct text t = read_text(file, tokenized);
    fclose(file);
    if (!t.count)
        amp_checker_fault(k, "%s: holds %s", path,
                          tokenized ? "no number: a text for -tokenized is whole numbers"
                                    : "no text");
    else if (t.line)
        amp_checker_fault(k, "%s:%d: %s, where Darknet's reading ends, after %zu %ss", path, t.line,
                          tokenized ? "what is no whole number" : "a zero byte", t.count, kind);
    else if (k->net && (t.most >= k->net->inputs || t.least < 0))
        amp_checker_fault(k, "%s: holds %s %ld; inputs=%d of %s allows 0 to %d", path, kind,
                          t.least < 0 ? t.least : t.most, k->net->inputs, k->cfg->path,
                          k->net->inputs - 1);
}

/* ---- moves ---- */

/* Of a game: player, result, row and column, then the board, two bits a place. */
void amp_checker_moves(struct amp_checker *k, const char *path)
{
    enum { MOVE = 96, LARGEST = 127 }; /* of a char */
    unsigned char move[MOVE];
    const char *why = amp_file_unreadable(path);
    FILE *file = why ? NULL : fopen(path, "r");
    if (!file) {
        amp_checker_fault(k, "%s: %s", path, why ? why : strerror(errno));
        return;
    }
    size_t n, moves = 0;
    while ((n = fread(move, 1, MOVE, file)) == MOVE) {
        if (move[2] > LARGEST || move[3] > LARGEST) break;
        moves++;
    }
    fclose(file);
    if (n || !moves)
        amp_checker_fault(
            k,
            "%s: move %zu %s; a move has %d bytes: who plays, who won, row and column "
            "(0 to 18; 19 and more: a pass), and the board",
            path, moves + 1, n == MOVE ? "has no such place" : "is cut off", MOVE);
}
