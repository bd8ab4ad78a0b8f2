/* Memory that ends when a network grows: the message names the size and what to change, the state
 * after the last step is saved before the program ends, and training goes on from there with less.
 * With the CPU backend, and compiled a second time with the CUDA backend emulated. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "plugin/attach/run/save.h"

#include <fcntl.h>
#include <option_list.h>
#include <sys/wait.h>
#ifdef CUDA_EMULATED
#include "tests/emulation/emulation.h"
#define BACKEND "amp_backend=cuda\n"
#else
#define BACKEND "amp_backend=cpu\n"
#endif

#define LAYERS CONV(4, NORMALIZED) "[maxpool]\nsize=2\nstride=2\n" CONV(4, NORMALIZED) YOLO("0,1")
#define RANDOM LAYERS "random=1\n"
#define KEYS   MIXED BACKEND "learning_rate=0.0001\n"

/* ---- memory that ends ---- */

#ifndef AMP_SANITIZED
void *__libc_realloc(void *, size_t);
static size_t largest_realloc = SIZE_MAX;

/* Darknet's, too. */
__attribute__((visibility("default"))) void *realloc(void *memory, size_t bytes)
{
    return bytes > largest_realloc ? NULL : __libc_realloc(memory, bytes);
}
#endif

#ifdef CUDA_EMULATED
static void end_memory_of(network *net)
{
    (void)net;
    emulation_memory_limit(emulation_memory().peak_bytes + 1000);
}
#else
static struct ampk_backend limited;
static size_t largest;

static void *limited_alloc(struct ampk_context *context, size_t bytes)
{
    return bytes > largest ? NULL : ampk_cpu.alloc(context, bytes);
}

static void end_memory_of(network *net)
{
    struct amp_session *s = amp_session_of(net->layers);
    largest = s->plan->arena_bytes + 1000;
    limited = *s->backend;
    limited.alloc = limited_alloc;
    s->backend = &limited;
}
#endif

/* ---- a child that runs out of it ---- */

enum { TRAINED = 3, SIZE = 32, LARGE = 608 };
enum which { IN_OUR_ARENA, IN_DARKNETS_RESIZE, IN_PLANNING, BEFORE_ANY_STEP };

static char backup[PATH_MAX];

/* The cfg in memory no longer describes what Darknet built. */
static void spoil_cfg(network *net)
{
    struct amp_cfg_section *first = &amp_session_of(net->layers)->cfg->sections[1];
    strcpy(amp_cfg_find(first, "filters")->value, "5");
}

/* As Darknet's trainers: reads its backup folder, trains, draws another size. */
static void grow_too_large(const char *cfg, enum which which)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", backup);
    *strrchr(folder, '/') = 0;
    option_find_str(make_list(), "backup", folder);
    network *net = parse_network_cfg((char *)cfg);
    resize_network(net, SIZE, SIZE);
    if (which != BEFORE_ANY_STEP) steps(net, TRAINED);
    if (which == IN_PLANNING)
        spoil_cfg(net);
    else if (which != IN_DARKNETS_RESIZE)
        end_memory_of(net);
#ifndef AMP_SANITIZED
    if (which == IN_DARKNETS_RESIZE) largest_realloc = (size_t)1 << 20;
#endif
    resize_network(net, LARGE, LARGE);
    steps(net, 1);
}

static int end_of(pid_t child)
{
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Its exit status; what it said. (All that computes is in children: OpenMP's threads do not live on
 * in one, and it would wait for them.) */
static int run_child(const char *cfg, enum which which, char *text, size_t size)
{
    int said = open(scratch("said"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        dup2(said, 2);
        grow_too_large(cfg, which);
        _exit(0);
    }
    close(said);
    int status = end_of(child);
    REQUIRE(scratch_read("said", text, size) >= 0);
    return status;
}

/* ---- what it left ---- */

static network *parse_from(const char *keys, const char *layers)
{
    network *net = parse(keys, layers);
    load_weights(net, backup);
    return net;
}

/* Half the batch and twice the subdivisions, without random sizes. */
static void check_state(void)
{
    network *straight = parse(KEYS, LAYERS);
    resize_network(straight, SIZE, SIZE);
    steps(straight, TRAINED);
    network *resumed = parse_from("subdivisions=4\n" KEYS, LAYERS);
    amp_session_resume(amp_session_of(resumed->layers), *resumed->seen);
    CHECK_INT(*resumed->seen, TRAINED * 8);
    CHECK_SAME(resumed, straight);
    const struct amp_scaler *a = &amp_session_of(resumed->layers)->step.scaler;
    const struct amp_scaler *b = &amp_session_of(straight->layers)->step.scaler;
    CHECK(a->scale == b->scale && a->applied == b->applied);
    steps(resumed, 1);
    CHECK_INT(a->applied, TRAINED + 1);
    free_network(straight);
    free_network(resumed);
}

static void check_goes_on(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        test_failures = 0;
        check_state();
        _exit(test_failures ? 1 : 0);
    }
    CHECK_INT(end_of(child), 0);
}

static void check_saved_for(const char *reason, enum which which, const char *layers)
{
    char text[1 << 15], cfg[PATH_MAX];
    snprintf(cfg, sizeof cfg, "%s", write_cfg(KEYS, layers));
    snprintf(backup, sizeof backup, "%s", scratch("a.backup"));
    unlink(backup);
    srand(5);
    CHECK_INT(run_child(cfg, which, text, sizeof text), 1);
    bool fine = strstr(text, reason) && strstr(text, "after iteration 3 is saved") &&
                strstr(text, backup) && !strstr(text, "random=1") == !strstr(layers, "random=1");
    if (which != IN_PLANNING) fine = fine && strstr(text, "608x608") && strstr(text, "lower ");
    if (!fine) TEST_FAIL("it said: %s", text);
    check_goes_on();
}

static void check_saved(enum which which, const char *layers)
{
    check_saved_for("no memory for", which, layers);
}

AMP_TEST(activations_that_do_not_fit)
{
    check_saved(IN_OUR_ARENA, LAYERS);
    check_saved(IN_OUR_ARENA, RANDOM);
}

AMP_TEST(a_net_that_cannot_be_planned_again)
{
    check_saved_for("layer 0 (convolutional): the cfg describes", IN_PLANNING, LAYERS);
}

#ifndef AMP_SANITIZED
AMP_TEST(darknets_own_arrays_that_do_not_fit)
{
    check_saved(IN_DARKNETS_RESIZE, RANDOM);
}
#endif

AMP_TEST(what_was_saved_before_is_not_replaced_by_nothing)
{
    char text[1 << 15], kept[20];
    const char *cfg = write_cfg(KEYS, LAYERS);
    scratch_write("a.backup", "of another run", 14);
    snprintf(backup, sizeof backup, "%s", scratch("a.backup"));
    CHECK_INT(run_child(cfg, BEFORE_ANY_STEP, text, sizeof text), 1);
    if (!strstr(text, "nothing was trained")) TEST_FAIL("it said: %s", text);
    scratch_read("a.backup", kept, sizeof kept);
    CHECK_STR(kept, "of another run");
}

AMP_TEST_MAIN
