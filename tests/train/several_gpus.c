/* Darknet's training on several GPUs in one process (-gpus 0,1: train_networks, sync_nets) with the
 * plugin, in a GPU build of Darknet on emulated devices (test_device_training.c). Every network
 * trains in a thread of its own; each must be, to the bit, what the same arithmetic gives one
 * network after the other in one thread. That every call reaches the device of its network the
 * emulation sees to: anything else ends the program. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"
#include "tests/rig/small_set.h"

#include "cuda.h"
#include "option_list.h"
#include "plugin/attach/gpus.h"
#include "plugin/attach/batches.h"
#include "plugin/attach/save.h"
#include "tests/emulation/darknet_device.h"
#include "tests/emulation/emulation.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

data get_data_part(data d, int part, int total); /* data.h has names of attached.h */

enum { MOST = 3 };

#define KEYS  MIXED "batch=4\nlearning_rate=.001\nloss_scale=64\n"
#define SMALL CONV(4, NORMALIZED "stride=2\n") CONV(4, "") YOLO("0,1")

__attribute__((constructor)) static void make_devices(void)
{
    emulation_devices(MOST);
}

struct nets {
    network *net[MOST];
    int n;
};

static struct amp_session *session(const struct nets *a, int i)
{
    return amp_session_of(a->net[i]->layers);
}

/* As Darknet's trainers do it; the thread then uses the last device. */
static struct nets start(int n, const char *keys, const char *layers, const char *weights)
{
    struct nets a = {.n = n};
    for (int i = 0; i < n; i++) {
        cuda_set_device(i);
        a.net[i] = parse(keys, layers);
        if (weights) load_weights(a.net[i], (char *)weights);
        a.net[i]->learning_rate *= (float)n;
        CHECK_INT(a.net[i]->gpu_index, i);
    }
    return a;
}

/* The reference, whose convolutions take their weights anew in every step, whoever wrote to them.
 */
static struct nets start_reference(int n, const char *keys, const char *layers, const char *weights)
{
    static struct ampk_backend step_by_step;
    struct nets a = start(n, keys, layers, weights);
    step_by_step = *session(&a, 0)->backend;
    step_by_step.conv_update = NULL;
    for (int i = 0; i < n; i++)
        session(&a, i)->backend = &step_by_step;
    return a;
}

/* Whatever device the thread uses. */
static void end(const struct nets *a)
{
    for (int i = 0; i < a->n; i++)
        free_network(a->net[i]);
}

/* ---- batches for all ---- */

static data make_batch(const network *net, int n)
{
    int images = net->batch * net->subdivisions * n;
    data d = {.X = make_matrix(images, net->inputs), .y = make_matrix(images, net->truths)};
    for (int k = 0; k < images; k++) {
        for (int i = 0; i < net->inputs; i++)
            d.X.vals[k][i] = (float)test_uniform(0, 1);
        for (int i = 0; i < 10; i++) /* two boxes */
            d.y.vals[k][i] = i % 5 == 4 ? (float)(i / 5) : (float)test_uniform(.2, .7);
    }
    return d;
}

/* The reference: one after the other, their images through net->input. */
static void train_one_by_one(const struct nets *a, data d)
{
    for (int i = 0; i < a->n; i++) {
        network *net = a->net[i];
        data part = get_data_part(d, i, a->n);
        cuda_set_device(i);
        for (int k = 0; k < net->subdivisions; k++) {
            get_next_batch(part, net->batch, k * net->batch, net->input, net->truth);
            train_network_datum(net);
        }
    }
    if (get_current_batch(a->net[0]) % 4 == 0) sync_nets((network **)a->net, a->n, 4);
}

static void train_together(const struct nets *a, data d)
{
    train_networks((network **)a->net, a->n, d, 4);
}

static void check_all_same(int line, const struct nets *a, const struct nets *b)
{
    for (int i = 0; i < a->n; i++) {
        check_same_at(line, a->net[i], b->net[i]);
        CHECK_INT(*a->net[i]->seen, *b->net[i]->seen);
    }
}

static void train_both(int line, const struct nets *together, const struct nets *one_by_one, data d)
{
    train_together(together, d);
    train_one_by_one(one_by_one, d);
    check_all_same(line, together, one_by_one);
    free_data(d);
}

static void step_both(const struct nets *together, const struct nets *one_by_one, int n)
{
    for (int i = 0; i < n; i++)
        train_both(i, together, one_by_one, make_batch(together->net[0], together->n));
}

/* ---- the end, first of all: a child of a process that used OpenMP has no threads ---- */

enum end {
    BY_SIGNAL,
    NO_MEMORY_FOR_ANY,
    NO_MEMORY_FOR_ONE,
    NO_MEMORY_BEFORE_OTHERS_BEGIN,
    NO_MEMORY_TO_RESIZE,
    EXIT_WHILE_RESIZED,
    DIVERGED,
    SPOILT_SAVE
};
enum { BEFORE = 5, STATUS = 3 }; /* iterations; of exit */

/* In the middle of the first one's resize, which Darknet ends with this layer: the others are about
 * to give up, and go on if they do not wait. */
static enum end ending_by;
static atomic_bool is_resizing;

#pragma GCC visibility push(default)
void resize_yolo_layer(layer *l, int w, int h);
#pragma GCC visibility pop
void resize_yolo_layer(layer *l, int w, int h)
{
    void (*upstream)(layer *, int, int);
    *(void **)&upstream = dlsym(RTLD_NEXT, "resize_yolo_layer");
    upstream(l, w, h);
    bool slow = ending_by == NO_MEMORY_TO_RESIZE || ending_by == EXIT_WHILE_RESIZED;
    if (!slow || emulation_device() > 0) return;
    is_resizing = true;
    usleep(300000);
    if (ending_by == EXIT_WHILE_RESIZED) exit(STATUS);
    scratch_write("resized", "", 0);
}

/* The threads of the first networks, which wait until the last one has said why it cannot go on: it
 * then waits for networks that have not begun their iteration. */
static int held_back;

struct start {
    void *(*run)(void *);
    void *argument;
};

static bool is_said(const char *what)
{
    char text[1 << 14];
    return scratch_read("said", text, sizeof text) > 0 && strstr(text, what);
}

static void *run_late(void *p)
{
    struct start start = *(struct start *)p;
    free(p);
    while (!is_said("no memory for"))
        usleep(1000);
    usleep(20000); /* from what it says to its wait */
    return start.run(start.argument);
}

#pragma GCC visibility push(default)
int pthread_create(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *), void *argument)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (!held_back) return real(thread, a, run, argument);
    held_back--;
    struct start *late = malloc(sizeof *late);
    REQUIRE(late);
    *late = (struct start){run, argument};
    return real(thread, a, run_late, late);
}
#pragma GCC visibility pop

static void *resize(void *net)
{
    resize_network(net, 256, 256);
    return NULL;
}

/* There is memory until the first one's resize has begun. */
static void resize_all(const struct nets *a)
{
    pthread_t threads[MOST];
    for (int i = 0; i < a->n; i++) {
        REQUIRE(!pthread_create(&threads[i], NULL, resize, a->net[i]));
        while (!is_resizing)
            usleep(1000);
        emulation_memory_limit(emulation_memory().bytes);
    }
    for (int i = 0; i < a->n; i++)
        pthread_join(threads[i], NULL);
}

/* Gradients overflow for the last time that is allowed, which is judged when all are at work. */
static void diverge(struct amp_scaler *s)
{
    s->scale = 0x1p60;
    s->floor_skips = AMP_SCALER_FLOOR_STOP - 1;
}

static void spoil(network *net)
{
    layer *l = &net->layers[0];
    cuda_set_device(net->gpu_index);
    l->weights[0] = NAN;
    cuda_push_array(l->weights_gpu, l->weights, 1);
}

static bool only_last_ends(enum end how)
{
    return how == NO_MEMORY_FOR_ONE || how == NO_MEMORY_BEFORE_OTHERS_BEGIN;
}

static void make_end(const struct nets *a, enum end how, const char *path)
{
    ending_by = how;
    if (how == BY_SIGNAL) raise(SIGTERM);
    if (how == NO_MEMORY_FOR_ANY || only_last_ends(how)) {
        for (int k = only_last_ends(how) ? a->n - 1 : 0; k < a->n; k++)
            resize_network(a->net[k], 64, 64);
        emulation_memory_limit(emulation_memory().bytes);
    }
    if (how == NO_MEMORY_BEFORE_OTHERS_BEGIN) held_back = a->n - 1;
    if (how == NO_MEMORY_TO_RESIZE || how == EXIT_WHILE_RESIZED) resize_all(a);
    if (how == DIVERGED) diverge(&session(a, a->n - 1)->step.scaler);
    if (how != SPOILT_SAVE) return;
    spoil(a->net[0]);
    save_weights(a->net[0], (char *)path);
}

static void train_to_the_end(int n, enum end how, const char *folder, const char *path)
{
    struct nets a = start(n, KEYS, SMALL, NULL);
    list *options = make_list();
    option_insert(options, strdup("backup"), strdup(folder));
    option_find_str(options, "backup", "/backup/");
    for (int i = 0; i < BEFORE + 1; i++) {
        data d = make_batch(a.net[0], n);
        if (i == BEFORE) make_end(&a, how, path);
        train_together(&a, d);
    }
    _exit(99); /* it went on */
}

/* What they are when they end: the last iteration is finished by those that can. */
static struct nets train_until(int n, enum end how)
{
    struct nets b = start_reference(n, KEYS, SMALL, NULL);
    bool finished = how == BY_SIGNAL || only_last_ends(how);
    for (int i = 0; i < BEFORE + finished; i++) {
        struct nets able = b;
        data d = make_batch(b.net[0], n);
        if (i == BEFORE && only_last_ends(how)) {
            able.n = n - 1;
            d.X.rows = d.y.rows = d.X.rows / n * able.n;
        }
        train_one_by_one(&able, d);
    }
    sync_nets(b.net, n, 0);
    return b;
}

static void check_saved(const char *path, const struct nets *b)
{
    struct nets saved = start(1, KEYS, SMALL, path);
    struct kept x[256], y[256];
    int arrays = list_kept(saved.net[0], x);
    REQUIRE(list_kept(b->net[0], y) == arrays);
    for (int i = 0; i < arrays; i++) /* momentum is taken up by the first pass */
        if (strcmp(x[i].what, "momentum") && memcmp(x[i].x, y[i].x, x[i].n * sizeof(float)))
            TEST_FAIL("%s of layer %d is not what was averaged", x[i].what, x[i].layer);
    CHECK_INT(*saved.net[0]->seen, *b->net[0]->seen);
    CHECK(session(&saved, 0)->sidecar != NULL);
    end(&saved);
}

/* In a program of its own; what that says: scratch("said"). */
static void check_status(int n, enum end how, const char *path, int expected)
{
    char folder[PATH_MAX];
    int status = 0;
    snprintf(folder, sizeof folder, "%s", scratch("."));
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        alarm(900); /* a deadlock */
        dup2(creat(scratch("said"), 0600), STDERR_FILENO);
        train_to_the_end(n, how, folder, path);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_INT(WIFEXITED(status) ? WEXITSTATUS(status) : -1, expected);
}

static void check_ended(int n, enum end how)
{
    char path[PATH_MAX];
    uint64_t random = test_random_state;
    snprintf(path, sizeof path, "%s", scratch("a.backup"));
    check_status(n, how, path, how == BY_SIGNAL ? 128 + SIGTERM : 1);
    test_random_state = random;
    struct nets b = train_until(n, how);
    check_saved(path, &b);
    end(&b);
    unlink(path);
}

AMP_TEST(a_signal_ends_all_of_them_and_saves_their_average)
{
    for (int n = 2; n <= MOST; n++)
        check_ended(n, BY_SIGNAL);
}

AMP_TEST(one_without_memory_waits_for_the_others_before_it_saves)
{
    check_ended(3, NO_MEMORY_FOR_ANY);
    check_ended(3, NO_MEMORY_FOR_ONE);
    check_ended(3, NO_MEMORY_BEFORE_OTHERS_BEGIN);
}

AMP_TEST(one_that_cannot_be_resized_waits_for_the_others_before_it_saves)
{
    check_ended(3, NO_MEMORY_TO_RESIZE);
    CHECK(!unlink(scratch("resized")));
}

AMP_TEST(exit_does_not_wait_for_those_that_wait)
{
    check_status(3, EXIT_WHILE_RESIZED, NULL, STATUS);
}

/* Of how many iterations the summary of each tells. */
static void check_summaries(enum end how, int iterations)
{
    char path[PATH_MAX], text[1 << 14], line[100];
    snprintf(path, sizeof path, "%s", scratch("a.backup"));
    check_status(MOST, how, path, 1);
    CHECK(access(path, F_OK));
    CHECK(scratch_read("said", text, sizeof text) > 0);
    for (int i = 0; i < MOST; i++) {
        snprintf(line, sizeof line, "mixed precision: GPU %d: %d iterations in ", i, iterations);
        CHECK(strstr(text, line));
    }
}

AMP_TEST(where_one_diverges_the_logs_of_all_are_closed)
{
    check_summaries(DIVERGED, BEFORE + 1);
    check_summaries(SPOILT_SAVE, BEFORE);
}

/* ---- together ---- */

static void check_trained(int n, const char *keys, const char *layers, int iterations)
{
    struct nets a = start(n, keys, layers, NULL), b = start_reference(n, keys, layers, NULL);
    step_both(&a, &b, iterations);
    for (int i = 0; i < n; i++)
        CHECK_INT(session(&a, i)->step.scaler.applied, iterations);
    CHECK_INT(darknet_device_unordered(), 0);
    end(&a);
    end(&b);
}

AMP_TEST(each_trains_as_it_does_alone)
{
    check_trained(2, KEYS, SMALL, 12);
    check_trained(3, KEYS, SMALL, 9);
    check_trained(2, "adam=1\n" KEYS, SMALL, 5);
    check_trained(2, "subdivisions=1\nbatch=2\n" KEYS, DETECTOR, 5);
}

AMP_TEST(all_are_resized_at_once)
{
    struct nets a = start(3, KEYS, SMALL, NULL), b = start_reference(3, KEYS, SMALL, NULL);
    step_both(&a, &b, 5);
    for (int size = 32; size >= 16; size -= 16) {
#pragma omp parallel for
        for (int i = 0; i < 3; i++)
            resize_network(a.net[i], size, size);
        for (int i = 0; i < 3; i++)
            resize_network(b.net[i], size, size);
        step_both(&a, &b, 5);
    }
    CHECK_INT(darknet_device_unordered(), 0);
    end(&a);
    end(&b);
}

/* Of one network alone: gradients overflow, an image is not finite, a value does not fit FP16. */
AMP_TEST(what_goes_wrong_in_one_is_its_own)
{
    enum { LAST = 2 };
    const char *keys = MIXED "batch=4\nlearning_rate=.001\nloss_scale=dynamic\n";
    struct nets a = start(3, keys, SMALL, NULL), b = start_reference(3, keys, SMALL, NULL);
    step_both(&a, &b, 3);
    session(&a, LAST)->step.scaler.scale *= 0x1p16;
    session(&b, LAST)->step.scaler.scale *= 0x1p16;
    listen_to(a.net[LAST]);
    step_both(&a, &b, 1);
    CHECK(strstr(said(a.net[LAST]), "mixed precision: GPU 2: "));
    CHECK_INT(session(&a, LAST)->step.scaler.skipped, 1);
    CHECK_INT(session(&a, 0)->step.scaler.redone, session(&b, 0)->step.scaler.redone);
    float bad[] = {NAN, 1e6f};
    for (int k = 0; k < 2; k++) {
        data d = make_batch(a.net[0], 3);
        d.X.vals[d.X.rows - 1][7] = bad[k];
        train_both(__LINE__, &a, &b, d);
        step_both(&a, &b, 2);
    }
    stop_listening(a.net[LAST]);
    for (int i = 0; i < 3; i++) {
        CHECK(session(&a, i)->step.scaler.skipped >= 3 || i < LAST);
        CHECK(session(&a, i)->step.scaler.skipped == 0 || i == LAST);
        CHECK_INT(session(&a, i)->demoted[0] != AMP_FORMATS, i == LAST);
    }
    end(&a);
    end(&b);
}

/* Of one seed, and of as many images seen each. */
AMP_TEST(each_has_dropout_masks_of_its_own)
{
    struct nets a =
        start(2, KEYS "seed=7\n", CONV(8, "") "[dropout]\nprobability=.4\n" YOLO("0,1"), NULL);
    for (int k = 0; k < 3; k++) {
        data d = make_batch(a.net[0], 2);
        train_together(&a, d);
        free_data(d);
        for (int i = 0; i < 2; i++) {
            cuda_set_device(i);
            check_mask(a.net[i], 1, 7, (uint32_t)i);
        }
    }
    CHECK_INT(*a.net[0]->seen, *a.net[1]->seen);
    end(&a);
}

/* Its group is over: what it does is its own. */
AMP_TEST(one_trains_on_alone)
{
    struct nets a = start(2, KEYS, SMALL, NULL), b = start_reference(2, KEYS, SMALL, NULL);
    step_both(&a, &b, 5);
    CHECK_INT(amp_gpus_count(a.net[1]), 2);
    for (int i = 1; i >= 0; i--) {
        cuda_set_device(i);
        data d = make_batch(a.net[i], 1);
        train_network(a.net[i], d);
        train_network(b.net[i], d);
        free_data(d);
        CHECK_INT(amp_gpus_count(a.net[i]), 1);
        CHECK_INT(amp_gpus_place(a.net[i]), 0);
        CHECK_INT(session(&a, i)->log.place, 0);
        CHECK_STR(session(&a, i)->log.who, "");
    }
    check_all_same(__LINE__, &a, &b);
    step_both(&a, &b, 2);
    CHECK_INT(amp_gpus_count(a.net[1]), 2);
    end(&a);
    end(&b);
}

AMP_TEST(who_is_left_when_one_is_freed_is_alone)
{
    struct nets a = start(2, KEYS, SMALL, NULL);
    data d = make_batch(a.net[0], 2);
    train_together(&a, d);
    free_data(d);
    free_network(a.net[0]);
    CHECK_INT(amp_gpus_count(a.net[1]), 1);
    CHECK_INT(session(&a, 1)->log.place, 0);
    CHECK_STR(session(&a, 1)->log.who, "");
    free_network(a.net[1]);
}

/* ---- files ---- */

static void read_all(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, size - 1, f) : 0;
    text[n] = 0;
    if (f) fclose(f);
}

AMP_TEST(they_go_on_from_the_file_of_the_first)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", scratch("a.backup"));
    struct nets a = start(2, KEYS, SMALL, NULL), b = start_reference(2, KEYS, SMALL, NULL);
    step_both(&a, &b, 4);
    cuda_set_device(1); /* where Darknet's trainers are when they save */
    save_weights(a.net[0], path);
    struct kept saved[256], taken[256];
    int n = list_kept(a.net[0], saved);
    int64_t applied = session(&a, 0)->step.scaler.applied;
    struct nets c = start(2, KEYS, SMALL, path), d = start_reference(2, KEYS, SMALL, path);
    for (int k = 0; k < 2; k++) {
        CHECK(session(&c, k)->sidecar != NULL);
        cuda_set_device(k);
        amp_session_resume(session(&d, k), *d.net[k]->seen);
        REQUIRE(list_kept(d.net[k], taken) == n);
        for (int i = 0; i < n; i++)
            if (memcmp(saved[i].x, taken[i].x, saved[i].n * sizeof(float)))
                TEST_FAIL("network %d took up another %s of layer %d", k, saved[i].what,
                          saved[i].layer);
    }
    step_both(&c, &d, 5);
    for (int k = 0; k < 2; k++)
        CHECK_INT(session(&c, k)->step.scaler.applied, applied + 5);
    CHECK_INT(darknet_device_unordered(), 0);
    end(&a);
    end(&b);
    end(&c);
    end(&d);
}

AMP_TEST(the_log_is_that_of_the_first)
{
    char keys[PATH_MAX + 100], path[PATH_MAX], text[1 << 14], line[100];
    snprintf(path, sizeof path, "%s", scratch("a.jsonl"));
    snprintf(keys, sizeof keys, KEYS "amp_log=%s\n", path);
    unlink(path);
    struct nets a = start(2, keys, SMALL, NULL), b = start_reference(2, KEYS, SMALL, NULL);
    step_both(&a, &b, 6);
    end(&a);
    end(&b);
    read_all(path, text, sizeof text);
    CHECK_INT(count(text, "\n"), 6);
    for (int i = 1; i <= 6; i++) { /* after the fourth, the images of both count */
        snprintf(line, sizeof line, "{\"iteration\": %d, ", i <= 4 ? i : i + 4);
        CHECK_INT(count(text, line), 1);
    }
}

/* ---- batches that are loaded ---- */

/* The last image of the batch in hand is not finite; its file is named. */
static void check_named(const struct nets *a, data batch)
{
    network *last = a->net[a->n - 1];
    char name[PATH_MAX];
    snprintf(name, sizeof name, ", image %s)", amp_batches_image(batch.X.rows - 1));
    batch.X.vals[batch.X.rows - 1][3] = NAN;
    listen_to(last);
    train_together(a, batch);
    CHECK(strstr(said(last), name));
    stop_listening(last);
}

/* Images go ahead to the device of the network that will train on them. */
AMP_TEST(each_gets_its_images_ahead)
{
    enum { N = 3 };
    static const float untouched = -7;
    const char *keys = KEYS "seed=7\n";
    data next, batch;
    struct nets b = start_reference(N, keys, SMALL, NULL), a = start(N, keys, SMALL, NULL);
    load_args args = {.type = DETECTION_DATA,
                      .paths = box_paths,
                      .n = a.net[0]->batch * a.net[0]->subdivisions * N,
                      .m = SMALL_SET_IMAGES,
                      .classes = 2,
                      .w = a.net[0]->w,
                      .h = a.net[0]->h,
                      .num_boxes = a.net[0]->layers[a.net[0]->n - 1].max_boxes,
                      .jitter = .2f,
                      .threads = 3,
                      .d = &next};
    for (int late = 0; late < 2; late++) {
        darknet_device_delay(late);
        pthread_t loading = load_data(args);
        for (int i = 0; i < 5; i++) {
            pthread_join(loading, NULL);
            batch = next;
            loading = load_data(args);
            for (int k = 0; k < N; k++)
                a.net[k]->input[0] = untouched;
            train_together(&a, batch);
            for (int k = 0; k < N; k++)
                CHECK(a.net[k]->input[0] == untouched);
            train_one_by_one(&b, batch);
            check_all_same(__LINE__, &a, &b);
            free_data(batch);
        }
        pthread_join(loading, NULL);
        if (late) check_named(&a, next);
        free_data(next);
    }
    darknet_device_delay(false);
    CHECK_INT(darknet_device_unordered(), 0);
    end(&a);
    end(&b);
    CHECK_INT(darknet_device_page_locked(), 0);
}

/* ---- that the emulation does see ---- */

static bool dies(void (*act)(struct nets *), struct nets *a)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        freopen("/dev/null", "w", stderr);
        act(a);
        _exit(0);
    }
    return waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
           WTERMSIG(status) == SIGABRT;
}

static void read_from_another(struct nets *a)
{
    const struct amp_session *s = session(a, 0);
    float x;
    s->backend->read(s->context, &x, s->net->layers[0].weights_gpu, sizeof x);
}

static void take_order_from_another(struct nets *a)
{
    const struct amp_session *s = session(a, 0);
    s->backend->acquire(s->context);
}

static void nothing_wrong(struct nets *a)
{
    cuda_set_device(0);
    read_from_another(a);
    take_order_from_another(a);
}

AMP_TEST(another_device_is_an_error)
{
    struct nets a = start(2, KEYS, SMALL, NULL);
    CHECK(dies(read_from_another, &a));
    CHECK(dies(take_order_from_another, &a));
    CHECK(!dies(nothing_wrong, &a));
    end(&a);
}

AMP_TEST_MAIN
