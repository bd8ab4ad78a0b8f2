/* What a batch needs goes while a network trains: labels, images, threads, memory. Each case in a
 * process of its own: it ends with status 1 and a message that names the file, the last backup is
 * whole, and the run that goes on from there is the one that lost nothing. Linked with --wrap for
 * pthread_create and calloc. */

#include "tests/rig/small_set.h"
#include "tests/rig/child.h"

#include <errno.h>
#include <option_list.h>
#include <stdbool.h>

#define KEYS "mixed_precision=1\nseed=7\nloss_scale_init=2\nloss_scale_window=3\n"

enum { LOST_AFTER = 3, END = 6 };

/* ---- what fails ---- */

static bool no_threads;           /* can be started */
static bool only_training_thread; /* can start threads */
static pthread_t training_thread;
static bool no_memory; /* for the next allocation */

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *), void *p)
{
    bool training = pthread_equal(pthread_self(), training_thread);
    if (no_threads || (only_training_thread && !training)) return EAGAIN;
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
    for (int i = 0; i < SMALL_SET_IMAGES; i++) {
        snprintf(path, sizeof path, "boxes/%02d.txt", i);
        if (unlink(path)) _exit(98);
    }
}

static void lose_images(network *net)
{
    (void)net;
    for (int i = 0; i < SMALL_SET_IMAGES; i++)
        if (unlink(box_paths[i])) _exit(98);
}

/* More than OpenCV allows: it throws. */
static void spoil_headers(network *net)
{
    (void)net;
    for (int i = 0; i < SMALL_SET_IMAGES; i++)
        write_text(box_paths[i], "P6 40000 40000 255\n");
}

static void lose_threads(network *net)
{
    (void)net;
    no_threads = true;
}

/* Of a batch: the one that the loading thread starts itself. */
static void lose_second_thread_of_each(network *net)
{
    (void)net;
    training_thread = pthread_self();
    only_training_thread = true;
}

static void lose_memory(network *net)
{
    (void)net;
    no_memory = true;
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

/* Everything as before the first case. */
static void restore(void)
{
    if (system("rm -rf boxes *.backup* *.weights* bad.list")) abort();
    mkdir("boxes", 0777);
    for (int i = 0; i < SMALL_SET_IMAGES; i++)
        free(add_small_image("boxes", i, "1 0.5 0.5 0.4 0.3\n0 0.3 0.4 0.25 0.2\n"));
}

/* ---- as Darknet's trainers: one batch in hand, the next being loaded ---- */

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

/* When so many iterations are saved, what the next batches need is lost. */
static void train(network *net, void (*lose)(network *))
{
    data loaded;
    load_args args = arguments(net, &loaded);
    pthread_t thread = load_data(args);
    while (iteration(net) < END) {
        pthread_join(thread, NULL);
        data d = loaded;
        thread = load_data(args);
        train_network(net, d);
        free_data(d);
        if (iteration(net) != LOST_AFTER) continue;
        save_weights(net, "small.backup");
        if (lose) lose(net);
    }
    pthread_join(thread, NULL);
}

static void unbroken(void)
{
    network *net = begin();
    train(net, NULL);
    save_weights(net, "whole_final.weights");
}

static void resumed(void)
{
    network *net = begin();
    load_weights(net, "small.backup");
    train(net, NULL);
    save_weights(net, "resumed_final.weights");
}

static void (*lose)(network *);

static void broken(void)
{
    network *net = begin();
    train(net, lose);
    save_weights(net, "small_final.weights");
}

/* ---- named, and gone on from the last backup ---- */

static void check_ends(void (*what)(network *), const char *why)
{
    lose = what;
    restore();
    CHECK_INT(run(unbroken), ALIVE);
    if (system("cp small.backup three.backup && cp small.backup.amp three.backup.amp")) abort();
    CHECK_INT(run(broken), 1);
    CHECK_SAYS(text, why);
    check_same_pair("small.backup", "three.backup");
    CHECK(!exists("bad.list") && !exists("small_final.weights"));
    for (int i = 0; i < SMALL_SET_IMAGES; i++)
        free(add_small_image("boxes", i, "1 0.5 0.5 0.4 0.3\n0 0.3 0.4 0.25 0.2\n"));
    CHECK_INT(run(resumed), ALIVE);
    CHECK_SAYS(text, "resumed from small.backup.amp: iteration 3");
    check_same_pair("resumed_final.weights", "whole_final.weights");
}

AMP_TEST(labels)
{
    check_ends(lose_labels, ".txt: cannot be opened: No such file or directory; ");
}

AMP_TEST(images)
{
    check_ends(lose_images, ".jpg\" cannot be read or decoded: ");
}

AMP_TEST(headers_of_images)
{
    check_ends(spoil_headers, ".jpg\" cannot be read or decoded: ");
}

AMP_TEST(what_the_training_thread_needs)
{
    check_ends(lose_threads, "cannot start a thread that loads images: ");
    check_ends(lose_memory, "out of memory while loading a batch: lower batch\n");
}

/* One thread loads the batch that two were to load. */
AMP_TEST(a_thread_less)
{
    lose = lose_second_thread_of_each;
    restore();
    CHECK_INT(run(unbroken), ALIVE);
    CHECK_INT(run(broken), ALIVE);
    check_same_pair("small_final.weights", "whole_final.weights");
}

AMP_TEST_MAIN
