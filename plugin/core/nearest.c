/* Decides how far two words are apart: the Levenshtein distance, with a swap of neighbours as one
 * edit. It must not know what the words are for. */
#include "nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

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
