/* Decides whether a weights file is written, whether from a copy while training goes on, and
 * whether it gets a sidecar. It must not know in which order a pair of both is replaced
 * (core/files/checkpoint.c), the sidecar's contents (core/files/sidecar.c, resume.c), or what a
 * failed save means for the run (run.c).
 *
 * Darknet still writes the weights itself: its format stays its own. But it checks no write and
 * ends the program with status 0 if it cannot open the file, so it gets the name of a temporary
 * file beside the target, and the result is checked before the target changes. */

#include "save.h"

#include "amp.h"
#include "plugin/attach/device.h"
#include "plugin/attach/session.h"
#include "plugin/attach/interposed.h"
#include "plugin/core/files/background.h"
#include "plugin/core/files/checkpoint.h"
#include "plugin/core/host.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/spread/group.h"

#include "parser.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- which files get a sidecar ---- */

static bool wants_sidecar(const struct amp_session *s, const char *name)
{
    if (s->options.sidecar != AMP_SIDECAR_BACKUP) return s->options.sidecar == AMP_SIDECAR_ALL;
    return amp_weights_is_backup(name) || amp_weights_is_final(name);
}

/* Whether a loaded file without a sidecar deserves a warning. A final file does not: people start
 * new runs from anybody's. */
static bool should_have_sidecar(const struct amp_session *s, const char *name)
{
    return wants_sidecar(s, name) && (amp_weights_is_backup(name) || amp_weights_is_numbered(name));
}

/* ---- saving ---- */

/* A weights file to be written. */
struct weights {
    char name[PATH_MAX + 1];  /* as it was asked for, cut off where it is refused; "": none */
    char place[PATH_MAX + 1]; /* the file behind it if it is a link, which stays */
    uint64_t bytes;
    int copy; /* a file in memory that has them already; -1: Darknet writes them from the network */
};

/* What one save writes: weights, their sidecar, and their moving average beside them. */
struct writing {
    struct amp_session *s;
    struct weights weights, average;
    bool pair;
    struct amp_run_state state;
    void (*failed)(const char *err); /* it is written while training goes on; else NULL */
};

/* Darknet ends the program, with status 0, if it cannot open a file. So this tries first. */
static int check_opens(const char *path, const char *name, char *err, size_t err_size)
{
    FILE *probe = fopen(path, "r+b");
    if (probe)
        fclose(probe);
    else
        snprintf(err, err_size, "%s: cannot be opened: %s", name, strerror(errno));
    return probe ? 0 : -1;
}

/* Darknet's own line names the temporary file. This one names the file the user asked for. */
static void report_saved(const char *name)
{
    fprintf(stderr, "Saved as %s\n", name);
}

/* Darknet checks no write, so the size of the file tells whether all of them succeeded. */
static int write_weights(struct amp_session *s, const struct weights *w, struct amp_whole_file *f,
                         struct amp_file_id *id, char *err, size_t err_size)
{
    if (w->copy >= 0 ? amp_whole_fill(f, w->copy, err, err_size)
                     : check_opens(f->temp, w->name, err, err_size))
        return -1;
    if (w->copy < 0) AMP_REAL(save_weights)(s->net, f->temp);
    if (amp_file_identify(f->temp, id, err, err_size)) return -1;
    if (id->bytes == w->bytes) return 0;
    snprintf(err, err_size,
             "%s: only %" PRIu64 " of %" PRIu64 " bytes could be written (is the disk full?)",
             w->name, id->bytes, w->bytes);
    return -1;
}

/* Darknet writes the averages as it writes weights: they stand in their place meanwhile. */
static int swap_averages(const struct weights *w, struct amp_session *s, char *err, size_t err_size)
{
    return w->copy < 0 ? amp_session_swap_averages(s, err, err_size) : 0;
}

/* Whole, but without a sidecar: momentum and loss scale are of the weights. */
static int write_average(struct amp_session *s, const struct weights *w, char *err, size_t err_size)
{
    struct amp_whole_file f = {.fd = -1};
    struct amp_file_id id;
    if (swap_averages(w, s, err, err_size)) return -1;
    int failed =
        amp_whole_begin(&f, w->place, err, err_size) || write_weights(s, w, &f, &id, err, err_size);
    /* The first one had the memory for it. */
    if (swap_averages(w, s, err, err_size)) amp_fail(err);
    failed = failed || amp_checkpoint_place(&f, NULL, err, err_size);
    amp_whole_drop(&f);
    if (!failed) report_saved(w->name);
    return failed ? -1 : 0;
}

/* id is the identity of the weights just written: a sidecar belongs to exactly one file, and
 * loading compares. */
static int write_sidecar(const struct writing *w, struct amp_whole_file *f,
                         const struct amp_file_id *id, char *err, size_t err_size)
{
    char path[PATH_MAX + sizeof AMP_SIDECAR_SUFFIX], why[256];
    snprintf(path, sizeof path, "%s" AMP_SIDECAR_SUFFIX, w->weights.place);
    if (amp_whole_begin(f, path, err, err_size)) return -1;
    int failed = amp_sidecar_write(f->fd, &w->state.run, id, why, sizeof why);
    if (failed) snprintf(err, err_size, "%s: %s", path, why);
    return failed;
}

/* Both temporary files are complete before either is put in place. */
static int write_all(struct writing *w, char *err, size_t err_size)
{
    struct amp_whole_file weights = {.fd = -1}, sidecar = {.fd = -1};
    struct amp_file_id id;
    int failed = amp_whole_begin(&weights, w->weights.place, err, err_size) ||
                 write_weights(w->s, &w->weights, &weights, &id, err, err_size) ||
                 (w->pair && write_sidecar(w, &sidecar, &id, err, err_size)) ||
                 amp_checkpoint_place(&weights, w->pair ? &sidecar : NULL, err, err_size);
    amp_whole_drop(&weights);
    amp_whole_drop(&sidecar);
    if (failed) return -1;
    report_saved(w->weights.name);
    snprintf(w->s->last_good, sizeof w->s->last_good, "%s", w->weights.name);
    return *w->average.name ? write_average(w->s, &w->average, err, err_size) : 0;
}

/* ---- from a copy, while training goes on ---- */

static int copy_weights(struct amp_session *s, struct weights *w, char *err, size_t err_size)
{
    char path[AMP_MEMORY_PATH_SIZE];
    struct stat info;
    int copy = amp_memory_file(path);
    if (copy < 0) {
        snprintf(err, err_size, "no file in memory: %s", strerror(errno));
        return -1;
    }
    if (!check_opens(path, "the file in memory", err, err_size)) {
        AMP_REAL(save_weights)(s->net, path);
        if (!fstat(copy, &info) && (uint64_t)info.st_size == w->bytes) {
            w->copy = copy;
            return 0;
        }
        snprintf(err, err_size, "the file in memory ends early (ulimit -f, or memory ended)");
    }
    close(copy);
    return -1;
}

static int copy_average(struct amp_session *s, struct weights *w, char *err, size_t err_size)
{
    if (amp_session_swap_averages(s, err, err_size)) return -1;
    int failed = copy_weights(s, w, err, err_size);
    if (amp_session_swap_averages(s, err, err_size)) amp_fail(err);
    return failed;
}

static int copy_state(struct writing *w, char *err, size_t err_size)
{
    int failed = w->pair && amp_run_state_detach(w->s, &w->state);
    if (failed) snprintf(err, err_size, "no memory");
    return failed;
}

static void drop_copy(struct weights *w)
{
    if (w->copy >= 0) close(w->copy);
    w->copy = -1;
}

/* All that is written. Half of the free memory stays free: what is promised is not always there. */
static int copy_all(struct writing *w, char *err, size_t err_size)
{
    uint64_t free_bytes = amp_free_memory();
    uint64_t bytes = w->weights.bytes * (*w->average.name ? 2 : 1) +
                     (w->pair ? amp_run_state_bytes(w->s, &w->state) : 0);
    if (bytes > free_bytes / 2) {
        snprintf(err, err_size,
                 "it takes %" PRIu64 " MiB, more than half of the %" PRIu64 " MiB that are free",
                 bytes >> 20, free_bytes >> 20);
        return -1;
    }
    if (!copy_weights(w->s, &w->weights, err, err_size) &&
        (!*w->average.name || !copy_average(w->s, &w->average, err, err_size)) &&
        !copy_state(w, err, err_size))
        return 0;
    drop_copy(&w->weights);
    drop_copy(&w->average);
    return -1;
}

static void free_writing(struct writing *w)
{
    drop_copy(&w->weights);
    drop_copy(&w->average);
    amp_run_state_free(w->s, &w->state);
    free(w);
}

/* After a save that failed the next backup is due at once. */
static int try_to_write(struct writing *w, char *err, size_t err_size)
{
    int failed = write_all(w, err, err_size);
    if (failed) w->s->backup_due = 0;
    return failed;
}

static void write_in_background(void *writing)
{
    struct writing *w = writing;
    char err[AMP_SAVE_ERR_SIZE];
    if (try_to_write(w, err, sizeof err)) w->failed(err);
    free_writing(w);
}

/* False: it is written by the thread that trains. */
static bool goes_on_in_background(struct writing *w)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    char why[AMP_SAVE_ERR_SIZE] = "no thread";
    if (!w->failed) return false;
    amp_background_make_room(); /* so that there are two copies at most */
    if (!copy_all(w, why, sizeof why) && amp_background_start(write_in_background, w)) return true;
    if (!atomic_flag_test_and_set(&told))
        fprintf(stderr,
                "darknet-amp: %s cannot be saved from a copy (%s): training waits until it is "
                "written\n",
                w->weights.name, why);
    return false;
}

/* ---- whether a backup is due ---- */

/* A backup is there: when the next one of its name is due. */
static void postpone(struct amp_session *s)
{
    s->backup_due = s->log.iterations + s->options.backup_every;
}

/* Other files, a first backup, and those of programs that do not train always are. */
bool amp_save_is_due(const struct amp_session *s, const char *name)
{
    return !s->log.iterations || strcmp(name, s->backup) || s->log.iterations >= s->backup_due;
}

/* ---- a save ---- */

static void name_weights(struct weights *w, const struct amp_session *s, const char *name)
{
    char path[PATH_MAX];
    snprintf(w->name, sizeof w->name, "%s", name);
    snprintf(w->place, sizeof w->place, "%s", amp_weights_behind(name, path));
    w->bytes = amp_weights_saved_bytes(s->desc);
}

static bool has_average(const struct amp_session *s)
{
    return s->kept && s->options.rules.ema_alpha > 0;
}

/* NAME_ema.weights beside NAME.backup and NAME.weights. */
static int name_average(struct weights *w, const struct amp_session *s, const char *name, char *err,
                        size_t err_size)
{
    char path[PATH_MAX];
    bool backup = amp_weights_is_backup(name);
    if (!has_average(s) || !(backup || amp_weights_is_final(name))) return 0;
    size_t stem = strlen(name) - strlen(backup ? ".backup" : ".weights");
    if (snprintf(path, sizeof path, "%.*s_ema.weights", (int)stem, name) >= PATH_MAX) {
        snprintf(err, err_size, "%s: the name is too long for the average beside it", name);
        return -1;
    }
    name_weights(w, s, path);
    return 0;
}

/* A sidecar has no room for the gradients of a half-done step, so a run could not go on from it. */
static bool in_a_step(const struct amp_session *s, const char *name)
{
    if (!s->step.passes) return false;
    fprintf(stderr,
            "darknet-amp: %s is saved in the middle of a step, after %d of %d subdivisions; it "
            "gets no sidecar\n",
            name, s->step.passes, s->step.subdivisions);
    return true;
}

/* Takes the state. */
static int save(struct amp_session *s, const char *name, struct amp_run_state state,
                void (*failed)(const char *err), char *err, size_t err_size)
{
    struct writing *w = amp_allocate(1, sizeof *w);
    *w = (struct writing){.s = s,
                          .weights.copy = -1,
                          .average.copy = -1,
                          .pair = wants_sidecar(s, name) && !in_a_step(s, name),
                          .state = state,
                          .failed = failed};
    if (!w->pair) {
        amp_run_state_free(s, &state);
        memset(&w->state, 0, sizeof w->state);
    }
    name_weights(&w->weights, s, name);
    int nameless = name_average(&w->average, s, name, err, err_size);
    if (amp_weights_is_backup(name)) postpone(s);
    if (goes_on_in_background(w)) return nameless;
    amp_background_wait();
    int unwritten = try_to_write(w, err, err_size);
    free_writing(w);
    return unwritten ? -1 : nameless;
}

/* Training cannot go on from such weights, and they must not replace good ones. */
static bool has_diverged(const struct amp_session *s, const struct amp_run_state *state,
                         const char *name, char *err, size_t err_size)
{
    char what[100];
    if (!amp_run_is_spoilt(s, state, what, sizeof what)) return false;
    snprintf(err, err_size,
             "training diverged: the %s are no longer finite; %s is not written, older files "
             "are left as they were. Lower learning_rate, or %s",
             what, name, amp_log_slower_start(&s->log));
    return true;
}

/* The last step was dropped because one layer left FP16, and nothing else is wrong so far. */
static bool is_one_layer(const struct amp_step *step)
{
    return step->poisoned && step->fault.class == AMP_FAULT_FORWARD && step->divergence.count == 1;
}

static bool looks_diverged(const struct amp_session *s)
{
    return amp_divergence_suspect(&s->step.divergence);
}

/* For the final file: one dropped step must not cost the whole run its result. */
static bool lost_more(const struct amp_session *s)
{
    return looks_diverged(s) && !is_one_layer(&s->step);
}

/* Weights of a run that has blown up must not replace good ones. A numbered file replaces nothing,
 * unless an earlier run wrote one of the same number. */
static bool is_suspect(const struct amp_session *s, const char *name, char *err, size_t err_size)
{
    char losses[200];
    if (s->step.carry_on || (amp_weights_is_numbered(name) && access(name, F_OK))) return false;
    /* There is no save after the final one, so it is refused for stronger reasons only. */
    if (!(amp_weights_is_final(name) ? lost_more(s) : looks_diverged(s))) return false;
    amp_divergence_describe(&s->step.divergence, losses, sizeof losses);
    snprintf(err, err_size, "%s: %s (amp_on_divergence=continue would write it)", name, losses);
    return true;
}

/* Resume first: state of a sidecar that no training pass has taken up yet belongs into the file.
 * The name of a backup is noted even if the save failed: it is this run's name, also for a later
 * signal. */
enum amp_save_result amp_save(struct amp_session *s, const char *name,
                              void (*failed)(const char *err), char *err, size_t err_size)
{
    double began = amp_clock_seconds();
    amp_gpu_use(s);
    amp_session_resume(s, *s->net->seen);
    struct amp_run_state state = amp_run_state_of(s);
    bool diverged = has_diverged(s, &state, name, err, err_size);
    bool refused = diverged || is_suspect(s, name, err, err_size);
    if (refused) amp_run_state_free(s, &state);
    refused = refused || save(s, name, state, failed, err, err_size);
    if (diverged) return AMP_SAVE_DIVERGED;
    if (amp_weights_is_backup(name)) {
        snprintf(s->backup, sizeof s->backup, "%s", name);
        amp_log_saved(&s->log, amp_clock_seconds() - began);
    }
    return refused ? AMP_SAVE_FAILED : AMP_SAVED;
}

/* Darknet writes a temporary file; the target appears only when that is complete. For networks
 * without a session, which have no sidecar. */
static int save_stock(network *net, const char *path, unsigned long long bytes, char *err,
                      size_t err_size)
{
    struct amp_whole_file f = {.fd = -1};
    struct stat info;
    int failed = amp_whole_begin(&f, path, err, err_size);
    if (!failed) AMP_REAL(save_weights)(net, f.temp);
    if (!failed && (stat(f.temp, &info) || (unsigned long long)info.st_size != bytes)) {
        snprintf(err, err_size, "%s: could not be written in full (is the disk full?)", path);
        failed = -1;
    }
    failed = failed || amp_whole_flush(&f, err, err_size) || amp_whole_place(&f, err, err_size) ||
             amp_folder_flush(path, err, err_size);
    amp_whole_drop(&f);
    if (!failed) report_saved(path);
    return failed ? -1 : 0;
}

/* For programs (amp.h): reports an error instead of printing it, and refuses no weights. */
int amp_save_whole(network *net, const char *path, unsigned long long bytes, char *err,
                   unsigned long err_size)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (amp_group_rank()) return 0; /* rank 0 saves for all */
    if (s) amp_gpu_use(s);
    return s ? save(s, path, amp_run_state_of(s), NULL, err, err_size)
             : save_stock(net, path, bytes, err, err_size);
}

int amp_save_averages(network *net, const char *path, char *err, unsigned long err_size)
{
    struct amp_session *s = amp_session_of(net->layers);
    struct weights average = {.copy = -1};
    if (!s || !has_average(s)) {
        snprintf(err, err_size, "%s: the network has no moving average", path);
        return -1;
    }
    if (amp_group_rank()) return 0; /* rank 0 saves for all */
    amp_gpu_use(s);
    amp_background_wait();
    name_weights(&average, s, path);
    return write_average(s, &average, err, err_size);
}

/* ---- loading ---- */

/* The pair that matches may be NAME.prev (core/files/checkpoint.c), so Darknet may load another
 * file than it was asked to. The sidecar is only kept here: load_network may set `seen` to 0 right
 * after this call (-clear), and then its state must not be used. Spoilt weights are refused now,
 * before hours of training on them. */
int amp_load(struct amp_session *s, const char *name, char *err, size_t err_size)
{
    char path[PATH_MAX], warning[AMP_SAVE_ERR_SIZE], what[100];
    struct amp_checkpoint found;
    amp_background_wait();
    amp_gpu_use(s);
    struct amp_run_state state = amp_run_state_of(s);
    const char *place = amp_weights_behind(name, path);
    amp_checkpoint_find(place, &state.run, &found, warning, sizeof warning);
    amp_run_state_free(s, &state);
    if (*warning) fprintf(stderr, "darknet-amp: %s\n", warning);
    AMP_REAL(load_weights)(s->net, strcmp(found.weights, place) ? found.weights : (char *)name);
    amp_sidecar_close(s->sidecar);
    s->sidecar = found.sidecar;
    amp_session_restart_kept(s);
    bool missing = !s->sidecar && !*warning && should_have_sidecar(s, name);
    snprintf(s->without_sidecar, sizeof s->without_sidecar, "%s", missing ? place : "");
    s->without_sidecar_seen = *s->net->seen;
    if (s->graph) amp_graph_weights_changed(s->graph);
    if (amp_weights_is_backup(name)) {
        snprintf(s->backup, sizeof s->backup, "%s", name);
        snprintf(s->last_good, sizeof s->last_good, "%s", name);
        postpone(s);
    }
    state = amp_run_state_of(s);
    bool spoilt = amp_run_is_spoilt(s, &state, what, sizeof what);
    amp_run_state_free(s, &state);
    if (!spoilt) return 0;
    snprintf(err, err_size, "%s: the %s are inf or NaN; train from another file", found.weights,
             what);
    return -1;
}
