/* The complete CUDA backend, on the emulation, attached to a Darknet without GPU: it trains as the
 * CPU backend does.
 *
 * Both multiply the same rounded operands and add in FP32, in another order, and where they store
 * FP16 a value near the middle between two numbers may round the other way. In FP32 what one step
 * moves agrees to 2^-12 of the largest movement, three steps to 2^-8. In FP16 one value that lands
 * on the other side of 0 changes its gradient tenfold (leaky) and with it, in nets this small, a
 * noticeable part of a weight's movement: after one step 0.17 was seen, of one layer on the CPU. A
 * gradient that is missing, doubled or misplaced moves its layer by all of it. */
#include "tests/emulation/emulation.h"
#include "tests/emulation/tensor_core_host.h"
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"
#include "plugin/core/engine/tensors.h"

#include <math.h>
#include <unistd.h>

#define ON_CUDA MIXED "amp_backend=cuda\n"
#define ON_CPU  MIXED "amp_backend=cpu\n"

static network *train(const char *backend, const char *more, const char *layers, int n)
{
    char keys[200];
    snprintf(keys, sizeof keys, "%sloss_scale=64\n%s", backend, more);
    network *net = parse(keys, layers);
    struct amp_session *s = amp_session_of(net->layers);
    steps(net, n);
    CHECK_STR(s->backend->name, strstr(backend, "cuda") ? "cuda" : "cpu");
    CHECK_INT(s->step.scaler.applied, n);
    return net;
}

/* Weights and running statistics against their movement from the start. */
static void check_movement(const network *one, const network *two, const network *start,
                           double tolerance)
{
    struct kept a[256], b[256], from[256];
    int n = list_kept(one, a);
    REQUIRE(list_kept(two, b) == n && list_kept(start, from) == n);
    for (int i = 0; i < n; i++) {
        double most = 0, apart = 0;
        for (size_t k = 0; k < a[i].n; k++) {
            most = fmax(most, fabs((double)b[i].x[k] - from[i].x[k]));
            apart = fmax(apart, fabs((double)a[i].x[k] - b[i].x[k]));
        }
        if (apart > tolerance * most)
            TEST_FAIL("%s of layer %d: %.3g apart, moved by %.3g", a[i].what, a[i].layer, apart,
                      most);
    }
}

static void check_like_cpu(const char *more, const char *layers, int n, double tolerance)
{
    network *start = parse(strstr(more, "adam") ? "adam=1\n" : "", layers);
    network *cuda = train(ON_CUDA, more, layers, n);
    network *cpu = train(ON_CPU, more, layers, n);
    check_movement(cuda, cpu, start, tolerance);
    CHECK_NEAR(*cuda->cost, *cpu->cost, 0.01 * *cpu->cost);
    const float *ours = predict(cuda);
    float kept[16];
    memcpy(kept, ours, sizeof kept);
    const float *theirs = predict(cpu);
    for (int i = 0; i < 5; i++)
        CHECK_NEAR(kept[i], theirs[i], 0.02);
    free_network(start);
    free_network(cuda);
    free_network(cpu);
}

AMP_TEST(it_trains_as_the_cpu_backend)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        check_like_cpu("amp_dtype=fp32\n", layers, 1, 0x1p-12);
        check_like_cpu("amp_dtype=fp32\n", layers, 3, 0x1p-8);
        check_like_cpu("", layers, 1, 0.25);
        check_like_cpu("amp_dtype=bf16\n", layers, 1, 0.5);
        check_like_cpu("adam=1\namp_dtype=fp32\n", layers, 1, 0x1p-8);
    }
}

/* Frozen at the bottom, and in the middle with gradients that pass. */
#define FROZEN                                                                                     \
    CONV(8, NORMALIZED "freeze=1\n")                                                               \
    "[maxpool]\nsize=2\nstride=2\n" CONV(8, NORMALIZED) CONV(8, NORMALIZED "freeze=1\n")           \
        CONV(8, "freeze=1\n") DECONV(8, NORMALIZED "freeze=1\n") LOCAL_LAYER(8, "freeze=1\n")      \
            LOCAL_LAYER(8, "") DECONV(8, NORMALIZED) YOLO("0,1")

/* Running statistics as of a network that was trained. */
static network *train_frozen(const char *keys, int n)
{
    network *net = parse(keys, FROZEN);
    for (int i = 0; i < net->n; i++)
        for (int k = 0; net->layers[i].rolling_variance && k < net->layers[i].out_c; k++)
            net->layers[i].rolling_variance[k] = .1f;
    steps(net, n);
    return net;
}

AMP_TEST(frozen_layers_are_as_on_the_cpu)
{
    static const struct {
        const char *dtype;
        int steps;
        double tolerance;
    } runs[] = {{"amp_dtype=fp32\n", 1, 0x1p-12}, {"amp_dtype=fp32\n", 3, 0x1p-8}, {"", 1, .25}};
    network *start = train_frozen("", 0);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char keys[200];
        struct kept a[256], from[256];
        snprintf(keys, sizeof keys, ON_CUDA "loss_scale=64\n%s", runs[i].dtype);
        network *cuda = train_frozen(keys, runs[i].steps);
        snprintf(keys, sizeof keys, ON_CPU "loss_scale=64\n%s", runs[i].dtype);
        network *cpu = train_frozen(keys, runs[i].steps);
        check_movement(cuda, cpu, start, runs[i].tolerance);
        int n = list_kept(cuda, a);
        REQUIRE(list_kept(start, from) == n);
        for (int k = 0; k < n; k++) {
            int layer = a[k].layer;
            bool frozen = layer == 0 || (layer >= 3 && layer <= 6);
            bool same = !memcmp(a[k].x, from[k].x, a[k].n * sizeof *a[k].x);
            if (same != frozen && (frozen || a[k].n > 8))
                TEST_FAIL("%s of layer %d: %s", a[k].what, layer,
                          frozen ? "changed" : "not trained");
        }
        free_network(cuda);
        free_network(cpu);
    }
    free_network(start);
}

/* Scales that change, a step that is skipped, inference between the steps. */
static network *train_with_changes(const char *layers)
{
    network *net = parse(ON_CUDA "loss_scale_init=16777216\n", layers);
    steps(net, 3);
    bad_step(net);
    predict(net);
    steps(net, 2);
    CHECK(amp_session_of(net->layers)->step.scaler.redone > 0);
    return net;
}

/* Layers that backward computes again: the bytes of a run that keeps all. */
static void check_recomputed(const char *keys, const char *layers, int n)
{
    network *net = parse(keys, with_checkpoints(layers)), *kept = parse(keys, layers);
    steps(net, n);
    steps(kept, n);
    CHECK(amp_session_of(net->layers)->plan->n_recomputed > 3);
    CHECK_SAME(net, kept);
    free_network(net);
    free_network(kept);
}

/* With a variable of the environment set: as the CPU backend does, and recorded as not. */
static void train_set(const char *variable, const char *setting, const char *layers)
{
    const char *set = getenv(variable);
    char *kept = set ? strdup(set) : NULL;
    setenv(variable, setting, 1);
    check_like_cpu("", layers, 1, 0.25);
    network *recorded = train_with_changes(layers);
    emulation_allow_recordings(false);
    network *plain = train_with_changes(layers);
    emulation_allow_recordings(true);
    CHECK_SAME(recorded, plain);
    free_network(recorded);
    free_network(plain);
    if (kept)
        setenv(variable, kept, 1);
    else
        unsetenv(variable);
    free(kept);
}

/* A first layer that our kernel can compute. */
#define OF_IMAGES CONV(16, NORMALIZED) CONV(24, NORMALIZED "stride=2\n") YOLO("0,1")

/* How many forward passes the library computes. */
static size_t train_images(const char *setting)
{
    size_t before = tensor_core_host_forward();
    train_set("AMPK_CUDA_IMAGE_FORWARD", setting, OF_IMAGES);
    return tensor_core_host_forward() - before;
}

AMP_TEST(it_trains_with_images_by_a_kernel)
{
    CHECK(train_images("") + 10 < train_images("0"));
}

/* ---- a first layer whose backward is one kernel's ---- */

#define BEFORE_CONVOLUTION CONV(16, NORMALIZED) CONV(8, NORMALIZED) YOLO("0,1")
#define BEFORE_POOL                                                                                \
    CONV(32, NORMALIZED) "[maxpool]\nsize=2\nstride=2\n" CONV(8, NORMALIZED) YOLO("0,1")

static const char IMAGE_GRADIENT[] = "AMPK_CUDA_IMAGE_GRADIENT";

static const char *const first_layers[] = {BEFORE_CONVOLUTION, BEFORE_POOL};

static bool fuses_weight_gradient(const network *net, int layer)
{
    return amp_session_of(net->layers)->graph->nodes[layer].fuses_weight_gradient;
}

static network *train_first(const char *setting, const char *more, const char *layers)
{
    setenv(IMAGE_GRADIENT, setting, 1);
    network *net = train(ON_CUDA, more, layers, 1);
    for (int i = 0; i < net->n; i++)
        CHECK_INT(fuses_weight_gradient(net, i), i == 0 && setting[0] == '1');
    return net;
}

/* Every word of a first pass, before an update, but that of the first weight gradient. */
static void read_words(const char *setting, const char *layers, uint32_t words[16][AMP_WATCHES])
{
    setenv(IMAGE_GRADIENT, setting, 1);
    network *net = parse(ON_CUDA "loss_scale=64\n", layers);
    net->subdivisions = 2;
    pass(net);
    const struct amp_graph *g = amp_session_of(net->layers)->graph;
    REQUIRE(g->n <= 16);
    memset(words, 0, 16 * sizeof *words);
    g->backend->read(g->context, words, g->watch, (size_t)g->n * sizeof *g->watch);
    CHECK(words[0][AMP_WATCH_DW] > 0);
    words[0][AMP_WATCH_DW] = 0;
    free_network(net);
}

static void check_same_words(const char *layers)
{
    uint32_t one[16][AMP_WATCHES], two[16][AMP_WATCHES];
    read_words("1", layers, one);
    read_words("0", layers, two);
    CHECK(!memcmp(one, two, sizeof one));
    CHECK(one[0][AMP_WATCH_DY] > 0 && one[0][AMP_WATCH_DBIAS] > 0);
}

/* Weight gradients of 4 * 16 * 16 products in FP32, in another order: 258 roundings of 2^-24 of the
 * sum of their magnitudes, which is no more than 32 times the largest gradient; in two passes. */
#define IN_ANOTHER_ORDER 0x1p-10

/* The same numbers are multiplied: all but the weights of the first layer is the same to the bit.
 */
static void check_first_layer(const network *one, const network *two, const network *start)
{
    struct kept a[256], b[256];
    int n = list_kept(one, a);
    REQUIRE(list_kept(two, b) == n);
    check_movement(one, two, start, IN_ANOTHER_ORDER);
    for (int i = 0; i < n; i++) {
        bool same = !memcmp(a[i].x, b[i].x, a[i].n * sizeof(float));
        bool weights = a[i].layer == 0 && a[i].n == (size_t)one->layers[0].nweights;
        if (!same && !weights) TEST_FAIL("%s of layer %d differ", a[i].what, a[i].layer);
    }
    CHECK(*one->cost == *two->cost);
}

AMP_TEST(it_trains_with_a_first_layer_whose_backward_is_one_kernel)
{
    for (int nth = 0; nth < 2; nth++) {
        const char *layers = first_layers[nth];
        network *start = parse("", layers);
        network *one = train_first("1", "", layers), *two = train_first("0", "", layers);
        check_first_layer(one, two, start);
        check_same_words(layers);
        network *recorded, *plain;
        setenv(IMAGE_GRADIENT, "1", 1);
        recorded = train_with_changes(layers);
        emulation_allow_recordings(false);
        plain = train_with_changes(layers);
        emulation_allow_recordings(true);
        CHECK_SAME(recorded, plain);
        network *nets[] = {start, one, two, recorded, plain};
        for (int i = 0; i < 5; i++)
            free_network(nets[i]);
    }
    unsetenv(IMAGE_GRADIENT);
}

AMP_TEST(a_first_layer_of_another_type_keeps_its_kernels)
{
    setenv(IMAGE_GRADIENT, "1", 1);
    network *net = train(ON_CUDA, "amp_dtype=fp32\n", BEFORE_POOL, 1);
    CHECK(!fuses_weight_gradient(net, 0));
    free_network(net);
    unsetenv(IMAGE_GRADIENT);
}

/* What was seen of a pass, in order. */
struct sight {
    struct amp_seen seen[64];
    int n;
};

static void keep_sight(const struct amp_seen *seen, void *user)
{
    struct sight *s = user;
    REQUIRE(s->n < 64);
    float *values = malloc(seen->n * sizeof *values);
    REQUIRE(values != NULL);
    memcpy(values, seen->values, seen->n * sizeof *values);
    s->seen[s->n] = *seen;
    s->seen[s->n++].values = values;
}

static struct sight look(const char *setting, const char *layers)
{
    struct sight s = {.n = 0};
    struct amp_pass pass;
    setenv(IMAGE_GRADIENT, setting, 1);
    network *net = parse(ON_CUDA "loss_scale=64\nsubdivisions=1\n", layers);
    load_images(net, 3);
    amp_pass(net, keep_sight, &s, &pass);
    CHECK(pass.clean && pass.redone == 0);
    CHECK_INT(fuses_weight_gradient(net, 0), setting[0] == '1');
    free_network(net);
    return s;
}

static void check_same_sight(const struct sight *a, const struct sight *b)
{
    REQUIRE(a->n == b->n && a->n > 6);
    for (int i = 0; i < a->n; i++) {
        const struct amp_seen *x = &a->seen[i], *y = &b->seen[i];
        REQUIRE(x->layer == y->layer && x->what == y->what && x->n == y->n);
        CHECK_STR(x->format, y->format);
        double most = 0, apart = 0;
        for (size_t k = 0; k < x->n; k++) {
            most = fmax(most, fabs((double)y->values[k]));
            apart = fmax(apart, fabs((double)x->values[k] - y->values[k]));
        }
        bool first = x->layer == 0 && x->what == AMP_SEEN_GRADIENT;
        if (apart > (first ? IN_ANOTHER_ORDER * most : 0))
            TEST_FAIL("layer %d, %d: %.3g apart of %.3g", x->layer, x->what, apart, most);
    }
}

AMP_TEST(who_looks_sees_what_is_seen_of_kernels_one_by_one)
{
    for (int nth = 0; nth < 2; nth++) {
        const char *layers = first_layers[nth];
        struct sight one = look("1", layers), two = look("0", layers);
        check_same_sight(&one, &two);
        for (int i = 0; i < one.n; i++) {
            free((float *)one.seen[i].values);
            free((float *)two.seen[i].values);
        }
    }
    unsetenv(IMAGE_GRADIENT);
}

#define SEVERAL                                                                                    \
    CONV(8, NORMALIZED)                                                                            \
    CONV(16, NORMALIZED "stride=2\n")                                                              \
    CONV(32, NORMALIZED)                                                                           \
    "[convolutional]\nsize=1\nfilters=24\nactivation=relu\n" NORMALIZED CONV(                      \
        40, NORMALIZED) "[convolutional]\nsize=1\nfilters=48\nactivation=linear\n" NORMALIZED      \
        YOLO("0,1")

/* Layers that are logged, or looked at, change no bit of what is trained. */
AMP_TEST(logging_layers_changes_nothing)
{
    char path[] = "/tmp/amp-log-XXXXXX", keys[100];
    int file = mkstemp(path);
    REQUIRE(file >= 0);
    close(file);
    network *nets[2];
    for (int logged = 0; logged < 2; logged++) {
        snprintf(keys, sizeof keys, "amp_log=%s\namp_log_layers=%d\n", path, logged);
        nets[logged] = train(ON_CUDA, keys, SEVERAL, 3);
    }
    CHECK_SAME(nets[0], nets[1]);
    free_network(nets[0]);
    free_network(nets[1]);
    unlink(path);
}

/* Of a dropout that drops nothing the route must copy what otherwise the upsample has written
 * there. */
AMP_TEST(a_slice_of_a_route_changes_nothing)
{
    char copied[4096];
    static const char layers[] = DETECTOR;
    const char *route = strstr(layers, "[route]");
    snprintf(copied, sizeof copied, "%.*s[dropout]\nprobability=0\n%s", (int)(route - layers),
             layers, route);
    network *net = train(ON_CUDA, "", layers, 1), *apart = train(ON_CUDA, "", copied, 1);
    CHECK_INT(amp_session_of(net->layers)->plan->layers[8].route, 9);
    CHECK_INT(amp_session_of(apart->layers)->plan->layers[8].route, -1);
    check_movement(net, apart, apart, 0);
    CHECK(*net->cost == *apart->cost);
    free_network(net);
    free_network(apart);
}

static int segments_of(const char *layers)
{
    network *net = train(ON_CUDA, "", layers, 1);
    const struct amp_graph *g = amp_session_of(net->layers)->graph;
    int n = g->n_segments;
    for (int i = 0; i < n; i++)
        CHECK(g->segments[i].first <= g->segments[i].last);
    free_network(net);
    return n;
}

AMP_TEST(layers_of_ours_run_in_one_go)
{
    CHECK_INT(segments_of(DETECTOR), 1);
    CHECK_INT(segments_of(CLASSIFIER), 2); /* before the dropout and after it */
}

AMP_TEST(what_is_recorded_is_what_runs_layer_by_layer)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        size_t before = emulation_replays();
        network *recorded = train_with_changes(layers);
        CHECK(emulation_replays() > before + 4);
        before = emulation_replays();
        emulation_allow_recordings(false);
        network *plain = train_with_changes(layers);
        emulation_allow_recordings(true);
        CHECK_INT(emulation_replays(), before);
        CHECK_SAME(recorded, plain);
        free_network(recorded);
        free_network(plain);
    }
}

AMP_TEST(a_skipped_step_leaves_no_trace)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = train(ON_CUDA, "", layers, 1), *without = train(ON_CUDA, "", layers, 1);
        bad_step(net);
        CHECK_INT(amp_session_of(net->layers)->step.scaler.skipped, 1);
        CHECK_SAME(net, without);
        free_network(net);
        free_network(without);
    }
}

AMP_TEST(an_overflow_is_found_and_the_pass_redone)
{
    network *net = parse(ON_CUDA "loss_scale_init=16777216\n", DETECTOR);
    steps(net, 2);
    const struct amp_scaler *scaler = &amp_session_of(net->layers)->step.scaler;
    CHECK(scaler->redone > 0);
    CHECK(scaler->scale < 16777216);
    free_network(net);
}

AMP_TEST(what_backward_computes_again_leaves_the_same_bytes)
{
    check_recomputed(ON_CUDA "loss_scale_init=32768\n", DETECTOR, 1); /* passes are redone */
    check_recomputed(ON_CUDA "loss_scale=64\n", CLASSIFIER, 1);
    check_recomputed(ON_CUDA "loss_scale=64\n", SEVERAL, 1);
}

AMP_TEST(layers_without_tensor_cores_are_named_once)
{
    char text[4096] = "", later[4096] = "";
    static const char *const said = "without Tensor Cores (this is the emulation): layer 0, 2, 3,";
    struct capture printed = capture_begin(2);
    network *net = train(ON_CUDA, "", DETECTOR, 1);
    resize_network(net, 32, 32);
    steps(net, 1);
    free_network(net);
    capture_end(printed, text, sizeof text);
    const char *line = strstr(text, said);
    CHECK(line && !strstr(line + 1, said));
    printed = capture_begin(2);
    free_network(train(ON_CUDA, "amp_dtype=fp32\n", DETECTOR, 1));
    capture_end(printed, later, sizeof later);
    CHECK(!strstr(later, "without Tensor Cores"));
}

AMP_TEST(a_network_changes_its_size_and_batch)
{
    network *net = train(ON_CUDA, "", DETECTOR, 1);
    resize_network(net, 32, 32);
    steps(net, 1);
    predict(net);
    resize_network(net, 16, 16);
    steps(net, 1);
    CHECK_INT(amp_session_of(net->layers)->step.scaler.applied, 3);
    free_network(net);
}

AMP_TEST_MAIN
