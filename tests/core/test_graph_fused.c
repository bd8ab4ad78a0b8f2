/* What the graph does in one call where it could do it in several: slices of routes, fused pools,
 * batch-norm with the first weight gradient. The results are the same. */
#include "graph_rig.h"

/* Layers before a route that the last of them write into; and the same nets with a dropout that
 * drops nothing in between, after which the route copies. */
#define DROP_NOTHING "[dropout]\nprobability=0\n"
#define POOL(size)   "[maxpool]\nstride=1\nsize=" #size "\n"
#define ELU          "[convolutional]\nbatch_normalize=1\nfilters=11\nactivation=elu\n"
#define INTO(before, layers)                                                                       \
    {                                                                                              \
        before "[route]\nlayers=" layers "\n", before DROP_NOTHING "[route]\nlayers=" layers "\n"  \
    }
// clang-format off
static const char *const into_routes[][2] = {
    INTO(CONV(8, 3, 1) "[maxpool]\nstride=2\n[upsample]\nscale=.7\n", "-1,0"),
    INTO(CONV(3, 3, 1) "[maxpool]\nstride=2\n[upsample]\n", "0,-1"),
    INTO(CONV(8, 3, 1) POOL(5), "-1,0"),
    INTO(CONV(8, 3, 1) CONV(5, 3, 1), "0,-1"),
    INTO(CONV(8, 3, 1) ELU, "-1,0"),
    INTO(CONV(8, 3, 1) CONV(8, 3, 2) "[route]\nlayers=0\n[reorg]\nstride=2\n", "-1,1"),
    INTO(CONV(8, 3, 1) CONV(16, 3, 1) "stopbackward=1\n[maxpool]\nsize=2\nstride=2\n[upsample]\n", "-1,1"),
    {CONV(8, 3, 1) POOL(5) "[route]\nlayers=0\n" POOL(3) "[route]\nlayers=-1,-3,0\n",
     CONV(8, 3, 1) POOL(5) DROP_NOTHING "[route]\nlayers=0\n" POOL(3) DROP_NOTHING
         "[route]\nlayers=-1,-4,0\n"},
};
// clang-format on
#define N_INTO_ROUTES (sizeof into_routes / sizeof *into_routes)

/* The gradients of the last layers' net with, or without, the dropout. */
static struct rig *run_into_route(const char *layers, const struct ampk_backend *backend,
                                  const char *dtype, int *slices)
{
    snprintf(text, sizeof text,
             "[net]\nmixed_precision=1\namp_dtype=%s\nbatch=3\nwidth=12\nheight=12\nchannels=3\n"
             "%s" CONV(7, 3, 1) "[cost]\n",
             dtype, layers);
    struct rig *r = make(text, backend);
    *slices = 0;
    for (int i = 0; i < r->net->n; i++)
        *slices += r->plan->layers[i].route >= 0;
    rig_forward(r);
    rig_backward(r, 8);
    return r;
}

AMP_TEST(a_slice_of_a_route_changes_nothing)
{
    static const char *const dtypes[] = {"fp16", "bf16", "fp32"};
    for (size_t i = 0; i < 3 * N_BACKENDS * N_INTO_ROUTES; i++) {
        const struct ampk_backend *backend = backends[i % N_BACKENDS];
        const char *dtype = dtypes[i / N_BACKENDS % 3];
        const char *const *layers = into_routes[i / N_BACKENDS / 3];
        uint64_t state = test_random_state;
        int slices, copied;
        struct rig *a = run_into_route(layers[0], backend, dtype, &slices);
        test_random_state = state;
        struct rig *b = run_into_route(layers[1], backend, dtype, &copied);
        CHECK(slices > copied);
        CHECK(a->loss == b->loss);
        REQUIRE(a->graph->n_gradients == b->graph->n_gradients);
        CHECK(!memcmp(a->graph->gradients, b->graph->gradients,
                      a->graph->n_gradients * sizeof(float)));
        rig_free(a);
        rig_free(b);
        stop_at_failure(text);
    }
}

/* ---- fused pools ---- */

#define POOLED(size, between)                                                                      \
    "[net]\nmixed_precision=1\nbatch=3\nchannels=4\nwidth=" #size "\nheight=" #size                \
    "\n" CONV(20, 3, 1) between HALVE CONV(9, 3, 1) between HALVE CONV(3, 3, 1) "[cost]\n"
#define NOTHING_DROPPED "[dropout]\nprobability=0\n"

/* What a pool makes does not depend on whether the convolution before it does it: a dropout that
 * drops nothing stands between them. On the CPU batch-norm's sums are in another order. */
AMP_TEST(a_fused_pool_is_the_pool)
{
    static const char *const nets[][2] = {{POOLED(8, ""), POOLED(8, NOTHING_DROPPED)},
                                          {POOLED(15, ""), POOLED(15, NOTHING_DROPPED)}};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < N_BACKENDS; k++) {
            uint64_t state = test_random_state;
            struct rig *a = make(nets[i][0], backends[k]);
            test_random_state = state;
            struct rig *b = make(nets[i][1], backends[k]);
            CHECK(a->plan->layers[1].fused && a->plan->layers[3].fused);
            CHECK(!b->plan->layers[2].fused && !b->plan->layers[5].fused);
            rig_forward(a);
            rig_forward(b);
            CHECK_NEAR(a->loss, b->loss, 0);
            struct result x = run_backward(a, 8), y = run_backward(b, 8);
            CHECK_NEAR(gradients_apart(&x, 1, &y), 0, k == 0 ? 0 : 1e-3);
            free_result(&x);
            free_result(&y);
            rig_free(a);
            rig_free(b);
            stop_at_failure(nets[i][0]);
        }
}

/* ---- batch-norm's backward and the first weight gradient in one ---- */

static const struct ampk_backend *one_by_one(void)
{
    static struct ampk_backend backend;
    backend = ampk_reference;
    backend.conv_takes_gradient = NULL;
    return &backend;
}

/* The first layer alone, or what learns first. */
static void check_fuses_weight_gradient(const struct rig *r, int expected)
{
    for (int i = 0; i < r->net->n; i++)
        CHECK_INT(r->graph->nodes[i].fuses_weight_gradient, i == expected);
}

#define NORMALIZED(filters, activation)                                                            \
    "[convolutional]\nbatch_normalize=1\npad=1\nsize=3\nfilters=" #filters                         \
    "\nactivation=" activation "\n"

AMP_TEST(at_once_or_one_by_one_is_the_same)
{
    static const struct {
        const char *cfg;
        int layer; /* -1: none */
    } nets[] = {
        {"[net]\nmixed_precision=1\nbatch=3\nchannels=4\nwidth=7\nheight=6\n" NORMALIZED(8, "leaky")
             NORMALIZED(16, "leaky") NORMALIZED(
                 5,
                 "leaky") "[convolutional]\nsize=3\npad=1\nfilters=3\nactivation=linear\n[cost]\n",
         0},
        {POOLED(15, ""), 0},
        {POOLED(15, NOTHING_DROPPED), 0},
        {"[net]\nmixed_precision=1\nbatch=3\nchannels=4\nwidth=7\nheight=6\n" NORMALIZED(8, "leaky")
             NORMALIZED(8, "leaky\nstopbackward=1") NORMALIZED(5, "relu") "[cost]\n",
         2},
        {"[net]\nmixed_precision=1\nbatch=3\nchannels=4\nwidth=7\nheight=6\n" NORMALIZED(
             8, "logistic") NORMALIZED(8, "leaky") "[cost]\n",
         -1},
    };
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        uint64_t state = test_random_state;
        struct rig *a = make(nets[i].cfg, &ampk_reference);
        test_random_state = state;
        struct rig *b = make(nets[i].cfg, one_by_one());
        check_fuses_weight_gradient(a, nets[i].layer);
        check_fuses_weight_gradient(b, -1);
        rig_forward(a);
        rig_forward(b);
        struct result x = run_backward(a, 8), y = run_backward(b, 8);
        CHECK_NEAR(gradients_apart(&x, 1, &y), 0, 0);
        CHECK(
            !memcmp(a->graph->watch, b->graph->watch, (size_t)a->net->n * sizeof *a->graph->watch));
        free_result(&x);
        free_result(&y);
        rig_free(a);
        rig_free(b);
        stop_at_failure(nets[i].cfg);
    }
}

/* What is seen of a layer's output and delta. */
struct watched {
    int layer;
    size_t n[AMP_SEEN];
    float *values[AMP_SEEN];
};

static void look_at(const struct amp_seen *seen, void *user)
{
    struct watched *w = user;
    if (seen->layer != w->layer || seen->what == AMP_SEEN_GRADIENT) return;
    CHECK_STR(seen->format, "fp16");
    CHECK(!w->values[seen->what]);
    w->n[seen->what] = seen->n;
    w->values[seen->what] = malloc(seen->n * sizeof(float));
    REQUIRE(w->values[seen->what]);
    memcpy(w->values[seen->what], seen->values, seen->n * sizeof(float));
}

static struct watched watch_first_layer(const char *cfg, uint64_t state)
{
    test_random_state = state;
    struct rig *r = make(cfg, &ampk_reference);
    struct watched w = {.layer = 0};
    amp_graph_observe(r->graph, look_at, &w);
    rig_forward(r);
    rig_backward(r, 8);
    rig_free(r);
    return w;
}

AMP_TEST(what_a_fused_pool_leaves_out_is_seen_all_the_same)
{
    uint64_t state = test_random_state;
    struct watched fused = watch_first_layer(POOLED(15, ""), state);
    struct watched apart = watch_first_layer(POOLED(15, NOTHING_DROPPED), state);
    for (int what = AMP_SEEN_OUT; what <= AMP_SEEN_DELTA; what++) {
        REQUIRE(fused.n[what] == 3 * 20 * 15 * 15 && apart.n[what] == fused.n[what]);
        size_t different = 0;
        for (size_t i = 0; i < fused.n[what]; i++)
            different += !(fused.values[what][i] == apart.values[what][i]);
        CHECK_INT(different, 0);
        free(fused.values[what]);
        free(apart.values[what]);
    }
}

AMP_TEST_MAIN
