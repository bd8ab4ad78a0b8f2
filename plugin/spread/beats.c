/* Decides from beats who is lost, who saves, and when a process ends. It must not know how beats
 * travel, nor what is saved. */
#include "beats.h"

#include <stdio.h>
#include <stdlib.h>

/* A beat is due every second. If this process itself stood still (Ctrl-Z, a suspended machine),
 * time that it has not seen does not count against the others. */
#define MOST_AT_ONCE 1.

int amp_beats_start(struct amp_beats *b, int rank, int size, double timeout)
{
    *b = (struct amp_beats){.rank = rank, .size = size, .timeout = timeout};
    b->own = (struct amp_beat){.able = true, .lost = -1};
    b->last = calloc((size_t)size, sizeof *b->last);
    b->silent = calloc((size_t)size, sizeof *b->silent);
    if (!b->last || !b->silent) return -1;
    for (int r = 0; r < size; r++)
        b->last[r] = b->own;
    return 0;
}

void amp_beats_hear(struct amp_beats *b, int from, const struct amp_beat *beat)
{
    b->last[from] = *beat;
    b->silent[from] = 0;
    if (beat->lost < 0 || b->own.lost >= 0) return;
    b->own.lost = beat->lost;
    snprintf(b->own.why, sizeof b->own.why, "%s", beat->why);
}

static void lose(struct amp_beats *b, int rank, const char *(*host)(int rank))
{
    b->own.lost = rank;
    snprintf(b->own.why, sizeof b->own.why,
             "rank %d on %s has not been heard of for %.0f s (amp_rank_timeout), in iteration %d",
             rank, host(rank), b->timeout, b->own.iteration);
}

void amp_beats_pass(struct amp_beats *b, double seconds, const char *(*host)(int rank))
{
    double passed = seconds < MOST_AT_ONCE ? seconds : MOST_AT_ONCE;
    if (b->own.lost >= 0) b->ended += passed;
    for (int r = 0; r < b->size; r++) {
        bool heard_directly = b->rank == 0 || r == 0;
        if (r == b->rank) continue;
        b->silent[r] += passed;
        if (heard_directly && b->silent[r] > b->timeout && b->own.lost < 0) lose(b, r, host);
    }
}

void amp_beats_end(struct amp_beats *b, bool able, const char *why, const char *(*host)(int rank))
{
    b->own.able = able;
    b->saving |= able;
    if (b->own.lost >= 0) return;
    b->own.lost = b->rank;
    snprintf(b->own.why, sizeof b->own.why, "rank %d on %s cannot go on, in iteration %d: %s",
             b->rank, host(b->rank), b->own.iteration, why);
}

/* What is known of a process when the run ends. */
enum state { UNKNOWN, ABLE, OUT };

static enum state state_of(const struct amp_beats *b, int rank)
{
    const struct amp_beat *beat = rank == b->rank ? &b->own : &b->last[rank];
    if (!beat->able || (rank == b->own.lost && rank != b->rank && beat->lost < 0)) return OUT;
    return beat->lost >= 0 ? ABLE : UNKNOWN;
}

int amp_beats_news(const struct amp_beats *b)
{
    return b->own.able + 2 * b->own.saved + 4 * (b->own.lost >= 0);
}

bool amp_beats_goes_to(const struct amp_beats *b, int rank)
{
    if (rank == b->rank) return false;
    return b->rank == 0 || rank == 0 || (b->own.lost >= 0 && state_of(b, 0) == OUT);
}

/* -1: not known yet; size: nobody. */
static int saver(const struct amp_beats *b)
{
    int r = 0;
    if (state_of(b, 0) == ABLE) return 0;
    if (b->ended < AMP_BEATS_SETTLE) return -1;
    if (state_of(b, 0) == UNKNOWN && b->silent[0] <= b->timeout) return -1;
    while (r < b->size && state_of(b, r) != ABLE)
        r++;
    return r;
}

enum amp_beats_verdict amp_beats_judge(const struct amp_beats *b)
{
    if (b->own.lost < 0) return AMP_BEATS_GO_ON;
    int r = saver(b);
    if (r < 0) return AMP_BEATS_WAIT;
    if (r == b->size) return AMP_BEATS_LEAVE;
    if (r == b->rank) {
        if (b->own.saved) return AMP_BEATS_LEAVE;
        /* It may hang in a read of a file: then nobody saves. */
        return b->saving || b->ended < b->timeout ? AMP_BEATS_SAVE : AMP_BEATS_LEAVE;
    }
    return b->last[r].saved || b->silent[r] > b->timeout ? AMP_BEATS_LEAVE : AMP_BEATS_WAIT;
}

bool amp_beats_late(const struct amp_beats *b, int rank, const char *(*host)(int rank), char *text,
                    int size)
{
    const struct amp_beat *beat = &b->last[rank];
    if (rank == b->rank || beat->waits) return false;
    snprintf(text, (size_t)size, "rank %d on %s is alive, and %s iteration %d", rank, host(rank),
             beat->in_step ? "computes in" : "loads images after", beat->iteration);
    return true;
}
