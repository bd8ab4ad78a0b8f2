#include "profile_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "amp_observe.h"
#include "network.h"
#include "plugin/attach/side.h"
#include "plugin/core/progress.h"

#ifdef GPU
#include "cuda.h"
#endif

/* Mixed precision searches its loss scale in the first step. */
static const int warm_up[AMP_PROFILE_WAYS] = {1, 2};
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 15, MOST_SKIPPED = 20 };
static const double enough_seconds = 20, seconds_between_lines = 5;

static const char *const way_names[AMP_PROFILE_WAYS] = {"Darknet's FP32", "mixed precision"};
static const char *const pass_names[AMP_PROFILE_PASSES] = {"forward", "backward"};

/* One way's network. */
struct timed {
    network *net;                          /* NULL: this way is not timed */
    void (**forward)(layer, network);      /* Darknet's pointers as they were; NULL in a network */
    void (**backward)(layer, network);     /* that the plugin watches */
    double (*seconds)[AMP_PROFILE_PASSES]; /* of the step at hand, per layer */
    double whole[AMP_PROFILE_PASSES], update;
    double begin; /* of the layer at hand */
    bool went_back;
};

/* What is running; Darknet's callbacks have no other way to know. */
static struct {
    struct timed *timed;
    const char *way;
    int round; /* 0: warming up */
    struct amp_profile_progress *progress;
} now;

/* ---- progress ---- */

void amp_profile_begin(struct amp_profile_progress *progress, const struct amp_net_desc *net,
                       bool no_fp32, FILE *out)
{
    double start = amp_clock_seconds();
    *progress = (struct amp_profile_progress){out, start, start};
    fprintf(out,
            "amp profile: %s, %d %s a pass: %s, at most %d rounds, from %d on no more after "
            "%.0f s\n",
            net->cfg_path, net->batch, amp_profile_unit(net),
            no_fp32 ? "mixed precision alone" : "Darknet's FP32 and mixed precision in turns",
            MOST_ROUNDS, LEAST_ROUNDS, enough_seconds);
}

static void tell_progress(int layer, enum amp_profile_pass pass)
{
    struct amp_profile_progress *p = now.progress;
    double seconds = amp_clock_seconds();
    if (seconds - p->last < seconds_between_lines) return;
    p->last = seconds;
    fputs("amp profile: ", p->out);
    if (now.round)
        fprintf(p->out, "round %d of at most %d", now.round, MOST_ROUNDS);
    else
        fputs("warming up", p->out);
    fprintf(p->out, ", %s, %s of layer %d of %d, %.0f s\n", now.way, pass_names[pass], layer,
            now.timed->net->n, seconds - p->start);
}

/* ---- one layer ---- */

/* The time when all that was started has been done. */
static double finished(const network *net)
{
#ifdef GPU
    if (net->gpu_index >= 0) check_error(cudaDeviceSynchronize());
#else
    (void)net;
#endif
    return amp_clock_seconds();
}

static void begin_layer(void)
{
    now.timed->begin = finished(now.timed->net);
}

static void end_layer(int layer, enum amp_profile_pass pass)
{
    struct timed *t = now.timed;
    t->seconds[layer][pass] += finished(t->net) - t->begin;
    t->went_back = t->went_back || pass == AMP_PROFILE_BACKWARD;
    tell_progress(layer, pass);
}

static void timed_forward(layer l, network net)
{
    begin_layer();
    now.timed->forward[net.index](l, net);
    end_layer(net.index, AMP_PROFILE_FORWARD);
}

static void timed_backward(layer l, network net)
{
    begin_layer();
    now.timed->backward[net.index](l, net);
    end_layer(net.index, AMP_PROFILE_BACKWARD);
}

static void watched_layer(int layer, int backward, int done, void *user)
{
    (void)user;
    if (done)
        end_layer(layer, backward ? AMP_PROFILE_BACKWARD : AMP_PROFILE_FORWARD);
    else
        begin_layer();
}

/* ---- one step ---- */

static bool replace_pointers(struct timed *t)
{
    size_t n = (size_t)t->net->n;
    bool device = t->net->gpu_index >= 0;
    t->forward = calloc(n, sizeof *t->forward);
    t->backward = calloc(n, sizeof *t->backward);
    if (!t->forward || !t->backward) return false;
    for (int i = 0; i < t->net->n; ++i) {
        layer *l = &t->net->layers[i];
        t->forward[i] = AMP_SIDE(device, l, forward);
        t->backward[i] = AMP_SIDE(device, l, backward);
        if (t->forward[i]) AMP_SIDE(device, l, forward) = timed_forward;
        if (t->backward[i]) AMP_SIDE(device, l, backward) = timed_backward;
    }
    return true;
}

static bool start_watching(struct timed *t, network *net, enum amp_profile_way way)
{
    t->net = net;
    t->seconds = calloc((size_t)net->n, sizeof *t->seconds);
    if (!t->seconds) return false;
    if (way == AMP_PROFILE_FP32) return replace_pointers(t);
    amp_watch_layers(net, watched_layer, NULL);
    return true;
}

/* The plugin's network stays watched, and so keeps its training log to itself. */
static void stop_watching(struct timed *t)
{
    bool device = t->net && t->net->gpu_index >= 0;
    for (int i = 0; t->forward && t->backward && i < t->net->n; ++i) {
        AMP_SIDE(device, &t->net->layers[i], forward) = t->forward[i];
        AMP_SIDE(device, &t->net->layers[i], backward) = t->backward[i];
    }
    free(t->forward);
    free(t->backward);
    free(t->seconds);
}

static void step(struct timed *t, enum amp_profile_way way)
{
    network *net = t->net;
    now.timed = t;
    now.way = way_names[way];
    t->went_back = false;
    memset(t->seconds, 0, (size_t)net->n * sizeof *t->seconds);
    *net->seen += (size_t)net->batch;
    net->train = 1;
    double start = finished(net);
    forward_network(net);
    double forward = finished(net);
    backward_network(net);
    double backward = finished(net);
    update_network(net);
    t->whole[AMP_PROFILE_FORWARD] = forward - start;
    t->whole[AMP_PROFILE_BACKWARD] = backward - forward;
    t->update = finished(net) - backward;
}

/* ---- rounds and their medians ---- */

/* Of a round there are rows of seconds[way][pass]: the layers', then two more. */
enum { ROW_OTHER, ROW_STEP, MORE_ROWS };
enum { SECONDS_OF_UPDATE, SECONDS_OF_STEP };
typedef double row[AMP_PROFILE_WAYS][AMP_PROFILE_PASSES];

struct rounds {
    int n, skipped, rows;
    row *seconds;
};

static row *row_of(const struct rounds *r, int round, int i)
{
    return &r->seconds[(size_t)round * (size_t)r->rows + (size_t)i];
}

static void keep(struct rounds *r, const struct timed *t, enum amp_profile_way way)
{
    int layers = r->rows - MORE_ROWS;
    double *other = (*row_of(r, r->n, layers + ROW_OTHER))[way];
    double *step_row = (*row_of(r, r->n, layers + ROW_STEP))[way];
    memcpy(other, t->whole, sizeof t->whole);
    for (int i = 0; i < layers; ++i)
        for (int pass = 0; pass < AMP_PROFILE_PASSES; ++pass) {
            (*row_of(r, r->n, i))[way][pass] = t->seconds[i][pass];
            other[pass] -= t->seconds[i][pass];
        }
    step_row[SECONDS_OF_UPDATE] = t->update;
    step_row[SECONDS_OF_STEP] = t->update + amp_profile_both(t->whole);
}

/* A step that mixed precision skips has not run the layers' backward. */
static bool is_skipped(const struct timed *t)
{
    const struct amp_plan *plan = amp_plan_in_use(t->net);
    return !t->went_back && plan->first_backward < plan->n;
}

static void run_round(struct rounds *r, struct timed *ways)
{
    now.round = r->n + 1;
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way) {
        if (!ways[way].net) continue;
        step(&ways[way], (enum amp_profile_way)way);
        keep(r, &ways[way], (enum amp_profile_way)way);
    }
    if (is_skipped(&ways[AMP_PROFILE_MIXED]))
        ++r->skipped;
    else
        ++r->n;
}

/* Layers may leave FP16 at first, each in a step that is then skipped. */
static void warm_up_way(struct timed *t, enum amp_profile_way way)
{
    int most = warm_up[way] + t->net->n + MOST_SKIPPED;
    now.round = 0;
    for (int good = 0, k = 0; good < warm_up[way] && k < most; ++k) {
        step(t, way);
        good += way == AMP_PROFILE_FP32 || !is_skipped(t);
    }
}

static void run_rounds(struct rounds *r, struct timed *ways)
{
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        if (ways[way].net) warm_up_way(&ways[way], (enum amp_profile_way)way);
    double start = amp_clock_seconds();
    while (r->n < MOST_ROUNDS && r->skipped < MOST_SKIPPED &&
           (r->n < LEAST_ROUNDS || amp_clock_seconds() - start < enough_seconds))
        run_round(r, ways);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const struct rounds *r, int i, int way, int pass)
{
    double x[MOST_ROUNDS];
    for (int k = 0; k < r->n; ++k)
        x[k] = (*row_of(r, k, i))[way][pass];
    qsort(x, (size_t)r->n, sizeof *x, by_value);
    return r->n % 2 ? x[r->n / 2] : (x[r->n / 2 - 1] + x[r->n / 2]) / 2;
}

static void take_medians(const struct rounds *r, struct amp_profile *p, int way, bool timed)
{
    int n = p->net->n;
    for (int pass = 0; pass < AMP_PROFILE_PASSES; ++pass) {
        for (int i = 0; i < n; ++i)
            p->layers[i].seconds[way][pass] = timed ? median(r, i, way, pass) : NAN;
        p->other.seconds[way][pass] = timed ? median(r, n + ROW_OTHER, way, pass) : NAN;
    }
    p->update[way] = timed ? median(r, n + ROW_STEP, way, SECONDS_OF_UPDATE) : NAN;
    p->step[way] = timed ? median(r, n + ROW_STEP, way, SECONDS_OF_STEP) : NAN;
}

static int measure(struct amp_profile *p, struct timed *ways, char *err, size_t err_size)
{
    struct rounds r = {.rows = p->net->n + MORE_ROWS};
    r.seconds = calloc((size_t)(MOST_ROUNDS * r.rows), sizeof *r.seconds);
    if (!r.seconds) {
        snprintf(err, err_size, "out of memory");
        return -1;
    }
    run_rounds(&r, ways);
    if (r.n < LEAST_ROUNDS)
        snprintf(
            err, err_size,
            "mixed precision skips its steps: values overflow; `darknet amp check` says where");
    for (int way = 0; way < AMP_PROFILE_WAYS && r.n >= LEAST_ROUNDS; ++way)
        take_medians(&r, p, way, ways[way].net);
    p->rounds = r.n;
    p->plan = amp_plan_in_use(ways[AMP_PROFILE_MIXED].net);
    free(r.seconds);
    return r.n < LEAST_ROUNDS ? -1 : 0;
}

int amp_profile_time(struct amp_profile *p, network *nets[AMP_PROFILE_WAYS],
                     struct amp_profile_progress *progress, char *err, size_t err_size)
{
    struct timed ways[AMP_PROFILE_WAYS] = {0};
    bool ready = true;
    now.progress = progress;
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        if (nets[way] && ready)
            ready = start_watching(&ways[way], nets[way], (enum amp_profile_way)way);
    if (!ready) snprintf(err, err_size, "out of memory");
    int failed = ready ? measure(p, ways, err, err_size) : -1;
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        stop_watching(&ways[way]);
    return failed;
}
