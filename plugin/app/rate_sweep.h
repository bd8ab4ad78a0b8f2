/* A learning-rate sweep: the rate grows by one factor from iteration to iteration while a network
 * trains, and where the loss was lowest tells a rate that suits it. Pure C.
 *
 * Smith 2017, "Cyclical learning rates for training neural networks", section 3.3; the end, the
 * smoothing and the suggestion are those of fastai's lr_find (Howard and Gugger 2020), whose weight
 * of the past is 0.98 where this one's is AMP_SWEEP_SMOOTHING: it follows the loss more closely. */
#ifndef AMP_RATE_SWEEP_H
#define AMP_RATE_SWEEP_H

#include <stdbool.h>
#include <stdio.h>

#define AMP_SWEEP_LOWEST    1e-6
#define AMP_SWEEP_HIGHEST   1.0
#define AMP_SWEEP_SMOOTHING 0.9 /* weight of the past in the smoothed loss */
#define AMP_SWEEP_ENOUGH    4.0 /* times the smallest smoothed loss: the sweep ends */
#define AMP_SWEEP_MARGIN    10. /* the suggested rate is the best one divided by this */

struct amp_sweep_point {
    double rate, loss, smoothed;
};

struct amp_sweep {
    int most; /* iterations from AMP_SWEEP_LOWEST to AMP_SWEEP_HIGHEST */
    struct amp_sweep_point *points;
    int n;
    int best;      /* the point whose smoothed loss is smallest */
    bool diverged; /* it ended because the loss grew */
};

/* most: at least 2. -1: out of memory. */
int amp_sweep_init(struct amp_sweep *, int most);
void amp_sweep_free(struct amp_sweep *);

/* The rate of the next iteration. */
double amp_sweep_rate(const struct amp_sweep *);
/* Adds the loss of that iteration; one that is not finite ends the sweep and is no point. False:
 * the sweep has ended. */
bool amp_sweep_add(struct amp_sweep *, double loss);

/* The rate to train with, rounded to two digits; 0: the loss did not fall. */
double amp_sweep_suggestion(const struct amp_sweep *);

/* ---- the result (rate_report.c) ---- */

struct amp_rate_result {
    const char *data, *cfg, *weights; /* weights NULL: random ones */
    int images;                       /* of an iteration */
    double cfg_rate;                  /* the cfg's learning_rate */
    int cfg_line;                     /* its line; 0: the cfg has none */
    double least;                     /* learning_rate_min, if the policy has one; else 0 */
    const struct amp_sweep *sweep;
};

void amp_rate_print(const struct amp_rate_result *, FILE *);
void amp_rate_print_json(const struct amp_rate_result *, FILE *);
/* An SVG of loss over rate. It has AMP_RATE_PICTURE near its beginning. */
#define AMP_RATE_PICTURE "darknet-amp lr-find 1"
void amp_rate_draw(const struct amp_rate_result *, FILE *);

#endif
