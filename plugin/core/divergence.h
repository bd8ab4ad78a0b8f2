/* Whether a run has diverged, from its losses alone.
 *
 * The rule must never end a run that would come out well, so it knows no typical loss; it compares
 * a run with itself. `mean` is the mean of the last 20 losses (at first of fewer) that were not
 * above the limit, the present one among them.
 *
 * - start: the first 100 losses, or burn_in of them where that is more: first losses are huge, and
 *   the learning rate still rises. These losses set the limit.
 * - limit during the start: 1000 x the lowest mean so far, at least 1000.
 * - limit after it: 100 x the lowest mean since, and at least 3 x the highest of the start.
 * - above: a loss is blown up when both it and the mean are above the limit: one bad batch is not,
 *   nor are many that are noisy.
 * - lost: an iteration without a finite loss, after the first step that was applied. Bad images do
 *   not count (no call).
 *
 * An iteration above the limit counts 1, as does one in which a layer left FP16 (it happens to a
 * layer once); a lost one 10; any other puts the count back to 0. At 100 the run has diverged;
 * while the count is not 0 it is suspect. Nothing is stored: a run that goes on from weights starts
 * over, since a suspect run leaves none to go on from.
 */
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

/* All zero at the start of a run but burn_in. */
struct amp_divergence {
    int burn_in;
    int losses;                         /* taken so far */
    double recent[AMP_DIVERGENCE_MEAN]; /* the last ones, a ring */
    double start_lowest, start_highest; /* mean of the start, 0: none yet */
    double lowest;                      /* mean since */
    bool applied;                       /* some step was */
    int count;
    size_t since;           /* first iteration of the count */
    size_t last_at;         /* iteration of `last` */
    double last, then, now; /* losses: before the count, its first, the latest; NAN: lost */
    double limit;           /* that `now` was held against; 0: none yet */
};

/* An iteration ended. loss: NAN or inf where there is none; applied: its step was. True: diverged,
 * from now on as long as the count stays. */
bool amp_divergence_add(struct amp_divergence *, size_t iteration, double loss, bool applied);
/* The same for an iteration without a loss: a value did not fit FP16, and its layer left FP16. */
bool amp_divergence_add_demotion(struct amp_divergence *, size_t iteration);
bool amp_divergence_suspect(const struct amp_divergence *);
/* Of a run that is suspect: since when, and the losses then and now; of another the last loss. */
void amp_divergence_describe(const struct amp_divergence *, char *text, size_t size);

#endif
