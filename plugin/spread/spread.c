/* Decides what processes exchange in a step, and when. It must not know what a vote comes to
 * (vote.c), nor how bytes travel (group.c). */
#include "spread.h"

#include "devices.h"
#include "group.h"
#include "plugin/core/files/file.h"
#include "plugin/core/host.h"
#include "plugin/core/engine/tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAVED_EVERY = 100 }; /* iterations, by Darknet's detector */

/* ---- arrays of the backend ---- */

/* Not the step's stop: that is for what all processes see. */
static void no_room(const struct amp_step *s)
{
    const struct amp_spread *spread = s->peers->user;
    spread->give_up(s->user,
                    "out of memory for what the processes exchange: raise subdivisions, or "
                    "set amp_bucket_mb=0 if GPUs exchange by NCCL");
}

static void *room_for(const struct amp_step *s, size_t n, size_t size)
{
    void *room = malloc(n * size + 1);
    if (!room) no_room(s);
    return room;
}

static void exchange(struct amp_step *s, float *x, size_t n, const struct amp_exchange *with,
                     int rank)
{
    const struct amp_graph *g = s->graph;
    if (!amp_devices_exchange(g->backend, g->context, x, n, with, rank)) no_room(s);
}

static void send(void *x, size_t n, int to)
{
    amp_group_send(x, n * sizeof(float), to);
}

static void receive(void *x, size_t n, int from)
{
    amp_group_receive(x, n * sizeof(float), from);
}

static void broadcast(void *x, size_t n, int from)
{
    amp_group_broadcast(x, n * sizeof(float), from);
}

static const struct amp_exchange sending = {sizeof(float), send, amp_nccl_send},
                                 receiving = {sizeof(float), receive, amp_nccl_receive},
                                 broadcasting = {sizeof(float), broadcast, amp_nccl_broadcast};

/* Gradient sums and rolling statistics: all of a step that lies in arrays. */
static void exchange_arrays(struct amp_step *s, const struct amp_exchange *with, int rank)
{
    struct amp_graph *g = s->graph;
    if (g->sums) exchange(s, g->sums, g->n_gradients, with, rank);
    for (int i = 0; i < g->n_rolling; i++)
        exchange(s, g->rolling[i].value, g->rolling[i].n, with, rank);
}

struct hashing {
    const struct ampk_backend *backend;
    struct ampk_context *context;
    struct amp_hash hash;
};

static void hash_array(struct hashing *h, const float *x, size_t n)
{
    enum { PIECE = 4096 };
    float piece[PIECE];
    for (size_t i = 0; x && i < n; i += PIECE) {
        size_t bytes = (n - i < PIECE ? n - i : PIECE) * sizeof *x;
        h->backend->read(h->context, piece, x + i, bytes);
        amp_hash_add(&h->hash, piece, bytes);
    }
}

uint64_t amp_spread_hash(const struct ampk_backend *backend, struct ampk_context *context,
                         const struct amp_param *params, int n_params,
                         const struct amp_rolling *rolling, int n_rolling)
{
    struct hashing h = {.backend = backend, .context = context};
    amp_hash_begin(&h.hash);
    for (const struct amp_param *p = params; p < params + n_params; p++) {
        hash_array(&h, p->value, p->n);
        hash_array(&h, p->update, p->n);
        hash_array(&h, p->m, p->n);
        hash_array(&h, p->v, p->n);
    }
    for (int i = 0; i < n_rolling; i++)
        hash_array(&h, rolling[i].value, rolling[i].n);
    return amp_hash_value(&h.hash);
}

/* Every process computes the same update from the same sums; if one computes another (a bad memory
 * module, another library), nothing after that can be trusted. */
static void compare_weights(struct amp_step *s)
{
    char message[300];
    const struct amp_graph *g = s->graph;
    /* Without the rolling statistics: this step's passes have moved them already. */
    uint64_t own = amp_spread_hash(g->backend, g->context, g->params, g->n_params, NULL, 0);
    uint64_t *all = room_for(s, (size_t)amp_group_size(), sizeof *all);
    amp_group_gather(&own, all, sizeof own);
    for (int r = 1; r < amp_group_size(); r++) {
        if (all[r] == all[0]) continue;
        snprintf(message, sizeof message,
                 "the weights of rank %d on %s are no longer those of rank 0 on %s: one of "
                 "them computes wrong. Go on from the last saved weights without it.",
                 r, amp_group_host(r), amp_group_host(0));
        s->stop(s->user, message);
    }
    free(all);
}

/* ---- batch-norm over all processes' passes ---- */

static void add_in_pass(void *user, double *x, size_t n)
{
    struct amp_spread *spread = user;
    double began = amp_clock_seconds();
    amp_group_add_doubles(x, n);
    spread->in_passes_took += amp_clock_seconds() - began;
}

static void judge(void *user, struct amp_step *s, struct amp_finding *f)
{
    struct amp_spread *spread = user;
    double began = amp_clock_seconds();
    int n = amp_group_size();
    struct amp_finding *all = room_for(s, (size_t)n, sizeof *all);
    amp_group_gather(f, all, sizeof *f);
    *f = amp_findings_first(all, n);
    if (f->rank == amp_group_rank()) f->rank = -1;
    free(all);
    spread->in_passes_took += amp_clock_seconds() - began;
}

/* ---- fast ---- */

/* On the host. */
static void merge_rolling(const struct amp_spread *spread, struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    const struct ampk_backend *be = g->backend;
    size_t n = amp_graph_rolling_floats(g), at = 0;
    int own = spread->share.passes, after = s->subdivisions - spread->share.first - own;
    double keeps = (double).99f, of_share = pow(keeps, own), of_rest = pow(keeps, after);
    double of_all = amp_group_rank() ? 0 : pow(keeps, s->subdivisions);
    double *terms = room_for(s, n, sizeof *terms);
    float *now = room_for(s, n, sizeof *now), *before = room_for(s, n, sizeof *before);
    be->read(g->context, before, g->rolling_saved, n * sizeof *before);
    for (int i = 0; i < g->n_rolling; at += g->rolling[i++].n)
        be->read(g->context, now + at, g->rolling[i].value, g->rolling[i].n * sizeof *now);
    for (size_t i = 0; i < n; i++) /* process 0 adds what is left of the value before the step */
        terms[i] = of_rest * (now[i] - of_share * before[i]) + of_all * before[i];
    amp_group_add_doubles(terms, n);
    for (size_t i = 0; i < n; i++)
        now[i] = (float)terms[i];
    at = 0;
    for (int i = 0; i < g->n_rolling; at += g->rolling[i++].n)
        be->write(g->context, g->rolling[i].value, now + at, g->rolling[i].n * sizeof *now);
    free(terms);
    free(now);
    free(before);
}

static void add_gradients(const struct amp_spread *spread, struct amp_step *s)
{
    const struct amp_graph *g = s->graph;
    if (!spread->bf16)
        exchange(s, g->sums, g->n_gradients, &amp_devices_adding, 0);
    else if (!amp_devices_add_rounded(g->backend, g->context, g->sums, g->n_gradients))
        no_room(s);
}

/* sent: what went ahead counts in all processes. */
static void add_up(struct amp_spread *spread, struct amp_step *s, bool sent)
{
    if (sent)
        amp_ahead_take_gradients(&spread->ahead, s);
    else if (s->sent)
        amp_graph_accept_pass(s->graph, s->graph->scale);
    if (!sent && s->graph->sums) add_gradients(spread, s);
    if (spread->sync_bn) return;
    if (amp_devices_have_nccl())
        amp_ahead_take_rolling(s);
    else
        merge_rolling(spread, s);
}

/* What went ahead may still be under way while they vote. */
static void vote(struct amp_spread *spread, struct amp_step *s)
{
    int n = amp_group_size();
    struct amp_vote own, *all = room_for(s, (size_t)n, sizeof *all);
    double came = amp_clock_seconds();
    amp_vote_cast(s, &spread->begun, &own);
    if (spread->sync_bn) amp_vote_say_once(&own, amp_group_rank());
    own.signal = spread->signal();
    own.worked = came - spread->exchanged - spread->in_passes_took;
    amp_group_gather(&own, all, sizeof own);
    double voted = amp_clock_seconds();
    amp_votes_apply(all, n, amp_group_rank(), &spread->begun, s);
    spread->agreed = amp_votes_signal(all, n);
    int slowest = amp_votes_slowest(all, n);
    bool sent = amp_votes_sent(all, n);
    free(all);
    amp_ahead_finish();
    if (!s->poisoned) add_up(spread, s, sent);
    s->sent = false;
    spread->exchanged = amp_clock_seconds();
    amp_log_exchanged(s->log, voted - came, spread->exchanged - voted + spread->in_passes_took,
                      slowest, amp_group_exchanged() - spread->bytes_before);
    spread->in_passes_took = 0;
}

/* ---- ordered ---- */

/* What passes leave behind, beside arrays. */
struct relay {
    struct amp_vote vote; /* of all passes so far */
    struct amp_scaler scaler;
    bool has_accepted_pass;
};

static void write_relay(const struct amp_spread *spread, const struct amp_step *s, struct relay *r)
{
    memset(r, 0, sizeof *r);
    amp_vote_cast(s, &spread->begun, &r->vote);
    r->vote.signal = spread->agreed ? spread->agreed : spread->signal();
    r->scaler = s->scaler;
    r->has_accepted_pass = s->graph->has_accepted_pass;
}

static void read_relay(struct amp_spread *spread, const struct relay *r, struct amp_step *s)
{
    const struct amp_vote *v = &r->vote;
    if (s->left_fp16.class == AMP_FAULT_NONE && v->left_fp16.class == AMP_FAULT_FORWARD)
        amp_step_demote(s, &v->left_fp16);
    s->scaler = r->scaler;
    s->poisoned = v->poisoned;
    s->cause_is_scale = v->cause_is_scale;
    s->fault = v->fault;
    s->bad_pass = v->bad_pass;
    snprintf(s->bad_image, sizeof s->bad_image, "%s", v->image);
    s->loss_sum = v->loss;
    s->told_sum = v->told_loss;
    s->passes = v->passes;
    s->graph->has_accepted_pass = r->has_accepted_pass;
    spread->agreed = v->signal;
}

static void take_over(struct amp_spread *spread, struct amp_step *s)
{
    struct relay r;
    int from = amp_group_rank() - 1;
    if (from < 0) return;
    amp_group_receive(&r, sizeof r, from);
    read_relay(spread, &r, s);
    exchange_arrays(s, &receiving, from);
}

static void hand_on(const struct amp_spread *spread, struct amp_step *s)
{
    struct relay r;
    int to = amp_group_rank() + 1;
    if (to == amp_group_size()) return;
    write_relay(spread, s, &r);
    amp_group_send(&r, sizeof r, to);
    exchange_arrays(s, &sending, to);
}

/* The rank that runs this pass. */
static int rank_of(const struct amp_step *s, int pass)
{
    int rank = 0, size = amp_group_size();
    while (rank < size - 1 && amp_share_of(s->subdivisions, rank + 1, size).first <= pass)
        rank++;
    return rank;
}

/* The last process has it all. */
static void spread_end(struct amp_spread *spread, struct amp_step *s)
{
    struct relay r;
    int last = amp_group_size() - 1;
    bool poisoned = s->poisoned;
    double scale = s->scaler.scale;
    if (amp_group_rank() == last) write_relay(spread, s, &r);
    amp_group_broadcast(&r, sizeof r, last);
    read_relay(spread, &r, s);
    exchange_arrays(s, &broadcasting, last);
    if (amp_group_rank()) return;
    if (s->poisoned && !poisoned) amp_vote_log(&r.vote, rank_of(s, s->bad_pass), s);
    amp_vote_log_scale(s, scale);
}

/* ---- called by the step ---- */

static void begin_step(struct amp_spread *spread, struct amp_step *s)
{
    spread->begun = s->scaler;
    spread->agreed = 0;
    amp_devices_join(s->graph->backend, s->graph->context);
    spread->bytes_before = amp_group_exchanged();
    if (spread->ordered) take_over(spread, s);
}

/* Not where the host waits for other processes in the middle of backward. */
static bool goes_ahead(const struct amp_spread *spread)
{
    return !spread->ordered && !spread->sync_bn;
}

static void begin(void *user, struct amp_step *s, bool first)
{
    struct amp_spread *spread = user;
    if (first) begin_step(spread, s);
    if (goes_ahead(spread) && !amp_ahead_begin(&spread->ahead, s, first)) no_room(s);
}

static void ran(void *user, struct amp_step *s, int layer)
{
    struct amp_spread *spread = user;
    if (goes_ahead(spread)) amp_ahead_send(&spread->ahead, s, layer);
}

static void end_share(void *user, struct amp_step *s)
{
    struct amp_spread *spread = user;
    if (spread->ordered)
        hand_on(spread, s);
    else if (goes_ahead(spread))
        amp_ahead_send_rest(&spread->ahead, s);
}

/* The one that this step ends, counted from 1. seen: of the pass at hand, with its images. */
static size_t iteration_of(const struct amp_step *s)
{
    return (s->graph->seen - 1) / ((size_t)s->graph->net->batch * (size_t)s->subdivisions) + 1;
}

/* Weights that are about to be saved are compared first. */
static bool is_saved_after(const struct amp_spread *spread, const struct amp_step *s)
{
    size_t iteration = iteration_of(s);
    return iteration % SAVED_EVERY == 0 || spread->agreed ||
           iteration == (size_t)s->graph->net->max_batches;
}

static void agree(void *user, struct amp_step *s)
{
    struct amp_spread *spread = user;
    if (spread->ordered)
        spread_end(spread, s);
    else
        vote(spread, s);
    if (is_saved_after(spread, s)) compare_weights(s);
}

/* The scaler counts steps when they end. */
bool amp_spread_abandon(const struct amp_spread *spread, struct amp_step *s)
{
    const struct amp_scaler *begun = &spread->begun;
    if (begun->applied != s->scaler.applied || begun->skipped != s->scaler.skipped) return false;
    amp_graph_restore_rolling(s->graph);
    s->scaler = *begun;
    s->passes = 0;
    return true;
}

void amp_spread_join(struct amp_spread *spread, struct amp_step *s)
{
    spread->share = amp_share_of(s->subdivisions, amp_group_rank(), amp_group_size());
    spread->ahead = (struct amp_ahead){.bucket_bytes = (size_t)(spread->bucket_mb * (1 << 20)),
                                       .bf16 = spread->bf16,
                                       .share = spread->share};
    spread->begun.applied = -1; /* no step has begun */
    spread->exchanged = amp_clock_seconds();
    spread->peers = (struct amp_step_peers){
        begin, ran, end_share, agree, spread->sync_bn ? judge : NULL, spread};
    if (spread->sync_bn) spread->bn = (struct amp_bn_peers){add_in_pass, spread, amp_group_size()};
    s->first_pass = spread->share.first;
    s->last_pass = spread->share.first + spread->share.passes - 1;
    s->peers = &spread->peers;
}
