/* The command lines of `detector train`, and what `classifier train` has of the same words. */
#ifndef AMP_TRAIN_H
#define AMP_TRAIN_H

#include <stdbool.h>

/* Darknet's words, ours, and those that nobody knows. */
struct amp_train_words {
    const char *data, *cfg, *weights; /* NULL: not given */
    const char *gpus;                 /* more than one, with commas; NULL: not given */
    const char *one_gpu;              /* the value of -gpus without a comma */
    bool mixed;                       /* the cfg has mixed_precision=1 */
    bool clear, map;                  /* map: or -topk */
    bool quiet;                       /* Darknet's lines on stdout are left out */
    int patience;                     /* evaluations without a better one that end it; 0: none do */
    int map_every, map_epochs;        /* iterations; epochs; both 0: the evaluator chooses */
    double iou;                       /* of the number that -map takes from AlexeyAB's rules */
    int points;                       /* 0: the whole area; 11 or 101 recalls */
    const char *chart;                /* NULL: none */
};

/* Takes our words out of argv, so that Darknet never sees them: later words move up, and *argc
 * falls. 0, or -1 after naming on stderr every word that is wrong. */
int amp_train_words_read(int *argc, char **argv, struct amp_train_words *);

#define AMP_QUIET_REFUSED                                                                          \
    "-quiet leaves out Darknet's lines for the progress line of mixed_precision=1, which this "    \
    "cfg "                                                                                         \
    "has not (amp_dtype=fp32 beside it trains in FP32)"

#endif
