/* When layers run in one go, when they are recorded, and when a recording is played: with a backend
 * that pretends to record. It runs what it records at once; the first play then does nothing, later
 * ones run the same layers again. */
#include "tests/rig/harness.h"
#include "tests/rig/random_net.h"
#include "tests/rig/rig.h"

#include <math.h>

static char text[RANDOM_NET_SIZE];

struct ampk_recording {
    bool played;
};

static struct amp_graph *graph;
static int records, plays, alive;
static bool refuses;

static bool record_begin(struct ampk_context *context)
{
    (void)context;
    return !refuses;
}

static struct ampk_recording *record_end(struct ampk_context *context)
{
    (void)context;
    records++;
    alive++;
    return calloc(1, sizeof(struct ampk_recording));
}

static void run_again(const struct amp_segment *s, int pass)
{
    bool stale = graph->weights_stale;
    graph->weights_stale = pass != AMP_SEGMENT_FORWARD && pass != AMP_SEGMENT_BACKWARD;
    for (int i = s->first; pass != AMP_SEGMENT_BACKWARD && i <= s->last; i++)
        amp_graph_forward_layer(graph, i);
    for (int i = s->last; pass == AMP_SEGMENT_BACKWARD && i >= s->first; i--)
        if (i >= graph->plan->first_backward) amp_graph_backward_layer(graph, i);
    graph->weights_stale = stale;
}

static void record_play(struct ampk_context *context, struct ampk_recording *recording)
{
    (void)context;
    plays++;
    for (int i = 0; recording->played && i < graph->n_segments; i++)
        for (int pass = 0; pass < AMP_SEGMENT_PASSES; pass++)
            if (graph->segments[i].runs[pass][0].recording == recording)
                run_again(&graph->segments[i], pass);
    recording->played = true;
}

static void record_free(struct ampk_context *context, struct ampk_recording *recording)
{
    (void)context;
    alive--;
    free(recording);
}

static struct ampk_backend recorder(void)
{
    struct ampk_backend backend = ampk_cpu;
    backend.record_begin = record_begin;
    backend.record_end = record_end;
    backend.record_play = record_play;
    backend.record_free = record_free;
    records = plays = 0;
    refuses = false;
    return backend;
}

static struct rig *make(const struct ampk_backend *backend, uint64_t seed)
{
    test_random_state = seed;
    struct rig *r = rig_create(text, backend, test_random);
    REQUIRE(r != NULL);
    return r;
}

static void pass(struct rig *r, float scale)
{
    rig_forward(r);
    rig_backward(r, scale);
}

static void check_same_gradients(const struct rig *a, const struct rig *b, const char *what)
{
    size_t n = a->graph->n_gradients;
    REQUIRE(b->graph->n_gradients == n);
    CHECK_NEAR(a->loss, b->loss, 0);
    if (n && memcmp(a->graph->gradients, b->graph->gradients, n * sizeof(float)))
        TEST_FAIL("%s: other gradients than layer by layer\n%s", what, text);
}

AMP_TEST(played_passes_are_those_that_run_layer_by_layer)
{
    static const float scales[] = {1, 1, 1, 4, 4, 4, 1, 1};
    int played = 0; /* nets with segments */
    for (int round = 0; round < 20; round++) {
        struct ampk_backend backend = recorder();
        random_net(text, "mixed_precision=1", NET_EVERYTHING, 12);
        uint64_t seed = test_random();
        struct rig *one = make(&ampk_cpu, seed), *other = make(&backend, seed);
        graph = other->graph;
        CHECK_INT(one->graph->n_segments, 0);
        for (int k = 0; k < 8; k++) {
            pass(one, scales[k]);
            pass(other, scales[k]);
            check_same_gradients(other, one, "a pass");
        }
        CHECK(graph->n_segments == 0 || plays > 0);
        played += plays > 0;
        rig_free(one);
        rig_free(other);
        CHECK_INT(alive, 0);
        if (test_failures) return;
    }
    CHECK(played > 0);
}

/* [net] and three layers of ours. */
static struct rig *make_plain(const struct ampk_backend *backend)
{
    snprintf(text, sizeof text,
             "[net]\nmixed_precision=1\nbatch=2\nsubdivisions=1\nwidth=8\nheight=8\nchannels=3\n"
             "[convolutional]\nfilters=8\nsize=3\npad=1\nactivation=leaky\n[maxpool]\nsize=2\n"
             "stride=2\n[convolutional]\nfilters=4\nsize=3\npad=1\nactivation=linear\n[cost]\n");
    struct rig *r = make(backend, 1);
    graph = r->graph;
    CHECK_INT(graph->n_segments, 1);
    return r;
}

AMP_TEST(what_is_recorded_is_recorded_once_for_its_values)
{
    struct ampk_backend backend = recorder();
    struct rig *r = make_plain(&backend);
    pass(r, 1);
    CHECK_INT(records, 0); /* plans are chosen, memory is reserved */
    pass(r, 1);
    CHECK_INT(records, 2); /* forward, backward */
    pass(r, 1);
    CHECK_INT(records, 2);
    CHECK_INT(plays, 4);
    pass(r, 2); /* a new scale: backward unrecorded once */
    CHECK_INT(records, 2);
    CHECK_INT(alive, 1);
    pass(r, 2);
    CHECK_INT(records, 3);
    rig_free(r);
    CHECK_INT(alive, 0);
}

/* A recording reads the labels where they were when it was made. */
AMP_TEST(a_recording_is_not_played_for_labels_elsewhere)
{
    static float labels[2][2 * 4 * 4 * 4];
    struct ampk_backend backend = recorder();
    struct rig *r = make_plain(&backend);
    r->labels = labels[0];
    for (int k = 0; k < 3; k++)
        pass(r, 1);
    CHECK_INT(plays, 4);
    r->labels = labels[1];
    pass(r, 1);
    CHECK_INT(plays, 4);
    CHECK_INT(alive, 0);
    pass(r, 1);
    CHECK_INT(plays, 6);
    rig_free(r);
}

/* ---- dropout ---- */

enum { FIRST_DROPPED = 1, LAST_DROPPED = 3 }; /* layers of one shape */

/* fp32: of the first convolution, and of the dropout that it passes it to. */
static struct rig *make_dropped(const struct ampk_backend *backend, bool draws_masks, bool fp32)
{
    snprintf(text, sizeof text,
             "[net]\nmixed_precision=1\nbatch=3\nsubdivisions=1\nwidth=9\nheight=7\nchannels=3\n"
             "[convolutional]\nfilters=24\nsize=3\npad=1\nactivation=leaky\n%s"
             "[dropout]\nprobability=.3\n[convolutional]\nfilters=24\nsize=1\nactivation=leaky\n"
             "[dropout]\nprobability=.3\n[cost]\n",
             fp32 ? "mixed_precision=0\n" : "");
    struct rig *r = make(backend, 1);
    if (draws_masks) {
        r->draws_masks = true;
        REQUIRE(rig_make_graph(r, false) == 0);
    }
    r->graph->masks = (struct ampk_draw){{7, 11}, {0, 0, 13, 17}};
    graph = r->graph;
    return r;
}

static bool same_mask(const struct rig *a, int i, const struct rig *b, int k)
{
    return !memcmp(a->graph->nodes[i].index, b->graph->nodes[k].index,
                   rig_count(&a->graph->nodes[i].out));
}

/* Of n numbers six standard deviations. */
static void check_share_of_kept(const struct rig *r, int i)
{
    size_t n = rig_count(&r->graph->nodes[i].out), kept = 0;
    const uint8_t *keep = r->graph->nodes[i].index;
    for (size_t k = 0; k < n; k++) {
        CHECK(keep[k] < 2);
        kept += keep[k];
    }
    CHECK_NEAR((double)kept, .7 * (double)n, 6 * sqrt(.7 * .3 * (double)n));
}

AMP_TEST(a_dropout_whose_mask_the_host_draws_stands_apart)
{
    struct ampk_backend backend = recorder();
    struct rig *apart = make_dropped(&backend, false, false);
    CHECK_INT(apart->graph->n_segments, 2);
    CHECK(apart->graph->nodes[FIRST_DROPPED].drawn && !apart->graph->nodes[FIRST_DROPPED].segment);
    rig_free(apart);
    struct rig *within = make_dropped(&backend, true, false);
    CHECK_INT(within->graph->n_segments, 1);
    CHECK(!within->graph->nodes[FIRST_DROPPED].drawn);
    rig_free(within);
}

static void next_images(struct rig *r)
{
    r->graph->masks.counter[2]++;
}

/* What is recorded reads the mask of the pass at hand. */
AMP_TEST(masks_that_the_backend_draws_are_new_in_every_pass)
{
    struct ampk_backend backend = recorder();
    struct rig *recorded = make_dropped(&backend, true, false),
               *plain = make_dropped(&ampk_cpu, true, false);
    size_t n = rig_count(&plain->graph->nodes[FIRST_DROPPED].out);
    uint8_t *last = malloc(n);
    REQUIRE(last);
    graph = recorded->graph;
    for (int k = 0; k < 5; k++) {
        pass(recorded, 1);
        pass(plain, 1);
        check_same_gradients(recorded, plain, "a pass with dropout");
        for (int i = FIRST_DROPPED; i <= LAST_DROPPED; i += LAST_DROPPED - FIRST_DROPPED) {
            CHECK(same_mask(recorded, i, plain, i));
            check_share_of_kept(recorded, i);
        }
        CHECK(!same_mask(plain, FIRST_DROPPED, plain, LAST_DROPPED));
        CHECK(k == 0 || memcmp(last, plain->graph->nodes[FIRST_DROPPED].index, n));
        memcpy(last, plain->graph->nodes[FIRST_DROPPED].index, n);
        next_images(recorded);
        next_images(plain);
    }
    CHECK_INT(plays, 8);
    free(last);
    rig_free(recorded);
    rig_free(plain);
}

AMP_TEST(masks_that_the_backend_draws_depend_on_no_format_and_no_pass_before)
{
    struct rig *one = make_dropped(&ampk_cpu, true, false),
               *two = make_dropped(&ampk_cpu, true, true);
    CHECK(one->plan->layers[FIRST_DROPPED].out != two->plan->layers[FIRST_DROPPED].out);
    next_images(one);
    pass(one, 1);
    one->graph->masks = two->graph->masks;
    pass(one, 1);
    pass(two, 1);
    CHECK(same_mask(one, FIRST_DROPPED, two, FIRST_DROPPED));
    CHECK(same_mask(one, LAST_DROPPED, two, LAST_DROPPED));
    rig_free(one);
    rig_free(two);
}

AMP_TEST(a_backend_that_cannot_record_is_not_asked_to_play)
{
    struct ampk_backend backend = recorder();
    refuses = true;
    struct rig *r = make_plain(&backend), *plain = make(&ampk_cpu, 1);
    for (int k = 0; k < 3; k++) {
        pass(r, 1);
        pass(plain, 1);
        check_same_gradients(r, plain, "unrecorded");
    }
    CHECK_INT(records + plays, 0);
    rig_free(r);
    rig_free(plain);
}

/* What a watcher is told, as text: F0( F0) F1( ... B0) */
static char watched[200];

static void write_down(int layer, int backward, int done, void *user)
{
    CHECK(user == watched);
    size_t used = strlen(watched);
    snprintf(watched + used, sizeof watched - used, "%c%d%c ", backward ? 'B' : 'F', layer,
             done ? ')' : '(');
}

AMP_TEST(watched_layers_run_one_by_one_though_they_were_recorded)
{
    struct ampk_backend backend = recorder();
    struct rig *r = make_plain(&backend), *plain = make(&ampk_cpu, 1);
    for (int k = 0; k < 3; k++)
        pass(r, 1);
    int before = plays;
    watched[0] = 0;
    amp_graph_trace_layers(r->graph, write_down, watched);
    pass(r, 1);
    pass(plain, 1);
    CHECK_INT(plays, before);
    CHECK(!strcmp(watched, "F0( F0) F1( F1) F2( F2) F3( F3) B3( B3) B2( B2) B1( B1) B0( B0) "));
    check_same_gradients(r, plain, "watched");
    amp_graph_trace_layers(r->graph, NULL, NULL);
    pass(r, 1);
    CHECK_INT(plays, before + 2);
    rig_free(r);
    rig_free(plain);
}

AMP_TEST_MAIN
