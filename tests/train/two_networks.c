/* Networks in several threads of one process are each what they are alone, byte for byte: trained
 * with batches loaded ahead, resized and saved on the way; evaluated as `detector map` does it; and
 * made and thrown away meanwhile. And the program ends whatever they are doing.
 *
 * A network with a seed draws from streams of its own thread. Without one, initial weights, images
 * and dropout come from libc's rand, which all threads share: there only networks that draw nothing
 * are what they are alone. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"
#include "tests/rig/small_set.h"

#include "amp.h"
#include "plugin/app/detect.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

/* Its path, good until eight more were asked for. */
static const char *keep_cfg(const char *name, const char *keys)
{
    static char paths[8][PATH_MAX];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s", scratch(name));
    REQUIRE(!rename(write_cfg(keys, DETECTOR), path));
    return path;
}

/* ---- what the threads do ---- */

enum { ROUNDS = 4 };

struct evaluation {
    const char *cfg, *weights;
    int rounds;
    struct amp_detections found[ROUNDS]; /* of the last ones; a layer may leave FP16 in the first */
    bool failed;
};

static void check_same_detections(const struct evaluation *a, const struct evaluation *b)
{
    CHECK(!a->failed && !b->failed && a->rounds == b->rounds && a->found[0].count > 0);
    for (int i = 0; i < a->rounds; i++) {
        const struct amp_detections *x = &a->found[i], *y = &b->found[i];
        CHECK(x->count == y->count && !memcmp(x->rows, y->rows, x->count * sizeof *x->rows));
    }
}

static void free_evaluation(struct evaluation *e)
{
    for (int i = 0; i < ROUNDS; i++)
        amp_detections_free(&e->found[i]);
}

static void *evaluate(void *p)
{
    struct evaluation *e = p;
    struct amp_eval_set set = {.images = {.line = box_paths, .count = SMALL_SET_IMAGES},
                               .n_head_classes = 2,
                               .n_classes = 2};
    network *net = parse_network_cfg((char *)e->cfg);
    load_weights(net, (char *)e->weights);
    for (int i = 0; i < e->rounds && !e->failed; i++) {
        struct amp_detections *found = &e->found[i % ROUNDS];
        amp_detections_free(found);
        e->failed = amp_detect_run(net, &set, (struct amp_image_range){0, SMALL_SET_IMAGES}, .005f,
                                   .45f, true, found) != 0;
    }
    free_network(net);
    return NULL;
}

struct training {
    const char *cfg, *weights;
    int steps;
    network *net;
    struct evaluation *guest; /* between two steps, on the same thread; NULL: none */
};

/* As Darknet's trainers: the next batch is loaded while one is trained. */
static void *train(void *p)
{
    struct training *t = p;
    data buffer, batch;
    network *net = t->net = parse_network_cfg((char *)t->cfg);
    load_args args = {.type = DETECTION_DATA,
                      .paths = box_paths,
                      .n = net->batch * net->subdivisions,
                      .m = SMALL_SET_IMAGES,
                      .classes = 2,
                      .jitter = .2f,
                      .hue = .1f,
                      .saturation = 1.5f,
                      .exposure = 1.5f,
                      .num_boxes = net->layers[net->n - 1].max_boxes,
                      .w = net->w,
                      .h = net->h,
                      .threads = 3,
                      .d = &buffer};
    pthread_t thread = load_data(args);
    for (int i = 0; i < t->steps; i++) {
        if (i % 4 == 3) {
            args.w = args.h = 16 + rand() % 4 * 8; /* of the seed */
            pthread_join(thread, NULL);
            free_data(buffer);
            thread = load_data(args);
            resize_network(net, args.w, args.h);
        }
        pthread_join(thread, NULL);
        batch = buffer;
        thread = load_data(args);
        train_network(net, batch);
        free_data(batch);
        if (i % 4 == 2) save_weights(net, (char *)t->weights);
        if (i % 4 == 2 && t->guest) evaluate(t->guest);
    }
    pthread_join(thread, NULL);
    free_data(buffer);
    return NULL;
}

struct coming_and_going {
    const char *mixed, *plain;
    atomic_bool stop;
    int rounds;
};

static void *come_and_go(void *p)
{
    struct coming_and_going *c = p;
    do {
        network *net = parse_network_cfg((char *)c->plain);
        amp_attach(net, c->mixed);
        predict(net);
        amp_detach(net);
        predict(net);
        free_network(net);
        free_network(parse_network_cfg((char *)c->mixed));
        c->rounds++;
    } while (!c->stop);
    return NULL;
}

static pthread_t start(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, run, argument));
    return thread;
}

static void run_alone(void *(*run)(void *), void *argument)
{
    pthread_join(start(run, argument), NULL);
}

/* ---- the end of the program ---- */

/* Trains and evaluates until the program ends, which it does after that many milliseconds. Not
 * while the libraries behind it are used for the first time (ending.h). */
static void end_at_work(const char *seeded, const char *plain, const char *weights, int ms,
                        bool quickly)
{
    static struct training t;
    static struct evaluation e;
    static struct coming_and_going c;
    t = (struct training){.cfg = seeded, .weights = "c.backup", .steps = 1 << 30};
    e = (struct evaluation){.cfg = seeded, .weights = weights, .rounds = 1 << 30};
    c.mixed = seeded;
    c.plain = plain;
    network *first = parse_network_cfg((char *)seeded);
    steps(first, 1);
    free_network(first);
    free_image(load_image_color(box_paths[0], 0, 0));
    alarm(900); /* a deadlock; a busy machine may take minutes */
    start(train, &t);
    start(evaluate, &e);
    if (ms % 2) start(come_and_go, &c);
    usleep((useconds_t)ms * 1000);
    quickly ? quick_exit(0) : exit(0);
}

AMP_TEST(the_program_ends_whatever_its_threads_do)
{
    enum { ENDS = 12 };
    const char *seeded = keep_cfg("a", MIXED "seed=1\nlearning_rate=0.000001\n");
    const char *plain = keep_cfg("b", "");
    network *net = parse_network_cfg((char *)plain);
    save_weights(net, (char *)scratch("e.weights"));
    free_network(net);
    for (int i = 0; i < ENDS; i++) {
        int status, ms = (int)(test_random() % 300);
        fflush(NULL);
        pid_t child = fork();
        if (!child) end_at_work(seeded, plain, scratch("e.weights"), ms, i % 2);
        REQUIRE(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            TEST_FAIL("%s after %d ms: status %#x", i % 2 ? "quick_exit" : "exit", ms, status);
    }
}

/* ---- alone and together ---- */

AMP_TEST(two_trainings_at_once_are_each_alone)
{
    const char *cfgs[] = {keep_cfg("a", MIXED "seed=1\n"), keep_cfg("b", MIXED "seed=2\n")};
    struct training together[2], alone[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        together[i] = alone[i] =
            (struct training){.cfg = cfgs[i], .weights = i ? "b.backup" : "a.backup", .steps = 10};
    for (int i = 0; i < 2; i++)
        threads[i] = start(train, &together[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        run_alone(train, &alone[i]);
        CHECK_SAME(together[i].net, alone[i].net);
    }
    CHECK(!is_same(alone[0].net, alone[1].net));
    for (int i = 0; i < 2; i++) {
        free_network(together[i].net);
        free_network(alone[i].net);
    }
}

static void *ten_steps(void *net)
{
    steps(net, 10);
    return NULL;
}

AMP_TEST(without_a_seed_too_where_nothing_is_drawn)
{
    network *net[3];
    pthread_t threads[2];
    for (int i = 0; i < 3; i++)
        net[i] = parse(MIXED, DETECTOR);
    for (int i = 0; i < 2; i++)
        threads[i] = start(ten_steps, net[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    run_alone(ten_steps, net[2]);
    CHECK_SAME(net[0], net[2]);
    CHECK_SAME(net[1], net[2]);
    for (int i = 0; i < 3; i++)
        free_network(net[i]);
}

AMP_TEST(training_and_evaluation_at_once_are_each_alone)
{
    const char *seeded = keep_cfg("a", MIXED "seed=1\n"), *plain = keep_cfg("b", "");
    char weights[PATH_MAX];
    snprintf(weights, sizeof weights, "%s", scratch("e.weights"));
    struct training alone = {.cfg = seeded, .weights = "a.backup", .steps = 6};
    struct training together = alone;
    struct evaluation here = {.cfg = seeded, .weights = weights, .rounds = ROUNDS};
    run_alone(train, &alone);
    save_weights(alone.net, weights);
    run_alone(evaluate, &here);
    struct evaluation there = {.cfg = seeded, .weights = weights, .rounds = ROUNDS};
    struct coming_and_going c = {.mixed = seeded, .plain = plain};
    pthread_t trainer = start(train, &together), evaluator = start(evaluate, &there),
              third = start(come_and_go, &c);
    pthread_join(trainer, NULL);
    pthread_join(evaluator, NULL);
    c.stop = true;
    pthread_join(third, NULL);
    CHECK_SAME(together.net, alone.net);
    check_same_detections(&here, &there);
    CHECK(c.rounds > 0);
    free_evaluation(&here);
    free_evaluation(&there);
    free_network(together.net);
    free_network(alone.net);
}

/* As `detector train -map` would: the evaluation is a guest on the training thread, with a batch in
 * hand; with the training's seed, another seed, or none. */
AMP_TEST(a_guest_on_the_training_thread_changes_nothing)
{
    static const char *const keys[] = {MIXED "seed=1\n", MIXED "seed=2\n", MIXED, ""};
    const char *seeded = keep_cfg("a", MIXED "seed=1\n");
    char weights[PATH_MAX];
    snprintf(weights, sizeof weights, "%s", scratch("e.weights"));
    struct training alone = {.cfg = seeded, .weights = "a.backup", .steps = 6};
    run_alone(train, &alone);
    save_weights(alone.net, weights);
    for (int i = 0; i < 4; i++) {
        struct evaluation guest = {.cfg = keep_cfg("g", keys[i]), .weights = weights, .rounds = 1};
        struct training host = {.cfg = seeded, .weights = "a.backup", .steps = 6, .guest = &guest};
        run_alone(train, &host);
        CHECK(!guest.failed && guest.found[0].count > 0);
        if (!is_same(host.net, alone.net)) TEST_FAIL("guest %d changed the training", i);
        free_evaluation(&guest);
        free_network(host.net);
    }
    free_network(alone.net);
}

AMP_TEST_MAIN
