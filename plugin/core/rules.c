/* Decides what each setting of an update needs and which numbers it gives. It must not know arrays
 * (kept.c, gradients.c) nor kernels. */
#include "rules.h"

#include <math.h>

const char *const amp_optimizer_words[AMP_OPTIMIZERS + 1] = {"sgd",  "adam", "adamw",
                                                             "lars", "lamb", 0};

const char *amp_optimizer_word(enum amp_optimizer optimizer)
{
    return amp_optimizer_words[optimizer];
}

bool amp_rules_keep_moments(const struct amp_rules *r)
{
    return r->optimizer == AMP_OPTIMIZER_ADAMW || r->optimizer == AMP_OPTIMIZER_LAMB ||
           (r->optimizer == AMP_OPTIMIZER_ADAM && !r->darknets_adam);
}

bool amp_rules_use_trust(const struct amp_rules *r)
{
    return r->optimizer == AMP_OPTIMIZER_LARS || r->optimizer == AMP_OPTIMIZER_LAMB;
}

bool amp_rules_need_norms(const struct amp_rules *r)
{
    return r->clip_norm > 0 || amp_rules_use_trust(r);
}

double amp_rules_eps(const struct amp_rules *r)
{
    if (r->eps > 0) return r->eps;
    return r->optimizer == AMP_OPTIMIZER_LAMB    ? 1e-6
           : r->optimizer == AMP_OPTIMIZER_ADAMW ? 1e-8
                                                 : 1e-7;
}

double amp_rules_clip_factor(const struct amp_rules *r, double norm)
{
    if (r->clip_norm == 0) return 1;
    double factor = r->clip_norm / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

double amp_rules_average_rest(const struct amp_rules *r, int64_t n)
{
    return 1 - r->ema_alpha * (1 - exp(-(double)n / AMP_EMA_RAMP));
}
