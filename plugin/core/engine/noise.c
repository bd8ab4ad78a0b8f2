#include "noise.h"

#include <math.h>

/* Each step keeps so much of what was before: about the last 100 steps count. */
static const double kept = .99;

void amp_noise_add(struct amp_noise *n, double pass_norm, double pass_images, double step_norm,
                   double step_images)
{
    double pass = pass_norm / pass_images, step = step_norm / step_images;
    pass *= pass;
    step *= step;
    if (!isfinite(pass) || !isfinite(step) || !(step_images > pass_images)) return;
    double square = (step_images * step - pass_images * pass) / (step_images - pass_images);
    double trace = (pass - step) / (1 / pass_images - 1 / step_images);
    n->square = kept * n->square + (1 - kept) * square;
    n->trace = kept * n->trace + (1 - kept) * trace;
}

double amp_noise_scale(const struct amp_noise *n)
{
    return n->square > 0 && n->trace > 0 ? n->trace / n->square : NAN;
}
