/* A save in which one call of the C library fails, every call in turn: training goes on, what is on
 * the disk is the pair before or the new one, and the next save is as good as any.
 *
 * The functions below stand before the C library's, for Darknet's own writing too. */

#define _GNU_SOURCE
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "plugin/attach/run/save.h"
#include "plugin/include/amp.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <sys/stat.h>

#define SEEDED                                                                                     \
    "width=4\nheight=4\nloss_scale_init=2\nloss_scale_window=3\nseed=3\namp_backup_every="         \
    "0\n" MIXED

static const char layers[] =
    CONV(3, NORMALIZED) "[connected]\noutput=4\nactivation=linear\n[cost]\n";

/* ---- calls that fail ---- */

enum call {
    WRITE,
    HALF_A_WRITE,
    FSYNC,
    RENAME,
    LINK,
    UNLINK,
    OPEN,
    CLOSE,
    FOPEN,
    FWRITE,
    FCLOSE,
    GETRANDOM,
    CALLS
};

static const struct {
    const char *name;
    int error;
    bool on;   /* it goes on failing: of two calls the second cannot be told from the first */
    bool told; /* every one of them matters */
} kinds[CALLS] = {{"write", ENOSPC, false, true},   {"write, in its middle", ENOSPC, true, true},
                  {"fsync", EIO, false, true},      {"rename", EIO, false, true},
                  {"link", EIO, false, false},      {"unlink", EROFS, false, false},
                  {"open", EMFILE, false, false},   {"close", EIO, false, false},
                  {"fopen", EMFILE, true, true},    {"fwrite", ENOSPC, false, true},
                  {"fclose", ENOSPC, false, false}, {"getrandom", ENOSYS, false, true}};

static bool armed;
static enum call failing;
static int fail_at, calls;

static bool fails(enum call call)
{
    if (!armed || call != failing) return false;
    calls++;
    errno = kinds[call].error;
    return kinds[call].on ? calls >= fail_at : calls == fail_at;
}

#pragma GCC visibility push(default)
#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *bytes, size_t n)
{
    if (fails(WRITE)) return -1;
    if (fails(HALF_A_WRITE)) return calls == fail_at ? REAL(write)(fd, bytes, n / 2) : -1;
    return REAL(write)(fd, bytes, n);
}

int fsync(int fd)
{
    (void)fd;
    return fails(FSYNC) ? -1 : 0;
}

int rename(const char *from, const char *to)
{
    return fails(RENAME) ? -1 : REAL(rename)(from, to);
}

int link(const char *from, const char *to)
{
    return fails(LINK) ? -1 : REAL(link)(from, to);
}

int unlink(const char *path)
{
    return fails(UNLINK) ? -1 : REAL(unlink)(path);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    unsigned mode = flags & O_CREAT ? va_arg(args, unsigned) : 0;
    va_end(args);
    return fails(OPEN) ? -1 : REAL(open)(path, flags, mode);
}

int close(int fd)
{
    bool failed = fails(CLOSE);
    int result = REAL(close)(fd);
    return failed ? -1 : result;
}

FILE *fopen(const char *path, const char *mode)
{
    return fails(FOPEN) ? NULL : REAL(fopen)(path, mode);
}

size_t fwrite(const void *bytes, size_t size, size_t n, FILE *f)
{
    return fileno(f) > 2 && fails(FWRITE) ? 0 : REAL(fwrite)(bytes, size, n, f);
}

/* What was in the buffer is lost. */
int fclose(FILE *f)
{
    bool failed = fails(FCLOSE);
    if (failed) __fpurge(f);
    int result = REAL(fclose)(f);
    return failed ? EOF : result;
}

ssize_t getrandom(void *bytes, size_t n, unsigned flags)
{
    return fails(GETRANDOM) ? -1 : REAL(getrandom)(bytes, n, flags);
}

#pragma GCC visibility pop

/* ---- what is said ---- */

static int console;

static void listen(void)
{
    int file = open(scratch("said"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    console = dup(2);
    dup2(file, 2);
    close(file);
}

static const char *heard(void)
{
    static char text[1 << 14];
    dup2(console, 2);
    close(console);
    scratch_read("said", text, sizeof text);
    unlink(scratch("said"));
    return text;
}

/* ---- the saves ---- */

/* What training would go on from, in a network of its own. */
static network *found(void)
{
    network *net = parse(SEEDED, layers);
    load(net, "a.backup");
    amp_session_resume(amp_session_of(net->layers), *net->seen);
    return net;
}

/* Fails call number at of a save; false where there are not so many. */
static bool save_with_a_failure(network *net, enum call call, int at)
{
    network *before = plain_copy(net, "width=4\nheight=4\n", layers);
    steps(net, 1);
    failing = call;
    fail_at = at;
    calls = 0;
    listen();
    armed = true;
    save(net, "a.backup");
    armed = false;
    const char *said = heard();
    bool told = strstr(said, "weights are not saved: ") != NULL;
    network *after = found();
    CHECK(is_same(after, net) || (told && is_same(after, before)));
    CHECK(!told || strstr(said, strerror(kinds[call].error)) || strstr(said, "could be written"));
    CHECK(!told || !strstr(said, "Saved as "));
    CHECK(told <= (calls >= at));
    CHECK(told || !kinds[call].told || calls < at);
    free_network(after);
    free_network(before);
    return calls >= at;
}

static void check_next_save(network *net)
{
    steps(net, 1);
    save(net, "a.backup");
    network *after = found();
    CHECK(is_same(after, net));
    CHECK_INT(scratch_count(), 3); /* and the cfg */
    free_network(after);
}

/* Where Darknet cannot open a file, it ends the program, with status 0. */
static void not_in_a_save(void)
{
    if (armed) _exit(2);
}

AMP_TEST(every_call)
{
    atexit(not_in_a_save);
    network *net = parse(SEEDED, layers);
    steps(net, 1);
    save(net, "a.backup");
    for (enum call call = 0; call < CALLS; call++) {
        int at = 1, last = call == FOPEN ? 2 : 1000; /* see kinds */
        while (at < last && save_with_a_failure(net, call, at)) {
            check_next_save(net);
            if (test_failures) TEST_FAIL("%s fails, call %d", kinds[call].name, at);
            at++;
        }
        printf("%s: %d calls\n", kinds[call].name, at - 1);
        CHECK(at > 1);
    }
    free_network(net);
    scratch_empty();
}

static char err[AMP_SAVE_ERR_SIZE];
static long bytes; /* of best.weights */

static int save_whole(network *net)
{
    return amp_save_whole(net, scratch("best.weights"), (size_t)bytes, err, sizeof err);
}

static int save_averages(network *net)
{
    return amp_save_averages(net, scratch("best.weights"), err, sizeof err);
}

/* Whole, or as they were, and then nothing says that they are saved. closing: which call of fclose
 * is that of the weights. */
static void check_failing(network *net, int (*save_best)(network *), int closing)
{
    static const enum call of_a_save[] = {FWRITE, FCLOSE, FSYNC, RENAME, GETRANDOM};
    char before[4096], after[4096];
    bytes = scratch_read("best.weights", before, sizeof before);
    REQUIRE(bytes > 20 && bytes < (long)sizeof before);
    steps(net, 1);
    for (size_t i = 0; i < sizeof of_a_save / sizeof *of_a_save; i++) {
        failing = of_a_save[i];
        fail_at = failing == FCLOSE ? closing : 1;
        calls = 0;
        listen();
        armed = true;
        int result = save_best(net);
        armed = false;
        CHECK(!strstr(heard(), "Saved as "));
        CHECK(calls > 0);
        CHECK_INT(result, -1);
        CHECK_SAYS(err, "best.weights");
        CHECK(scratch_read("best.weights", after, sizeof after) == bytes);
        CHECK(!memcmp(before, after, (size_t)bytes));
        CHECK_INT(scratch_count(), 2); /* and the cfg */
    }
    listen();
    CHECK_INT(save_best(net), 0);
    CHECK(strstr(heard(), "Saved as ") != NULL);
    CHECK(scratch_read("best.weights", after, sizeof after) == bytes);
    CHECK(memcmp(before, after, (size_t)bytes));
    free_network(net);
    scratch_empty();
}

/* The best weights of -map, of a network without a key of ours. */
AMP_TEST(weights_without_a_session)
{
    network *net = parse("width=4\nheight=4\n", layers);
    save(net, "best.weights");
    check_failing(net, save_whole, 1);
}

AMP_TEST(averages)
{
    network *net = parse(SEEDED "ema_alpha=.5\n", layers);
    steps(net, 1);
    CHECK_INT(save_averages(net), 0);
    check_failing(net, save_averages, 2);
}

AMP_TEST_MAIN
