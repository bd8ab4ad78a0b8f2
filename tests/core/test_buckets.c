/* What leaves for other processes while backward still runs: buckets hold, as soon as they are
 * complete, the bits that the sums have when the pass is accepted. */
#include "tests/rig/harness.h"
#include "tests/rig/random_net.h"
#include "tests/rig/rig.h"

#include <math.h>

static char text[RANDOM_NET_SIZE];

static struct rig *make(const struct ampk_backend *backend, unsigned features)
{
    random_net(text, "mixed_precision=1\nsubdivisions=1", features, 14);
    struct rig *r = rig_create(text, backend, test_random);
    REQUIRE(r != NULL && rig_make_graph(r, true) == 0);
    return r;
}

static void check_param(const struct amp_graph *g, const struct amp_param *p,
                        const struct amp_bucket *b)
{
    size_t at = (size_t)(p->sum - g->sums);
    if (at < b->first || at >= b->first + b->n) return;
    CHECK(at + p->n <= b->first + b->n);
    CHECK(p->layer >= b->layer || p->layer < g->plan->first_backward);
}

/* From the end to the beginning of the sums, without a gap; what a bucket holds has run. */
static void check_cut(const struct amp_graph *g, size_t floats)
{
    size_t end = g->n_gradients;
    CHECK(g->n_buckets > 0);
    for (int k = 0; k < g->n_buckets; k++) {
        const struct amp_bucket *b = &g->buckets[k];
        bool last = k == g->n_buckets - 1;
        CHECK(b->n > 0 && b->first + b->n == end);
        CHECK(k == 0 || b->layer <= b[-1].layer);
        CHECK(last || b->n >= floats || k == g->n_buckets - 2);
        for (const struct amp_param *p = g->params; p < g->params + g->n_params; p++)
            if (p->sum) check_param(g, p, b);
        const struct amp_segment *s = g->nodes[b->layer].segment;
        CHECK(!s || s->first == b->layer || b->layer == g->plan->first_backward);
        end = b->first;
    }
    CHECK_INT(end, 0);
}

static void backward(struct amp_graph *g, float scale, bool fills)
{
    int next = 0;
    amp_graph_begin_backward(g, scale);
    for (int i = g->n - 1; i >= g->plan->first_backward; i--) {
        amp_graph_backward(g, i);
        for (; fills && next < g->n_buckets && i <= g->buckets[next].layer; next++)
            amp_graph_fill_bucket(g, &g->buckets[next]);
    }
    CHECK_INT(next, fills ? g->n_buckets : 0);
}

/* Both ways to accept a pass leave the same; what was swapped serves the next step. */
static void check_step(struct rig *r)
{
    struct amp_graph *g = r->graph;
    size_t bytes = g->n_gradients * sizeof(float);
    int passes = random_from(1, 3);
    amp_graph_begin_step(g);
    for (int pass = 0; pass < passes; pass++) {
        float scale = ldexpf(1, random_from(-2, 4));
        rig_forward(r);
        backward(g, scale, pass == passes - 1);
        amp_graph_accept_pass(g, scale);
    }
    if (memcmp(g->sums, g->sums_sent, bytes)) TEST_FAIL("other sums than accepted\n%s", text);
    if (random_below(2)) amp_graph_take_sums(g);
    for (const struct amp_param *p = g->params; p < g->params + g->n_params; p++)
        CHECK(!p->sum || (p->sum >= g->sums && p->sum + p->n <= g->sums + g->n_gradients));
}

static void check_net(const struct ampk_backend *backend)
{
    static const unsigned features[] = {NET_EVERYTHING, NET_EVERYTHING | NET_FREEZE};
    static const size_t sizes[] = {4, 100, 2000, 20000, 1 << 20};
    struct rig *r = make(backend, features[random_below(2)]);
    struct amp_graph *g = r->graph;
    size_t size = sizes[random_below(5)];
    if (g->sums) {
        REQUIRE(amp_graph_cut(g, size, random_below(2)) == 0);
        check_cut(g, size / sizeof(float));
        for (int k = 0; k < 4; k++)
            check_step(r);
    }
    rig_free(r);
}

AMP_TEST(a_bucket_holds_what_the_sums_would)
{
    for (int round = 0; round < 16 && !test_failures; round++)
        check_net(round % 2 ? &ampk_cuda : &ampk_cpu);
}

/* One process's weight is what is left of the value before; another's is not. */
AMP_TEST(rolling_statistics_are_what_all_terms_add_up_to)
{
    int moved = 0, frozen = 0;
    for (int round = 0; round < 8; round++) {
        struct rig *r = make(&ampk_cuda, NET_EVERYTHING | NET_FREEZE);
        struct amp_graph *g = r->graph;
        REQUIRE(amp_graph_cut(g, 0, false) == 0);
        CHECK_INT(g->n_buckets, 0);
        amp_graph_save_rolling(g);
        rig_forward(r);
        size_t n = amp_graph_rolling_floats(g), at = 0;
        float *now = calloc(n + 1, sizeof *now), *before = g->rolling_saved;
        REQUIRE(now);
        for (int i = 0; i < g->n_rolling; at += g->rolling[i++].n)
            memcpy(now + at, g->rolling[i].value, g->rolling[i].n * sizeof *now);
        const float *terms = amp_graph_rolling_terms(g, .98f, -.96f);
        for (size_t i = 0; i < n; i++)
            CHECK_NEAR(terms[i], .98f * (double)now[i] - .96f * (double)before[i],
                       0x1p-22 * (fabs((double)now[i]) + fabs((double)before[i])));
        amp_graph_take_rolling(g);
        at = 0;
        for (int i = 0; i < g->n_rolling; at += g->rolling[i++].n) {
            bool stays = g->plan->layers[g->rolling[i].layer].frozen;
            CHECK(!memcmp(g->rolling[i].value, (stays ? now : terms) + at,
                          g->rolling[i].n * sizeof *now));
            moved += !stays;
            frozen += stays;
        }
        free(now);
        rig_free(r);
    }
    CHECK(moved && frozen);
}

AMP_TEST_MAIN
