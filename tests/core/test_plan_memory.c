/* Placement of buffers by lifetime: what must hold for every input, on random ones. And what is
 * advised when activations do not fit: it fits then, and nothing larger does. */
#include "plugin/core/plan/plan.h"

#include <stdbool.h>

#include "plugin/core/engine/layers.h"
#include "tests/rig/harness.h"

#define MOST 200

static struct amp_buffer buffers[MOST];

static bool alive_together(const struct amp_buffer *a, const struct amp_buffer *b)
{
    return a->first <= b->last && b->first <= a->last;
}

static bool overlap(const struct amp_buffer *a, const struct amp_buffer *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* The most bytes that are alive at one step. */
static size_t most_alive(int n, int steps)
{
    size_t most = 0;
    for (int step = 0; step < steps; step++) {
        size_t alive = 0;
        for (int i = 0; i < n; i++)
            if (buffers[i].first <= step && step <= buffers[i].last) alive += buffers[i].bytes;
        if (alive > most) most = alive;
    }
    return most;
}

static size_t sum_aligned(int n)
{
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += (buffers[i].bytes + AMP_ARENA_ALIGN - 1) / AMP_ARENA_ALIGN * AMP_ARENA_ALIGN;
    return sum;
}

/* Places them and checks everything that is promised. */
static size_t place(int n, int steps)
{
    for (int i = 0; i < n; i++)
        buffers[i].offset = (size_t)-1;
    size_t total = amp_arena_place(buffers, n);
    for (int i = 0; i < n; i++) {
        CHECK_INT(buffers[i].offset % AMP_ARENA_ALIGN, 0);
        CHECK(buffers[i].offset + buffers[i].bytes <= total);
        for (int j = 0; j < i; j++)
            if (alive_together(&buffers[i], &buffers[j]) && overlap(&buffers[i], &buffers[j]))
                TEST_FAIL("buffers %d and %d overlap while both live", i, j);
    }
    CHECK(total >= most_alive(n, steps));
    CHECK(total <= sum_aligned(n));
    return total;
}

AMP_TEST(nothing_needs_nothing)
{
    CHECK_INT(amp_arena_place(NULL, 0), 0);
}

AMP_TEST(one_buffer_starts_at_zero_and_is_rounded_up)
{
    buffers[0] = (struct amp_buffer){.bytes = 65, .first = 3, .last = 3};
    CHECK_INT(place(1, 4), 128);
    CHECK_INT(buffers[0].offset, 0);
}

AMP_TEST(buffers_that_never_meet_share_memory)
{
    for (int i = 0; i < 10; i++)
        buffers[i] = (struct amp_buffer){.bytes = 640, .first = 2 * i, .last = 2 * i + 1};
    CHECK_INT(place(10, 20), 640);
}

AMP_TEST(both_ends_of_a_lifetime_are_included)
{
    buffers[0] = (struct amp_buffer){.bytes = 64, .first = 0, .last = 5};
    buffers[1] = (struct amp_buffer){.bytes = 64, .first = 5, .last = 9};
    buffers[2] = (struct amp_buffer){.bytes = 64, .first = 6, .last = 9};
    CHECK_INT(place(3, 10), 128);
    CHECK_INT(buffers[2].offset, buffers[0].offset);
}

AMP_TEST(buffers_that_all_meet_stand_side_by_side)
{
    for (int i = 0; i < 10; i++)
        buffers[i] = (struct amp_buffer){.bytes = (size_t)64 * (size_t)(i + 1), .last = 9};
    CHECK_INT(place(10, 10), 64 * 55);
}

AMP_TEST(sizes_beyond_four_gigabytes)
{
    size_t big = (size_t)5 << 30;
    buffers[0] = (struct amp_buffer){.bytes = big, .first = 0, .last = 1};
    buffers[1] = (struct amp_buffer){.bytes = big, .first = 1, .last = 2};
    buffers[2] = (struct amp_buffer){.bytes = big, .first = 2, .last = 3};
    CHECK(place(3, 4) == 2 * big);
}

AMP_TEST(a_small_buffer_takes_the_gap)
{
    buffers[0] = (struct amp_buffer){.bytes = 640, .first = 0, .last = 9};
    buffers[1] = (struct amp_buffer){.bytes = 320, .first = 0, .last = 4};
    buffers[2] = (struct amp_buffer){.bytes = 256, .first = 0, .last = 9};
    buffers[3] = (struct amp_buffer){.bytes = 64, .first = 5, .last = 9};
    CHECK_INT(place(4, 10), 640 + 320 + 256);
    CHECK_INT(buffers[3].offset, buffers[1].offset);
}

static void make_random(int n, int steps)
{
    for (int i = 0; i < n; i++) {
        int a = (int)(test_random() % (unsigned)steps), b = (int)(test_random() % (unsigned)steps);
        buffers[i].bytes = (size_t)exp2(test_uniform(0, 20));
        buffers[i].first = a < b ? a : b;
        buffers[i].last = a < b ? b : a;
        if (test_random() % 3) buffers[i].last = buffers[i].first + (int)(test_random() % 3);
        if (test_random() % 20 == 0) buffers[i].bytes = 1 + test_random() % 130;
    }
}

AMP_TEST(random_lifetimes)
{
    for (int round = 0; round < 500; round++) {
        int n = 1 + (int)(test_random() % MOST), steps = 1 + (int)(test_random() % 60);
        make_random(n, steps);
        place(n, steps + 3);
        REQUIRE(!test_failures);
    }
}

/* A net's pattern: outputs that live from forward to backward, deltas between two steps. Greedy
 * placement stays close to what is alive at most; 1.25 leaves room for unlucky sizes. */
AMP_TEST(a_nets_lifetimes_waste_little)
{
    for (int round = 0; round < 50; round++) {
        int layers = 20 + (int)(test_random() % 40), n = 0;
        for (int i = 0; i < layers; i++) {
            size_t bytes = (size_t)exp2(test_uniform(10, 20));
            buffers[n++] = (struct amp_buffer){.bytes = bytes, .first = i, .last = 2 * layers};
            buffers[n++] = (struct amp_buffer){
                .bytes = bytes, .first = 2 * layers - 2 - i, .last = 2 * layers - 1 - i};
        }
        size_t total = place(n, 2 * layers + 1);
        CHECK((double)total <= 1.25 * (double)most_alive(n, 2 * layers + 1) + 64 * n);
    }
}

AMP_TEST(the_same_input_gives_the_same_offsets)
{
    static struct amp_buffer before[MOST];
    make_random(MOST, 50);
    place(MOST, 53);
    memcpy(before, buffers, sizeof before);
    place(MOST, 53);
    for (int i = 0; i < MOST; i++)
        CHECK_INT(buffers[i].offset, before[i].offset);
}

/* ---- advice ---- */

static char err[1024], text[1024];

struct planned {
    struct amp_cfg_file *cfg;
    struct amp_net_desc *net;
    struct amp_plan *plan;
    size_t bytes; /* activations, gradients and the loss */
};

static struct planned make_plan(int batch, int subdivisions)
{
    struct planned p = {0};
    struct amp_options options;
    char cfg[1000];
    int n = snprintf(cfg, sizeof cfg,
                     "[net]\nmixed_precision=1\nbatch=%d\nsubdivisions=%d\nwidth=64\nheight=48\n"
                     "channels=3\n[convolutional]\nbatch_normalize=1\nfilters=40\nsize=3\npad=1\n"
                     "activation=leaky\n[maxpool]\nsize=2\nstride=2\n[convolutional]\nfilters=16\n"
                     "size=3\npad=1\nactivation=linear\n[cost]\n",
                     batch, subdivisions);
    p.cfg = amp_cfg_parse("a.cfg", cfg, (size_t)n, err, sizeof err);
    REQUIRE(p.cfg && !amp_options_read(p.cfg, &options, NULL, 0, err, sizeof err));
    amp_options_settle_dtype(&options, false, false);
    p.net = amp_net_describe(p.cfg, 0, 0, true, err, sizeof err);
    REQUIRE(p.net != NULL);
    p.plan = amp_plan_make(p.net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(p.plan != NULL);
    p.bytes = p.plan->arena_bytes;
    for (int i = 0; i < p.net->n; i++)
        p.bytes += p.net->layers[i].n_weights * 2 * sizeof(float);
    p.bytes += (size_t)p.net->batch * (size_t)p.net->layers[p.net->n - 1].outputs * sizeof(float);
    return p;
}

static void drop(struct planned *p)
{
    amp_plan_free(p->plan);
    amp_net_desc_free(p->net);
    amp_cfg_free(p->cfg);
}

static const char *advice(size_t left)
{
    struct planned p = make_plan(64, 2);
    amp_no_memory(p.net, p.plan, "tea", left, text, sizeof text);
    drop(&p);
    return text;
}

AMP_TEST(the_layer_and_sizes_are_named)
{
    CHECK(strstr(advice(1 << 20), "no memory for tea (32 images of 64x48 in a pass") != NULL);
    CHECK(strstr(text, "layer 0 (convolutional), 64x48x40") != NULL);
    CHECK(strstr(text, "1.0 MiB are free") != NULL);
}

AMP_TEST(what_is_advised_fits_and_the_next_larger_does_not)
{
    static const int divisors[] = {2, 4, 8, 16, 32, 64};
    for (int k = 1; k < 6; k++) {
        struct planned fits = make_plan(64, divisors[k]), larger = make_plan(64, divisors[k - 1]);
        char expected[100];
        snprintf(expected, sizeof expected, "set batch=64, subdivisions=%d", divisors[k]);
        size_t between = (fits.bytes + larger.bytes) / 2;
        if (!strstr(advice(between), expected)) TEST_FAIL("%s, not %s", text, expected);
        drop(&fits);
        drop(&larger);
    }
}

AMP_TEST(where_nothing_helps_it_says_so)
{
    CHECK(strstr(advice(1000), "too little for one image") != NULL);
    CHECK(strstr(advice((size_t)1 << 40), "just too little; set batch=64, subdivisions=4") != NULL);
    CHECK(strstr(advice(0), "lower batch or raise subdivisions") != NULL);
    CHECK(strstr(text, "are free") == NULL);
}

AMP_TEST_MAIN
