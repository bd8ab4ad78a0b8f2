/* The gradient noise scale of McCandlish et al. 2018, "An Empirical Model of Large-Batch Training",
 * appendix A.1: the batch size, in images, up to which a larger batch saves about as many steps as
 * it costs images.
 *
 * Of the mean gradient over b images the expected square is |G|^2 + tr(S) / b: G the true gradient,
 * S the covariance of one image's. Two sizes, a pass and a step, tell both; each is averaged over
 * the steps for itself, and their ratio tr(S) / |G|^2 is the noise scale. */
#ifndef AMP_NOISE_H
#define AMP_NOISE_H

struct amp_noise {
    double square, trace; /* moving averages of |G|^2 and tr(S), both times the same weight */
};

/* Adds a step. Norms are of sums over the images: a pass's, and the step's that it is a part of. A
 * norm that is not finite adds nothing. */
void amp_noise_add(struct amp_noise *, double pass_norm, double pass_images, double step_norm,
                   double step_images);
/* NAN while there is no answer: no step, or one of the averages is not above 0. */
double amp_noise_scale(const struct amp_noise *);

#endif
