#include "save.h"

#include "amp.h"
#include "gpus.h"
#include "resume.h"
#include "sessions.h"
#include "symbols.h"
#include "plugin/core/weights_file.h"
#include "plugin/core/checkpoint.h"

#include "parser.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define ERR_SIZE (3 * PATH_MAX)

/* ---- which files get a sidecar ---- */

static bool wants_sidecar(const struct amp_session *s, const char *name)
{
    if (s->options.sidecar != AMP_SIDECAR_BACKUP) return s->options.sidecar == AMP_SIDECAR_ALL;
    return amp_weights_is_backup(name) || amp_weights_is_final(name);
}

/* A final file may be anybody's, to start from. */
static bool should_have_sidecar(const struct amp_session *s, const char *name)
{
    return wants_sidecar(s, name) && (amp_weights_is_backup(name) || amp_weights_is_numbered(name));
}

/* ---- saving ---- */

/* Where Darknet cannot open a file, it ends the program, with status 0. */
static int check_opens(const struct amp_whole_file *f, const char *name, char *err, size_t err_size)
{
    FILE *probe = fopen(f->temp, "r+b");
    if (probe)
        fclose(probe);
    else
        snprintf(err, err_size, "%s: cannot open a file beside it: %s", name, strerror(errno));
    return probe ? 0 : -1;
}

/* Darknet's own line names the file beside it that it writes to. */
static void tell_saved(const char *name)
{
    fprintf(stderr, "Saved as %s\n", name);
}

/* Darknet checks no write, so the size tells whether they all succeeded. */
static int write_weights(struct amp_session *s, struct amp_whole_file *f, const char *name,
                         struct amp_file_id *id, char *err, size_t err_size)
{
    uint64_t expected = amp_weights_saved_bytes(s->desc);
    if (check_opens(f, name, err, err_size)) return -1;
    AMP_REAL(save_weights)(s->net, f->temp);
    if (amp_file_identify(f->temp, id, err, err_size)) return -1;
    if (id->bytes == expected) return 0;
    snprintf(err, err_size,
             "%s: only %" PRIu64 " of %" PRIu64 " bytes could be written (is the disk full?)", name,
             id->bytes, expected);
    return -1;
}

static int write_sidecar(struct amp_session *s, struct amp_whole_file *f, const char *weights,
                         const struct amp_file_id *id, char *err, size_t err_size)
{
    char path[PATH_MAX + sizeof AMP_SIDECAR_SUFFIX], why[256];
    snprintf(path, sizeof path, "%s" AMP_SIDECAR_SUFFIX, weights);
    if (amp_whole_begin(f, path, err, err_size)) return -1;
    struct amp_run_state state = amp_run_state_of(s);
    int failed = amp_sidecar_write(f->fd, &state.run, id, why, sizeof why);
    amp_run_state_free(s, &state);
    if (failed) snprintf(err, err_size, "%s: %s", path, why);
    return failed;
}

/* Gradients of a step that is not finished are in no file. */
static bool in_a_step(const struct amp_session *s, const char *name)
{
    if (!s->step.passes) return false;
    fprintf(stderr,
            "darknet-amp: %s is saved in the middle of a step, after %d of %d subdivisions; it "
            "gets no sidecar\n",
            name, s->step.passes, s->step.subdivisions);
    return true;
}

/* Training cannot go on from such weights, and good ones must not be lost to them. */
static void refuse_non_finite(struct amp_session *s, const char *name)
{
    char message[PATH_MAX + 300], what[100];
    if (!amp_run_is_spoilt(s, what, sizeof what)) return;
    snprintf(message, sizeof message,
             "training diverged: the %s are no longer finite; %s is not written, older files "
             "are left as they were. Lower learning_rate, or lengthen burn_in",
             what, name);
    amp_gpus_close_logs(s);
    amp_fail(message);
}

static int save(struct amp_session *s, const char *name, char *err, size_t err_size)
{
    char path[PATH_MAX];
    struct amp_whole_file weights = {.fd = -1}, sidecar = {.fd = -1};
    struct amp_file_id id;
    const char *place = amp_weights_behind(name, path);
    bool pair = wants_sidecar(s, name) && !in_a_step(s, name);
    int failed = amp_whole_begin(&weights, place, err, err_size) ||
                 write_weights(s, &weights, name, &id, err, err_size) ||
                 (pair && write_sidecar(s, &sidecar, place, &id, err, err_size)) ||
                 amp_checkpoint_place(&weights, pair ? &sidecar : NULL, err, err_size);
    amp_whole_drop(&weights);
    amp_whole_drop(&sidecar);
    if (failed) return -1;
    tell_saved(name);
    snprintf(s->last_saved, sizeof s->last_saved, "%s", name);
    return 0;
}

/* A layer just left FP16, and nothing else is wrong so far: the step was dropped. */
static bool is_one_layer(const struct amp_step *step)
{
    return step->poisoned && step->fault.class == AMP_FAULT_FORWARD && step->divergence.count == 1;
}

static bool looks_diverged(const struct amp_session *s)
{
    return amp_divergence_suspect(&s->step.divergence);
}

static bool lost_more(const struct amp_session *s)
{
    return looks_diverged(s) && !is_one_layer(&s->step);
}

/* Good weights must not be lost to those of a run that has blown up. A numbered file replaces
 * nothing, unless an earlier run wrote one of this number. */
static bool is_suspect(const struct amp_session *s, const char *name, char *err, size_t err_size)
{
    char losses[200];
    if (s->step.carry_on || (amp_weights_is_numbered(name) && access(name, F_OK))) return false;
    /* After the final file there will be no other. */
    const struct amp_session *bad =
        amp_gpus_find(s, amp_weights_is_final(name) ? lost_more : looks_diverged);
    if (!bad) return false;
    amp_divergence_describe(&bad->step.divergence, losses, sizeof losses);
    snprintf(err, err_size, "%s: %s%s (amp_on_divergence=continue would write it)", name,
             bad->log.who, losses);
    return true;
}

/* Training goes on, since there will be another save; after the last one that would be a lie. */
static void save_or_tell(struct amp_session *s, const char *name, bool last)
{
    char err[ERR_SIZE], message[ERR_SIZE + 100];
    amp_gpu_use(s);
    amp_session_resume(s, *s->net->seen);
    refuse_non_finite(s, name);
    if (!is_suspect(s, name, err, sizeof err) && !save(s, name, err, sizeof err)) return;
    snprintf(message, sizeof message,
             "weights are not saved: %s; what is there is whole: the files of before, or these",
             err);
    if (last) amp_fail(message);
    fprintf(stderr, "darknet-amp: %s\n", message);
}

void amp_save_last(struct amp_session *s, const char *path)
{
    save_or_tell(s, path, true);
}

void amp_save(struct amp_session *s, const char *path)
{
    save_or_tell(s, path, amp_weights_is_final(path));
    if (amp_weights_is_backup(path)) snprintf(s->backup, sizeof s->backup, "%s", path);
}

/* Darknet's own writing, to a file of which nothing is seen before it is complete. */
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
    if (!failed) tell_saved(path);
    return failed ? -1 : 0;
}

int amp_save_whole(network *net, const char *path, unsigned long long bytes, char *err,
                   unsigned long err_size)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s) amp_gpu_use(s);
    return s ? save(s, path, err, err_size) : save_stock(net, path, bytes, err, err_size);
}

/* ---- loading ---- */

void amp_load(struct amp_session *s, const char *name)
{
    char path[PATH_MAX], warning[ERR_SIZE], what[100];
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
    bool missing = !s->sidecar && !*warning && should_have_sidecar(s, name);
    snprintf(s->without_sidecar, sizeof s->without_sidecar, "%s", missing ? place : "");
    s->without_sidecar_seen = *s->net->seen;
    if (s->graph) amp_graph_weights_changed(s->graph);
    if (amp_weights_is_backup(name)) snprintf(s->backup, sizeof s->backup, "%s", name);
    if (!amp_run_is_spoilt(s, what, sizeof what)) return;
    snprintf(warning, sizeof warning, "%s: the %s are inf or NaN; train from another file",
             found.weights, what);
    amp_fail(warning);
}
