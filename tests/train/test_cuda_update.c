/* Weights of convolutions that are updated and packed at once, by the gradients that convolutions
 * keep: training with the CUDA backend, on the emulation, gives the bits of one that does it step
 * by step, and what was packed is not packed again. The norm of these gradients comes with the
 * words that a step reads anyway. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"
#include "plugin/core/engine/tensors.h"
#include "plugin/core/engine/kept.h"
#include "tests/emulation/emulation.h"

#include <math.h>

#define ON_CUDA    MIXED "amp_backend=cuda\nbatch=2\nwidth=8\nheight=12\n"
#define ONE_PASS   "subdivisions=1\n"
#define TWO_PASSES "subdivisions=2\n"
#define FIXED      "loss_scale=64\n"

/* Gradients of 1x1 convolutions are FP32 in the emulation, too; the first two learn nothing. */
#define FROZEN                                                                                     \
    CONV(8, NORMALIZED)                                                                            \
    CONV(12, "stopbackward=1\n")                                                                   \
    "[convolutional]\nsize=1\nfilters=9\nactivation=relu\n" CONV(8, NORMALIZED) YOLO("0,1")

static const char *const nets[] = {CLASSIFIER, FROZEN};
static const char *const kinds[] = {ONE_PASS,
                                    TWO_PASSES,
                                    ONE_PASS "adam=1\n",
                                    TWO_PASSES "adam=1\n",
                                    ONE_PASS "optimizer=adamw\nema_alpha=0.9\n",
                                    TWO_PASSES "optimizer=lamb\n",
                                    ONE_PASS "optimizer=lars\nclip_grad_value=0.01\n"};
#define NEVER_CLIPS "clip_grad_norm=1000000\n"
#define CLIPS       "clip_grad_norm=0.1\n"

#define ON_ALL(list, each)                                                                         \
    for (size_t each##_i = 0; each##_i < sizeof list / sizeof *list && (each = list[each##_i]);    \
         each##_i++)

/* ---- the backend, with and without ---- */

extern const struct ampk_backend ampk_cuda;

static size_t packed, updated, reads, allocated; /* calls, and bytes */

static void count_packed(struct ampk_context *c, const struct ampk_new_weights *list, int count)
{
    packed++;
    ampk_cuda.conv_set_weights(c, list, count);
}

static void count_updates(struct ampk_context *c, const struct ampk_rule *rule,
                          const struct ampk_weight_update *list, int count)
{
    updated++;
    ampk_cuda.conv_update(c, rule, list, count);
}

static void count_reads(struct ampk_context *c, void *host, const void *src, size_t bytes)
{
    reads++;
    ampk_cuda.read(c, host, src, bytes);
}

static void *count_allocated(struct ampk_context *c, size_t bytes)
{
    allocated += bytes;
    return ampk_cuda.alloc(c, bytes);
}

static network *parse_way(const char *keys, const char *layers, bool at_once)
{
    static struct ampk_backend backends[2];
    struct ampk_backend *backend = &backends[at_once];
    char all[300];
    snprintf(all, sizeof all, ON_CUDA "%s%s", strstr(keys, "loss_scale") ? "" : FIXED, keys);
    network *net = parse(all, layers);
    struct amp_session *s = amp_session_of(net->layers);
    CHECK(s->backend == &ampk_cuda);
    *backend = ampk_cuda;
    backend->conv_set_weights = count_packed;
    backend->conv_update = at_once ? count_updates : NULL;
    if (!at_once) backend->conv_gradient_squares = NULL;
    backend->alloc = count_allocated;
    backend->read = count_reads;
    s->backend = backend;
    s->sees_writes = true; /* as on a device */
    packed = updated = allocated = 0;
    return net;
}

static struct amp_graph *graph_of(const network *net)
{
    return amp_session_of(net->layers)->graph;
}

/* ---- training ---- */

/* The last pass of it has an image that is not finite. */
static void spoilt_step(network *net)
{
    for (int i = 1; i <= net->subdivisions; i++) {
        load_images(net, (unsigned)*net->seen);
        if (i == net->subdivisions) net->input[0] = NAN;
        train_network_datum(net);
    }
}

/* A step that is skipped, inference, an update without a pass, another size. */
static network *train(const char *keys, const char *layers, bool at_once)
{
    network *net = parse_way(keys, layers, at_once);
    steps(net, 2);
    spoilt_step(net);
    steps(net, 1);
    predict(net);
    steps(net, 1);
    update_network(net);
    if (layers != nets[0]) resize_network(net, 16, 16); /* connected layers cannot */
    steps(net, 1);
    CHECK_INT(amp_session_of(net->layers)->step.scaler.applied, 6);
    CHECK_INT(amp_session_of(net->layers)->step.scaler.skipped, 1);
    CHECK_INT(updated, at_once ? 6 : 0);
    return net;
}

static void check_both_ways(const char *keys, const char *layers)
{
    network *net = train(keys, layers, true), *other = train(keys, layers, false);
    CHECK_SAME(net, other);
    free_network(net);
    free_network(other);
}

AMP_TEST(weights_are_those_of_updates_step_by_step)
{
    const char *layers, *keys;
    ON_ALL(kinds, keys)
    check_both_ways(keys, DETECTOR);
    ON_ALL(nets, layers)
    check_both_ways(ONE_PASS, layers);
    check_both_ways(TWO_PASSES "adam=1\n", FROZEN);
}

AMP_TEST(every_dtype_is_the_same)
{
    check_both_ways(ONE_PASS "amp_dtype=bf16\n", FROZEN);
    check_both_ways(ONE_PASS "amp_dtype=tf32\n", FROZEN);
}

/* The scale is searched: backward runs again, with other gradients in the same places. */
AMP_TEST(a_pass_that_is_redone_counts_once)
{
    network *net[2];
    for (int i = 0; i < 2; i++) {
        net[i] = parse_way(ONE_PASS "loss_scale_init=16777216\n", DETECTOR, i);
        steps(net[i], 2);
        CHECK(amp_session_of(net[i]->layers)->step.scaler.redone > 0);
    }
    CHECK_SAME(net[1], net[0]);
    free_network(net[0]);
    free_network(net[1]);
}

AMP_TEST(a_run_goes_on_from_its_files)
{
    char path[PATH_MAX];
    network *straight = parse_way(ONE_PASS, DETECTOR, false);
    steps(straight, 4);
    network *stopped = parse_way(ONE_PASS, DETECTOR, true);
    steps(stopped, 2);
    snprintf(path, sizeof path, "%s", scratch("a.backup"));
    save_weights(stopped, path);
    steps(stopped, 2); /* saving leaves no trace */
    CHECK_SAME(stopped, straight);
    network *resumed = parse_way(ONE_PASS, DETECTOR, true);
    load_weights(resumed, path);
    steps(resumed, 2);
    CHECK_SAME(resumed, straight);
    free_network(straight);
    free_network(stopped);
    free_network(resumed);
}

/* ---- what is packed when ---- */

static void check_packed_once(const char *keys)
{
    network *net = parse_way(keys, DETECTOR, true);
    steps(net, 3);
    CHECK_INT(packed, 1);
    spoilt_step(net);
    steps(net, 2);
    CHECK_INT(packed, 2);
    /* At another batch it packs for a graph of its own. So that it is told of weights the pass
     * after it packs too. */
    predict(net);
    steps(net, 2);
    CHECK_INT(packed, net->batch == 1 ? 3 : 4);
    free_network(net);
}

AMP_TEST(weights_are_packed_once)
{
    static const char *const clips[] = {ONE_PASS CLIPS "ema_alpha=0.99\n", TWO_PASSES CLIPS};
    const char *keys;
    ON_ALL(kinds, keys)
    check_packed_once(keys);
    ON_ALL(clips, keys)
    check_packed_once(keys);
}

static void scale_weights(network *net)
{
    struct kept list[256];
    int n = list_kept(net, list);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; !strcmp(list[i].what, "weights") && k < list[i].n; k++)
            list[i].x[k] *= .9f;
}

/* told: by who sees writes to masters; else anybody may have written. */
static void check_written(bool told)
{
    network *net = parse_way(ONE_PASS, DETECTOR, true);
    network *other = parse_way(ONE_PASS, DETECTOR, false);
    struct amp_session *s = amp_session_of(net->layers);
    s->sees_writes = told;
    amp_session_of(other->layers)->sees_writes = false;
    for (int i = 0; i < 3; i++) {
        steps(net, 1);
        steps(other, 1);
        scale_weights(net);
        scale_weights(other);
        s->written = told;
    }
    steps(net, 1);
    steps(other, 1);
    CHECK_SAME(net, other);
    free_network(net);
    free_network(other);
}

AMP_TEST(weights_that_others_wrote_are_packed_anew)
{
    check_written(true);
    check_written(false);
}

/* What the update says of the weights is judged with the next pass, as where they are packed there.
 */
AMP_TEST(weights_that_do_not_fit_are_found)
{
    for (int at_once = 0; at_once < 2; at_once++) {
        network *net = parse_way(ONE_PASS, DETECTOR, at_once);
        struct amp_session *s = amp_session_of(net->layers);
        steps(net, 1);
        s->net->layers[2].weight_updates[3] = 1e9f;
        steps(net, 1);
        CHECK_INT(s->step.scaler.skipped, 0);
        CHECK(fabsf(net->layers[2].weights[3]) > 65520);
        steps(net, 1);
        CHECK_INT(s->step.scaler.skipped, 1);
        CHECK_INT(s->step.fault.tensor, AMP_WATCH_WEIGHTS);
        CHECK_INT(s->step.fault.layer, 2);
        free_network(net);
    }
}

/* ---- gradients ---- */

AMP_TEST(one_pass_takes_no_memory_for_gradients_of_convolutions)
{
    network *net = parse_way(ONE_PASS, DETECTOR, false);
    steps(net, 1);
    size_t apart = allocated, arrays = graph_of(net)->n_gradients - graph_of(net)->n_flat;
    CHECK(arrays > 1000);
    free_network(net);
    for (int clips = 0; clips < 2; clips++) {
        net = parse_way(clips ? ONE_PASS CLIPS : ONE_PASS, DETECTOR, true);
        steps(net, 1);
        CHECK_INT(apart - allocated, arrays * sizeof(float));
        free_network(net);
    }
}

/* ---- the norm ---- */

/* Both are sums of a few thousand squares in FP32, in another order. */
static void check_norms(network *net, network *other)
{
    double norm = amp_graph_grad_norm(graph_of(net)), apart = amp_graph_grad_norm(graph_of(other));
    CHECK(apart > 0 && !graph_of(other)->squares && graph_of(net)->squares);
    CHECK_NEAR(norm, apart, apart * 0x1p-18);
}

/* Beside the operation that reads all gradients for it, after each of some steps. */
static void follow_norms(const char *keys, const char *layers)
{
    network *net = parse_way(keys, layers, true), *other = parse_way(keys, layers, false);
    int applied = 0;
    for (int i = 0; i < 6; i++) {
        if (i == 3) spoilt_step(net), spoilt_step(other);
        if (i == 4) predict(net), predict(other);
        if (i == 5 && layers != nets[0]) resize_network(net, 16, 16), resize_network(other, 16, 16);
        steps(net, 1);
        steps(other, 1);
        if (!amp_session_of(net->layers)->step.applying) continue;
        check_norms(net, other);
        applied++;
    }
    CHECK(applied > 2);
    CHECK_SAME(net, other);
    amp_graph_clear_gradients(graph_of(net));
    CHECK_NEAR(amp_graph_grad_norm(graph_of(net)), 0, 0);
    free_network(net);
    free_network(other);
}

AMP_TEST(the_norm_is_of_all_gradients)
{
    static const char *const more[] = {"", "amp_dtype=bf16\n", "amp_dtype=fp32\n",
                                       "optimizer=lamb\n", "loss_scale_init=16777216\n"};
    const char *layers, *keys;
    ON_ALL(nets, layers)
    ON_ALL(more, keys)
    {
        char all[200];
        snprintf(all, sizeof all, ONE_PASS NEVER_CLIPS "%s", keys);
        follow_norms(all, layers);
        snprintf(all, sizeof all, TWO_PASSES NEVER_CLIPS "%s", keys);
        follow_norms(all, layers);
    }
}

/* A run that begins in the middle of a step, as one may that was saved there: this step has one
 * pass and no sums yet. Once before anything is recorded, and once after it. */
AMP_TEST(the_norm_of_half_a_step)
{
    network *net = parse_way(TWO_PASSES NEVER_CLIPS, DETECTOR, true);
    network *other = parse_way(TWO_PASSES NEVER_CLIPS, DETECTOR, false);
    int64_t applied = 0;
    for (int i = 0; i < 10; i++) {
        if (i % 9 == 0) *net->seen += (size_t)net->batch, *other->seen += (size_t)net->batch;
        pass(net);
        pass(other);
        if (amp_session_of(net->layers)->step.scaler.applied == applied) continue;
        applied++;
        check_norms(net, other);
    }
    CHECK_INT(applied, 6);
    CHECK_SAME(net, other);
    free_network(net);
    free_network(other);
}

AMP_TEST(clipping_goes_by_the_norm)
{
    static const char *const keys[] = {ONE_PASS CLIPS "ema_alpha=0.99\n", TWO_PASSES CLIPS,
                                       TWO_PASSES CLIPS "optimizer=lamb\n",
                                       ONE_PASS CLIPS "adam=1\n"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        network *net = parse_way(keys[i], DETECTOR, true);
        network *other = parse_way(keys[i], DETECTOR, false);
        steps(net, 3);
        steps(other, 3);
        CHECK(amp_session_of(net->layers)->kept->counts.clipped > 0);
        CHECK_INT(amp_session_of(net->layers)->kept->counts.clipped,
                  amp_session_of(other->layers)->kept->counts.clipped);
        check_distance(net, other, "weights", 1e-4);
        free_network(net);
        free_network(other);
    }
}

AMP_TEST(clipping_does_not_see_the_loss_scale)
{
    static const char *const keys[] = {ONE_PASS, TWO_PASSES};
    for (int i = 0; i < 2; i++) {
        network *net[2];
        for (int large = 0; large < 2; large++) {
            char all[200];
            int scale = large ? 65536 : 16;
            snprintf(all, sizeof all, "%s" CLIPS "loss_scale=%d\n", keys[i], scale);
            net[large] = parse_way(all, everywhere(DETECTOR, "mixed_precision=0"), true);
            steps(net[large], 3);
            CHECK_NEAR(amp_session_of(net[large]->layers)->step.scaler.scale, scale, 0);
        }
        CHECK(amp_session_of(net[0]->layers)->kept->counts.clipped > 0);
        CHECK_SAME(net[0], net[1]);
        free_network(net[0]);
        free_network(net[1]);
    }
}

/* Of one step, when plans are chosen and what can be recorded is: kernels of ours, transfers to the
 * host, recordings played. */
struct cost {
    size_t kernels, reads, replays;
};

static struct cost cost_of(const char *keys)
{
    network *net = parse_way(keys, DETECTOR, true);
    steps(net, 6);
    struct cost before = {emulation_launches(), reads, emulation_replays()};
    steps(net, 1);
    struct cost c = {emulation_launches() - before.kernels, reads - before.reads,
                     emulation_replays() - before.replays};
    free_network(net);
    return c;
}

/* The norm costs a step one kernel, which adds up what the blocks have summed, and no transfer.
 * Biases and scales are squared by the kernel that watches FP32 gradients. */
AMP_TEST(a_norm_costs_one_kernel_and_no_transfer)
{
    static const char *const passes[] = {ONE_PASS, TWO_PASSES};
    for (int i = 0; i < 2; i++) {
        char clips[100];
        snprintf(clips, sizeof clips, "%s" CLIPS, passes[i]);
        struct cost plain = cost_of(passes[i]), clipped = cost_of(clips);
        /* Two a pass: Darknet without a GPU wants the losses' costs after forward already. */
        CHECK_INT(plain.reads, 2 * (i + 1));
        CHECK_INT(clipped.reads, plain.reads);
        CHECK_INT(clipped.kernels, plain.kernels + 1);
        CHECK_INT(clipped.replays, plain.replays);
        CHECK(plain.replays > 0);
    }
}

static void take_seen(const struct amp_seen *seen, void *hash)
{
    const unsigned char *bytes = (const unsigned char *)seen->values;
    for (size_t i = 0; i < seen->n * sizeof *seen->values; i++)
        *(uint64_t *)hash = (*(uint64_t *)hash ^ bytes[i]) * 0x100000001b3u;
}

AMP_TEST(who_observes_sees_the_same)
{
    uint64_t hash[2] = {1, 1};
    for (int i = 0; i < 2; i++) {
        network *net = parse_way(ONE_PASS, FROZEN, i);
        struct amp_session *s = amp_session_of(net->layers);
        s->see = take_seen;
        s->see_user = &hash[i];
        steps(net, 2);
        free_network(net);
    }
    CHECK(hash[0] == hash[1] && hash[0] != 1);
}

AMP_TEST_MAIN
