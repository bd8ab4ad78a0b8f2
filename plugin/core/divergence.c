/* Decides from the losses of a run whether it has diverged; divergence.h has the rule. It must not
 * know why a loss is high, and it ends nothing: step.c does. */
#include "divergence.h"

#include <math.h>
#include <stdio.h>

/* In losses. burn_in counts iterations, each of which has one loss. */
static int length_of_start(const struct amp_divergence *d)
{
    return d->burn_in > AMP_DIVERGENCE_START ? d->burn_in : AMP_DIVERGENCE_START;
}

/* Mean of the last losses with `loss` in place of the oldest. The ring may not be full yet. */
static double mean_with(const struct amp_divergence *d, double loss)
{
    int slot = d->losses % AMP_DIVERGENCE_MEAN;
    int n = d->losses < AMP_DIVERGENCE_MEAN ? d->losses + 1 : AMP_DIVERGENCE_MEAN;
    double sum = loss;
    for (int i = 0; i < n; i++)
        if (i != slot) sum += d->recent[i];
    return sum / n;
}

/* 0 as long as there is no loss to compare with: then nothing is above the limit. */
static double limit_of(const struct amp_divergence *d)
{
    if (d->losses == 0) return 0;
    if (d->lowest == 0)
        return fmax(AMP_DIVERGENCE_START_ROOM * d->start_lowest, AMP_DIVERGENCE_START_LEAST);
    return fmax(AMP_DIVERGENCE_FACTOR * d->lowest, AMP_DIVERGENCE_ROOM * d->start_highest);
}

/* 0 stands for "none yet", which no mean can be below. */
static double lower(double lowest, double mean)
{
    return lowest == 0 ? mean : fmin(lowest, mean);
}

/* Takes a loss that is not above the limit. Only such losses enter the mean: those of a run that
 * blows up would raise the limit that they are compared with. */
static void take(struct amp_divergence *d, double loss)
{
    double mean = mean_with(d, loss);
    bool full = d->losses + 1 >= AMP_DIVERGENCE_MEAN;
    d->recent[d->losses % AMP_DIVERGENCE_MEAN] = loss;
    d->losses++;
    /* Before that, the lowest and the highest mean of the start only prepare the limit. */
    if (d->losses > length_of_start(d)) {
        d->lowest = lower(d->lowest, mean);
    } else {
        d->start_lowest = lower(d->start_lowest, mean);
        if (full) d->start_highest = fmax(d->start_highest, mean);
    }
}

static void count(struct amp_divergence *d, size_t iteration, double loss, int more)
{
    /* Remembers where the suspicion began, for the message. */
    if (d->count == 0) {
        d->since = iteration;
        d->then = loss;
    }
    /* Capped, so that a run that carries on for long does not overflow the count. */
    d->count = d->count + more > AMP_DIVERGENCE_STOP ? AMP_DIVERGENCE_STOP : d->count + more;
}

bool amp_divergence_add(struct amp_divergence *d, size_t iteration, double loss, bool applied)
{
    bool lost = !isfinite(loss);
    d->now = lost ? NAN : loss;
    d->limit = limit_of(d);
    if (lost) {
        /* A run that has not applied a step yet has not begun to diverge. */
        if (d->applied) count(d, iteration, NAN, AMP_DIVERGENCE_LOST);
    } else if (d->limit > 0 && loss > d->limit && mean_with(d, loss) > d->limit) {
        count(d, iteration, loss, 1);
    } else {
        take(d, loss);
        d->last = loss;
        d->last_at = iteration;
        /* One good loss clears the suspicion. */
        d->count = 0;
    }
    d->applied |= applied;
    return d->count >= AMP_DIVERGENCE_STOP;
}

bool amp_divergence_add_demotion(struct amp_divergence *d, size_t iteration)
{
    d->now = NAN;
    d->limit = limit_of(d);
    if (d->applied) count(d, iteration, NAN, 1);
    return d->count >= AMP_DIVERGENCE_STOP;
}

bool amp_divergence_suspect(const struct amp_divergence *d)
{
    return d->count > 0;
}

static const char *loss_text(double loss, char text[32])
{
    snprintf(text, 32, "%.4g", loss);
    return isnan(loss) ? "not finite" : text;
}

void amp_divergence_describe(const struct amp_divergence *d, char *text, size_t size)
{
    char then[32], now[32];
    if (d->count)
        snprintf(text, size,
                 "since iteration %zu the loss is not finite or above %.4g: %.4g before, %s then, "
                 "%s now",
                 d->since, d->limit, d->last, loss_text(d->then, then), loss_text(d->now, now));
    else if (d->losses)
        snprintf(text, size, "the last loss, of iteration %zu, was %.4g", d->last_at, d->last);
    else
        snprintf(text, size, "there was no loss before");
}
