/* Which random numbers a thread gets: libc's where nothing is seeded, else its stream's. */

#define _GNU_SOURCE
#include "tests/rig/small_set.h"

#include "plugin/attach/feed/batches.h"
#include "plugin/attach/feed/seed.h"

#include <dlfcn.h>
#include <pthread.h>

static int libc_rand(void)
{
    return ((int (*)(void))dlsym(RTLD_NEXT, "rand"))();
}

static void libc_srand(unsigned seed)
{
    ((void (*)(unsigned))dlsym(RTLD_NEXT, "srand"))(seed);
}

AMP_TEST(unseeded_draws_are_libcs)
{
    CHECK((void *)rand != dlsym(RTLD_NEXT, "rand"));
    int expected[10];
    libc_srand(9);
    for (int i = 0; i < 10; i++)
        expected[i] = libc_rand();
    srand(9);
    for (int i = 0; i < 10; i++)
        CHECK_INT(rand(), expected[i]);
    srand(9);
    CHECK_NEAR(rand_uniform(0, 1), expected[0] / (double)RAND_MAX, 1e-6); /* inside libdarknet */
}

AMP_TEST(darknets_draws_reach_the_plugin)
{
    CHECK(amp_seed_reaches_darknet());
}

enum { DRAWS = 100000 };

static void *draw_from_stream(void *barrier)
{
    static struct amp_stream stream, same;
    static int wrong;
    amp_stream_open(&stream, 5, AMP_STREAM_IMAGE, 1, 2);
    same = stream;
    amp_seed_use(&stream);
    pthread_barrier_wait(barrier);
    for (int i = 0; i < DRAWS; i++)
        wrong += rand() != (int)(amp_stream_bits(&same) >> 1);
    return &wrong;
}

AMP_TEST(a_stream_belongs_to_one_thread)
{
    static int expected[DRAWS];
    libc_srand(4);
    for (int i = 0; i < DRAWS; i++)
        expected[i] = libc_rand();
    pthread_barrier_t barrier;
    pthread_t thread;
    void *wrong_there;
    int wrong_here = 0;
    pthread_barrier_init(&barrier, NULL, 2);
    REQUIRE(!pthread_create(&thread, NULL, draw_from_stream, &barrier));
    srand(4);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < DRAWS; i++)
        wrong_here += rand() != expected[i];
    pthread_join(thread, &wrong_there);
    CHECK_INT(wrong_here, 0);
    CHECK_INT(*(int *)wrong_there, 0);
    pthread_barrier_destroy(&barrier);
}

AMP_TEST(srand_does_nothing_where_a_stream_is_drawn_from)
{
    size_t seen = 0;
    network net = {.seen = &seen, .batch = 1, .subdivisions = 1};
    srand(6);
    int libc_next = libc_rand();
    amp_seed_follow(&net, 11);
    int first = rand(), second = rand();
    amp_seed_follow(&net, 11);
    srand(6);
    CHECK_INT(rand(), first);
    srand(0);
    CHECK_INT(rand(), second);
    amp_seed_unfollow();
    srand(6); /* counts again, and the two above have changed nothing */
    CHECK_INT(rand(), libc_next);
}

AMP_TEST(the_trainers_stream_depends_on_seen_alone)
{
    size_t seen = 64;
    network net = {.seen = &seen, .batch = 8, .subdivisions = 2};
    amp_seed_follow(&net, 11);
    int between = rand();
    seen += 8;
    int in_pass = rand(), in_pass_2 = rand();
    seen += 8;
    int next_pass = rand();
    CHECK(between != in_pass && in_pass != in_pass_2 && in_pass != next_pass);

    amp_seed_follow(&net, 11); /* resumed; what was drawn before does not matter */
    rand();
    rand();
    seen = 64;
    amp_seed_between_steps();
    CHECK_INT(rand(), between);
    seen += 8;
    CHECK_INT(rand(), in_pass);
    seen += 8;
    CHECK_INT(rand(), next_pass);
    amp_seed_unfollow();
}

/* As by a second network, to measure with: seeded or not, it draws from no stream of the training.
 */
AMP_TEST(a_parse_leaves_the_trainers_stream_alone)
{
    size_t seen = 64;
    uint64_t seed = 12;
    network net = {.seen = &seen, .batch = 8, .subdivisions = 2};
    amp_seed_follow(&net, 11);
    int expected[4];
    for (int i = 0; i < 4; i++)
        expected[i] = rand();
    amp_seed_between_steps();
    for (int i = 0; i < 4; i++) {
        CHECK_INT(rand(), expected[i]);
        amp_seed_enter_parse(i % 2 ? &seed : NULL, false);
        CHECK_INT(amp_seed_rules(), i % 2);
        CHECK(rand() != expected[(i + 1) % 4]);
        amp_seed_leave_parse();
        CHECK(amp_seed_rules());
    }
    network other = net;
    amp_seed_forget(&other);
    CHECK(amp_seed_rules());
    amp_seed_forget(&net); /* it is freed */
    CHECK(!amp_seed_rules());
}

/* Evenly from -1 to 1: mean 0, variance 1/3. The bounds are five standard errors of n numbers; a
 * fourth moment of 1/5 makes that of the variance sqrt((1/5 - 1/9) / n). */
AMP_TEST(a_uniform_parse_draws_weights_evenly)
{
    enum { N = 10000 };
    uint64_t seed = 12;
    double sum = 0, squares = 0;
    amp_seed_enter_parse(&seed, true);
    for (int i = 0; i < N; i++) {
        double x = (double)amp_seed_rand_normal();
        CHECK(x >= -1 && x <= 1);
        sum += x;
        squares += x * x;
    }
    CHECK(fabs(sum / N) < 5 * sqrt(1. / 3 / N));
    CHECK(fabs(squares / N - 1. / 3) < 5 * sqrt((1. / 5 - 1. / 9) / N));
    amp_seed_leave_parse();
}

/* No two of them have a counter in common, however many layers: the second word is a layer's to
 * raise. */
AMP_TEST(masks_differ_by_seed_and_images)
{
    struct ampk_draw one = amp_seed_masks(11, 64);
    struct ampk_draw others[] = {amp_seed_masks(12, 64), amp_seed_masks(11 + (1ull << 32), 64),
                                 amp_seed_masks(11, 72), amp_seed_masks(11, 64 + (1ull << 32))};
    struct ampk_draw again = amp_seed_masks(11, 64);
    CHECK(!memcmp(&one, &again, sizeof one));
    CHECK_INT(one.counter[0], 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct ampk_draw *other = &others[i];
        CHECK_INT(other->counter[0], 0);
        bool same_stream = !memcmp(one.key, other->key, sizeof one.key) &&
                           !memcmp(&one.counter[2], &other->counter[2], 2 * sizeof(uint32_t));
        CHECK(!same_stream || other->counter[1] - one.counter[1] >= 1u << 24);
    }
    uint64_t now = amp_seed_of_clock();
    CHECK(amp_seed_of_clock() != now);
}

AMP_TEST(uniform_fills_from_the_stream)
{
    float x[3] = {-1, -1, -1};
    CHECK(!amp_seed_uniform(x, 3));
    CHECK(x[0] == -1);
    struct amp_stream stream, same;
    amp_stream_open(&stream, 5, AMP_STREAM_PASS, 1, 0);
    same = stream;
    amp_seed_use(&stream);
    CHECK(amp_seed_uniform(x, 3));
    amp_seed_use(NULL);
    for (int i = 0; i < 3; i++)
        CHECK_NEAR(x[i], (amp_stream_bits(&same) >> 1) * 0x1p-31, 1e-7);
}

/* A whole network's initial weights, from a cfg with these keys. */
static float *initial_weights(const char *net_keys, int *n)
{
    network *net = parse_network_cfg((char *)write_small_cfg(net_keys));
    const layer *l = &net->layers[0];
    *n = l->nweights;
    float *weights = malloc(sizeof(float) * (size_t)*n);
    memcpy(weights, l->weights, sizeof(float) * (size_t)*n);
    free_network(net);
    return weights;
}

AMP_TEST(initial_weights_depend_on_the_seed_alone)
{
    int n;
    float *a = initial_weights("seed=7", &n);
    REQUIRE(n % 2 == 1); /* Darknet's rand_normal would keep half a pair for the next network */
    rand();
    srand(1);
    float *b = initial_weights("seed=7", &n), *c = initial_weights("seed=8", &n);
    CHECK(!memcmp(a, b, sizeof(float) * (size_t)n));
    int equal = 0;
    for (int i = 0; i < n; i++)
        equal += a[i] == c[i];
    CHECK(equal < n / 10);
    free(a);
    free(b);
    free(c);
}

/* Of a network without a seed, parsed while this thread trains one that has a seed. */
static float *weights_beside_a_seeded_network(unsigned libc_seed, int *n)
{
    network *seeded = parse_network_cfg((char *)write_small_cfg("seed=7"));
    libc_srand(libc_seed);
    float *weights = initial_weights("", n);
    free_network(seeded);
    return weights;
}

AMP_TEST(a_trainings_stream_is_not_that_of_other_networks)
{
    int n, equal = 0;
    float *a = weights_beside_a_seeded_network(3, &n), *b = weights_beside_a_seeded_network(4, &n);
    for (int i = 0; i < n; i++)
        equal += a[i] == b[i];
    CHECK(equal < n / 10);
    free(a);
    free(b);
}

AMP_TEST(a_network_without_a_seed_is_drawn_from_libc)
{
    int n;
    float *a = initial_weights("seed=7", &n);
    free(a);
    srand(3);
    int expected = libc_rand();
    srand(3);
    CHECK_INT(rand(), expected);
    network *seeded = parse_network_cfg((char *)write_small_cfg("seed=7"));
    network *plain = parse_network_cfg((char *)write_small_cfg(""));
    srand(3);
    CHECK_INT(rand(), expected);
    free_network(plain);
    free_network(seeded);
    srand(3);
    CHECK_INT(rand(), expected);
}

AMP_TEST_MAIN
