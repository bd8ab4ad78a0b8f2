/* Decides whether a weights file is written, and whether it gets a sidecar. It must not know in
 * which order a pair of both is replaced (core/files/checkpoint.c), the sidecar's contents
 * (core/files/sidecar.c, resume.c), or what a failed save means for the run (run.c).
 *
 * Darknet still writes the weights itself: its format stays its own. But it checks no write and
 * ends the program with status 0 if it cannot open the file, so it gets the name of a temporary
 * file beside the target, and the result is checked before the target changes. */

#include "save.h"

#include "amp.h"
#include "plugin/attach/device.h"
#include "plugin/attach/session.h"
#include "plugin/attach/interposed.h"
#include "plugin/core/files/checkpoint.h"
#include "plugin/core/host.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/spread/group.h"

#include "parser.h"

#include <errno.h>
#include <inttypes.h>
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
};

/* What one save writes: weights, their sidecar, and their moving average beside them. */
struct writing {
    struct amp_session *s;
    struct weights weights, average;
    bool pair;
    struct amp_run_state state;
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
    if (check_opens(f->temp, w->name, err, err_size)) return -1;
    AMP_REAL(save_weights_upto)(s->net, f->temp, s->net->n);
    if (amp_file_identify(f->temp, id, err, err_size)) return -1;
    if (id->bytes == w->bytes) return 0;
    snprintf(err, err_size,
             "%s: only %" PRIu64 " of %" PRIu64 " bytes could be written (is the disk full?)",
             w->name, id->bytes, w->bytes);
    return -1;
}

/* Whole, but without a sidecar: momentum and loss scale are of the weights. Darknet writes the
 * averages as it writes weights: they stand in their place meanwhile. */
static int write_average(struct amp_session *s, const struct weights *w, char *err, size_t err_size)
{
    struct amp_whole_file f = {.fd = -1};
    struct amp_file_id id;
    if (amp_session_swap_averages(s, err, err_size)) return -1;
    int failed =
        amp_whole_begin(&f, w->place, err, err_size) || write_weights(s, w, &f, &id, err, err_size);
    /* The first one had the memory for it. */
    if (amp_session_swap_averages(s, err, err_size)) amp_fail(err);
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
static int write_all(const struct writing *w, char *err, size_t err_size)
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
    snprintf(w->s->last_good, sizeof w->s->last_good, "%.*s", PATH_MAX - 1, w->weights.name);
    return *w->average.name ? write_average(w->s, &w->average, err, err_size) : 0;
}

/* ---- whether a backup is due ---- */

/* Saves then take at most 1 % of the time. */
enum { TIMES_A_SAVE = 100 };

/* A backup is there, which took so long; 0: it was loaded. The next one of its name waits. */
static void postpone(struct amp_session *s, double seconds)
{
    s->backup_due.iteration = s->log.iterations + s->options.backup_every;
    s->backup_due.time = amp_clock_seconds() + TIMES_A_SAVE * seconds;
}

static bool has_waited(const struct amp_session *s)
{
    return s->options.backup_every == AMP_COUNT_AUTO ? amp_clock_seconds() >= s->backup_due.time
                                                     : s->log.iterations >= s->backup_due.iteration;
}

/* Other files, a first backup, and those of programs that do not train always are. */
bool amp_save_is_due(const struct amp_session *s, const char *name)
{
    return !s->log.iterations || strcmp(name, s->backup) || has_waited(s);
}

/* ---- a save ---- */

static void name_weights(struct weights *w, const struct amp_session *s, const char *name)
{
    char path[PATH_MAX];
    snprintf(w->name, sizeof w->name, "%s", name);
    snprintf(w->place, sizeof w->place, "%s", amp_weights_behind(name, path));
    w->bytes = amp_weights_saved_bytes(s->desc);
}

/* AlexeyAB's is there from its first step until the weights become it. */
static bool has_average(const struct amp_session *s)
{
    const struct amp_rules *rules = &s->options.rules;
    return s->kept && rules->ema_alpha > 0 && (!rules->ema_until || s->kept->counts.averaged);
}

/* NAME_ema.weights beside NAME.backup, NAME_last.weights and NAME.weights. */
static int name_average(struct weights *w, const struct amp_session *s, const char *name, char *err,
                        size_t err_size)
{
    char path[PATH_MAX];
    bool backup = amp_weights_is_backup(name);
    if (!has_average(s) || !(backup || amp_weights_is_final(name))) return 0;
    bool is_last = backup && !strcmp(strrchr(name, '.'), ".weights");
    size_t stem = strlen(name) - strlen(is_last  ? AMP_WEIGHTS_LAST
                                        : backup ? ".backup"
                                                 : ".weights");
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
static int save(struct amp_session *s, const char *name, struct amp_run_state state, char *err,
                size_t err_size)
{
    struct writing w = {
        .s = s, .pair = wants_sidecar(s, name) && !in_a_step(s, name), .state = state};
    name_weights(&w.weights, s, name);
    int nameless = name_average(&w.average, s, name, err, err_size);
    int unwritten = write_all(&w, err, err_size);
    amp_run_state_free(s, &w.state);
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
enum amp_save_result amp_save(struct amp_session *s, const char *name, char *err, size_t err_size)
{
    double began = amp_clock_seconds();
    amp_gpu_use(s);
    amp_session_resume(s, *s->net->seen);
    struct amp_run_state state = amp_run_state_of(s);
    bool diverged = has_diverged(s, &state, name, err, err_size);
    bool refused = diverged || is_suspect(s, name, err, err_size);
    if (refused) amp_run_state_free(s, &state);
    refused = refused || save(s, name, state, err, err_size);
    double seconds = amp_clock_seconds() - began;
    amp_times_move(&s->log.times, AMP_TIME_OTHER, AMP_TIME_SAVING, seconds);
    if (diverged) return AMP_SAVE_DIVERGED;
    if (amp_weights_is_backup(name)) {
        snprintf(s->backup, sizeof s->backup, "%s", name);
        if (s->options.backup_every != AMP_COUNT_AUTO) amp_log_saved(&s->log, seconds);
        if (!refused) postpone(s, seconds); /* else the next one is due at once */
    }
    return refused ? AMP_SAVE_FAILED : AMP_SAVED;
}

/* Darknet writes a temporary file; the target appears only when that is complete. */
int amp_save_stock(network *net, const char *path, int layers, uint64_t bytes, char *err,
                   size_t err_size)
{
    struct amp_whole_file f = {.fd = -1};
    struct stat info;
    int failed = amp_whole_begin(&f, path, err, err_size);
    if (!failed) AMP_REAL(save_weights_upto)(net, f.temp, layers);
    if (!failed && (stat(f.temp, &info) || (uint64_t)info.st_size != bytes)) {
        snprintf(err, err_size,
                 "%s: not written in full: is the disk full, or the size of files limited "
                 "(ulimit -f)?",
                 path);
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
    return s ? save(s, path, amp_run_state_of(s), err, err_size)
             : amp_save_stock(net, path, net->n, bytes, err, err_size);
}

int amp_save_averages(network *net, const char *path, char *err, unsigned long err_size)
{
    struct amp_session *s = amp_session_of(net->layers);
    struct weights average;
    if (!s || !has_average(s)) {
        snprintf(err, err_size, "%s: the network has no moving average", path);
        return -1;
    }
    if (amp_group_rank()) return 0; /* rank 0 saves for all */
    amp_gpu_use(s);
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
        postpone(s, 0);
    }
    state = amp_run_state_of(s);
    bool spoilt = amp_run_is_spoilt(s, &state, what, sizeof what);
    amp_run_state_free(s, &state);
    if (!spoilt) return 0;
    snprintf(err, err_size, "%s: the %s are inf or NaN; use another file", found.weights, what);
    return -1;
}
