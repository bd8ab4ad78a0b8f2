/* Text for people: the word that was meant, notes, progress lines. */
#ifndef AMP_TEXT_H
#define AMP_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* ---- the word that a misspelt one was probably meant to be, for "did you mean ...?" ---- */

/* The known word that takes the fewest edits, the first of equals; NULL if none is near. Near is at
 * most one edit for every three characters of the known word, but at least one. An edit adds, drops
 * or changes a character, or swaps two neighbours. Upper and lower case are the same. */
const char *amp_nearest_word(const char *word, const char *const *known, size_t n);

#define AMP_WORDS_FAR_APART 64

/* The number of such edits that turn a into b; AMP_WORDS_FAR_APART if one of them is that long. */
int amp_word_edits(const char *a, const char *b);

/* ---- h:mm:ss, rounded to seconds ---- */

/* Returns text. */
const char *amp_duration_text(double seconds, char text[32]);

/* ---- notes ---- */

/* Prints each line of notes with "darknet-amp: " in front, also a last one without a newline. */
void amp_notes_print(const char *notes, FILE *);

/* ---- a progress line, at most one every AMP_PROGRESS_SECONDS ---- */

#define AMP_PROGRESS_SECONDS 2.0

struct amp_progress {
    FILE *out;
    const char *what; /* "evaluating" */
    const char *unit; /* unit of total: "images", unless the caller changes it after the start */
    size_t total;
    double start, last;
};

/* out: NULL for silence. */
void amp_progress_start(struct amp_progress *progress, FILE *out, const char *what, size_t total);
/* Says that done of total are finished; prints if it is time for a line. */
void amp_progress_update(struct amp_progress *progress, size_t done);

#endif
