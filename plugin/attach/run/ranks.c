/* Decides what Darknet sees of a run with several processes, and of subdivisions=auto. It must not
 * know what they exchange in a step (plugin/spread), nor when a run ends (run.c). */
#include "ranks.h"

#include "plugin/attach/interposed.h"
#include "plugin/attach/feed/seed.h"
#include "amp_observe.h"
#include "plugin/attach/device.h"
#include "plugin/core/engine/layers.h"
#include "plugin/core/files/file.h"
#include "plugin/core/host.h"
#include "plugin/core/plan/need.h"
#include "plugin/spread/group.h"

#include "network.h"

#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- who speaks ---- */

static int standard_error = -1; /* of a silenced process */

/* Darknet prints its layers on stderr and its losses on stdout. Errors of ours still arrive:
 * amp_fail has its own descriptor. */
static void be_silent(void)
{
    standard_error = dup(STDERR_FILENO);
    if (standard_error < 0) amp_fail("there is no standard error");
    fflush(NULL);
    dup2(fileno(amp_nowhere()), STDOUT_FILENO);
    dup2(fileno(amp_nowhere()), STDERR_FILENO);
    amp_fail_on(standard_error);
}

void amp_ranks_speak(void)
{
    if (standard_error < 0) return;
    fflush(stderr);
    dup2(standard_error, STDERR_FILENO);
}

void amp_ranks_miss(const char *file)
{
    char message[PATH_MAX + 200];
    snprintf(message, sizeof message, "%s: %s", file, strerror(errno));
    if (standard_error >= 0) amp_fail(message);
}

/* ---- start and end ---- */

static bool finished; /* the last step has been trained: all ranks come to their end */

static struct amp_session *training; /* NULL: no step has begun */
static void (*save_session)(struct amp_session *, const char *why);

static void fail(const char *why)
{
    amp_fail(why);
}

static void save_for_all(const char *why)
{
    if (training) save_session(training, why);
    amp_tell(why);
    amp_act_on_end();
    amp_group_saved();
}

/* After the last iteration rank 0 still saves; the others wait for it here, as a launcher ends all
 * processes when one ends without a word. */
static void leave_at_exit(void)
{
    if (finished) amp_group_leave();
}

/* Threads that compute; loader threads: loader.c. A user's own number stays. */
static void share_cores(void)
{
    int cores = amp_group_cores();
    if (!getenv("OMP_NUM_THREADS")) omp_set_num_threads(cores);
    fprintf(stderr,
            "darknet-amp: %d processes train this network, started by %s, with %d thread%s "
            "each\n",
            amp_group_size(), amp_launcher_name(amp_launch_read(getenv).launcher),
            omp_get_max_threads(), omp_get_max_threads() == 1 ? "" : "s");
    /* Open MPI gives each of two processes one core. */
    if (getenv("OMPI_MCA_orte_bound_at_launch") && amp_cores() < sysconf(_SC_NPROCESSORS_ONLN))
        fprintf(
            stderr,
            "darknet-amp: mpirun lets this process use %d of %ld cores; with --bind-to none all "
            "are shared\n",
            amp_cores(), sysconf(_SC_NPROCESSORS_ONLN));
}

static void start_group(double timeout)
{
    static const struct amp_group_calls calls = {amp_tell, fail, save_for_all};
    char err[700];
    struct amp_launch launch = amp_launch_read(getenv);
    if (launch.launcher == AMP_LAUNCHER_NONE) return;
    if (launch.rank) be_silent();
    if (amp_group_start(&launch, amp_seed_of_clock(), timeout, &calls, err, sizeof err))
        amp_fail(err);
    share_cores();
    atexit(leave_at_exit);
    at_quick_exit(leave_at_exit);
}

void amp_ranks_start(struct amp_options *o)
{
    static bool told;
    if (!amp_group_is_on()) start_group(o->rank_timeout);
    if (!amp_group_is_on() || o->seeded) return;
    o->seeded = true;
    o->seed = amp_group_seed();
    if (!told)
        fprintf(
            stderr,
            "darknet-amp: all processes use seed=%llu, which was drawn now; written under [net] "
            "it repeats this run\n",
            (unsigned long long)o->seed);
    told = true;
}

_Noreturn void amp_ranks_exit(const char *message, int status)
{
    fflush(stdout);
    if (!amp_group_rank()) fprintf(stderr, "darknet-amp: %s\n", message);
    amp_act_on_end();
    amp_group_leave();
    _exit(status); /* not exit: loader threads are still at work (amp_fail) */
}

/* ---- what all processes work out together outside of steps ---- */

int amp_process(int *processes)
{
    *processes = amp_group_size();
    return amp_group_rank();
}

/* How many bytes a process brings; failed: none. */
struct portion {
    size_t bytes;
    int failed;
};

static int gather_portions(struct portion own, struct portion *all)
{
    int failed = 0;
    amp_group_gather(&own, all, sizeof own);
    for (int r = 0; r < amp_group_size(); r++)
        failed |= all[r].failed;
    return failed;
}

int amp_processes_collect(void **rows, size_t *bytes, int failed)
{
    int size = amp_group_size(), rank = amp_group_rank();
    if (size == 1) return failed;
    struct portion *all = amp_allocate((size_t)size, sizeof *all);
    failed = gather_portions((struct portion){*bytes, failed}, all);
    size_t sum = 0, at = *bytes;
    for (int r = 0; r < size; r++)
        sum += all[r].bytes;
    char *joined = !rank && !failed ? realloc(*rows, sum + 1) : NULL;
    if (joined) *rows = joined;
    /* Whether process 0 has room. */
    failed = gather_portions((struct portion){all[rank].bytes, failed || (!rank && !joined)}, all);
    if (!failed && rank) amp_group_send(*rows, *bytes, 0);
    for (int r = 1; r < size && !failed && !rank; at += all[r++].bytes)
        amp_group_receive(joined + at, all[r].bytes, r);
    if (!failed && !rank) *bytes = sum;
    free(all);
    return failed;
}

/* The step has ended before anyone knew that it is the last one. */
void amp_end_training(network *net, size_t iteration)
{
    net->max_batches = (int)iteration;
    finished = true;
}

/* ---- a network ---- */

/* subdivisions=auto. The first answer holds for all networks of this cfg, since the memory that
 * another one sees is less by the first one's. */
static int pick_subdivisions(struct amp_session *s)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char path[PATH_MAX];
    static int batch, passes;
    char err[700];
    struct amp_options options = s->options;
    const struct ampk_backend *backend = amp_backend_on(amp_darknet_on_device());
    if (amp_group_is_on()) {
        snprintf(err, sizeof err,
                 "several processes would each pick a number; write one: `darknet amp plan CFG "
                 "--processes %d --memory GIB` says which fits",
                 amp_group_size());
        amp_fail_key(s->cfg, "subdivisions", err);
    }
    amp_options_settle_dtype(&options, amp_darknet_on_device(), amp_multiplies_bf16());
    pthread_mutex_lock(&lock);
    bool again = passes && !strcmp(path, s->cfg->path);
    if (!again && amp_need_settle(s->desc, s->cfg, &options, backend, amp_layers_ours(backend), err,
                                  sizeof err))
        amp_fail_key(s->cfg, "subdivisions", err);
    if (!again) {
        snprintf(path, sizeof path, "%s", s->cfg->path);
        batch = s->desc->batch;
        passes = s->desc->subdivisions;
    }
    s->desc->batch = batch;
    s->desc->subdivisions = passes;
    pthread_mutex_unlock(&lock);
    return passes;
}

int amp_ranks_subdivisions(struct amp_session *s)
{
    char err[700], possible[300];
    if (s->desc->auto_subdivisions) return pick_subdivisions(s);
    int passes = s->desc->subdivisions, batch = s->desc->batch * passes;
    if (!amp_group_is_on() || amp_cfg_is_variant(s->cfg->path)) return 0;
    int enough = amp_share_subdivisions(batch, passes, amp_group_size());
    if (enough == passes) return 0;
    if (!enough) {
        amp_share_possible(batch, passes, possible, sizeof possible);
        snprintf(err, sizeof err,
                 "%d processes cannot share batch=%d with subdivisions=%d; possible: %s. Or change "
                 "batch to a multiple of %d",
                 amp_group_size(), batch, passes, possible, amp_group_size());
        amp_fail_key(s->cfg, "batch", err);
    }
    fprintf(stderr,
            "darknet-amp: %d processes train with subdivisions=%d in place of %d, so that each has "
            "a pass of %d images\n",
            amp_group_size(), enough, passes, batch / enough);
    s->desc->subdivisions = enough;
    s->desc->batch = batch / enough;
    return enough;
}

static void check_sync_layers(const struct amp_session *s)
{
    char err[300];
    for (int i = 0; i < s->desc->n; i++) {
        const struct amp_cfg_section *section = amp_cfg_layer(s->cfg, i);
        if (!s->desc->layers[i].batch_normalize || s->plan->layers[i].ours) continue;
        snprintf(err, sizeof err,
                 "the batch-norm of layer %d (%s in line %d) is computed by Darknet's own code, "
                 "which works over the passes of one process; allowed with this layer: 0",
                 i, section->name, section->line);
        amp_fail_key(s->cfg, "amp_sync_bn", err);
    }
}

static void check_sync_bn(struct amp_session *s)
{
    char err[400];
    int passes = s->desc->subdivisions, batch = s->desc->batch * passes, size = amp_group_size();
    if (!s->options.sync_bn) return;
    check_sync_layers(s);
    if (!s->plan->synced_forward) {
        if (!amp_group_rank())
            fprintf(stderr, "darknet-amp: amp_sync_bn=1 changes nothing: no batch-norm learns\n");
        s->options.sync_bn = false;
        return;
    }
    if (amp_share_check_even(batch, passes, size, err, sizeof err))
        amp_fail_key(s->cfg, "subdivisions", err);
}

static void (*give_up_session)(struct amp_session *, const char *why);

static void give_up(void *user, const char *why)
{
    give_up_session(user, why);
}

void amp_ranks_join(struct amp_session *s, int (*signal)(void),
                    void (*save)(struct amp_session *, const char *why),
                    void (*leave)(struct amp_session *, const char *why))
{
    char err[PATH_MAX + 300];
    if (!amp_group_is_on()) return;
    if (amp_share_check_net(s->desc, err, sizeof err)) amp_fail(err);
    s->spread.ordered = s->options.reduce == AMP_REDUCE_ORDERED;
    s->spread.bf16 = s->options.wire == AMP_WIRE_BF16;
    s->spread.bucket_mb = s->options.bucket_mb;
    s->spread.signal = signal;
    s->spread.give_up = give_up;
    give_up_session = leave;
    check_sync_bn(s);
    s->spread.sync_bn = s->options.sync_bn;
    amp_spread_join(&s->spread, &s->step);
    save_session = save;
    s->log.place = amp_group_rank(); /* only rank 0 writes amp_log and progress */
    if (standard_error >= 0) s->log.out = amp_nowhere();
}

int amp_ranks_signal(const struct amp_session *s)
{
    return s->spread.agreed;
}

/* ---- all start from the same ---- */

static char image_list[PATH_MAX]; /* of training images; "": not known */

void amp_ranks_note_list(const char *path)
{
    snprintf(image_list, sizeof image_list, "%s", path);
}

static uint64_t hash_of(const char *path)
{
    char err[PATH_MAX + 200];
    struct amp_file_id id;
    return *path && !amp_file_identify(path, &id, err, sizeof err) ? id.hash : 0;
}

/* What must be the same everywhere, in the order in which it is compared. */
enum { SEEN, CFG, LIST, DTYPE, BACKEND, WEIGHTS, SCALE, COMPARED };
static const char *const what[COMPARED] = {
    "count of images seen",
    "cfg file",
    "list of training images",
    "amp_dtype (write it under [net])",
    "backend",
    "weights or training state (are NAME and NAME.amp the same on both?)",
    "loss scale (is NAME.amp the same on both?)"};

static void compare_starts(struct amp_session *s)
{
    char message[500];
    struct amp_owned own = amp_native_list(s->net, s->saved, s->device);
    amp_kept_enter(s->kept, &own); /* moments of ours count too */
    uint64_t mine[COMPARED] = {*s->net->seen,
                               hash_of(s->cfg->path),
                               hash_of(image_list),
                               s->options.dtype,
                               s->device,
                               amp_spread_hash(s->backend, s->context, own.params, own.n_params,
                                               own.rolling, own.n_rolling),
                               s->options.sync_bn ? (uint64_t)s->step.scaler.scale : 0};
    uint64_t(*all)[COMPARED] = amp_allocate((size_t)amp_group_size(), sizeof mine);
    amp_native_free_list(&own);
    amp_group_gather(mine, all, sizeof mine);
    for (int r = 1; r < amp_group_size(); r++)
        for (int i = 0; i < COMPARED; i++) {
            if (all[r][i] == all[0][i]) continue;
            snprintf(message, sizeof message,
                     "nothing was trained: rank %d on %s and rank 0 on %s differ in their %s", r,
                     amp_group_host(r), amp_group_host(0), what[i]);
            amp_ranks_exit(message, 1);
        }
    free(all);
}

/* ---- a step ---- */

/* Every process would train the same, and overwrite the others' weights. */
static void refuse_several(void)
{
    static bool alone;
    char message[300];
    struct amp_launch launch = {.size = 1};
    if (!alone) launch = amp_launch_read(getenv);
    alone = launch.size == 1;
    if (alone) return;
    snprintf(message, sizeof message,
             "%s started %d processes; several train together only with mixed_precision=1 under "
             "[net] of the cfg. Add it, or start one process",
             amp_launcher_name(launch.launcher), launch.size);
    amp_fail(message);
}

static void report_alone(const struct amp_session *s)
{
    static bool told;
    if (s->options.sync_bn && !told)
        fprintf(stderr, "darknet-amp: amp_sync_bn=1 changes nothing: one process trains\n");
    told = told || s->options.sync_bn;
}

/* Where Darknet stood when the step began. steps: finished ones. */
static struct begun {
    int64_t steps;
    size_t seen;
    int t;
} begun;

static int64_t finished_steps(const struct amp_session *s)
{
    return s->step.scaler.applied + s->step.scaler.skipped;
}

/* Weights and moments move only in the update, after the last exchange. */
void amp_ranks_abandon_step(struct amp_session *s)
{
    if (finished_steps(s) != begun.steps) return;
    *s->net->seen = begun.seen;
    *s->net->t = begun.t;
    if (!amp_spread_abandon(&s->spread, &s->step)) return;
    s->backend->release(s->context); /* whoever saves reads what was put back */
    if (s->step.left_fp16.class == AMP_FAULT_FORWARD)
        s->demoted[s->step.left_fp16.layer] = AMP_FORMATS;
}

static size_t images_of_step(const network *net)
{
    return (size_t)net->batch * (size_t)net->subdivisions;
}

/* A count that another batch has left need not be a multiple of the step's images. */
static void round_seen(network *net)
{
    size_t over = *net->seen % images_of_step(net);
    if (!over) return;
    *net->seen -= over;
    fprintf(stderr,
            "darknet-amp: the weights have seen %zu images, which is no whole number of steps; "
            "counted as %zu\n",
            *net->seen + over, *net->seen);
}

static void check_rows(const struct amp_session *s, const network *net, int rows)
{
    char message[300];
    int expected = s->spread.share.passes * net->batch;
    if (rows == expected) return;
    snprintf(message, sizeof message,
             "this program trains on %d images a step that it did not load with load_data one by "
             "one, %d are this process's: several processes cannot train with it; start one",
             rows, expected);
    amp_fail(message);
}

void amp_ranks_begin_step(struct amp_session *s, network *net, int rows)
{
    static _Thread_local const struct amp_session *compared;
    if (!s) refuse_several();
    if (s && !s->step.peers) report_alone(s);
    if (!s || !s->step.peers) return;
    check_rows(s, net, rows);
    round_seen(net);
    if (compared != s) compare_starts(s);
    compared = training = s;
    begun = (struct begun){finished_steps(s), *net->seen, *net->t};
    amp_group_note((int)amp_iterations_in(net, *net->seen) + 1, true);
    *net->seen += (size_t)s->spread.share.first * (size_t)net->batch;
}

/* Darknet updates when `seen` comes to the end of a step, which it does only on the rank that has
 * the last pass. */
float amp_ranks_end_step(struct amp_session *s, network *net, float loss)
{
    if (!s || !s->step.peers) return loss;
    size_t images = images_of_step(net);
    if (*net->seen % images) {
        *net->seen += images - *net->seen % images;
        AMP_USE(update_network)(net);
    }
    amp_ranks_speak();
    amp_group_note(0, false);
    finished = amp_iterations_in(net, *net->seen) >= (size_t)net->max_batches;
    return s->step.told_sum / (float)images;
}
