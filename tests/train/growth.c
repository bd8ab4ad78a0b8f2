/* What a process holds does not grow: memory, open files and threads while networks are attached
 * and detached, trained, and resized, measured again and again and fitted with a line.
 *
 *   test_growth [TEST] [--rounds N]
 *
 * Without --rounds the short forms; CTest runs the full ones under the label slow. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "amp.h"

#include <fcntl.h>
#include <malloc.h>
#include <time.h>

static int rounds_asked; /* 0: the short form */

static int rounds(int few)
{
    return rounds_asked ? rounds_asked : few;
}

/* ---- what the process holds ---- */

static int entries(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    REQUIRE(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static double resident_bytes(void)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    REQUIRE(f && fscanf(f, "%ld %ld", &pages, &resident) == 2);
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

enum { RESIDENT, ALLOCATED, FILES, THREADS, QUANTITIES };
static const char *const quantity_names[] = {"resident bytes", "allocated bytes", "open files",
                                             "threads"};

static void look(double held[QUANTITIES])
{
    malloc_trim(0); /* what is free is not held */
    struct mallinfo2 memory = mallinfo2();
    held[RESIDENT] = resident_bytes();
    held[ALLOCATED] = (double)memory.uordblks + (double)memory.hblkhd;
    held[FILES] = entries("/proc/self/fd");
    held[THREADS] = entries("/proc/self/task");
}

/* ---- their slopes ---- */

enum { SAMPLES = 100 };

struct line {
    int count;
    double round[SAMPLES], held[SAMPLES][QUANTITIES];
};

/* Least squares of quantity q over the rounds, per round. */
static double slope(const struct line *l, int q)
{
    double n = l->count, x = 0, y = 0, xx = 0, xy = 0;
    for (int i = 0; i < l->count; i++) {
        x += l->round[i];
        y += l->held[i][q];
        xx += l->round[i] * l->round[i];
        xy += l->round[i] * l->held[i][q];
    }
    return (n * xy - x * y) / (n * xx - x * x);
}

/* What the fitted line may gain over all rounds, however many: the allocator's free lists and the
 * libraries' caches move by some 50 KB in the first thousands, and large memory comes in pages of
 * 2 MiB. The smallest leak of all, 32 bytes a round, is above that within 4096 rounds. Files and
 * threads may not grow at all. */
#define ALLOCATED_DRIFT (1 << 17)
#define RESIDENT_DRIFT  (4 << 20)

static void check_flat(const struct line *l, const char *what)
{
    int last = l->count - 1;
    double span = l->round[last] - l->round[0];
    const double most[QUANTITIES] = {RESIDENT_DRIFT / span, ALLOCATED_DRIFT / span, 0, 0};
    for (int q = 0; q < QUANTITIES; q++) {
        double grows = slope(l, q);
        printf("%s: %s: %.4g at first, %.4g at last, %+.3g a round over %.0f rounds\n", what,
               quantity_names[q], l->held[0][q], l->held[last][q], grows, span);
        if (q < FILES ? grows > most[q] : l->held[last][q] > l->held[0][q])
            TEST_FAIL("%s: %s grow by %g a round, allowed %g", what, quantity_names[q], grows,
                      most[q]);
    }
}

/* Darknet prints lines of every layer and pass; reports of the test come when it is over. */
static void be_quiet(int console[2])
{
    int nowhere = open("/dev/null", O_WRONLY);
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        console[i] = dup(1 + i);
        dup2(nowhere, 1 + i);
    }
    close(nowhere);
}

static void speak_again(const int console[2])
{
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        dup2(console[i], 1 + i);
        close(console[i]);
    }
}

/* Runs n rounds; the first tenth is for what is made once. */
static void watch(const char *what, int n, void (*round)(void *, int), void *user)
{
    static struct line l;
    struct timespec from, to;
    int warm = n / 10 + 1, every = (n - warm) / SAMPLES + 1;
    int console[2];
    l.count = 0;
    be_quiet(console);
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < n; i++) {
        round(user, i);
        if (i < warm || (i - warm) % every || l.count == SAMPLES) continue;
        l.round[l.count] = i;
        look(l.held[l.count++]);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    speak_again(console);
    double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    printf("%s: %d rounds, %.3g ms each\n", what, n, 1e3 * seconds / n);
    check_flat(&l, what);
}

/* ---- attaching and detaching ---- */

struct attachment {
    network *net;
    const char *cfg;
};

/* Detached at once, after inference, in the middle of a step, and after one. */
static void attach_and_detach(void *user, int i)
{
    struct attachment *a = user;
    REQUIRE(amp_attach(a->net, a->cfg) == 1);
    if (i % 4 == 1) predict(a->net);
    if (i % 4 == 2) pass(a->net);
    if (i % 4 == 3) steps(a->net, 1);
    REQUIRE(amp_detach(a->net) == 1);
}

AMP_TEST(attached_and_detached)
{
    static const char layers[] = CONV(4, NORMALIZED) YOLO("0,1");
    struct attachment a = {parse("learning_rate=0\n", layers), NULL};
    a.cfg = strdup(write_cfg(MIXED "learning_rate=0\n", layers));
    watch("attach and detach", rounds(1000), attach_and_detach, &a);
    free_network(a.net);
}

/* ---- training ---- */

static void train_once(void *net, int i)
{
    (void)i;
    steps(net, 1);
}

/* Smaller than a millisecond: overhead, which is where growth would come from, is most of it. */
AMP_TEST(trained)
{
    static const char layers[] = CONV(2, NORMALIZED "stride=2\n") YOLO("0,1");
    network *net =
        parse(MIXED "batch=2\nsubdivisions=1\nlearning_rate=0.00001\nmax_batches=1000000\n"
                    "amp_log=/dev/null\n",
              layers);
    watch("training", rounds(6000), train_once, net); /* enough for the smallest leak */
    free_network(net);
}

/* ---- resizing ---- */

enum { SIZES = 10 }; /* those that Darknet draws with random=1 */
#define SIZE(k) (320 + 32 * (k))

static const char small[] = CONV(2, NORMALIZED "stride=4\n") "[maxpool]\nsize=2\nstride=2\n" CONV(
    2, NORMALIZED) "[upsample]\nstride=2\n[route]\nlayers=-1,0\n" YOLO("0,1");
#define SMALL MIXED "batch=2\nsubdivisions=1\nlearning_rate=0.00001\nmax_batches=1000000\n"

static network *settled_at(int size)
{
    char keys[200];
    snprintf(keys, sizeof keys, SMALL "width=%d\nheight=%d\n", size, size);
    return parse_settled(keys, small);
}

/* One step at each size in random order, the smallest last. */
static void train_at_every_size(void *net, int i)
{
    int order[SIZES];
    (void)i;
    for (int k = 0; k < SIZES; k++)
        order[k] = k;
    for (int k = SIZES - 1; k > 0; k--) {
        int other = (int)(test_random() % (unsigned)(k + 1)), size = order[k];
        order[k] = order[other];
        order[other] = size;
    }
    for (int k = 0; k <= SIZES; k++) {
        int size = SIZE(k < SIZES ? order[k] : 0);
        resize_network(net, size, size);
        steps(net, 1);
    }
}

AMP_TEST(resized)
{
    network *net = settled_at(SIZE(0));
    watch("ten sizes", rounds(6), train_at_every_size, net);
    free_network(net);
}

/* A step at a size is that of a network which never had another. */
AMP_TEST(right_at_every_size)
{
    network *net = settled_at(SIZE(5));
    steps(net, 1);
    for (int i = 0; i < 2 * SIZES; i++) {
        int size = SIZE(i * 7 % SIZES);
        network *fresh = settled_at(size);
        resize_network(net, size, size);
        copy_kept(net, fresh);
        amp_session_of(fresh->layers)->step.scaler = amp_session_of(net->layers)->step.scaler;
        steps(net, 1);
        steps(fresh, 1);
        CHECK_SAME(net, fresh);
        free_network(fresh);
    }
    free_network(net);
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--rounds")) {
            rounds_asked = atoi(argv[i + 1]);
            argv[i] = NULL;
            argc = i;
        }
    return test_main(argc, argv);
}
