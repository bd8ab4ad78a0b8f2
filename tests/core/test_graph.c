/* The executors and the plan's memory at work, without Darknet: replay, loss scale, faults, storage
 * formats, shared memory, backends. */
#include "graph_rig.h"

/* A backward pass may run again on the same forward, also after one that overflowed. */
static void check_replay(const char *cfg, const struct ampk_backend *backend, float scale)
{
    struct rig *r = make_with_mish(cfg, backend);
    rig_forward(r);
    struct result first = run_backward(r, scale), again = run_backward(r, scale);
    check_same(&again, 1, &first, "second backward");
    free_result(&again);
    rig_backward(r, INFINITY);
    CHECK_INT(amp_graph_fault(r->graph, true).class, AMP_FAULT_BACKWARD);
    again = run_backward(r, scale);
    check_same(&again, 1, &first, "backward after an overflow");
    free_result(&again);
    free_result(&first);
    rig_free(r);
    stop_at_failure(cfg);
}

AMP_TEST(a_replayed_backward_gives_the_same_gradients)
{
    for (int round = 0; round < 12; round++)
        for (int k = 0; k < N_BACKENDS; k++) {
            random_net(text, "mixed_precision=1", NET_EVERYTHING & ~NET_STOPBACKWARD, 12);
            check_replay(text, backends[k], 16);
        }
}

AMP_TEST(in_fp32_a_power_of_two_changes_nothing)
{
    for (int round = 0; round < 12; round++)
        for (int k = 0; k < N_BACKENDS; k++) {
            random_net(text, "mixed_precision=1\namp_dtype=fp32", NET_EVERYTHING, 12);
            struct rig *r = make_with_mish(text, backends[k]);
            uint64_t state = test_random_state;
            rig_forward(r);
            struct result one = run_backward(r, 1);
            for (int exponent = 1; exponent <= 24; exponent += 1 + random_below(8)) {
                test_random_state = state;
                rig_forward(r);
                struct result scaled = run_backward(r, ldexpf(1, exponent));
                check_same(&scaled, ldexp(1, exponent), &one, "scaled");
                free_result(&scaled);
            }
            free_result(&one);
            rig_free(r);
            stop_at_failure(text);
        }
}

/* Where watching a convolution's data gradient would cost, it is left to the sums: the same faults.
 */
AMP_TEST(faults_of_unwatched_deltas_are_the_same)
{
    static const char *const dtypes[] = {"fp16", "fp16", "bf16"};
    struct ampk_backend unwatched = ampk_cpu;
    unwatched.watching_costs = true;
    int faults = 0, unseen = 0;
    for (int round = 0; round < 40; round++) {
        char keys[100];
        snprintf(keys, sizeof keys, "mixed_precision=1\namp_dtype=%s", dtypes[round % 3]);
        random_net(text, keys, NET_EVERYTHING, 14);
        struct amp_fault found[2];
        for (int k = 0; k < 2; k++) {
            uint64_t state = test_random_state;
            struct rig *r = make(text, k ? &unwatched : &ampk_cpu);
            rig_forward(r);
            rig_backward(r, ldexpf(1, round % 3 == 2 ? 126 : 14 + round % 10));
            found[k] = amp_graph_fault(r->graph, true);
            for (int i = 0; k && i < r->net->n; i++) {
                int s = r->plan->layers[i].sources ? r->plan->layers[i].sources[0] : -1;
                unseen += s >= 0 && r->graph->nodes[i].conv &&
                          !amp_graph_conv_dx_watch(r->graph, i, &r->graph->nodes[s].delta);
            }
            rig_free(r);
            if (!k) test_random_state = state;
        }
        CHECK_INT(found[1].class, found[0].class);
        if (round % 3 < 2) { /* in BF16 the sum is told */
            CHECK_INT(found[1].layer, found[0].layer);
            CHECK_INT(found[1].tensor, found[0].tensor);
        }
        faults += found[0].class == AMP_FAULT_BACKWARD && found[0].tensor == AMP_WATCH_DELTA;
        stop_at_failure(text);
    }
    CHECK(faults > 5);
    CHECK(unseen > 20);
}

/* Makes the weights of a convolution before batch-norm as large as FP16 takes. */
static void enlarge_weights(struct rig *r)
{
    int start = random_below(r->net->n);
    for (int k = 0; k < r->net->n; k++) {
        const struct amp_node *node = &r->graph->nodes[(start + k) % r->net->n];
        if (!node->conv || !node->desc->batch_normalize) continue;
        float most = 0;
        for (size_t i = 0; i < node->weights->n; i++)
            most = fmaxf(most, fabsf(node->weights->value[i]));
        for (size_t i = 0; i < node->weights->n; i++)
            node->weights->value[i] *= 60000 / most;
        return;
    }
}

/* Where a convolution's output is watched by batch-norm: the same faults. */
AMP_TEST(faults_of_outputs_that_are_watched_late_are_the_same)
{
    struct ampk_backend late = ampk_cpu;
    late.watching_costs = true;
    int faults = 0;
    for (int round = 0; round < 40; round++) {
        random_net(text, "mixed_precision=1\namp_dtype=fp16", NET_EVERYTHING, 14);
        struct amp_fault found[2];
        uint64_t state = test_random_state;
        for (int k = 0; k < 2; k++) {
            test_random_state = state;
            struct rig *r = make(text, k ? &late : &ampk_cpu);
            enlarge_weights(r);
            rig_forward(r);
            found[k] = amp_graph_fault(r->graph, false);
            rig_free(r);
        }
        CHECK_INT(found[1].class, found[0].class);
        CHECK_INT(found[1].layer, found[0].layer);
        CHECK_INT(found[1].tensor, found[0].tensor);
        faults += found[0].class == AMP_FAULT_FORWARD && found[0].tensor == AMP_WATCH_Y;
        stop_at_failure(text);
    }
    CHECK(faults > 5);
}

/* Every layer forced to FP32 storage one by one is the same as amp_dtype=fp32. */
AMP_TEST(forcing_every_layer_to_fp32_is_the_fp32_plan)
{
    for (int round = 0; round < 5; round++) {
        random_net(text, "mixed_precision=1\namp_dtype=fp32", NET_BATCHNORM | NET_SHAPES, 8);
        char forced[2 * RANDOM_NET_SIZE] = "";
        size_t used = 0;
        for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
            size_t length = strcspn(line, "\n") + 1;
            if (!strncmp(line, "amp_dtype", 9)) continue;
            bool layer = line[0] == '[' && strncmp(line, "[net]", 5);
            used += (size_t)snprintf(forced + used, sizeof forced - used, "%.*s%s", (int)length,
                                     line, layer ? "mixed_precision=0\n" : "");
        }
        uint64_t state = test_random_state;
        struct rig *a = make(text, &ampk_cpu);
        test_random_state = state;
        struct rig *b = make(forced, &ampk_cpu);
        rig_forward(a);
        rig_forward(b);
        struct result x = run_backward(a, 1), y = run_backward(b, 1);
        check_same(&x, 1, &y, "forced");
        free_result(&x);
        free_result(&y);
        rig_free(a);
        rig_free(b);
        stop_at_failure(forced);
    }
}

/* ---- executors ---- */

/* Darknet's code would run such a layer, with tensors that are not Darknet's. */
AMP_TEST(a_layer_that_no_executor_runs_is_refused)
{
    struct rig *r = make(FP32_NET(8, CONV(4, 3, 1) "[lrn]\n[cost]\n"), &ampk_reference);
    r->plan->layers[1].ours = true;
    CHECK_INT(rig_make_graph(r, false), -1);
    CHECK_STR(r->err, "layer 1 (normalization): the plan has an executor for it, there is none");
    rig_free(r);
}

/* ---- memory ---- */

/* All buffers apart: nothing can overwrite anything. */
static void lay_out_apart(struct amp_plan *plan)
{
    size_t end = 0;
    for (int i = 0; i < plan->n_buffers; i++) {
        plan->buffers[i].offset = end;
        end += (plan->buffers[i].bytes + AMP_ARENA_ALIGN - 1) / AMP_ARENA_ALIGN * AMP_ARENA_ALIGN;
    }
    plan->arena_bytes = end;
}

/* Old contents must not matter; all bits set is NaN in every format. */
static void poison_arena(struct rig *r)
{
    memset(r->graph->arena, 0xff, r->plan->arena_bytes);
}

AMP_TEST(sharing_memory_changes_nothing)
{
    static const char *const keys[] = {"mixed_precision=1", "mixed_precision=1\namp_dtype=fp32"};
    for (int round = 0; round < 30; round++) {
        random_net(text, keys[round % 2], NET_EVERYTHING, random_from(4, 20));
        struct rig *r = make_with_mish(text, &ampk_cpu);
        for (int pass = 0; pass < 3; pass++) {
            poison_arena(r);
            rig_forward(r);
            if (pass < 2) rig_backward(r, 1);
        }
        struct result shared = run_backward(r, 1);
        double loss = r->loss;
        lay_out_apart(r->plan);
        REQUIRE(rig_make_graph(r, false) == 0);
        poison_arena(r);
        rig_forward(r);
        struct result apart = run_backward(r, 1);
        CHECK_NEAR(loss, r->loss, 0);
        check_same(&shared, 1, &apart, "shared memory");
        free_result(&shared);
        free_result(&apart);
        rig_free(r);
        stop_at_failure(text);
    }
}

/* Fewer buffers, the same outputs. */
AMP_TEST(the_inference_plan_gives_the_training_plans_outputs)
{
    for (int round = 0; round < 20; round++) {
        random_net(text, "mixed_precision=1", NET_EVERYTHING, 12);
        struct rig *r = make_with_mish(text, &ampk_cpu);
        int last = r->net->n - 2; /* before the cost layer: FP32 in Darknet's output */
        size_t n = (size_t)r->net->batch * (size_t)r->net->layers[last].outputs;
        float *output = malloc(n * sizeof *output);
        REQUIRE(output);
        for (int pass = 0; pass < 2; pass++) {
            poison_arena(r);
            amp_graph_begin(r->graph, r->input, NULL, false);
            for (int i = 0; i < r->net->n; i++)
                amp_graph_forward(r->graph, i);
            if (pass == 0) memcpy(output, r->bindings[last].output, n * sizeof *output);
            if (pass == 1) CHECK(!memcmp(output, r->bindings[last].output, n * sizeof *output));
            amp_plan_free(r->plan);
            r->plan = amp_plan_make(r->net, &r->options, amp_layers_ours(NULL), NULL, false, r->err,
                                    sizeof r->err);
            REQUIRE(r->plan && rig_make_graph(r, false) == 0);
        }
        free(output);
        rig_free(r);
        stop_at_failure(text);
    }
}

/* The words of an inference are its own: a training pass after it packs the weights again, and says
 * of weights that are not finite that they are what is wrong. Nobody has told the graph of them. */
AMP_TEST(weights_that_went_bad_before_an_inference_are_found_after_it)
{
    struct rig *r = NULL;
    int conv = -1;
    while (conv < 0) { /* some nets have no convolution that learns */
        if (r) rig_free(r);
        random_net(text, "mixed_precision=1", NET_EVERYTHING, 12);
        r = make(text, &ampk_cpu);
        rig_forward(r);
        CHECK_INT(amp_graph_fault(r->graph, false).class, AMP_FAULT_NONE);
        for (int i = 0; i < r->n_params && conv < 0; i++)
            if (r->params[i].kind == AMP_PARAM_WEIGHTS && r->graph->nodes[r->params[i].layer].conv)
                conv = i;
    }
    r->params[conv].value[0] = INFINITY;
    conv = r->params[conv].layer;
    for (int train = 0; train < 2; train++) {
        amp_graph_begin(r->graph, r->input, NULL, train);
        for (int i = 0; i < r->net->n; i++)
            amp_graph_forward(r->graph, i);
    }
    struct amp_fault fault = amp_graph_fault(r->graph, false);
    CHECK_INT(fault.class, AMP_FAULT_DIVERGED);
    CHECK_INT(fault.tensor, AMP_WATCH_WEIGHTS);
    CHECK_INT(fault.layer, conv);
    rig_free(r);
}

/* ---- the same net on two backends, or in two dtypes ---- */

struct twins {
    const char *keys;
    const struct ampk_backend *backend;
    double scale;
};

struct apart {
    double gradients, deltas; /* relative, see distance() */
};

static struct apart between(const struct result *ours, double scale, const struct result *exact)
{
    return (struct apart){gradients_apart(ours, scale, exact), deltas_apart(ours, scale, exact)};
}

/* How far a net is from itself when all that it stores is up to 2^-20 off: 16 roundings of FP32, as
 * a sum of 256 products comes to in another order. Batch-norm of values that hardly differ
 * magnifies that, and where it decides a kink the gradients are others. */
static struct apart rounding(struct rig *r, const struct result *exact)
{
    struct apart most = {0, 0};
    r->noise = 0x1p-20;
    for (r->noise_draw = 0; r->noise_draw < 4; r->noise_draw++) {
        uint64_t state = test_random_state;
        rig_forward(r);
        struct result disturbed = run_backward(r, 1);
        struct apart apart = between(&disturbed, 1, exact);
        most.gradients = fmax(most.gradients, apart.gradients);
        most.deltas = fmax(most.deltas, apart.deltas);
        free_result(&disturbed);
        test_random_state = state;
    }
    r->noise = 0;
    return most;
}

/* layers: a cfg with an empty line of keys. allowed: NULL, or gets what rounding may do. */
static struct apart run_twins(const char *layers, struct twins ours, struct twins exact,
                              struct apart *allowed)
{
    static char cfg[2][RANDOM_NET_SIZE + 200];
    const char *rest = strchr(layers, '\n') + 1; /* after [net] */
    uint64_t state = test_random_state;
    snprintf(cfg[0], sizeof cfg[0], "[net]\nmixed_precision=1\n%s\n%s", ours.keys, rest);
    snprintf(cfg[1], sizeof cfg[1], "[net]\nmixed_precision=1\n%s\n%s", exact.keys, rest);
    struct rig *a = make_with_mish(cfg[0], ours.backend);
    test_random_state = state;
    struct rig *b = make_with_mish(cfg[1], exact.backend);
    rig_settle(b, a);
    rig_forward(a);
    rig_forward(b);
    struct result x = run_backward(a, (float)ours.scale), y = run_backward(b, 1);
    CHECK_INT(amp_graph_fault(a->graph, true).class, AMP_FAULT_NONE);
    struct apart apart = between(&x, ours.scale, &y);
    if (allowed) *allowed = rounding(b, &y);
    free_result(&x);
    free_result(&y);
    rig_free(a);
    rig_free(b);
    stop_at_failure(cfg[0]);
    return apart;
}

/* 1e-4: sums of FP32 in another order, as nearly all nets magnify them; a lost contribution is 0.1
 * to 1. */
AMP_TEST(the_cpu_backend_gives_every_delta_of_the_reference)
{
    struct twins ours = {"amp_dtype=fp32", &ampk_cpu, 1},
                 exact = {"amp_dtype=fp32", &ampk_reference, 1};
    for (int round = 0; round < 20; round++) {
        draw_differentiable("", NET_EVERYTHING, 12);
        struct apart allowed, apart = run_twins(text, ours, exact, &allowed);
        CHECK_NEAR(apart.gradients, 0, fmax(1e-4, allowed.gradients));
        CHECK_NEAR(apart.deltas, 0, fmax(1e-4, allowed.deltas));
        stop_at_failure(text);
    }
}

/* The same tolerance in FP32. In FP16 rounding decides a kink otherwise now and then: deltas were
 * up to 0.08 apart in seven seeds. Finite differences judge the FP32 ones. */
AMP_TEST(grouped_routes_on_the_cpu_and_in_fp16)
{
    struct twins exact = {"amp_dtype=fp32", &ampk_reference, 1},
                 ours = {"amp_dtype=fp32", &ampk_cpu, 1}, fp16 = {"amp_dtype=fp16", &ampk_cpu, 8};
    for (int i = 0; i < GROUPED_NETS; i++) {
        struct apart apart = run_twins(grouped_nets[i], ours, exact, NULL);
        CHECK_NEAR(apart.gradients, 0, 1e-3);
        CHECK_NEAR(apart.deltas, 0, 1e-3);
        apart = run_twins(grouped_nets[i], fp16, exact, NULL);
        CHECK_NEAR(apart.gradients, 0, .2);
        CHECK_NEAR(apart.deltas, 0, .2);
        stop_at_failure(grouped_nets[i]);
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A single net may be far off, where rounding decides a kink of an early layer; most must not be.
 * unit: the dtype's rounding, 2^-11 or 2^-8. A net of a dozen layers comes out two of them off in
 * the median. */
static void check_dtype(const char *key, double unit, double scale)
{
    enum { ROUNDS = 60 };
    struct twins ours = {key, &ampk_cpu, scale}, exact = {"amp_dtype=fp32", &ampk_cpu, 1};
    double gradients[ROUNDS], deltas[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        draw_differentiable("", NET_EVERYTHING, 12);
        struct apart apart = run_twins(text, ours, exact, NULL);
        gradients[round] = apart.gradients;
        deltas[round] = apart.deltas;
    }
    qsort(gradients, ROUNDS, sizeof(double), ascending);
    qsort(deltas, ROUNDS, sizeof(double), ascending);
    CHECK_NEAR(gradients[ROUNDS / 2], 0, 4 * unit);
    CHECK_NEAR(deltas[ROUNDS / 2], 0, 8 * unit);
    CHECK_NEAR(gradients[ROUNDS * 8 / 10], 0, 32 * unit);
    CHECK_NEAR(deltas[ROUNDS * 8 / 10], 0, 64 * unit);
    CHECK(gradients[ROUNDS - 1] > 0); /* it did something */
}

AMP_TEST(fp16_is_close_to_fp32)
{
    check_dtype("amp_dtype=fp16", 0x1p-11, 8);
}

AMP_TEST(tf32_is_close_to_fp32)
{
    check_dtype("amp_dtype=tf32", 0x1p-11, 1);
}

AMP_TEST(bf16_is_close_to_fp32)
{
    check_dtype("amp_dtype=bf16", 0x1p-8, 1);
}

AMP_TEST_MAIN
