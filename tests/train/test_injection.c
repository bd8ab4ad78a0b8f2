/* Faults put into what a pass writes, through the attached plugin: inf, NaN, a finite value that
 * FP16 refuses, values that vanish; in every tensor that is watched x layer x subdivision of nets
 * that have every executor, in an ordinary run, after a layer has left FP16, and after resizing.
 *
 * Without arguments a sample of the cases (AMP_TEST_SEED); with --full all of them. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"
#include "tests/rig/poison.h"

#include "plugin/core/engine/tensors.h"

/* ---- nets ---- */

#define ACTIVATED(name, more)                                                                      \
    "[convolutional]\nsize=3\npad=1\nfilters=4\nactivation=" name "\n" more

/* clang-format off */
/* Every activation that a convolution has code for, in turn with batch-norm and without; stair's
 * gradient is 0, so it comes first. */
#define ACTIVATIONS                                                                                \
    ACTIVATED("stair", NORMALIZED) ACTIVATED("logistic", "") ACTIVATED("relu", NORMALIZED)         \
    ACTIVATED("relie", "") ACTIVATED("linear", NORMALIZED) ACTIVATED("ramp", "")                   \
    ACTIVATED("tanh", NORMALIZED) ACTIVATED("plse", "") ACTIVATED("leaky", NORMALIZED)             \
    ACTIVATED("elu", "") ACTIVATED("loggy", NORMALIZED) ACTIVATED("hardtan", "")                   \
    ACTIVATED("lhtan", NORMALIZED) ACTIVATED("selu", "")                                           \
    "[connected]\noutput=4\nactivation=linear\n[cost]\n"
#define NATIVE                                                                                     \
    CONV(6, NORMALIZED "stride=2\n")                                                               \
    "[local]\nfilters=4\nsize=3\nstride=2\npad=1\nactivation=leaky\n"                              \
    "[batchnorm]\n"                                                                                \
    CONV(6, NORMALIZED)                                                                            \
    "[connected]\noutput=8\nactivation=relu\n"                                                     \
    "[connected]\noutput=4\nactivation=linear\n"                                                   \
    "[softmax]\n"
#define REGION                                                                                     \
    CONV(8, NORMALIZED "stride=2\n")                                                               \
    "[reorg]\nstride=1\nflatten=1\nreverse=1\n[reorg]\nstride=1\nflatten=1\n"                      \
    "[convolutional]\nsize=3\npad=1\nactivation=linear\nfilters=14\n"                              \
    "[region]\nanchors=1,2, 3,2\nclasses=2\ncoords=4\nnum=2\nthresh=.6\nsoftmax=1\n"
#define DETECTION                                                                                  \
    CONV(6, NORMALIZED "stride=2\n")                                                               \
    "[connected]\noutput=48\nactivation=linear\n"                                                 \
    "[detection]\nclasses=2\ncoords=4\nrescore=1\nside=2\nnum=2\nsqrt=1\n"
#define LOGISTIC                                                                                   \
    CONV(6, NORMALIZED "stride=2\n") "[connected]\noutput=4\nactivation=linear\n[logistic]\n"
/* clang-format on */

enum truth { NUMBERS, ONE_HOT, BOXES };

static const struct target {
    const char *name, *layers;
    bool losses_of_ours; /* by the reference's code, as a device computes them */
    enum truth truth;
    bool adam, resizes;
} targets[] = {
    {"detector", DETECTOR, false, BOXES, false, true},
    {"classifier", CLASSIFIER, false, NUMBERS, true, false},
    {"activations", ACTIVATIONS, false, NUMBERS, false, false},
    {"native layers", NATIVE, false, ONE_HOT, false, false},
    {"region", REGION, false, BOXES, true, true},
    {"detection", DETECTION, false, NUMBERS, false, false},
    {"logistic", LOGISTIC, false, NUMBERS, false, false},
    {"yolo of ours", DETECTOR, true, BOXES, false, true},
    {"cost of ours", CLASSIFIER, true, NUMBERS, false, false},
    {"softmax of ours", NATIVE, true, ONE_HOT, false, false},
    {"region of ours", REGION, true, BOXES, false, true},
    {"logistic of ours", LOGISTIC, true, NUMBERS, false, false},
};
#define N_TARGETS (sizeof targets / sizeof *targets)

/* ---- what may happen before the fault ---- */

enum circumstance { ORDINARY, AFTER_DEMOTION, AFTER_RESIZING, CIRCUMSTANCES };

static const char *const circumstances[] = {"ordinary", "a layer has left FP16", "resized"};

/* ---- a net to put faults into ---- */

#define SCALE       64
#define STEPS_LATER 6 /* applied steps until the loss is compared */

#define MOST_MISS .02 /* of the loss then, from FP32's on the same data: FP16 rounds otherwise */

/* Where values vanished, nothing tells: a step had another gradient, at worst none, and with the
 * momentum of .9 that is felt for ten more. Either the loss is not further off than this, or FP32's
 * is reached so many steps late. */
#define MOST_MISS_UNTOLD .3
#define STEPS_LATE       10

struct prepared {       /* at the step that the fault is put into */
    network *before;    /* plain Darknet's: the state */
    network *halved[2]; /* the state after this step, that pass at half the scale */
    double fp32_loss;   /* after STEPS_LATER steps, in FP32 */
};

struct bench {
    const struct target *target;
    network *net, *fp32, *start;
    struct prepared prepared[CIRCUMSTANCES];
    int demoted; /* layer of AFTER_DEMOTION */
};

static struct amp_session *session(network *net)
{
    return amp_session_of(net->layers);
}

static void load_pass(const struct bench *b, network *net)
{
    load_images(net, (unsigned)(*net->seen % 32)); /* a pool, so that there is something to learn */
    if (b->target->truth != ONE_HOT) return;
    for (int i = 0; i < net->batch * net->truths; i++)
        net->truth[i] = i % net->truths == (i / net->truths + (int)*net->seen / 4) % net->truths;
}

static void run_pass(const struct bench *b, network *net)
{
    load_pass(b, net);
    train_network_datum(net);
}

static void run_step(const struct bench *b, network *net)
{
    for (int i = 0; i < net->subdivisions; i++)
        run_pass(b, net);
}

/* A state, and the plugin as if it had just been attached to it. */
static void rewind_to(network *net, const network *state)
{
    struct amp_session *s = session(net);
    copy_kept(state, net);
    for (int i = 0; i < net->n; i++) {
        s->replan |= s->demoted[i] != AMP_FORMATS;
        s->demoted[i] = AMP_FORMATS;
    }
    amp_scaler_init(&s->step.scaler, &s->options, 1000);
    s->step.passes = 0;
    s->step.updating = s->step.poisoned = s->step.told = false;
    memset(&s->step.demotions, 0, sizeof s->step.demotions);
    memset(&s->step.divergence, 0, sizeof s->step.divergence);
    s->log.last_fault.class = AMP_FAULT_NONE;
    s->log.repeats = 0;
}

static void resize_to(network *net, int size)
{
    if (net->w != size) resize_network(net, size, size);
}

/* From the start to the step that the fault is put into. */
static void lead_up(const struct bench *b, network *net, enum circumstance c)
{
    resize_to(net, 16);
    rewind_to(net, b->start);
    if (c == AFTER_RESIZING) resize_to(net, 32);
    if (c == AFTER_DEMOTION) {
        session(net)->demoted[b->demoted] = AMP_FORMAT_FP32;
        session(net)->replan = true;
    }
    run_step(b, net);
}

static network *copy_of(const struct bench *b, network *net)
{
    return plain_copy(net, b->target->adam ? "adam=1\n" : "", b->target->layers);
}

static double loss_of(network *net)
{
    return session(net)->log.loss;
}

static void prepare(struct bench *b, enum circumstance c)
{
    struct prepared *p = &b->prepared[c];
    lead_up(b, b->net, c);
    p->before = copy_of(b, b->net);
    for (int pass = 0; pass < 2; pass++) {
        if (pass) lead_up(b, b->net, c);
        for (int i = 0; i < 2; i++) {
            if (i == pass) session(b->net)->step.scaler.scale = SCALE / 2;
            run_pass(b, b->net);
        }
        p->halved[pass] = copy_of(b, b->net);
    }
    resize_to(b->fp32, b->net->w);
    rewind_to(b->fp32, p->before);
    for (int i = 0; i < STEPS_LATER; i++)
        run_step(b, b->fp32);
    p->fp32_loss = loss_of(b->fp32);
    REQUIRE(isfinite(p->fp32_loss) && p->fp32_loss > 0);
}

/* The backend of the CPU, with the losses that it leaves to Darknet. */
static const struct ampk_backend *with_losses(void)
{
    static struct ampk_backend backend;
    const struct ampk_backend *losses = &ampk_reference;
    backend = ampk_cpu;
    backend.yolo_forward = losses->yolo_forward;
    backend.yolo_loss = losses->yolo_loss;
    backend.region_forward = losses->region_forward;
    backend.region_loss = losses->region_loss;
    backend.softmax_forward = losses->softmax_forward;
    backend.softmax_loss = losses->softmax_loss;
    backend.logistic_loss = losses->logistic_loss;
    backend.cost_loss = losses->cost_loss;
    backend.loss_backward = losses->loss_backward;
    return &backend;
}

/* The plugin computes on a poisoned backend from its first pass on. */
static void poison_session(struct amp_session *s, bool losses_of_ours)
{
    s->backend = poison_backend(losses_of_ours ? with_losses() : &ampk_cpu);
    s->replan = true;
}

/* ---- what must be watched ---- */

static bool has_weights(const struct amp_graph *g, int i)
{
    return g->nodes[i].bind.n_params > 0;
}

/* Whether the route writes nothing: its sources have written, and are watched. */
static bool is_written_by_sources(const struct amp_graph *g, int i)
{
    bool all = g->nodes[i].desc->type == AMP_ROUTE;
    for (int k = 0; k < g->nodes[i].desc->n_sources && all; k++) {
        int s = g->plan->layers[i].sources[k];
        all = s >= 0 && g->plan->layers[s].route == i;
    }
    return all;
}

/* Whether a layer adds to the delta of i that is not the route which holds it. */
static bool has_other_reader(const struct amp_graph *g, int i)
{
    for (int j = i + 1; j < g->n; j++)
        for (int k = 0; k < g->nodes[j].desc->n_sources; k++)
            if (g->plan->layers[j].sources[k] == i && g->plan->layers[i].route != j) return true;
    return false;
}

/* Of a layer whose backward runs. Maxpool's values are its input's; of the layers that Darknet runs
 * only what they leave is seen. */
static bool must_be_watched(const struct amp_graph *g, int i, int watch)
{
    const struct amp_node *node = &g->nodes[i];
    bool conv = node->plan->ours && has_weights(g, i), bn = conv && node->desc->batch_normalize;
    switch (watch) {
    case AMP_WATCH_WEIGHTS:
    case AMP_WATCH_DY:
        return conv;
    case AMP_WATCH_Y:
    case AMP_WATCH_ROLLING:
        return bn;
    case AMP_WATCH_OUT:
        return node->desc->type != AMP_MAXPOOL && !is_written_by_sources(g, i);
    case AMP_WATCH_COPY:
        for (int f = 0; f < AMP_FORMATS; f++)
            if (node->copy[f].data && f != (int)node->plan->out) return true;
        return false;
    case AMP_WATCH_LOSS:
        return node->plan->loss;
    case AMP_WATCH_DELTA:
        return !node->plan->loss && amp_graph_has_delta(g, i) &&
               (!node->plan->delta_slice || has_other_reader(g, i));
    case AMP_WATCH_DW:
    case AMP_WATCH_DBIAS:
        return has_weights(g, i);
    default:
        return false;
    }
}

static void check_all_watched(struct bench *b)
{
    const struct amp_graph *g = session(b->net)->graph;
    size_t n = (size_t)g->n * AMP_WATCHES;
    bool *watched = calloc(n, sizeof *watched);
    REQUIRE(watched);
    poison = (struct poison){.watched = watched, .words = g->watch[0], .n_words = n};
    run_step(b, b->net);
    memset(&poison, 0, sizeof poison);
    for (int i = 0; i < g->n; i++)
        for (int w = AMP_WATCH_WEIGHTS; w < AMP_WATCHES; w++)
            if (watched[(size_t)i * AMP_WATCHES + (size_t)w] != must_be_watched(g, i, w))
                TEST_FAIL("%s: %s of layer %d (%s) is %swatched", b->target->name,
                          amp_watch_name((enum amp_watch)w), i,
                          amp_layer_type_name(g->net->layers[i].type),
                          must_be_watched(g, i, w) ? "not " : "");
    free(watched);
}

static void open_bench(struct bench *b, const struct target *target)
{
    char keys[200];
    const char *adam = target->adam ? "learning_rate=.001\nadam=1\n" : "learning_rate=.001\n";
    memset(&poison, 0, sizeof poison);
    *b = (struct bench){.target = target};
    snprintf(keys, sizeof keys, MIXED "loss_scale_init=%d\n%s", SCALE, adam);
    b->net = parse(keys, target->layers);
    snprintf(keys, sizeof keys, MIXED "amp_dtype=fp32\n%s", adam);
    b->fp32 = parse(keys, target->layers);
    poison_session(session(b->net), target->losses_of_ours);
    listen_to(b->net);
    session(b->net)->step.stop = stop;
    for (int i = 0; i < 2; i++)
        run_step(b, b->net);
    check_all_watched(b);
    b->start = copy_of(b, b->net);
    while (session(b->net)->plan->layers[b->demoted].in != AMP_FORMAT_FP16)
        b->demoted++;
    for (int c = 0; c < CIRCUMSTANCES; c++)
        if (c != AFTER_RESIZING || target->resizes) prepare(b, (enum circumstance)c);
}

static void close_bench(struct bench *b)
{
    for (int c = 0; c < CIRCUMSTANCES; c++) {
        struct prepared *p = &b->prepared[c];
        if (!p->before) continue;
        free_network(p->before);
        free_network(p->halved[0]);
        free_network(p->halved[1]);
    }
    stop_listening(b->net);
    free_network(b->net);
    free_network(b->fp32);
    free_network(b->start);
}

/* ---- cases ---- */

struct fault {
    enum circumstance circumstance;
    int layer, watch, pass;
    enum poison_kind kind;
    bool once; /* backward: gone at half the scale */
};

static bool is_backward(const struct fault *f)
{
    return f->watch >= AMP_WATCH_DELTA;
}

/* What is stored already would not vanish, and only FP16 refuses what is finite. */
static bool is_possible(const struct bench *b, const struct fault *f)
{
    const struct amp_session *s = session(b->net);
    bool fp16 = s->graph->fp16[f->layer] >> f->watch & 1;
    bool of_loss = s->plan->layers[f->layer].loss && s->plan->layers[f->layer].ours;
    bool stored = f->watch == AMP_WATCH_WEIGHTS || f->watch == AMP_WATCH_ROLLING;
    if (b->target->losses_of_ours && !of_loss && !b->net->layers[f->layer].truth) {
        /* the rest of the net is that of a target without; only what feeds the loss differs */
        bool feeds = f->layer + 1 < b->net->n && s->plan->layers[f->layer + 1].loss;
        if (!feeds) return false;
    }
    if (f->once && (!is_backward(f) || f->kind == POISON_UNDERFLOW)) return false;
    if (f->kind == POISON_REFUSED) return fp16;
    return f->kind != POISON_UNDERFLOW || !stored;
}

/* The step with the fault; false: the run was stopped in it. */
static bool run_faulty_step(struct bench *b, const struct fault *f)
{
    struct amp_session *s = session(b->net);
    const struct amp_graph *graph = s->graph;
    *why = 0;
    if (setjmp(stopped)) {
        poison.word = NULL;
        return false;
    }
    for (int i = 0; i < b->net->subdivisions; i++) {
        if (i == f->pass)
            poison = (struct poison){.word = &graph->watch[f->layer][f->watch],
                                     .kind = f->kind,
                                     .scale = f->once ? &s->step.scaler.scale : NULL,
                                     .above = SCALE / 2,
                                     .most = 1000};
        run_pass(b, b->net);
        poison.word = NULL;
        CHECK(s->graph == graph);
    }
    return true;
}

static void check_named(struct bench *b, const struct fault *f, const char *what)
{
    char line[200];
    snprintf(line, sizeof line, "mixed precision: %s of layer %d (%s) %s",
             amp_watch_name((enum amp_watch)f->watch), f->layer,
             amp_layer_type_name(session(b->net)->desc->layers[f->layer].type), what);
    if (!strstr(said(b->net), line)) TEST_FAIL("\"%s\" is not in: %s", line, said(b->net));
}

/* Everything but what moves in forward, where the run stopped before anyone restored it. */
static void check_weights_kept(const struct bench *b, const network *before)
{
    struct kept now[256], then[256];
    int n = list_kept(b->net, now);
    REQUIRE(list_kept(before, then) == n);
    for (int i = 0; i < n; i++)
        if (strcmp(now[i].what, "running statistics"))
            CHECK(!memcmp(now[i].x, then[i].x, now[i].n * sizeof(float)));
}

static void check_stopped(struct bench *b, const struct fault *f, bool finished)
{
    char words[100];
    CHECK(!finished);
    snprintf(words, sizeof words, "training diverged: %s of layer %d (",
             amp_watch_name((enum amp_watch)f->watch), f->layer);
    if (strncmp(why, words, strlen(words)))
        TEST_FAIL("\"%s\" is not how this begins: %s", words, why);
    check_named(b, f, "is not finite although all its operands are");
    if (f->watch != AMP_WATCH_WEIGHTS) check_weights_kept(b, b->prepared[f->circumstance].before);
}

static bool reads(const struct amp_session *s, int reader, int layer)
{
    for (int k = 0; k < s->desc->layers[reader].n_sources; k++)
        if (s->plan->layers[reader].sources[k] == layer) return true;
    return false;
}

/* The layer left FP16; where only a copy for its readers does not fit, they did. */
static void check_demoted(struct bench *b, const struct fault *f)
{
    const struct amp_session *s = session(b->net);
    int left = 0;
    for (int i = 0; i < b->net->n; i++) {
        if (s->demoted[i] == AMP_FORMATS) continue;
        bool before = f->circumstance == AFTER_DEMOTION && i == b->demoted;
        bool right = f->watch == AMP_WATCH_COPY ? reads(s, i, f->layer) : i == f->layer;
        if (!before && !right) TEST_FAIL("layer %d left FP16", i);
        left += right;
    }
    CHECK(left > 0);
}

static void check_skipped(struct bench *b, const struct fault *f)
{
    const struct amp_step *step = &session(b->net)->step;
    CHECK_INT(step->scaler.skipped, 1);
    CHECK_INT(step->fault.layer, f->layer);
    CHECK_INT(step->fault.tensor, f->watch);
    CHECK_INT(step->fault.class, is_backward(f) ? AMP_FAULT_BACKWARD : AMP_FAULT_FORWARD);
    if (f->watch != AMP_WATCH_WEIGHTS) CHECK_SAME(b->net, b->prepared[f->circumstance].before);
    if (is_backward(f)) {
        check_named(b, f, "overflowed");
        CHECK(step->scaler.scale < SCALE);
    } else {
        check_named(b, f, "does not fit FP16");
        CHECK_NEAR(step->scaler.scale, SCALE, 0);
        check_demoted(b, f);
    }
}

static void check_redone(struct bench *b, const struct fault *f)
{
    const struct amp_scaler *scaler = &session(b->net)->step.scaler;
    CHECK_SAME(b->net, b->prepared[f->circumstance].halved[f->pass]);
    CHECK_INT(scaler->skipped, 0);
    CHECK_INT(scaler->redone, 1);
    CHECK_NEAR(scaler->scale, SCALE / 2, 0);
    check_named(b, f, "overflowed");
}

/* Where an output is 0 everywhere the variance behind it is 0 too, and batch-norm's backward
 * multiplies by hundreds: a gradient that overflows there, or would at the next scale, is none of
 * the test's making. */
static bool is_amplified(const struct bench *b, const struct fault *f)
{
    const struct amp_session *s = session(b->net);
    if (f->watch != AMP_WATCH_OUT || f->layer + 1 == b->net->n) return false;
    const struct amp_layer_desc *next = &s->desc->layers[f->layer + 1];
    return (next->type == AMP_BATCHNORM || next->batch_normalize) &&
           s->step.scaler.scale < 2 * SCALE;
}

/* Nothing happened, but that the scale grew at its time. */
static void check_unnoticed(struct bench *b, const struct fault *f)
{
    const struct amp_step *step = &session(b->net)->step;
    if (is_amplified(b, f)) {
        CHECK_INT(step->scaler.skipped, 0);
        CHECK_INT(strstr(said(b->net), "overflowed") != NULL, step->scaler.redone > 0);
        CHECK_INT(step->scaler.tracker, 0); /* that is why the scale did not grow */
        return;
    }
    CHECK_INT(step->scaler.skipped, 0);
    CHECK_INT(step->scaler.redone, 0);
    CHECK_NEAR(step->scaler.scale, 2 * SCALE, 0);
    CHECK(strstr(said(b->net), "loss scale 2^6 -> 2^7 (gradients have room)"));
    CHECK(!strstr(said(b->net), " of layer "));
}

static double worst_miss[4]; /* of the loss, by kind */
static int worst_delay;      /* of FP32's loss, in steps */

/* Returns after how many steps FP32's loss is reached, STEPS_LATE + 1: it is not. */
static int find_delay(struct bench *b, double fp32)
{
    int steps = 0;
    while (!(loss_of(b->net) <= (1 + MOST_MISS) * fp32) && steps++ < STEPS_LATE)
        run_step(b, b->net);
    return steps;
}

static void check_loss_later(struct bench *b, const struct fault *f)
{
    struct amp_step *step = &session(b->net)->step;
    double fp32 = b->prepared[f->circumstance].fp32_loss;
    int n = STEPS_LATER - (step->scaler.applied > 1);
    if (n == STEPS_LATER) *b->net->seen = *b->prepared[f->circumstance].before->seen;
    for (int i = 0; i < n; i++)
        run_step(b, b->net);
    CHECK_INT(step->scaler.applied, 1 + STEPS_LATER);
    double miss = fabs(loss_of(b->net) - fp32) / fp32;
    worst_miss[f->kind] = fmax(worst_miss[f->kind], miss);
    bool untold = f->kind == POISON_UNDERFLOW,
         held = miss <= (untold ? MOST_MISS_UNTOLD : MOST_MISS);
    int delay = untold && !held ? find_delay(b, fp32) : 0;
    if (delay > worst_delay) worst_delay = delay;
    if (untold ? delay > STEPS_LATE : !held)
        TEST_FAIL("the loss is %.4g, in FP32 %.4g", loss_of(b->net), fp32);
}

static void check_outcome(struct bench *b, const struct fault *f, bool finished)
{
    bool not_finite = f->kind == POISON_INF || f->kind == POISON_NAN;
    if (!is_backward(f) && not_finite) {
        check_stopped(b, f, finished);
        return;
    }
    CHECK(finished);
    if (!finished) return;
    if (f->kind == POISON_UNDERFLOW)
        check_unnoticed(b, f);
    else if (f->once)
        check_redone(b, f);
    else
        check_skipped(b, f);
    if (f->watch == AMP_WATCH_WEIGHTS) return; /* which are another net's now */
    if (setjmp(stopped))
        TEST_FAIL("stopped later: %s", why);
    else
        check_loss_later(b, f);
}

/* False: there is no such tensor. */
static bool try(struct bench *b, const struct fault *f)
{
    static const char *const kinds[] = {"inf", "NaN", "refused", "underflow"};
    if (!b->prepared[f->circumstance].before) return false;
    lead_up(b, b->net, f->circumstance);
    if (!is_possible(b, f)) return false;
    stop_listening(b->net);
    listen_to(b->net);
    struct amp_scaler *scaler = &session(b->net)->step.scaler;
    if (f->kind == POISON_UNDERFLOW) scaler->tracker = scaler->window - 1;
    bool finished = run_faulty_step(b, f);
    if (!poison.struck) return false;
    int failures = test_failures;
    check_outcome(b, f, finished);
    if (test_failures > failures)
        TEST_FAIL("... %s, %s: %s%s in %s of layer %d, subdivision %d", b->target->name,
                  circumstances[f->circumstance], kinds[f->kind], f->once ? " once" : "",
                  amp_watch_name((enum amp_watch)f->watch), f->layer, f->pass);
    REQUIRE(test_failures < 20);
    return true;
}

/* ---- all of them, or a sample ---- */

static bool full;
static FILE *report; /* Darknet has stdout for itself, which is not shown */
static struct fault faults[1 << 16];

static int list_faults(const struct bench *b)
{
    int n = 0;
    for (int c = 0; c < CIRCUMSTANCES; c++)
        for (int layer = 0; layer < b->net->n; layer++)
            for (int watch = AMP_WATCH_WEIGHTS; watch < AMP_WATCHES; watch++)
                for (int kind = 0; kind < 4; kind++)
                    for (int k = 0; k < 4; k++)
                        faults[n++] = (struct fault){(enum circumstance)c,   layer, watch, k & 1,
                                                     (enum poison_kind)kind, k > 1};
    return n;
}

static void shuffle(int n)
{
    for (int i = n - 1; i > 0; i--) {
        int k = (int)(test_random() % (uint64_t)(i + 1));
        struct fault f = faults[i];
        faults[i] = faults[k];
        faults[k] = f;
    }
}

#define SAMPLE 20 /* of a net */

/* A tensor that is watched and was never struck is one that this test cannot reach. */
static void check_all_struck(const struct bench *b, const bool struck[][AMP_WATCHES])
{
    const struct amp_graph *g = session(b->net)->graph;
    for (int i = 0; i < g->n; i++)
        for (int w = AMP_WATCH_WEIGHTS; w < AMP_WATCHES; w++)
            if (must_be_watched(g, i, w) && !struck[i][w])
                TEST_FAIL("%s: no fault in %s of layer %d (%s)", b->target->name,
                          amp_watch_name((enum amp_watch)w), i,
                          amp_layer_type_name(g->net->layers[i].type));
}

static int try_net(const struct target *target)
{
    struct bench b;
    bool struck[64][AMP_WATCHES] = {{false}};
    open_bench(&b, target);
    REQUIRE(b.net->n <= 64);
    int n = list_faults(&b), held = 0;
    shuffle(n);
    for (int i = 0; i < n && (full || held < SAMPLE); i++)
        if (try(&b, &faults[i])) {
            held++;
            struck[faults[i].layer][faults[i].watch] = true;
        }
    if (full && !target->losses_of_ours) check_all_struck(&b, struck);
    close_bench(&b);
    fprintf(report, "%s: %d faults\n", target->name, held);
    return held;
}

AMP_TEST(every_fault_is_told_apart_and_leaves_no_trace)
{
    int held = 0;
    for (size_t i = 0; i < N_TARGETS; i++)
        held += try_net(&targets[i]);
    fprintf(report,
            "AMP_TEST_SEED=%s: %d faults; the loss %d steps later is within %.3g (inf), %.3g "
            "(NaN), %.3g (refused), %.3g (underflow) of FP32's, which is reached at most %d steps "
            "late where an underflow led further\n",
            getenv("AMP_TEST_SEED") ? getenv("AMP_TEST_SEED") : "1", held, STEPS_LATER,
            worst_miss[0], worst_miss[1], worst_miss[2], worst_miss[3], worst_delay);
    CHECK(held >= SAMPLE * (int)N_TARGETS);
}

int main(int argc, char **argv)
{
    full = argc > 1 && !strcmp(argv[1], "--full");
    report = fdopen(dup(1), "w");
    if (report) setvbuf(report, NULL, _IOLBF, 0);
    if (!report || !freopen("/dev/null", "w", stdout)) return 1;
    return test_main(argc - full, argv + full);
}
