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

#endif
