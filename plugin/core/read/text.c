/* Decides how far two words are apart, how notes are written, and when a progress line is due. It
 * must not know what the words, values and work are. */
#define _GNU_SOURCE
#include "text.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "plugin/core/host.h"

/* ---- words: the Levenshtein distance, with a swap of neighbours as one edit ---- */

#define LONGEST                                                                                    \
    (AMP_WORDS_FAR_APART - 1) /* characters; a longer word is no slip of the fingers               \
                               */

static int lower(const char *text, int i)
{
    return tolower((unsigned char)text[i]);
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* Row i of the table has the distances of a's first i characters to every beginning of b. A swap of
 * neighbours looks two rows back, so three rows are enough. */
int amp_word_edits(const char *a, const char *b)
{
    if (strlen(a) > LONGEST || strlen(b) > LONGEST) return AMP_WORDS_FAR_APART;
    int rows[3][LONGEST + 1], n = (int)strlen(b);
    int *before = rows[0], *above = rows[1], *row = rows[2];
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int *oldest = before;
        before = above;
        above = row;
        row = oldest;
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            bool differs = lower(a, i - 1) != lower(b, j - 1);
            row[j] = smaller(above[j - 1] + differs, smaller(above[j], row[j - 1]) + 1);
            bool swapped = i > 1 && j > 1 && lower(a, i - 1) == lower(b, j - 2) &&
                           lower(a, i - 2) == lower(b, j - 1);
            if (swapped) row[j] = smaller(row[j], before[j - 2] + 1);
        }
    }
    return row[n];
}

const char *amp_nearest_word(const char *word, const char *const *known, size_t n)
{
    const char *nearest = NULL;
    int fewest = 0;
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(known[i]);
        /* Short words are near to many others, so they allow one edit only. */
        int allowed = length < 6 ? 1 : (int)length / 3;
        int edits = amp_word_edits(word, known[i]);
        if (edits == AMP_WORDS_FAR_APART || edits > allowed || (nearest && edits >= fewest))
            continue;
        nearest = known[i];
        fewest = edits;
    }
    return nearest;
}

/* ---- durations ---- */

const char *amp_duration_text(double seconds, char text[32])
{
    long s = (long)(seconds + 0.5);
    snprintf(text, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    return text;
}

/* ---- notes ---- */

void amp_notes_print(const char *notes, FILE *f)
{
    while (*notes) {
        size_t length = strcspn(notes, "\n");
        fprintf(f, "darknet-amp: %.*s\n", (int)length, notes);
        notes += length + (notes[length] == '\n');
    }
}

/* ---- progress ---- */

void amp_progress_start(struct amp_progress *progress, FILE *out, const char *what, size_t total)
{
    double now = amp_clock_seconds();
    *progress = (struct amp_progress){out, what, "images", total, now, now};
}

void amp_progress_update(struct amp_progress *progress, size_t done)
{
    double now = amp_clock_seconds();
    /* done == 0 has no rate yet. */
    if (!progress->out || done == 0 || now - progress->last < AMP_PROGRESS_SECONDS) return;
    progress->last = now;
    double rate = (double)done / (now - progress->start);
    fprintf(progress->out, "%s: %zu/%zu %s (%.0f %%), %.4g %s/s, %.0f s left\n", progress->what,
            done, progress->total, progress->unit, 100.0 * (double)done / (double)progress->total,
            rate, progress->unit, (double)(progress->total - done) / rate);
}
