/* Measuring while a network trains: when, which weights, and which are the best so far.
 *
 * A second network, the twin, is measured, so the trained one is left untouched. What is measured
 * is a struct amp_measure: mAP of detectors (measure_map.c, -map) or top 1 of classifiers
 * (measure_top.c, -topk). evaluation.c, over best.c and twin.c, knows neither. */
#ifndef AMP_EVALUATION_H
#define AMP_EVALUATION_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "amp.h"
#include "darknet.h"
#include "train.h"

enum { AMP_FIGURES = 3 }; /* that a measure has, at most */

struct amp_evaluation {
    unsigned long iteration;
    double values[AMP_FIGURES]; /* 0..1, in the measure's order; NAN: not defined */
    double seconds;
};

/* ---- what is measured ----
 *
 * `own` is the measure's: the set of images. Of several processes all open and run it, and
 * process 0 has the result. */

struct amp_measure {
    const char *option, *what; /* "-map", "mAP" */
    const char
        *figures[AMP_FIGURES]; /* their names in amp_log and in the record of the best; the
                                  first says which weights are the best; NULL behind the last */
    const char *charted[2];    /* what a chart calls the first and the last one */
    /* Reads the set; faults go to `errors`. checks: also whether everything can be measured. NULL:
     * it cannot. */
    void *(*open)(const struct amp_train_words *, bool checks, FILE *errors);
    /* Whether a number of an earlier run means the same as one of this run. */
    bool (*lasts)(const void *own);
    /* Measures the network and fills the values, on process 0. shared: all processes do it
     * together. 0, or -1 after saying why not. */
    int (*run)(void *own, network *, bool shared, double *values);
    /* Prints the values, without the end of the line; and, if there are any, lines about classes.
     */
    void (*print)(const void *own, const double *values);
    void (*print_classes)(const void *own);
    /* Numbers of classes for amp_log, of malloc; NULL: none. */
    struct amp_class_figure *(*of_classes)(const void *own, int *n);
    void (*close)(void *own);
};

extern const struct amp_measure amp_measure_map, amp_measure_top;

/* ---- when, and of what ---- */

struct amp_evaluator;

/* Checks and builds everything before the training. rank: of this process; process 0 alone checks,
 * prints and keeps. resumed: the best weights so far count as this run's. It measures every so many
 * iterations or epochs as the words say, else every epoch, at least 100 iterations. NULL after
 * naming the faults on stderr. */
struct amp_evaluator *amp_evaluator_open(const struct amp_measure *, const struct amp_train_words *,
                                         int rank, bool resumed);
/* True after burn-in every so many iterations, and at the end. */
bool amp_evaluator_is_due(const struct amp_evaluator *, size_t iteration);
/* Measures the network's weights, keeps them if they are the best, prints, and adds to amp_log. 0,
 * or -1 after saying why there is no result. */
int amp_evaluator_measure(struct amp_evaluator *, network *trained, size_t iteration);
/* True, and said, if as many as -patience allows were no better than the best. Process 0 decides
 * for all: each asks after every measurement, also one that failed. */
bool amp_evaluator_gives_up(const struct amp_evaluator *);
/* The last result, and the best; the first value is NAN where there is none yet. */
const struct amp_evaluation *amp_evaluator_last(const struct amp_evaluator *);
const struct amp_evaluation *amp_evaluator_best(const struct amp_evaluator *);

/* ---- best.c: the best weights so far ----
 *
 * BACKUP/NAME_best.weights, with NAME as Darknet takes it from the cfg's file name, and
 * BACKUP/NAME_best.json, which says how good they are, so a run that goes on replaces them only by
 * better ones. Ties go to the older. */

struct amp_best {
    const struct amp_measure *measure;
    char weights[PATH_MAX], record[PATH_MAX];
    unsigned long long bytes; /* that Darknet writes for this network */
    struct amp_evaluation evaluation;
};

/* Names the files: Darknet's default folder and its own basecfg, so that they lie beside its other
 * weights. */
void amp_best_name(struct amp_best *, const struct amp_measure *, const char *folder,
                   const char *cfg_path);
/* 0: there are none, or those of another network, which is told; 1: the record has told how good
 * they are; -1: they are there, but the record is not theirs (a program may be killed between the
 * two files). */
int amp_best_find(struct amp_best *);
bool amp_best_is_beaten(const struct amp_best *, const struct amp_evaluation *);
/* Saves the network's weights, or with averaged their moving average, and the record. A failure is
 * told and training goes on: there will be other weights. The best stays what the file on disk
 * holds. */
bool amp_best_keep(struct amp_best *, network *trained, bool averaged,
                   const struct amp_evaluation *);

/* ---- twin.c ---- */

/* Builds the twin. Call it before the trained network is built, on the same thread: then all that
 * the parser draws or notes down starts anew with that one. -1 with text in err: the cfg, or a
 * layer whose weights are not copied (recurrent ones). */
int amp_twin_create(const char *cfg_path, network **twin, char *err, size_t err_size);
/* Copies the weights that a weights file would hold. Only reads from `from`. */
void amp_twin_take_weights(network *twin, network *from);

#endif
