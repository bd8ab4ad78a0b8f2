/* NMS against the slow way, straight from its definition, on random lists; and what must hold
 * whatever the boxes. The slow way shares nothing with plugin/boxes but its structs. */

#include "tests/rig/harness.h"

#include "plugin/boxes/boxes.h"

/* ---- the allocator: fails once, after calls_left more; -1: never ---- */

static int calls_left = -1;

void *__real_malloc(size_t);

void *__wrap_malloc(size_t size)
{
    return calls_left >= 0 && calls_left-- == 0 ? NULL : __real_malloc(size);
}

/* ---- random lists ---- */

enum { MOST = 200, MOST_CLASSES = 5 };

struct sample {
    int n, classes;
    struct amp_nms_row rows[MOST];
    float prob[MOST][MOST_CLASSES];
};

static int pick(int n)
{
    return (int)(test_random() % (uint64_t)n);
}

/* Many overlaps: boxes crowd about a few places. Probabilities come from a few levels, so that many
 * are equal, and are often 0; some objectnesses are 0, too. */
static void make_sample(struct sample *s, int most)
{
    s->n = pick(most + 1);
    s->classes = 1 + pick(MOST_CLASSES);
    int places = 1 + pick(6), levels = 1 + pick(30), without = pick(2);
    for (int i = 0; i < s->n; i++) {
        double place = .1 + .15 * pick(places);
        s->rows[i] = (struct amp_nms_row){
            .box = {(float)(place + test_uniform(-.05, .05)),
                    (float)(place + test_uniform(-.05, .05)), (float)test_uniform(.05, .3),
                    (float)test_uniform(.05, .3)},
            .objectness = without && pick(8) == 0 ? 0 : (float)test_uniform(.1, 1),
            .prob = s->prob[i]};
        for (int k = 0; k < s->classes; k++)
            s->prob[i][k] = pick(3) ? (float)(1 + pick(levels)) / 32 : 0;
    }
}

/* ---- the slow way ---- */

struct interval {
    long double low, high;
};

static struct interval extent(float centre, float size)
{
    return (struct interval){(long double)centre - (long double)size / 2,
                             (long double)centre + (long double)size / 2};
}

static long double shared(struct interval a, struct interval b)
{
    long double length = fminl(a.high, b.high) - fmaxl(a.low, b.low);
    return length > 0 ? length : 0;
}

static long double hull(struct interval a, struct interval b)
{
    return fmaxl(a.high, b.high) - fminl(a.low, b.low);
}

static long double slow_overlap(const struct amp_nms *nms, struct amp_centre_box a,
                                struct amp_centre_box b)
{
    struct interval ax = extent(a.x, a.w), ay = extent(a.y, a.h);
    struct interval bx = extent(b.x, b.w), by = extent(b.y, b.h);
    long double both = shared(ax, bx) * shared(ay, by);
    long double iou =
        both / ((long double)a.w * (long double)a.h + (long double)b.w * (long double)b.h - both);
    if (nms->kind == AMP_NMS_DEFAULT || nms->kind == AMP_NMS_CORNERS) return iou;
    long double dx = (long double)a.x - (long double)b.x, dy = (long double)a.y - (long double)b.y;
    long double cx = hull(ax, bx), cy = hull(ay, by);
    long double beta = nms->kind == AMP_NMS_GREEDY ? .6L : (long double)nms->beta;
    return iou - powl((dx * dx + dy * dy) / (cx * cx + cy * cy), beta);
}

/* Insertion keeps the order of equals. */
static void slow_sort(const struct sample *s, int *order, int n, int k)
{
    for (int i = 1; i < n; i++) {
        int row = order[i], at = i;
        for (; at > 0 && s->prob[order[at - 1]][k] < s->prob[row][k]; at--)
            order[at] = order[at - 1];
        order[at] = row;
    }
}

/* Changes s->prob and fills order. False if an overlap lies so near the threshold that rounding
 * decides. */
static bool slow_nms(const struct amp_nms *nms, struct sample *s, int *order)
{
    int first = 0, last = s->n;
    for (int i = 0; i < s->n; i++)
        order[i] = i;
    while (first < last) {
        int row = order[first];
        if (s->rows[row].objectness == 0) {
            order[first] = order[--last];
            order[last] = row;
        } else {
            first++;
        }
    }
    for (int k = 0; k < s->classes; k++) {
        slow_sort(s, order, last, k);
        for (int i = 0; i < last; i++) {
            if (s->prob[order[i]][k] == 0) continue;
            for (int j = i + 1; j < last; j++) {
                long double above =
                    slow_overlap(nms, s->rows[order[i]].box, s->rows[order[j]].box) -
                    (long double)nms->thresh;
                if (fabsl(above) < 1e-9L) return false;
                if (above > 0) s->prob[order[j]][k] = 0;
            }
        }
    }
    return true;
}

static void run(const struct amp_nms *nms, struct sample *s, int *order)
{
    char err[200] = "";
    int failed = amp_nms_run(nms, s->rows, s->n, s->classes, order, err, sizeof err);
    if (failed) TEST_FAIL("%s", err);
    REQUIRE(!failed);
}

/* The same rows once more, with their own probabilities. */
static void copy_sample(const struct sample *from, struct sample *to)
{
    *to = *from;
    for (int i = 0; i < to->n; i++)
        to->rows[i].prob = to->prob[i];
}

static int compare(const struct amp_nms *nms, const struct sample *s)
{
    static struct sample fast, slow;
    int fast_order[MOST], slow_order[MOST], suppressed = 0;
    copy_sample(s, &fast);
    copy_sample(s, &slow);
    if (!slow_nms(nms, &slow, slow_order)) return 0;
    run(nms, &fast, fast_order);
    for (int i = 0; i < s->n; i++) {
        CHECK_INT(fast_order[i], slow_order[i]);
        for (int k = 0; k < s->classes; k++) {
            suppressed += slow.prob[i][k] != s->prob[i][k];
            if (fast.prob[i][k] != slow.prob[i][k])
                TEST_FAIL("kind %d, thresh %g, beta %g: row %d of %d, class %d is %g, expected %g",
                          nms->kind, (double)nms->thresh, (double)nms->beta, i, s->n, k,
                          (double)fast.prob[i][k], (double)slow.prob[i][k]);
        }
    }
    return suppressed;
}

AMP_TEST(equals_the_slow_way)
{
    static struct sample s;
    int suppressed[4] = {0};
    for (int round = 0; round < 200 && !test_failures; round++) {
        make_sample(&s, round % 10 ? 40 : MOST);
        for (int kind = AMP_NMS_DEFAULT; kind <= AMP_NMS_CORNERS; kind++) {
            struct amp_nms nms = {(enum amp_nms_kind)kind, (float)test_uniform(.1, .8),
                                  (float)test_uniform(.1, 2)};
            suppressed[kind] += compare(&nms, &s);
        }
    }
    for (int kind = AMP_NMS_DEFAULT; kind <= AMP_NMS_CORNERS; kind++)
        CHECK(suppressed[kind] > 1000);
}

/* ---- what must hold ---- */

AMP_TEST(what_beta_and_kind_mean)
{
    static struct sample s;
    for (int round = 0; round < 50 && !test_failures; round++) {
        static struct sample a, b;
        int a_order[MOST], b_order[MOST];
        make_sample(&s, 60);
        /* greedy ignores beta and is diou with .6; corners is the default. */
        struct amp_nms pairs[][2] = {{{AMP_NMS_GREEDY, .4f, .1f}, {AMP_NMS_DIOU, .4f, .6f}},
                                     {{AMP_NMS_CORNERS, .4f, .1f}, {AMP_NMS_DEFAULT, .4f, .6f}}};
        for (int pair = 0; pair < 2; pair++) {
            copy_sample(&s, &a);
            copy_sample(&s, &b);
            run(&pairs[pair][0], &a, a_order);
            run(&pairs[pair][1], &b, b_order);
            CHECK(!memcmp(a.prob, b.prob, sizeof a.prob));
            CHECK(!memcmp(a_order, b_order, (size_t)s.n * sizeof *a_order));
        }
    }
}

AMP_TEST(twice_is_once)
{
    static struct sample s, before;
    int order[MOST];
    struct amp_nms nms = {AMP_NMS_GREEDY, .45f, 0};
    for (int round = 0; round < 50; round++) {
        make_sample(&s, 60);
        run(&nms, &s, order);
        copy_sample(&s, &before);
        run(&nms, &s, NULL);
        CHECK(!memcmp(s.prob, before.prob, sizeof s.prob));
    }
}

/* Boxes without area or that are not finite overlap nothing: what a network gives that has
 * diverged. */
AMP_TEST(odd_boxes_suppress_nothing)
{
    const struct amp_centre_box odd[] = {{.5f, .5f, 0, 0},          {.5f, .5f, 0, .2f},
                                         {.5f, .5f, INFINITY, .2f}, {NAN, .5f, .2f, .2f},
                                         {.5f, .5f, -.2f, -.2f},    {.5f, .5f, NAN, NAN},
                                         {INFINITY, .5f, .1f, .1f}};
    enum { N = 2 * sizeof odd / sizeof *odd };
    for (int kind = AMP_NMS_DEFAULT; kind <= AMP_NMS_CORNERS; kind++) {
        float prob[N];
        char err[200];
        struct amp_nms_row rows[N];
        struct amp_nms nms = {(enum amp_nms_kind)kind, .45f, .6f};
        for (int i = 0; i < N; i++) {
            prob[i] = .5f;
            rows[i] = (struct amp_nms_row){odd[i / 2], 1, &prob[i]};
        }
        REQUIRE(amp_nms_run(&nms, rows, N, 1, NULL, err, sizeof err) == 0);
        for (int i = 0; i < N; i++)
            CHECK(prob[i] == .5f);
    }
}

/* Wherever memory ends, it is said, and no probability has changed. */
AMP_TEST(no_memory)
{
    static struct sample s, before;
    struct amp_nms nms = {AMP_NMS_GREEDY, .1f, 0};
    int n = 0;
    do
        make_sample(&s, MOST);
    while (s.n < 100);
    copy_sample(&s, &before);
    for (bool failed = true; failed; n++) {
        char err[200] = "";
        calls_left = n;
        int result = amp_nms_run(&nms, s.rows, s.n, s.classes, NULL, err, sizeof err);
        failed = calls_left < 0;
        calls_left = -1;
        CHECK_INT(result, failed ? -1 : 0);
        if (failed) CHECK_SAYS(err, "no memory to suppress among ");
        CHECK((memcmp(s.prob, before.prob, sizeof s.prob) == 0) == failed);
        REQUIRE(n < 100);
    }
    CHECK_INT(n, 5);
}

AMP_TEST(words_of_cfgs)
{
    const char *words[] = {"default", "greedynms", "diounms", "cornersnms"};
    enum amp_nms_kind kind = AMP_NMS_DEFAULT;
    for (int i = 0; i < 4; i++) {
        CHECK_INT(amp_nms_kind_read(words[i], &kind), 0);
        CHECK_INT(kind, i);
    }
    CHECK_INT(amp_nms_kind_read("greedy", &kind), -1);
    CHECK_INT(amp_nms_kind_read("", &kind), -1);
}

AMP_TEST_MAIN
