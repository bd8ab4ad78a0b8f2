/* A backend that spoils what one watch word watches: as if the arithmetic had come out as inf or
 * NaN, as a finite value that FP16 refuses, or as values so small that they are stored as 0. */
#ifndef AMP_TEST_POISON_H
#define AMP_TEST_POISON_H

#include "kernels/kernels.h"

enum poison_kind {
    POISON_INF,
    POISON_NAN,
    POISON_REFUSED, /* FP32 had 1e5: inf where it is stored as FP16, 1e5 elsewhere */
    POISON_UNDERFLOW
};

struct poison {
    const uint32_t *word; /* whose tensor; NULL: none */
    enum poison_kind kind;
    const double *scale; /* strikes only while *scale > above; NULL: always */
    double above;
    int most;   /* strikes at most this often */
    int struck; /* so often it did */
    /* Which of these words some store was watched with; NULL: nobody asks. */
    bool *watched;
    const uint32_t *words;
    size_t n_words;
};

extern struct poison poison;

/* real, with every store that has a word going through `poison`. */
const struct ampk_backend *poison_backend(const struct ampk_backend *real);

#endif
