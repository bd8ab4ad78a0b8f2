/* The word that a misspelt one was probably meant to be, for "did you mean ...?". It knows neither
 * cfg keys nor command lines. */
#ifndef AMP_NEAREST_H
#define AMP_NEAREST_H

#include <stddef.h>

/* The one of the n known words that takes the fewest edits, or NULL where none is near: at most one
 * edit for every three characters of the known word, but at least one. An edit adds, drops or
 * changes a character, or swaps two neighbours. Upper and lower case are the same. The first of
 * equals. */
const char *amp_nearest_word(const char *word, const char *const *known, size_t n);

#define AMP_WORDS_FAR_APART 64

/* How many such edits make b of a; AMP_WORDS_FAR_APART where one of them is as long as that. */
int amp_word_edits(const char *a, const char *b);

#endif
