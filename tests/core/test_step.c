/* The guarded step on graphs without Darknet: whatever goes wrong in a pass leaves no trace, a
 * replay equals a pass at the lower scale, and what is applied is the update rule in double. */
#include "tests/rig/harness.h"
#include "tests/rig/poison.h"
#include "tests/rig/rig.h"

#include "plugin/core/engine/step.h"

/* ---- nets ---- */

#define CONV(filters, size, stride)                                                                \
    "[convolutional]\nbatch_normalize=1\npad=1\nactivation=leaky\nfilters=" #filters               \
    "\nsize=" #size "\nstride=" #stride "\n"
#define HEAD                                                                                       \
    "[convolutional]\nsize=1\nfilters=7\nactivation=linear\n[yolo]\nmask=0\nclasses=2\nnum=2\n"

/* Residual blocks, two heads, routes; 12 x 12 x 4, 2 subdivisions of 2 images. */
// clang-format off
#define DETECTOR                                                                                   \
    CONV(6, 3, 1)                                                                                  \
    CONV(8, 3, 2)                                                                                  \
    CONV(4, 1, 1)                                                                                  \
    CONV(8, 3, 1) "[shortcut]\nfrom=-3\nactivation=leaky\n" CONV(10, 3, 2) HEAD                    \
        "[route]\nlayers=-3\n" CONV(4, 1, 1) "[upsample]\nstride=2\n[route]\nlayers=-1,4\n" CONV(  \
            6, 1, 1) HEAD
// clang-format on

/* What the detector lacks, FP32 storage in the middle and a layer that Darknet runs. */
#define CLASSIFIER                                                                                 \
    "[convolutional]\nfilters=4\nsize=3\npad=1\nactivation=elu\n[maxpool]\nsize=2\nstride=2\n"     \
    "[reorg]\nstride=2\n[convolutional]\nfilters=6\nsize=1\nactivation=leaky\n"                    \
    "mixed_precision=0\n[dropout]\nprobability=.3\n[lrn]\n[reorg]\nstride=1\nflatten=1\n"          \
    "[activation]\nactivation=tanh\n" CONV(                                                        \
        5, 3,                                                                                      \
        1) "[convolutional]\nfilters=3\nsize=1\nsmooth=1\n"                                        \
           "activation=linear\n[connected]\noutput=9\nbatch_normalize=1\nactivation=relu\n"        \
           "[connected]\noutput=6\nactivation=logistic\n[convolutional]\nfilters=5\nsize=1\n"      \
           "activation=linear\n[avgpool]\n[cost]\n"

/* Pools that the convolutions before them compute, the second of an odd side. */
#define HALVE  "[maxpool]\nsize=2\nstride=2\n"
#define POOLED CONV(6, 3, 1) HALVE CONV(8, 3, 2) HALVE HEAD

#define NET "[net]\nmixed_precision=1\nbatch=8\nsubdivisions=2\nwidth=12\nheight=12\nchannels=4\n"

static const char *const nets[] = {DETECTOR, CLASSIFIER, POOLED};
#define N_NETS 3

/* ---- a run ---- */

struct run {
    struct rig *rig;
    struct amp_step step;
    struct amp_log log;
    struct amp_update update;
    char *text; /* what the log said */
    size_t text_size;
    int demoted; /* calls */
    struct amp_fault demotion;
    char stopped[1024]; /* the message, "" while it runs */
    jmp_buf at_stop;
    int t;
    bool skipped; /* amp_step_update said so */
};

static struct run *running;

static void demote(void *user, const struct amp_fault *f)
{
    struct run *run = user;
    run->demoted++;
    run->demotion = *f;
}

static void stop(void *user, const char *message)
{
    (void)user;
    snprintf(running->stopped, sizeof running->stopped, "%s", message);
    longjmp(running->at_stop, 1);
}

static const char *image_name(void *user, int subdivision, int image)
{
    static char name[40];
    (void)user;
    snprintf(name, sizeof name, "image-%d-%d.png", subdivision, image);
    return name;
}

/* Always the same values for the same layers. */
static struct run *start(const char *keys, const char *layers, const struct ampk_backend *backend)
{
    char text[8192];
    struct run *run = calloc(1, sizeof *run);
    REQUIRE(run);
    snprintf(text, sizeof text, NET "%s\n%s", keys, layers);
    test_random_state = 12345;
    run->rig = rig_create(text, poison_backend(backend), test_random);
    REQUIRE(run->rig);
    struct rig *r = run->rig;
    amp_scaler_init(&run->step.scaler, &r->options, 1000);
    amp_log_start(&run->log, r->net);
    run->log.out = open_memstream(&run->text, &run->text_size);
    REQUIRE(run->log.out);
    run->step.graph = r->graph;
    run->step.log = &run->log;
    run->step.subdivisions = r->net->subdivisions;
    run->step.demote = demote;
    run->step.image_name = image_name;
    run->step.stop = stop;
    run->step.user = run;
    run->update = (struct amp_update){.learning_rate = .01f,
                                      .momentum = .9f,
                                      .decay = .0005f,
                                      .b1 = .9f,
                                      .b2 = .999f,
                                      .eps = 1e-7f,
                                      .batch = r->net->batch * r->net->subdivisions,
                                      .adam = r->net->adam};
    memset(&poison, 0, sizeof poison);
    return run;
}

static void end(struct run *run)
{
    fclose(run->log.out);
    free(run->text);
    rig_free(run->rig);
    free(run);
}

static const char *said(struct run *run)
{
    fflush(run->log.out);
    return run->text;
}

/* ---- what is done in a step, and what may be done to it ---- */

struct trouble {
    int pass; /* of the step; -1: none */
    struct poison poison;
    double scale;       /* > 0: set before that pass */
    float input, truth; /* not 0: put into the last image of that pass */
};

static const struct trouble no_trouble = {.pass = -1};

static void fill(float *x, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(*state >> 33) * 0x1p-30 - 1);
    }
}

/* Images and truths are given by step and pass. */
static void load_data(struct run *run, int step, int pass)
{
    struct rig *r = run->rig;
    uint64_t state = 1000u * (uint64_t)step + (uint64_t)pass;
    fill(r->input, (size_t)r->net->batch * (size_t)r->net->inputs, &state);
    for (int i = 0; i < r->net->n; i++)
        if (r->truth[i])
            fill(r->truth[i], (size_t)r->net->batch * (size_t)r->net->layers[i].outputs, &state);
}

static void run_pass(struct run *run, int step, int pass, const struct trouble *trouble)
{
    struct rig *r = run->rig;
    struct amp_step *s = &run->step;
    bool here = trouble->pass == pass;
    size_t inputs = (size_t)r->net->inputs, images = (size_t)r->net->batch;
    float truth[16] = {0, here ? trouble->truth : 0}; /* one for each image */
    REQUIRE(images <= 16);
    load_data(run, step, pass);
    if (here && trouble->input != 0) r->input[inputs * images - 1] = trouble->input;
    if (here && trouble->scale > 0) s->scaler.scale = trouble->scale;
    if (here) poison = trouble->poison;
    r->loss = 0;
    struct amp_batch batch = {r->input, r->input, truth, truth, 1};
    amp_step_begin(s, &batch, pass);
    for (int i = 0; i < r->net->n; i++) {
        rig_seed_dropout((uint64_t)(step * 10000 + pass * 100 + i));
        amp_graph_forward(r->graph, i);
    }
    if (!isfinite(r->loss)) amp_step_judge_forward(s);
    for (int i = r->net->n - 1; i >= r->plan->first_backward; i--)
        amp_step_backward(s, i, r->loss);
    poison.word = NULL;
}

/* One step; false where the run stopped in it. */
static bool run_step(struct run *run, int step, struct trouble trouble)
{
    struct rig *r = run->rig;
    running = run;
    run->skipped = false;
    if (setjmp(run->at_stop)) {
        poison.word = NULL;
        return false;
    }
    for (int pass = 0; pass < r->net->subdivisions; pass++)
        run_pass(run, step, pass, &trouble);
    run->update.t = ++run->t;
    for (int i = 0; i < r->net->n; i++)
        if (r->bindings[i].n_params && amp_step_update(&run->step, i, &run->update)) {
            run->skipped = true;
            run->t--;
        }
    amp_step_end(&run->step, (size_t)step, 1000);
    return true;
}

/* ---- everything that outlives a step ---- */

struct state {
    size_t n;
    float *x;
};

static size_t copy_state(const struct run *run, float *to)
{
    const struct rig *r = run->rig;
    size_t n = 0;
    for (int i = 0; i < r->n_params; i++) {
        const struct amp_param *p = &r->params[i];
        const float *const arrays[] = {p->value, p->update, p->m, p->v};
        for (int k = 0; k < 4; k++, n += p->n)
            if (to) memcpy(to + n, arrays[k], p->n * sizeof *to);
    }
    for (int i = 0; i < r->n_rolling; n += r->rolling[i++].n)
        if (to) memcpy(to + n, r->rolling[i].value, r->rolling[i].n * sizeof *to);
    return n;
}

static struct state state_of(const struct run *run)
{
    struct state state = {.n = copy_state(run, NULL)};
    state.x = malloc(state.n * sizeof *state.x);
    REQUIRE(state.x);
    copy_state(run, state.x);
    return state;
}

static void check_state(const struct run *run, const struct state *expected, const char *what)
{
    struct state now = state_of(run);
    CHECK_INT(now.n, expected->n);
    size_t i = 0;
    while (i < now.n && !memcmp(&now.x[i], &expected->x[i], sizeof *now.x))
        i++;
    if (i < now.n)
        TEST_FAIL("%s: number %zu of %zu of the state is %.9g, expected %.9g", what, i, now.n,
                  now.x[i], expected->x[i]);
    free(now.x);
}

static bool is_finite(const struct state *state)
{
    for (size_t i = 0; i < state->n; i++)
        if (!isfinite(state->x[i])) return false;
    return true;
}

/* ---- poison: every layer, tensor and subdivision ---- */

static struct poison aim(const struct run *run, int layer, int watch, enum poison_kind kind)
{
    return (struct poison){
        .word = &run->rig->graph->watch[layer][watch], .kind = kind, .most = 1000};
}

static void describe(char *text, size_t size, int net, int layer, int watch, int pass, int kind)
{
    snprintf(text, size, "net %d, layer %d, %s, pass %d, kind %d", net, layer,
             amp_watch_name((enum amp_watch)watch), pass, kind);
}

/* The log names what was hit. */
static void check_named(struct run *run, int layer, int watch, const char *why)
{
    char line[200];
    snprintf(line, sizeof line, "mixed precision: %s of layer %d (%s) %s",
             amp_watch_name((enum amp_watch)watch), layer,
             amp_layer_type_name(run->rig->net->layers[layer].type), why);
    if (!strstr(said(run), line)) TEST_FAIL("\"%s\" is not in:\n%s", line, said(run));
}

/* A forward store that FP16 refuses: the step is skipped, the layer demoted, the scale stays, and
 * the run goes on as if the step had not been. True: there was such a store. */
static bool check_refused_forward(int net, int layer, int watch, int pass)
{
    char what[200];
    describe(what, sizeof what, net, layer, watch, pass, POISON_REFUSED);
    struct run *run = start("loss_scale_init=256", nets[net], &ampk_cpu);
    bool fp16 = run->rig->graph->fp16[layer] >> watch & 1;
    struct trouble trouble = {.pass = pass, .poison = aim(run, layer, watch, POISON_REFUSED)};
    CHECK(run_step(run, 0, no_trouble));
    struct state before = state_of(run);
    CHECK(run_step(run, 1, trouble));
    bool struck = fp16 && poison.struck > 0;
    if (struck) {
        check_state(run, &before, what);
        CHECK(run->skipped);
        CHECK_INT(run->t, 1);
        CHECK_INT(run->step.scaler.skipped, 1);
        CHECK_INT(run->step.scaler.applied, 1);
        CHECK_NEAR(run->step.scaler.scale, 256, 0);
        CHECK_INT(run->step.fault.class, AMP_FAULT_FORWARD);
        CHECK_INT(run->demoted, 1);
        CHECK_INT(run->demotion.layer, layer);
        CHECK_INT(run->demotion.tensor, watch);
        check_named(run, layer, watch, "does not fit FP16");
        CHECK(run_step(run, 2, no_trouble));
        struct state after = state_of(run);
        struct run *other = start("loss_scale_init=256", nets[net], &ampk_cpu);
        CHECK(run_step(other, 0, no_trouble) && run_step(other, 2, no_trouble));
        check_state(other, &after, what);
        end(other);
        free(after.x);
    }
    free(before.x);
    end(run);
    if (test_failures) TEST_FAIL("%s", what);
    REQUIRE(!test_failures);
    return struck;
}

/* The layers and tensors of all nets at which `check` finds something to do. */
static int for_every_tensor(enum amp_watch first, enum amp_watch last,
                            bool (*check)(int net, int layer, int watch, int pass))
{
    int found = 0;
    for (int net = 0; net < N_NETS; net++) {
        struct run *run = start("", nets[net], &ampk_cpu);
        int layers = run->rig->net->n;
        end(run);
        for (int layer = 0; layer < layers; layer++)
            for (int watch = (int)first; watch <= (int)last; watch++)
                for (int pass = 0; pass < 2; pass++)
                    found += check(net, layer, watch, pass);
    }
    return found;
}

AMP_TEST(a_forward_value_that_fp16_refuses_leaves_no_trace)
{
    int found = for_every_tensor(AMP_WATCH_Y, AMP_WATCH_COPY, check_refused_forward);
    CHECK(found >= 2 * 30);
}

/* Numbers in all params. */
static size_t count_params(const struct run *run)
{
    size_t count = 0;
    for (int i = 0; i < run->rig->graph->n_params; i++)
        count += run->rig->graph->params[i].n;
    return count;
}

/* inf or NaN out of FP32 arithmetic in forward: the run stops, naming it, weights untouched. */
static bool check_diverged(int net, int layer, int watch, int pass)
{
    char what[200], words[100];
    bool struck = false;
    for (int kind = POISON_INF; kind <= POISON_NAN; kind++) {
        describe(what, sizeof what, net, layer, watch, pass, kind);
        struct run *run = start("loss_scale_init=256", nets[net], &ampk_cpu);
        struct trouble trouble = {.pass = pass,
                                  .poison = aim(run, layer, watch, (enum poison_kind)kind)};
        run_step(run, 0, no_trouble);
        struct state before = state_of(run);
        bool finished = run_step(run, 1, trouble);
        struct state after = state_of(run);
        struck = poison.struck > 0;
        CHECK_INT(finished, !struck);
        if (struck) {
            size_t weights = 4 * count_params(run); /* then the rolling statistics */
            CHECK(watch == AMP_WATCH_WEIGHTS ||
                  !memcmp(before.x, after.x, weights * sizeof(float)));
            snprintf(words, sizeof words, "training diverged: %s of layer %d (",
                     amp_watch_name((enum amp_watch)watch), layer);
            CHECK(!strncmp(run->stopped, words, strlen(words)));
            if (watch == AMP_WATCH_INPUT) CHECK_STR(run->stopped, "");
            check_named(run, layer, watch, "is not finite although all its operands are");
            CHECK_INT(run->demoted, 0);
        }
        free(before.x);
        free(after.x);
        end(run);
        if (test_failures) TEST_FAIL("%s", what);
        REQUIRE(!test_failures);
    }
    return struck;
}

AMP_TEST(divergence_in_forward_stops_before_anything_is_updated)
{
    int found = for_every_tensor(AMP_WATCH_WEIGHTS, AMP_WATCH_LOSS, check_diverged);
    CHECK(found >= 2 * 60);
}

/* An overflow in backward at the first scale only: the pass is redone, and the step is what it is
 * when that pass runs at the lower scale from the start. */
static bool check_retry(int net, int layer, int watch, int pass)
{
    char what[200];
    bool struck = false;
    for (int kind = POISON_INF; kind <= POISON_REFUSED; kind++) {
        describe(what, sizeof what, net, layer, watch, pass, kind);
        struct run *run = start("loss_scale_init=256", nets[net], &ampk_cpu);
        struct run *twin = start("loss_scale_init=256", nets[net], &ampk_cpu);
        bool fp16 = run->rig->graph->fp16[layer] >> watch & 1;
        struct trouble trouble = {.pass = pass,
                                  .poison = aim(run, layer, watch, (enum poison_kind)kind)};
        trouble.poison.scale = &run->step.scaler.scale;
        trouble.poison.above = 128;
        run_step(run, 0, no_trouble);
        run_step(twin, 0, no_trouble);
        CHECK(run_step(run, 1, trouble));
        struck = poison.struck > 0 && (kind != POISON_REFUSED || fp16);
        if (struck) {
            struct state after = state_of(run);
            run_step(twin, 1, (struct trouble){.pass = pass, .scale = 128});
            check_state(twin, &after, what);
            CHECK(is_finite(&after));
            CHECK(!run->skipped);
            CHECK_INT(run->t, 2);
            CHECK_INT(run->step.scaler.redone, 1);
            CHECK_INT(run->step.scaler.skipped, 0);
            CHECK_INT(run->step.scaler.applied, 2);
            CHECK_NEAR(run->step.scaler.scale, 128, 0);
            CHECK_INT(run->demoted, 0);
            check_named(run, layer, watch, "overflowed");
            CHECK(strstr(said(run), "loss scale 2^8 -> 2^7; backward pass redone") != NULL);
            free(after.x);
        }
        end(run);
        end(twin);
        if (test_failures) TEST_FAIL("%s", what);
        REQUIRE(!test_failures);
    }
    return struck;
}

AMP_TEST(a_backward_overflow_is_redone_at_half_the_scale)
{
    int found = for_every_tensor(AMP_WATCH_DELTA, AMP_WATCH_DBIAS, check_retry);
    CHECK(found >= 2 * 20);
}

/* One that does not go away: four tries, then the step is dropped without a trace. */
static bool check_skip_with(const char *keys, int net, int layer, int watch, int pass, double scale,
                            int redone)
{
    char what[200];
    describe(what, sizeof what, net, layer, watch, pass, POISON_NAN);
    struct run *run = start(keys, nets[net], &ampk_cpu);
    struct trouble trouble = {.pass = pass, .poison = aim(run, layer, watch, POISON_NAN)};
    run_step(run, 0, no_trouble);
    struct state before = state_of(run);
    CHECK(run_step(run, 1, trouble));
    bool struck = poison.struck > 0;
    if (struck) {
        check_state(run, &before, what);
        CHECK(run->skipped);
        CHECK_INT(run->t, 1);
        CHECK_INT(run->step.fault.class, AMP_FAULT_BACKWARD);
        CHECK_INT(run->step.fault.layer, layer);
        CHECK_INT(run->step.fault.tensor, watch);
        CHECK_INT(run->step.scaler.redone, redone);
        CHECK_INT(run->step.scaler.skipped, 1);
        CHECK_NEAR(run->step.scaler.scale, scale, 0);
        CHECK(run_step(run, 2, no_trouble));
        CHECK_INT(run->step.scaler.applied, 2);
        struct state after = state_of(run);
        CHECK(is_finite(&after));
        free(after.x);
    }
    free(before.x);
    end(run);
    if (test_failures) TEST_FAIL("%s\n%s", what, keys);
    REQUIRE(!test_failures);
    return struck;
}

static bool check_skip(int net, int layer, int watch, int pass)
{
    return check_skip_with("loss_scale_init=256", net, layer, watch, pass, 8, 4);
}

static bool check_other_skips(int net, int layer, int watch, int pass)
{
    if ((layer + watch + pass) % 5) return false; /* a fifth of them will do */
    check_skip_with("loss_scale_init=256\namp_on_overflow=skip", net, layer, watch, pass, 128, 0);
    check_skip_with("loss_scale=256", net, layer, watch, pass, 256, 0);
    check_skip_with("amp_dtype=bf16", net, layer, watch, pass, 1, 0);
    check_skip_with("amp_dtype=fp32\nadam=1", net, layer, watch, pass, 1, 0);
    return check_skip_with("loss_scale_init=256\nadam=1", net, layer, watch, pass, 8, 4);
}

AMP_TEST(an_overflow_that_stays_skips_the_step_without_a_trace)
{
    CHECK(for_every_tensor(AMP_WATCH_DELTA, AMP_WATCH_DBIAS, check_skip) >= 2 * 60);
}

AMP_TEST(skips_of_other_policies_and_dtypes_leave_no_trace)
{
    CHECK(for_every_tensor(AMP_WATCH_DELTA, AMP_WATCH_DBIAS, check_other_skips) >= 10);
}

/* ---- input and labels ---- */

static void check_bad_data(float input, float truth, const char *words)
{
    for (int pass = 0; pass < 2; pass++) {
        struct run *run = start("loss_scale_init=256", DETECTOR, &ampk_cpu);
        char expected[200];
        run_step(run, 0, no_trouble);
        struct state before = state_of(run);
        CHECK(run_step(run, 1, (struct trouble){.pass = pass, .input = input, .truth = truth}));
        check_state(run, &before, words);
        CHECK(run->skipped);
        CHECK_INT(run->step.fault.class, AMP_FAULT_INPUT);
        CHECK(!run->step.cause_is_scale);
        CHECK_NEAR(run->step.scaler.scale, 256, 0);
        CHECK_INT(run->step.scaler.floor_skips, 0);
        CHECK_INT(run->demoted, 0);
        snprintf(expected, sizeof expected, "%s of layer 0 (convolutional) is not finite", words);
        CHECK(strstr(said(run), expected) != NULL);
        /* the input's fault is in the last of 4 images, the truth's in the second */
        snprintf(expected, sizeof expected, "subdivision %d, image image-%d-%d.png); step skipped",
                 pass, pass, input != 0 ? 3 : 1);
        if (!strstr(said(run), expected)) TEST_FAIL("\"%s\" is not in %s", expected, said(run));
        CHECK(run_step(run, 2, no_trouble) && !run->skipped);
        free(before.x);
        end(run);
    }
}

AMP_TEST(an_image_that_is_not_finite_is_named_and_its_step_skipped)
{
    check_bad_data(INFINITY, 0, "input");
    check_bad_data(-INFINITY, 0, "input");
    check_bad_data(NAN, 0, "input");
}

AMP_TEST(a_label_that_is_not_finite_is_named_and_its_step_skipped)
{
    check_bad_data(0, NAN, "truth");
    check_bad_data(0, INFINITY, "truth");
}

/* Finite, but FP16 refuses it: the first layer's fault, not the image's. */
AMP_TEST(an_input_too_large_for_fp16_demotes_the_first_layer)
{
    struct run *run = start("loss_scale_init=256", DETECTOR, &ampk_cpu);
    run_step(run, 0, no_trouble);
    struct state before = state_of(run);
    CHECK(run_step(run, 1, (struct trouble){.pass = 1, .input = 1e5f}));
    check_state(run, &before, "large input");
    CHECK_INT(run->step.fault.class, AMP_FAULT_FORWARD);
    CHECK_INT(run->demotion.layer, 0);
    CHECK_INT(run->demotion.tensor, AMP_WATCH_INPUT);
    free(before.x);
    end(run);
}

/* ---- stored state that is already spoilt ---- */

AMP_TEST(poison_in_weights_momentum_or_statistics_stops_the_run)
{
    for (int kind = 0; kind < 4; kind++)
        for (int what = 0; what < 2; what++) {
            struct run *run = start("loss_scale_init=256", DETECTOR, &ampk_cpu);
            struct amp_param *p = &run->rig->params[run->rig->n_params / 2];
            float *arrays[] = {p->value, p->update, run->rig->rolling[2].value,
                               run->rig->rolling[3].value};
            run_step(run, 0, no_trouble);
            arrays[kind][0] = what ? INFINITY : NAN;
            bool first = run_step(run, 1, no_trouble);
            bool second = first && run_step(run, 2, no_trouble);
            CHECK_INT(first, kind == 1); /* momentum shows in the weights, one step later */
            CHECK(!second);
            CHECK(!strncmp(run->stopped, "training diverged: ", 19));
            CHECK(strstr(run->stopped, ". Lower learning_rate, ") != NULL);
            end(run);
        }
}

/* ---- the scale over steps ---- */

AMP_TEST(the_search_ends_at_the_largest_scale_that_fits_without_losing_a_step)
{
    for (int net = 0; net < N_NETS; net++) {
        struct run *run = start("", nets[net], &ampk_cpu);
        struct amp_scaler *scaler = &run->step.scaler;
        CHECK(run_step(run, 0, no_trouble));
        CHECK(!run->skipped && !scaler->searching);
        CHECK_INT(scaler->applied, 1);
        CHECK(scaler->redone > 0 && scaler->scale < scaler->max && scaler->scale > 1);
        CHECK(strstr(said(run), "start-up search done") != NULL);
        double found = scaler->scale;
        /* the same first pass again: clean at the scale found after it, not at twice that */
        struct run *again = start("loss_scale=1", nets[net], &ampk_cpu);
        struct rig *r = again->rig;
        load_data(again, 0, 0);
        amp_graph_begin(r->graph, r->input, NULL, true);
        for (int i = 0; i < r->net->n; i++) {
            rig_seed_dropout((uint64_t)i);
            amp_graph_forward(r->graph, i);
        }
        rig_backward(r, (float)found);
        CHECK_INT(amp_graph_fault(r->graph, true).class, AMP_FAULT_NONE);
        rig_backward(r, (float)(4 * found));
        CHECK_INT(amp_graph_fault(r->graph, true).class, AMP_FAULT_BACKWARD);
        end(again);
        end(run);
    }
}

AMP_TEST(a_search_that_the_first_scale_ends_is_not_told)
{
    struct run *run = start("loss_scale_max=1", DETECTOR, &ampk_cpu);
    CHECK(run_step(run, 0, no_trouble));
    CHECK(!run->step.scaler.searching && !strstr(said(run), "search done"));
    end(run);
}

AMP_TEST(the_search_takes_few_passes)
{
    struct run *run = start("", DETECTOR, &ampk_cpu);
    run_step(run, 0, no_trouble);
    /* from 2^24 one by one it would be as many as powers of two are left out */
    CHECK(run->step.scaler.redone < 24 - ilogb(run->step.scaler.scale));
    end(run);
}

AMP_TEST(the_scale_grows_after_clean_steps_and_says_so)
{
    struct run *run = start("loss_scale_init=2\nloss_scale_window=3", DETECTOR, &ampk_cpu);
    for (int step = 0; step < 6; step++)
        CHECK(run_step(run, step, no_trouble));
    CHECK_NEAR(run->step.scaler.scale, 8, 0);
    CHECK(strstr(said(run), "loss scale 2^1 -> 2^2 (gradients have room)") != NULL);
    CHECK(strstr(said(run), "loss scale 2^2 -> 2^3 (gradients have room)") != NULL);
    end(run);
}

/* The same gradients in every step: the scale grows as far as they fit, and not once too far. */
AMP_TEST(the_scale_grows_only_as_far_as_gradients_fit)
{
    struct run *run = start("loss_scale_init=1\nloss_scale_window=1", DETECTOR, &ampk_cpu);
    const struct amp_scaler *scaler = &run->step.scaler;
    run->update.learning_rate = run->update.decay = 0;
    for (int step = 0; step < 25; step++)
        CHECK(run_step(run, 0, no_trouble));
    double found = scaler->scale;
    CHECK(found > 1 && found < scaler->max);
    CHECK_INT(scaler->redone, 0);
    rig_backward(run->rig, (float)found);
    CHECK_INT(amp_graph_fault(run->rig->graph, true).class, AMP_FAULT_NONE);
    CHECK(run->rig->graph->largest_gradient > 65504. / 2);
    rig_backward(run->rig, (float)(2 * found));
    CHECK_INT(amp_graph_fault(run->rig->graph, true).class, AMP_FAULT_BACKWARD);
    end(run);
}

static void check_floor(bool onecycle)
{
    struct run *run = start("loss_scale_init=2", DETECTOR, &ampk_cpu);
    run->log.onecycle = onecycle;
    run_step(run, 0, no_trouble);
    struct state before = state_of(run);
    struct trouble trouble = {.pass = 1, .poison = aim(run, 5, AMP_WATCH_DY, POISON_INF)};
    int step = 1;
    while (step < 30 && run_step(run, step, trouble)) {
        check_state(run, &before, "floor");
        step++;
    }
    CHECK_INT(step, 10);
    CHECK_INT(run->step.scaler.skipped, 10);
    check_state(run, &before, "floor");
    char expected[512];
    snprintf(expected, sizeof expected,
             "gradients overflow FP16 even at the smallest loss scale, ten steps in a row: dy of "
             "layer 5 (convolutional), largest magnitude inf; the last loss, of iteration 10, was "
             "%.4g. Lower learning_rate, %s, or check the labels; mixed_precision=0 "
             "in a layer's section keeps that "
             "layer in FP32.",
             run->step.divergence.last, onecycle ? "raise max_batches" : "lengthen burn_in");
    CHECK_STR(run->stopped, expected);
    free(before.x);
    end(run);
}

AMP_TEST(ten_steps_at_the_floor_stop_with_a_diagnosis)
{
    check_floor(false);
    check_floor(true);
}

/* A step that failed above the floor is none of the ten, though it left the scale there. */
AMP_TEST(a_step_that_reached_the_floor_did_not_run_there)
{
    struct run *run = start("loss_scale_init=2\namp_on_overflow=skip", DETECTOR, &ampk_cpu);
    struct trouble trouble = {.pass = 1, .poison = aim(run, 5, AMP_WATCH_DY, POISON_INF)};
    int step = 0;
    while (step < 30 && run_step(run, step, trouble))
        step++;
    CHECK_INT(run->step.scaler.skipped, 1 + 10);
    end(run);
}

#define MANY_DEMOTIONS "layers left FP16 in 3 of the last 20 iterations"

/* What a learning rate that is too high looks like: layer after layer. */
AMP_TEST(layers_that_leave_fp16_one_after_another_look_like_divergence)
{
    struct run *run = start("", DETECTOR, &ampk_cpu);
    for (int step = 0; step < 5; step++) {
        struct poison poison = aim(run, step, AMP_WATCH_OUT, POISON_REFUSED);
        CHECK(!strstr(said(run), MANY_DEMOTIONS) || step > 2);
        CHECK(run_step(run, step, (struct trouble){.pass = 0, .poison = poison}));
    }
    const char *told = strstr(said(run), MANY_DEMOTIONS);
    CHECK_INT(run->demoted, 5);
    CHECK(told && !strstr(told + 1, MANY_DEMOTIONS));
    CHECK(told && strstr(told, "lower learning_rate"));
    end(run);
}

/* Replay after replay is said once and then counted; that the step is skipped in the end is said.
 */
AMP_TEST(repeats_are_counted_in_the_log)
{
    struct run *run = start("loss_scale_init=1024", DETECTOR, &ampk_cpu);
    struct trouble trouble = {.pass = 0, .poison = aim(run, 5, AMP_WATCH_DY, POISON_INF)};
    run_step(run, 0, trouble);
    amp_log_close(&run->log, &run->step.scaler);
    const char *redone = strstr(said(run), "backward pass redone");
    const char *repeats = strstr(said(run), "the same 3 more times");
    const char *skipped = strstr(said(run), "step skipped");
    CHECK(redone && !strstr(redone + 1, "backward pass redone"));
    CHECK(repeats && skipped && redone < repeats && repeats < skipped);
    end(run);
}

/* ---- what is applied ---- */

/* One array in double, by Darknet's rule. */
struct exact {
    double *w, *momentum, *m, *v, *g;
};

static void update_exactly(const struct amp_param *p, struct exact *x, const struct amp_update *u)
{
    double rate = (double)u->learning_rate * (double)p->learning_rate_scale,
           decay = (double)u->decay;
    double b1 = (double)u->b1, b2 = (double)u->b2;
    for (size_t i = 0; i < p->n; i++) {
        if (u->adam) {
            double g = x->g[i] - decay * u->batch * x->w[i];
            x->m[i] = b1 * x->m[i] + (1 - b1) * g;
            x->v[i] = b2 * x->v[i] + (1 - b2) * g * g;
            x->w[i] += rate * (x->m[i] / (1 - pow(b1, u->t))) /
                       (sqrt(x->v[i] / (1 - pow(b2, u->t))) + (double)u->eps);
        } else {
            x->momentum[i] += x->g[i];
            if (p->kind == AMP_PARAM_WEIGHTS) x->momentum[i] -= decay * u->batch * x->w[i];
            x->w[i] += rate / u->batch * x->momentum[i];
            x->momentum[i] *= (double)u->momentum;
        }
        if (p->clip > 0 && fabs(x->w[i]) > (double)p->clip)
            x->w[i] = copysign((double)p->clip, x->w[i]);
    }
}

static double *zeros(size_t n)
{
    double *x = calloc(n + 1, sizeof *x);
    REQUIRE(x);
    return x;
}

static struct exact *make_exact(const struct rig *r)
{
    struct exact *all = calloc((size_t)r->n_params, sizeof *all);
    REQUIRE(all);
    for (int k = 0; k < r->n_params; k++) {
        size_t n = r->params[k].n;
        all[k] = (struct exact){zeros(n), zeros(n), zeros(n), zeros(n), zeros(n)};
        for (size_t i = 0; i < n; i++)
            all[k].w[i] = (double)r->params[k].value[i];
    }
    return all;
}

static void free_exact(const struct rig *r, struct exact *all)
{
    for (int k = 0; k < r->n_params; k++) {
        free(all[k].w);
        free(all[k].momentum);
        free(all[k].m);
        free(all[k].v);
        free(all[k].g);
    }
    free(all);
}

/* Gradients of one pass of the twin, divided by the scale, added up in double. */
static void add_gradients(struct run *twin, struct exact *all, int step, int pass, double scale)
{
    struct rig *r = twin->rig;
    load_data(twin, step, pass);
    if (pass == 0) amp_graph_weights_changed(r->graph);
    amp_graph_begin(r->graph, r->input, NULL, true);
    for (int i = 0; i < r->net->n; i++) {
        rig_seed_dropout((uint64_t)(step * 10000 + pass * 100 + i));
        amp_graph_forward(r->graph, i);
    }
    rig_backward(r, (float)scale);
    for (int k = 0; k < r->n_params; k++) {
        float *found = rig_gradient(r, k);
        for (size_t i = 0; i < r->params[k].n; i++)
            all[k].g[i] = (pass ? all[k].g[i] : 0) + (double)found[i] / scale;
        free(found);
    }
}

static void check_near_exact(const struct run *run, const struct exact *all)
{
    for (int k = 0; k < run->rig->n_params; k++) {
        const struct amp_param *p = &run->rig->params[k];
        for (size_t i = 0; i < p->n; i++)
            CHECK_NEAR((double)p->value[i], all[k].w[i], 2e-6 + 2e-6 * fabs(all[k].w[i]));
    }
}

/* Four steps: the step's weights against the rule in double on the graph's gradients, where the
 * twin's master weights are the rounded exact ones. Scales: of the first and the second pass. */
static void check_update(const char *keys, const char *layers, double scale)
{
    struct run *run = start(keys, layers, &ampk_cpu), *twin = start(keys, layers, &ampk_cpu);
    struct exact *all = make_exact(twin->rig);
    for (int step = 0; step < 4; step++) {
        struct trouble halved = {.pass = 1, .scale = scale / 2};
        run->step.scaler.scale = scale;
        CHECK(run_step(run, step, halved) && !run->skipped);
        add_gradients(twin, all, step, 0, scale);
        add_gradients(twin, all, step, 1, scale / 2);
        struct amp_update u = run->update;
        for (int k = 0; k < twin->rig->n_params; k++) {
            struct amp_param *p = &twin->rig->params[k];
            update_exactly(p, &all[k], &u);
            for (size_t i = 0; i < p->n; i++)
                p->value[i] = (float)all[k].w[i];
        }
        check_near_exact(run, all);
        for (int k = 0; k < run->rig->n_params; k++) /* so that rounding does not add up */
            memcpy(twin->rig->params[k].value, run->rig->params[k].value,
                   run->rig->params[k].n * sizeof(float));
    }
    struct state after = state_of(run);
    CHECK(is_finite(&after));
    free(after.x);
    free_exact(twin->rig, all);
    end(run);
    end(twin);
}

#define SLOW_LAYERS                                                                                \
    "[convolutional]\nfilters=6\nsize=3\npad=1\nbatch_normalize=1\nactivation=leaky\n"             \
    "learning_rate=0.1\n[convolutional]\nfilters=5\nsize=3\npad=1\nactivation=leaky\n"             \
    "learning_rate=2\n[local]\nfilters=3\nsize=1\nactivation=linear\nlearning_rate=.5\n"           \
    "[connected]\noutput=9\nactivation=tanh\nbatch_normalize=1\nlearning_rate=0\n[cost]\n"

AMP_TEST(sgd_with_momentum_decay_and_layer_rates)
{
    check_update("loss_scale_init=256", DETECTOR, 256);
    check_update("loss_scale_init=256", CLASSIFIER, 64);
    check_update("amp_dtype=fp32", SLOW_LAYERS, 1);
    check_update("amp_dtype=fp32", SLOW_LAYERS, 1024);
    check_update("amp_dtype=bf16", SLOW_LAYERS, 1);
}

AMP_TEST(adam)
{
    check_update("adam=1\nloss_scale_init=256", DETECTOR, 256);
    check_update("adam=1\namp_dtype=fp32", SLOW_LAYERS, 1);
}

AMP_TEST(clip)
{
    check_update("clip=.15\namp_dtype=fp32", DETECTOR, 1);
    check_update("clip=.15\nadam=1\namp_dtype=fp32", SLOW_LAYERS, 1);
}

/* Only the update decides about the weights: no pass touches them. */
AMP_TEST(passes_do_not_touch_weights_or_momentum)
{
    struct run *run = start("loss_scale_init=256", DETECTOR, &ampk_cpu);
    run_step(run, 0, no_trouble);
    struct state before = state_of(run);
    running = run;
    for (int pass = 0; pass < 2; pass++)
        run_pass(run, 1, pass, &no_trouble);
    struct state now = state_of(run);
    CHECK(!memcmp(before.x, now.x, 4 * count_params(run) * sizeof(float)));
    free(before.x);
    free(now.x);
    end(run);
}

/* A frozen part keeps decaying, as Darknet's does, and gets no gradient. */
AMP_TEST(layers_before_stopbackward_get_no_gradient)
{
    static const char layers[] =
        "[convolutional]\nfilters=6\nsize=3\nactivation=leaky\n[dropout]\n"
        "[convolutional]\nfilters=5\nsize=3\nactivation=leaky\nstopbackward=1\n"
        "[convolutional]\nfilters=4\nsize=3\nactivation=leaky\n[cost]\n";
    struct run *run = start("loss_scale_init=64", layers, &ampk_cpu);
    struct amp_param *frozen = &run->rig->params[0], *biases = &run->rig->params[1];
    double w = (double)frozen->value[0], bias = (double)biases->value[0], v = 0;
    for (int step = 0; step < 3; step++) {
        CHECK(run_step(run, step, no_trouble) && !run->skipped);
        v -= (double).0005f * 8 * w;
        w += (double).01f / 8 * v;
        v *= (double).9f;
    }
    CHECK_NEAR((double)frozen->value[0], w, 1e-6);
    CHECK_NEAR((double)biases->value[0], bias, 0);
    end(run);
}

AMP_TEST_MAIN
