/* Finds the word that a misspelt one was probably meant to be, for "did you mean ...?". It knows
 * neither cfg keys nor command lines. */
#ifndef AMP_NEAREST_H
#define AMP_NEAREST_H

#include <stddef.h>

/* The known word that takes the fewest edits, the first of equals; NULL if none is near. Near is at
 * most one edit for every three characters of the known word, but at least one. An edit adds, drops
 * or changes a character, or swaps two neighbours. Upper and lower case are the same. */
const char *amp_nearest_word(const char *word, const char *const *known, size_t n);

#define AMP_WORDS_FAR_APART 64

/* The number of such edits that turn a into b; AMP_WORDS_FAR_APART if one of them is that long. */
int amp_word_edits(const char *a, const char *b);

#endif
