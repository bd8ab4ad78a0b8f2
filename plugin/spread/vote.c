/* Decides what the votes of a step come to. It must not know how votes travel. */
#include "vote.h"

#include <stdio.h>
#include <string.h>

void amp_vote_cast(const struct amp_step *s, const struct amp_scaler *begun, struct amp_vote *v)
{
    const struct amp_scaler *scaler = &s->scaler;
    memset(v, 0, sizeof *v);
    v->poisoned = s->poisoned;
    v->sent = s->sent;
    v->cause_is_scale = s->cause_is_scale;
    v->searching = scaler->searching;
    v->tight = scaler->tight;
    v->at_floor = scaler->at_floor;
    v->tracker = scaler->tracker;
    v->scale = scaler->scale;
    v->redone = scaler->redone - begun->redone;
    v->backed_off = scaler->backed_off - begun->backed_off;
    v->passes = s->passes;
    v->loss = s->loss_sum;
    v->told_loss = s->told_sum;
    v->left_fp16 = s->left_fp16;
    if (!s->poisoned) return;
    v->fault = s->fault;
    v->bad_pass = s->bad_pass;
    snprintf(v->image, sizeof v->image, "%s", s->bad_image);
}

void amp_vote_say_once(struct amp_vote *v, int rank)
{
    v->left_fp16.class = AMP_FAULT_NONE;
    if (!rank) return;
    v->poisoned = false;
    v->redone = v->backed_off = 0;
}

struct amp_finding amp_findings_first(const struct amp_finding *all, int n)
{
    int first = 0;
    double largest = all[0].largest;
    for (int r = 1; r < n; r++) {
        if (amp_fault_before(&all[r].fault, &all[first].fault)) first = r;
        if (all[r].largest > largest) largest = all[r].largest;
    }
    struct amp_finding f = all[first];
    f.rank = first;
    f.largest = largest;
    return f;
}

/* The counts are those of one process that ran all passes; of the scales the smallest counts, as
 * the others would overflow somewhere. */
static void apply_scaler(const struct amp_vote *votes, int n, const struct amp_scaler *begun,
                         struct amp_scaler *s)
{
    s->redone = begun->redone;
    s->backed_off = begun->backed_off;
    for (int r = 0; r < n; r++) {
        const struct amp_vote *v = &votes[r];
        s->redone += v->redone;
        s->backed_off += v->backed_off;
        s->searching = s->searching && v->searching;
        s->tight = s->tight || v->tight;
        s->at_floor = s->at_floor || v->at_floor;
        if (v->tracker < s->tracker) s->tracker = v->tracker;
        if (v->scale < s->scale) s->scale = v->scale;
    }
}

/* In one process the fault of the first pass that failed counts. */
static void apply_faults(const struct amp_vote *votes, int n, struct amp_step *s)
{
    int first = 0;
    while (first < n && !votes[first].poisoned)
        first++;
    s->poisoned = first < n;
    if (!s->poisoned) return;
    s->fault = votes[first].fault;
    s->cause_is_scale = votes[first].cause_is_scale;
}

void amp_vote_log(const struct amp_vote *v, int rank, struct amp_step *s)
{
    amp_log_fault_of(s->log, rank, &v->fault, AMP_VERDICT_SKIP, v->scale, v->scale, v->bad_pass,
                     v->fault.class == AMP_FAULT_INPUT ? v->image : NULL);
}

void amp_vote_log_scale(const struct amp_step *s, double before)
{
    if (s->scaler.scale != before)
        amp_log_scale(s->log, "overflow in another process", before, s->scaler.scale);
}

static void log_others(const struct amp_vote *votes, int n, double before, struct amp_step *s)
{
    for (int r = 1; r < n; r++)
        if (votes[r].poisoned) amp_vote_log(&votes[r], r, s);
    amp_vote_log_scale(s, before);
}

void amp_votes_apply(const struct amp_vote *votes, int n, int own, const struct amp_scaler *begun,
                     struct amp_step *s)
{
    double before = s->scaler.scale;
    apply_scaler(votes, n, begun, &s->scaler);
    apply_faults(votes, n, s);
    s->loss_sum = s->told_sum = 0;
    s->passes = 0;
    for (int r = 0; r < n; r++) {
        s->loss_sum += votes[r].loss;
        s->told_sum += votes[r].told_loss;
        s->passes += votes[r].passes;
        if (r != own && votes[r].left_fp16.class == AMP_FAULT_FORWARD)
            amp_step_demote(s, &votes[r].left_fp16);
    }
    if (own == 0) log_others(votes, n, before, s);
}

int amp_votes_slowest(const struct amp_vote *votes, int n)
{
    int slowest = 0;
    for (int r = 1; r < n; r++)
        if (votes[r].worked > votes[slowest].worked) slowest = r;
    return slowest;
}

bool amp_votes_sent(const struct amp_vote *votes, int n)
{
    for (int r = 0; r < n; r++)
        if (!votes[r].sent) return false;
    return true;
}

int amp_votes_signal(const struct amp_vote *votes, int n)
{
    int signal = 0;
    for (int r = 0; r < n && !signal; r++)
        signal = votes[r].signal;
    return signal;
}
