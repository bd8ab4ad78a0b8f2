// What a batch needs goes while a network trains: labels, images, threads, memory. Each case in a
// process of its own: the iterations of before are saved, the message names the file and the way to
// go on, and the run that goes on is the one that lost nothing. Linked with --wrap for
// pthread_create and calloc.

#include "tests/rig/small_set.h"

#include "plugin/attach/sessions.h"

#include <errno.h>
#include <fcntl.h>
#include <option_list.h>
#include <sys/wait.h>

#define KEYS  "mixed_precision=1\nseed=7\nloss_scale_window=3\n"
#define ALIVE 99 // the status of a child whose program came to its end

enum { LOST_AFTER = 3, END = 6 };

// ---- what fails ----

static int threads_left = -1; // that can be started; -1: any number
static bool no_memory;        // for the next allocation

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *), void *p)
{
    if (!threads_left) return EAGAIN;
    threads_left -= threads_left > 0;
    return __real_pthread_create(thread, a, run, p);
}

void *__real_calloc(size_t, size_t);
void *__wrap_calloc(size_t, size_t);
void *__wrap_calloc(size_t n, size_t size)
{
    bool fails = no_memory;
    no_memory = false;
    return fails ? NULL : __real_calloc(n, size);
}

static void lose_labels(network *net)
{
    char path[64];
    (void)net;
    for (int i = 0; i < SMALL_SET_IMAGES; ++i) {
        snprintf(path, sizeof path, "boxes/%02d.txt", i);
        if (unlink(path)) _exit(98);
    }
}

static void lose_images(network *net)
{
    (void)net;
    for (int i = 0; i < SMALL_SET_IMAGES; ++i)
        if (unlink(box_paths[i])) _exit(98);
}

// More than OpenCV allows: it throws.
static void spoil_headers(network *net)
{
    (void)net;
    for (int i = 0; i < SMALL_SET_IMAGES; ++i)
        write_text(box_paths[i], "P6 40000 40000 255\n");
}

static void lose_threads(network *net)
{
    (void)net;
    threads_left = 0;
}

static void lose_second_thread(network *net)
{
    (void)net;
    threads_left = 1;
}

static void lose_memory(network *net)
{
    (void)net;
    no_memory = true;
}

static void be_suspect_and_lose_labels(network *net)
{
    amp_session_of(net->layers)->step.divergence.count = 1;
    lose_labels(net);
}

static void be_last_and_lose_labels(network *net)
{
    net->max_batches = LOST_AFTER;
    lose_labels(net);
}

// ---- a program in a process of its own ----

static char text[1 << 14]; // its stderr

static int run(void (*program)(void))
{
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        dup2(open("said", O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
        alarm(60);
        program();
        _exit(ALIVE);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    FILE *f = fopen("said", "r");
    REQUIRE(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static bool same_file(const char *a, const char *b)
{
    char command[200];
    snprintf(command, sizeof command, "cmp %s %s", a, b);
    return !system(command);
}

static void check_same_pair(const char *a, const char *b)
{
    char x[64], y[64];
    snprintf(x, sizeof x, "%s.amp", a);
    snprintf(y, sizeof y, "%s.amp", b);
    CHECK(same_file(a, b) && same_file(x, y));
}

static bool exists(const char *name)
{
    return !access(name, F_OK);
}

// Everything as before the first case.
static void restore(void)
{
    if (system("rm -rf boxes *.backup* *.weights* bad.list")) abort();
    mkdir("boxes", 0777);
    for (int i = 0; i < SMALL_SET_IMAGES; ++i)
        free(add_small_image("boxes", i, "1 0.5 0.5 0.4 0.3\n0 0.3 0.4 0.25 0.2\n"));
}

// ---- as Darknet's trainers: one batch in hand, the next being loaded ----

static network *begin(void)
{
    option_find_str(make_list(), "backup", ".");
    return parse_network_cfg((char *)write_small_cfg(KEYS));
}

static load_args arguments(const network *net, data *d)
{
    layer head = net->layers[net->n - 1];
    return (load_args){.type = DETECTION_DATA,
                       .paths = box_paths,
                       .n = net->batch * net->subdivisions,
                       .m = SMALL_SET_IMAGES,
                       .classes = 2,
                       .w = net->w,
                       .h = net->h,
                       .jitter = .2f,
                       .num_boxes = head.max_boxes,
                       .threads = 2,
                       .d = d};
}

static size_t iteration(const network *net)
{
    return *net->seen / (size_t)(net->batch * net->subdivisions);
}

// While the last batch that is good is trained on, the next is lost.
static void train(network *net, size_t lost_after, void (*lose)(network *))
{
    data loaded;
    load_args args = arguments(net, &loaded);
    pthread_t thread = load_data(args);
    while (iteration(net) < (size_t)net->max_batches) {
        pthread_join(thread, NULL);
        data d = loaded;
        if (lose && iteration(net) + 1 == lost_after) lose(net);
        thread = load_data(args);
        train_network(net, d);
        free_data(d);
        if (iteration(net) == LOST_AFTER && !lose) save_weights(net, "three.backup");
    }
    pthread_join(thread, NULL);
}

static void unbroken(void)
{
    network *net = begin();
    net->max_batches = END;
    train(net, 0, NULL);
    save_weights(net, "whole_final.weights");
}

static void resumed(void)
{
    network *net = begin();
    net->max_batches = END;
    load_weights(net, "small.backup");
    train(net, 0, NULL);
    save_weights(net, "resumed_final.weights");
}

static void (*lose)(network *);

static void stopped(void)
{
    network *net = begin();
    train(net, LOST_AFTER, lose);
    save_weights(net, "small_final.weights");
}

// ---- saved, and gone on from ----

static void check_saves(void (*what)(network *), const char *why)
{
    lose = what;
    restore();
    CHECK_INT(run(unbroken), ALIVE);
    CHECK_INT(run(stopped), 1);
    CHECK_SAYS(text, why);
    CHECK_SAYS(text,
               "after iteration 3 is saved. To go on from there, put that right and give the same "
               "command with the weights file after the cfg, without -clear: small.cfg "
               "./small.backup\n");
    check_same_pair("small.backup", "three.backup");
    CHECK(!exists("bad.list") && !exists("small_final.weights"));
    for (int i = 0; i < SMALL_SET_IMAGES; ++i)
        free(add_small_image("boxes", i, "1 0.5 0.5 0.4 0.3\n0 0.3 0.4 0.25 0.2\n"));
    CHECK_INT(run(resumed), ALIVE);
    check_same_pair("resumed_final.weights", "whole_final.weights");
}

AMP_TEST(labels)
{
    check_saves(lose_labels, ".txt: cannot be opened: No such file or directory; ");
    CHECK_SAYS(text, "resumed from small.backup.amp: iteration 3");
}

AMP_TEST(images)
{
    check_saves(lose_images, ".jpg\" cannot be read or decoded: ");
}

AMP_TEST(headers_of_images)
{
    check_saves(spoil_headers, ".jpg\" cannot be read or decoded: ");
}

AMP_TEST(threads)
{
    check_saves(lose_second_thread, "cannot start a thread that loads images: ");
}

// Found before the last batch is trained on.
static void check_saves_at_once(void (*what)(network *), const char *why)
{
    lose = what;
    restore();
    CHECK_INT(run(stopped), 1);
    CHECK_SAYS(text, why);
    CHECK_SAYS(text, "after iteration 2 is saved. ");
    CHECK(exists("small.backup") && exists("small.backup.amp"));
}

AMP_TEST(what_the_training_thread_needs)
{
    check_saves_at_once(lose_threads, "cannot start a thread that loads images: ");
    check_saves_at_once(lose_memory, "out of memory while loading a batch: lower batch\n");
}

// It asks for no further batch: Darknet's function that takes images out of a batch is where it
// ends.
static void one_batch_after_the_other(void)
{
    network *net = begin();
    data d;
    load_args args = arguments(net, &d);
    for (;;) {
        if (iteration(net) == LOST_AFTER) lose(net);
        pthread_join(load_data(args), NULL);
        train_network(net, d);
        free_data(d);
    }
}

AMP_TEST(a_program_without_a_batch_in_hand)
{
    lose = lose_labels;
    restore();
    CHECK_INT(run(unbroken), ALIVE);
    CHECK_INT(run(one_batch_after_the_other), 1);
    CHECK_SAYS(text, ".txt: cannot be opened: ");
    check_same_pair("small.backup", "three.backup");
}

// ---- what is not replaced ----

AMP_TEST(another_runs_backup_stays)
{
    lose = lose_labels;
    restore();
    write_text("small.backup", "older");
    CHECK_INT(run(stopped), 1);
    CHECK_SAYS(text, "small.cfg ./small_stopped.backup\n");
    write_text("older", "older");
    CHECK(exists("small_stopped.backup.amp") && same_file("small.backup", "older"));
}

AMP_TEST(nothing_is_saved_of_a_run_that_may_have_diverged)
{
    lose = be_suspect_and_lose_labels;
    restore();
    CHECK_INT(run(one_batch_after_the_other), 1);
    CHECK_SAYS(text, ".txt: cannot be opened: ");
    CHECK_SAYS(text, "weights are not saved: ");
    CHECK(!exists("small.backup"));
}

static void before_the_first_iteration(void)
{
    network *net = begin();
    lose_labels(net);
    train(net, 0, NULL);
}

AMP_TEST(nothing_is_saved_where_nothing_was_trained)
{
    restore();
    CHECK_INT(run(before_the_first_iteration), 1);
    CHECK_SAYS(text, ".txt: cannot be opened: ");
    CHECK_SAYS(text, "nothing was trained\n");
    CHECK(!exists("small.backup"));
}

static void one_of_two(void)
{
    network *other = parse_network_cfg((char *)write_small_cfg(KEYS)), *net = begin();
    for (int i = 0; i < other->subdivisions; ++i)
        train_network_datum(other);
    train(net, LOST_AFTER, lose_labels);
}

AMP_TEST(nothing_is_saved_of_several_networks)
{
    restore();
    CHECK_INT(run(one_of_two), 1);
    CHECK_SAYS(text, "nothing was saved: several networks train\n");
    CHECK(!exists("small.backup"));
}

// The batch after the last is not used.
AMP_TEST(in_the_last_iteration_training_ends_by_itself)
{
    lose = be_last_and_lose_labels;
    restore();
    CHECK_INT(run(stopped), ALIVE);
    CHECK(exists("small_final.weights") && !exists("small.backup"));
}

AMP_TEST_MAIN
