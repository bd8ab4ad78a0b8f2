/* Decides who belongs to the group, and how a process waits for the others. It must not know what
 * is exchanged. */
#define _GNU_SOURCE
#include "group.h"

#include "beats.h"
#include "engine.h"
#include "heartbeat.h"
#include "plugin/core/host.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What a process tells of itself at the start. */
struct member {
    char host[64];
    cpu_set_t cores;
    uint64_t seed;
};

static struct {
    const struct amp_engine *engine; /* NULL: no group, or it has been left */
    int rank, size;
    struct member *members; /* kept to the end: messages name hosts */
    double timeout;
    bool threads; /* beats tell who is there */
    struct amp_group_calls calls;
    void (*abort)(void); /* of a library that may wait for others; NULL: none */
    uint64_t exchanged;  /* bytes */
} group = {.size = 1};

/* ---- waiting ---- */

/* In pieces, so that counts stay within an int. */
#define PIECE ((size_t)1 << 28)

/* While everybody works on an exchange it goes on only when it is polled, so at first polls only
 * let other threads pass. Whoever waits longer than that waits for a late process, and sleeps. This
 * is a time, not a number of polls: on a busy machine one may take 10 ms. */
#define QUICK_SECONDS .002
enum { LONGEST_SLEEP = 500000 /* ns */ };

/* A device that waits for others would not let its memory be read. */
static void save(const char *why)
{
    if (group.abort) group.abort();
    group.calls.save(why);
}

/* Without beats nobody knows who is lost. Process 0 gives up first, so that it can save. */
static void give_up(double waited)
{
    char why[200];
    if (group.threads || waited < group.timeout * (group.rank ? 2 : 1)) return;
    snprintf(why, sizeof why,
             "another process has not come to an exchange for %.0f s (amp_rank_timeout)", waited);
    if (!group.rank) save(why);
    group.calls.fail(why);
}

/* Process 0 tells of late ones every minute, at the usual timeout. */
static void report_late(double waited, double *told)
{
    if (group.rank || waited - *told < 2 * group.timeout) return;
    amp_heartbeat_report_late(waited);
    *told = waited;
}

static int wait_long(int (*poll)(void))
{
    int done = 0;
    double since = amp_clock_seconds(), told = 0;
    struct timespec nap = {.tv_nsec = 20000};
    amp_heartbeat_note_waiting(true);
    while (!(done = poll())) {
        double waited = amp_clock_seconds() - since;
        amp_group_check();
        give_up(waited);
        report_late(waited, &told);
        nanosleep(&nap, NULL);
        if (nap.tv_nsec < LONGEST_SLEEP) nap.tv_nsec *= 2;
    }
    amp_heartbeat_note_waiting(false);
    return done;
}

int amp_group_wait(int (*poll)(void))
{
    int done = 0;
    for (double since = amp_clock_seconds();
         !done && amp_clock_seconds() - since < QUICK_SECONDS;) {
        done = poll();
        if (!done) sched_yield();
    }
    if (!done) done = wait_long(poll);
    return done < 0 ? -1 : 0;
}

void amp_group_abort_by(void (*abort)(void))
{
    group.abort = abort;
}

_Noreturn void amp_group_fail(const char *why)
{
    group.calls.fail(why);
    abort(); /* it does not return */
}

/* ---- exchanges ---- */

void amp_group_count(size_t bytes)
{
    group.exchanged += bytes;
}

uint64_t amp_group_exchanged(void)
{
    return group.exchanged;
}

static void finish(int began, size_t bytes)
{
    amp_group_count(bytes);
    if (began || amp_group_wait(group.engine->poll))
        group.calls.fail("an exchange with the other processes failed in MPI");
}

void amp_group_gather(const void *mine, void *all, size_t bytes)
{
    finish(group.engine->gather(mine, all, bytes), bytes);
}

/* Of n elements from the i-th on, as many as go at once. */
static size_t piece(size_t n, size_t i)
{
    return n - i < PIECE ? n - i : PIECE;
}

void amp_group_add_floats(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += PIECE)
        finish(group.engine->add_floats(x + i, piece(n, i)), piece(n, i) * sizeof *x);
}

void amp_group_add_doubles(double *x, size_t n)
{
    for (size_t i = 0; i < n; i += PIECE)
        finish(group.engine->add_doubles(x + i, piece(n, i)), piece(n, i) * sizeof *x);
}

void amp_group_add_bf16(uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += PIECE)
        finish(group.engine->add_bf16(x + i, piece(n, i)), piece(n, i) * sizeof *x);
}

void amp_group_broadcast(void *x, size_t bytes, int from)
{
    for (size_t i = 0; i < bytes; i += PIECE)
        finish(group.engine->broadcast((char *)x + i, piece(bytes, i), from), piece(bytes, i));
}

void amp_group_send(const void *x, size_t bytes, int to)
{
    for (size_t i = 0; i < bytes; i += PIECE)
        finish(group.engine->send((const char *)x + i, piece(bytes, i), to), piece(bytes, i));
}

void amp_group_receive(void *x, size_t bytes, int from)
{
    for (size_t i = 0; i < bytes; i += PIECE)
        finish(group.engine->receive((char *)x + i, piece(bytes, i), from), piece(bytes, i));
}

/* ---- start ---- */

/* Looks beside the plugin, then in the folder of its private libraries there, then where the
 * linker looks. NULL: err says why the last one was not loaded. */
static const struct amp_engine *load_engine(char *err, size_t err_size)
{
    static const char *const beside[] = {"/" AMP_ENGINE_MPI, "/darknet-amp/" AMP_ENGINE_MPI};
    char path[PATH_MAX];
    Dl_info here;
    void *library = NULL;
    const char *end = dladdr(&group, &here) ? strrchr(here.dli_fname, '/') : NULL;
    for (int i = 0; i < 2 && end && !library; i++) {
        snprintf(path, sizeof path, "%.*s%s", (int)(end - here.dli_fname), here.dli_fname,
                 beside[i]);
        if (!access(path, R_OK)) library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    if (!library) library = dlopen(AMP_ENGINE_MPI, RTLD_NOW | RTLD_GLOBAL);
    const struct amp_engine *engine = library ? dlsym(library, AMP_ENGINE_SYMBOL) : NULL;
    if (!engine) snprintf(err, err_size, "%s", dlerror());
    return engine;
}

static void exchange_members(uint64_t seed)
{
    struct member own;
    memset(&own, 0, sizeof own);
    gethostname(own.host, sizeof own.host - 1);
    sched_getaffinity(0, sizeof own.cores, &own.cores);
    own.seed = seed;
    struct member *all = calloc((size_t)group.size, sizeof *all);
    if (!all) group.calls.fail("out of memory");
    amp_group_gather(&own, all, sizeof own);
    group.members = all; /* the beats' thread looks */
}

/* Without a thread of its own nobody beats. */
static void start_beats(void)
{
    const struct amp_heartbeat heart = {.engine = group.engine,
                                        .rank = group.rank,
                                        .size = group.size,
                                        .timeout = group.timeout,
                                        .host = amp_group_host,
                                        .tell = group.calls.tell};
    if (group.threads && amp_heartbeat_start(&heart))
        group.calls.fail("no thread for the beats of this process");
    if (!group.threads && !group.rank)
        fprintf(stderr,
                "darknet-amp: this MPI has no MPI_THREAD_MULTIPLE, so a slow process cannot be "
                "told from a lost one: whoever waits longer than amp_rank_timeout=%.0f s for "
                "others ends the run\n",
                group.timeout);
}

/* Another build's table may have other functions in its places. */
static int check_engine(const struct amp_engine *engine, char *err, size_t err_size)
{
    Dl_info module, here;
    if (engine->layout == AMP_ENGINE_LAYOUT) return 0;
    if (!dladdr(engine, &module)) module.dli_fname = AMP_ENGINE_MPI;
    if (!dladdr(&group, &here)) here.dli_fname = "the plugin";
    snprintf(err, err_size,
             "%s is of another build than %s: build both again with one command, or install both "
             "from one package",
             module.dli_fname, here.dli_fname);
    return -1;
}

int amp_group_start(const struct amp_launch *launch, uint64_t seed, double timeout,
                    const struct amp_group_calls *calls, char *err, size_t err_size)
{
    char why[300] = "";
    int rank, size;
    const struct amp_engine *engine = load_engine(why, sizeof why);
    if (!engine) {
        snprintf(err, err_size,
                 "%s started %d processes, and " AMP_ENGINE_MPI " cannot be loaded (%s): install "
                 "openmpi-bin and libopenmpi-dev, and build again with -DAMP_MPI=ON",
                 amp_launcher_name(launch->launcher), launch->size, why);
        return -1;
    }
    if (check_engine(engine, err, err_size)) return -1;
    if (engine->start(timeout, &rank, &size, &group.threads, why, sizeof why)) {
        snprintf(err, err_size, "%s", why);
        return -1;
    }
    if (rank != launch->rank || size != launch->size) {
        snprintf(err, err_size,
                 "%s started %d processes, but MPI sees %d: it is another MPI than the one that "
                 "this was built with, %s. Start it with that one's mpirun, or build it with this "
                 "one's mpicc",
                 amp_launcher_name(launch->launcher), launch->size, size, why);
        return -1;
    }
    group.engine = engine;
    group.rank = rank;
    group.size = size;
    group.calls = *calls;
    group.timeout = timeout;
    start_beats();
    exchange_members(seed); /* who does not come is lost already */
    return 0;
}

bool amp_group_is_on(void)
{
    return group.members != NULL;
}

int amp_group_rank(void)
{
    return group.rank;
}

int amp_group_size(void)
{
    return group.size;
}

const char *amp_group_host(int rank)
{
    return group.members ? group.members[rank].host : "an unknown host";
}

uint64_t amp_group_seed(void)
{
    return group.members[0].seed;
}

int amp_group_cores(void)
{
    const struct member *own = &group.members[group.rank];
    int sharing = 0;
    for (int r = 0; r < group.size; r++)
        sharing += !strcmp(group.members[r].host, own->host) &&
                   CPU_EQUAL(&group.members[r].cores, &own->cores);
    int cores = CPU_COUNT(&own->cores) / sharing;
    return cores > 1 ? cores : 1;
}

/* ---- end ---- */

void amp_group_note(int iteration, bool in_step)
{
    if (group.members) amp_heartbeat_note(iteration, in_step);
}

void amp_group_check(void)
{
    char why[AMP_BEAT_WHY];
    if (amp_heartbeat_must_save(why, sizeof why)) save(why);
}

_Noreturn void amp_group_saved(void)
{
    amp_heartbeat_saved();
    _exit(1);
}

void amp_group_end(bool able, const char *why)
{
    amp_heartbeat_end(able, why);
}

/* MPI waits at its end, and nobody beats any more. */
static void *watch_end(void *unused)
{
    char why[200];
    sleep((unsigned)group.timeout);
    snprintf(why, sizeof why,
             "MPI has not come to its end for %.0f s (amp_rank_timeout): another process, or the "
             "launcher, does not answer",
             group.timeout);
    group.calls.fail(why);
    return unused;
}

static void end_engine(const struct amp_engine *engine)
{
    pthread_t watch;
    bool watched = !pthread_create(&watch, NULL, watch_end, NULL);
    engine->end();
    if (!watched) return;
    pthread_cancel(watch);
    pthread_join(watch, NULL);
}

void amp_group_leave(void)
{
    const struct amp_engine *engine = group.engine;
    char mine = 0, *all;
    if (!engine || !(all = malloc((size_t)group.size))) return;
    amp_group_gather(&mine, all, 1);
    free(all);
    amp_heartbeat_stop();
    group.engine = NULL;
    end_engine(engine);
}
