/* The parts of `detector train`: its command line, and mAP while it trains. */
#ifndef AMP_TRAIN_H
#define AMP_TRAIN_H

#include <stdbool.h>
#include <stddef.h>

#include "amp.h"
#include "darknet.h"

/* ---- the command line: Darknet's words, ours, and those that nobody knows ---- */

struct amp_train_words {
    const char *data, *cfg, *weights; /* NULL: not given */
    const char *gpus;                 /* more than one, with commas; NULL: not given */
    bool mixed;                       /* the cfg has mixed_precision=1 */
    bool clear, map;
    int map_every, map_epochs; /* iterations; epochs; both 0: -map chooses */
    double iou;                /* of the number that -map takes from AlexeyAB's rules */
    int points;                /* 0: the whole area; 11 or 101 recalls */
    const char *chart;         /* NULL: none */
};

/* Takes our words out of argv, so that Darknet never sees them: later words move up, and *argc
 * falls. 0, or -1 after naming on stderr every word that is wrong. */
int amp_train_words_read(int *argc, char **argv, struct amp_train_words *);

/* ---- average precision while a detector trains (-map) ----
 *
 * training_map.c decides when to measure, measures, and keeps the best weights. It measures a
 * second network, the twin, so the trained one is left untouched.
 *
 * With a cfg of AlexeyAB's rules its first number is that of his `detector map` (counts.h).
 *
 * The best weights so far (by mAP@0.5, or that number; ties go to the older) are
 * BACKUP/NAME_best.weights, with NAME as Darknet takes it from the cfg's file name.
 * BACKUP/NAME_best.json says how good they are, so a run that goes on replaces them only by better
 * ones. */

struct amp_training_map;

/* Checks and builds everything before the training. Of several processes all call it, and all
 * measure together; process 0 alone checks, prints and keeps. rank: of this process. goes_on: the
 * best weights so far count as this run's. It measures every so many iterations or epochs as the
 * words say, else every epoch, at least 100 iterations, unless iterations were given. NULL after
 * naming the faults on stderr. */
struct amp_training_map *amp_training_map_open(const struct amp_train_words *, int rank,
                                               bool goes_on);

/* True after burn-in every so many iterations, and at the end. */
bool amp_training_map_due(const struct amp_training_map *, size_t iteration);
/* Measures the network's weights, keeps them if they are the best, prints a line, and adds to
 * amp_log. 0, or -1 after saying why there is no result. */
int amp_training_map_measure(struct amp_training_map *, network *trained, size_t iteration);

/* The last result, and the best; map50 is NAN where there is none yet. */
const struct amp_evaluation *amp_training_map_last(const struct amp_training_map *);
const struct amp_evaluation *amp_training_map_best(const struct amp_training_map *);

/* Builds the twin. Call it before the trained network is built, on the same thread: then all that
 * the parser draws or notes down starts anew with that one. -1 with text in err: the cfg, or a
 * layer whose weights are not copied (recurrent ones). */
int amp_twin_create(const char *cfg_path, network **twin, char *err, size_t err_size);
/* Copies the weights that a weights file would hold. Only reads from `from`. */
void amp_twin_take_weights(network *twin, network *from);

#endif
