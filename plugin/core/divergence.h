/* Whether a run has diverged, from its losses alone.
 *
 * The rule must never end a run that would come out well. It therefore knows no typical loss; it
 * compares a run with itself. `mean` is the mean of the last 20 losses (at first of fewer) that
 * were not above the limit, including the present one.
 *
 * - start: the first 100 losses, or burn_in of them if that is more. First losses are huge, and the
 *   learning rate still rises. These losses set the limit.
 * - limit during the start: 1000 x the lowest mean so far, at least 1000.
 * - limit after it: 100 x the lowest mean since, and at least 3 x the highest of the start.
 * - above: a loss is blown up if both it and the mean are above the limit. One bad batch is not,
 *   nor are many noisy ones.
 * - lost: an iteration without a finite loss, after the first applied step. Bad images do not count
 *   (no call).
 *
 * An iteration above the limit counts 1, and so does one in which a layer left FP16 (which happens
 * to a layer only once). A lost one counts 10. Any other iteration resets the count to 0. At 100
 * the run has diverged; while the count is not 0 the run is suspect. Nothing is saved: a run that
 * goes on from weights starts over, since a suspect run leaves no weights to go on from. */
#ifndef AMP_DIVERGENCE_H
#define AMP_DIVERGENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AMP_DIVERGENCE_START       100
#define AMP_DIVERGENCE_MEAN        20
#define AMP_DIVERGENCE_STOP        100
#define AMP_DIVERGENCE_LOST        10
#define AMP_DIVERGENCE_FACTOR      100
#define AMP_DIVERGENCE_ROOM        3 /* above the start */
#define AMP_DIVERGENCE_START_ROOM  1000
#define AMP_DIVERGENCE_START_LEAST 1000

/* All zero at the start of a run, except burn_in. */
struct amp_divergence {
    int burn_in;
    int losses;                         /* taken so far */
    double recent[AMP_DIVERGENCE_MEAN]; /* the last ones, a ring */
    double start_lowest, start_highest; /* means during the start; 0: none yet */
    double lowest;                      /* lowest mean since then */
    bool applied;                       /* some step has been applied */
    int count;
    size_t since;           /* first iteration of the count */
    size_t last_at;         /* iteration of `last` */
    double last, then, now; /* losses: before the count, its first, the latest; NAN: lost */
    double limit;           /* limit for `now`; 0: none yet */
};

/* An iteration ended. loss: NAN or inf if it has none; applied: its step was applied. True: the run
 * has diverged, and stays so as long as the count does. */
bool amp_divergence_add(struct amp_divergence *, size_t iteration, double loss, bool applied);
/* The same for an iteration without a loss, because a value did not fit FP16 and its layer left
 * FP16. */
bool amp_divergence_add_demotion(struct amp_divergence *, size_t iteration);
bool amp_divergence_suspect(const struct amp_divergence *);
/* Describes a suspect run: since when, and its losses then and now. Describes any other run by its
 * last loss. */
void amp_divergence_describe(const struct amp_divergence *, char *text, size_t size);

#endif
