#include "save.h"

#include "amp.h"
#include "ending.h"
#include "gpus.h"
#include "interrupt.h"
#include "iteration.h"
#include "saving_line.h"
#include "symbols.h"
#include "plugin/data/weights_file.h"
#include "plugin/train/checkpoint.h"

#include "parser.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define ERR_SIZE (3 * PATH_MAX)

// ---- a session's state as a sidecar knows it ----

static float *on_host(const struct amp_session *s, const float *x, size_t n)
{
    float *copy = malloc((n + 1) * sizeof *copy);
    if (!copy) amp_fail("out of memory");
    s->backend->acquire(s->context); // Darknet may have written it just now
    if (x) s->backend->read(s->context, copy, x, n * sizeof *copy);
    return copy;
}

// What Darknet owns, copied to the host where it stands on a device. Free with free_host_list.
static struct amp_owned host_list(const struct amp_session *s)
{
    struct amp_owned own = amp_native_list(s->net, s->saved, s->device);
    if (!s->device) return own;
    for (struct amp_param *p = own.params; p < own.params + own.n_params; ++p) {
        p->value = on_host(s, p->value, p->n);
        p->update = on_host(s, p->update, p->n);
        if (!p->m) continue;
        p->m = on_host(s, p->m, p->n);
        p->v = on_host(s, p->v, p->n);
    }
    for (struct amp_rolling *r = own.rolling; r < own.rolling + own.n_rolling; ++r)
        r->value = on_host(s, r->value, r->n);
    return own;
}

static void free_host_list(const struct amp_session *s, struct amp_owned *own)
{
    for (struct amp_param *p = own->params; s->device && p < own->params + own->n_params; ++p) {
        free(p->value);
        free(p->update);
        free(p->m);
        free(p->v);
    }
    for (struct amp_rolling *r = own->rolling; s->device && r < own->rolling + own->n_rolling; ++r)
        free(r->value);
    amp_native_free_list(own);
}

static struct amp_run run_of(const struct amp_session *s, const struct amp_owned *host)
{
    return (struct amp_run){.seen = *s->net->seen,
                            .t = *s->net->t,
                            .scaler = s->step.scaler,
                            .n_layers = s->net->n,
                            .demoted = s->demoted,
                            .n_params = host->n_params,
                            .params = host->params};
}

// Brings the momentum and the moments of a restored run to where Darknet has them.
static void to_device(const struct amp_session *s, const struct amp_owned *host)
{
    if (!s->device) return;
    struct amp_owned own = amp_native_list(s->net, s->saved, true);
    for (int i = 0; i < own.n_params; ++i) {
        const struct amp_param *to = &own.params[i], *from = &host->params[i];
        size_t bytes = to->n * sizeof(float);
        s->backend->write(s->context, to->update, from->update, bytes);
        if (!to->m) continue;
        s->backend->write(s->context, to->m, from->m, bytes);
        s->backend->write(s->context, to->v, from->v, bytes);
    }
    amp_native_free_list(&own);
}

// ---- resuming ----

static void tell_resumed(const struct amp_session *s, const struct amp_run *r)
{
    char scale[32];
    int demoted = 0;
    for (int i = 0; i < r->n_layers; ++i)
        demoted += r->demoted[i] != AMP_FORMATS;
    fprintf(stderr,
            "mixed precision: resumed from %s: iteration %" PRIu64 ", momentum%s, loss scale %s",
            amp_sidecar_path(s->sidecar), amp_iterations_in(s->net, r->seen),
            s->net->adam ? " and Adam moments" : "", amp_scale_text(r->scaler.scale, scale));
    if (demoted) fprintf(stderr, ", layers that left FP16: %d", demoted);
    fputc('\n', stderr);
}

// between: Darknet draws sizes every ten iterations, counted from where a run starts.
static const char *why_not_exact(const struct amp_layer_desc *l, bool between)
{
    if (l->dontsave || l->dontload || l->dontloadscales || l->numload)
        return "the cfg keeps parameters of it out of the weights file";
    if (l->random && between) return "random=1 draws its sizes at other iterations";
    return amp_layer_is_recurrent(l) ? "its recurrent state starts from zero" : NULL;
}

static void tell_not_exact(const struct amp_net_desc *net, uint64_t iteration)
{
    for (int i = 0; i < net->n; ++i) {
        const char *why = why_not_exact(&net->layers[i], iteration % 10 != 0);
        if (!why) continue;
        fprintf(stderr,
                "mixed precision: not exactly the run that stopped, because of layer %d (%s): %s\n",
                i, amp_layer_type_name(net->layers[i].type), why);
        return;
    }
}

// Without them, the others would begin with none.
static void tell_gpus(const struct amp_session *s)
{
    int gpus = amp_gpus_count(s->net);
    if (gpus > 1)
        fprintf(stderr,
                "mixed precision: not exactly the run that stopped, because of %d GPUs: momentum, "
                "loss scale and running statistics in the file are the first one's, and all go on "
                "with them\n",
                gpus);
}

static void restore(struct amp_session *s)
{
    char err[ERR_SIZE];
    struct amp_owned host = host_list(s);
    struct amp_run r = run_of(s, &host);
    if (amp_sidecar_restore(s->sidecar, &r, err, sizeof err)) amp_fail(err);
    to_device(s, &host);
    *s->net->t = (int)r.t;
    s->step.scaler = r.scaler;
    s->replan = true;
    if (!amp_gpus_place(s->net)) {
        tell_resumed(s, &r);
        tell_not_exact(s->desc, amp_iterations_in(s->net, r.seen));
        tell_gpus(s);
    }
    free_host_list(s, &host);
}

// With another count of images (-clear) nothing was to be kept.
static void tell_alone(struct amp_session *s, size_t seen)
{
    if (*s->alone && s->trained && s->alone_seen == seen && seen > 0)
        fprintf(stderr,
                "mixed precision: %s" AMP_SIDECAR_SUFFIX
                " is not there: momentum%s, loss scale and the list of layers that left FP16 start "
                "anew, and it is not exactly the run that stopped. If the weights were copied "
                "without it, copy it too and start again\n",
                s->alone, s->net->adam ? ", Adam moments" : "");
    *s->alone = 0;
}

void amp_session_resume(struct amp_session *s, size_t seen)
{
    tell_alone(s, seen);
    if (!s->sidecar) return;
    if (seen == amp_sidecar_seen(s->sidecar)) {
        restore(s);
    } else {
        *s->backup = 0; // it is another run's
        if (!amp_gpus_place(s->net))
            fprintf(
                stderr,
                "mixed precision: %s is not used, because the count of images seen was set to %zu "
                "after loading (-clear does that): momentum and loss scale start anew\n",
                amp_sidecar_path(s->sidecar), seen);
    }
    amp_sidecar_close(s->sidecar);
    s->sidecar = NULL;
}

// ---- names ----

// The file behind the name, if that is a link: what Darknet itself would write or read.
static const char *behind(const char *name, char path[PATH_MAX])
{
    struct stat info;
    bool is_link = !lstat(name, &info) && S_ISLNK(info.st_mode);
    return is_link && realpath(name, path) ? path : name;
}

// A device or a pipe cannot be replaced.
static bool is_special(const char *name)
{
    struct stat info;
    return !stat(name, &info) && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

// What is written when training is over: any NAME.weights but the numbered NAME_1000.weights.
static bool is_final(const char *name)
{
    size_t stem = strlen(name) - strlen(".weights");
    if (!ends_with(name, ".weights")) return false;
    size_t digits = 0;
    while (digits < stem && isdigit((unsigned char)name[stem - 1 - digits]))
        ++digits;
    return digits == 0 || digits == stem || name[stem - 1 - digits] != '_';
}

static bool is_numbered(const char *name)
{
    return ends_with(name, ".weights") && !is_final(name);
}

static bool wants_sidecar(const struct amp_session *s, const char *name)
{
    if (s->options.sidecar != AMP_SIDECAR_BACKUP) return s->options.sidecar == AMP_SIDECAR_ALL;
    return ends_with(name, ".backup") || is_final(name);
}

// A final file may be anybody's, to start from.
static bool should_have_sidecar(const struct amp_session *s, const char *name)
{
    return wants_sidecar(s, name) && (ends_with(name, ".backup") || is_numbered(name));
}

// ---- saving ----

// Where Darknet cannot open a file, it ends the program, with status 0.
static int check_opens(const struct amp_whole_file *f, const char *name, char *err, size_t err_size)
{
    FILE *probe = fopen(f->temp, "r+b");
    if (probe)
        fclose(probe);
    else
        snprintf(err, err_size, "%s: cannot open a file beside it: %s", name, strerror(errno));
    return probe ? 0 : -1;
}

// Darknet checks no write, so the size tells whether they all succeeded.
static int write_weights(struct amp_session *s, struct amp_whole_file *f, const char *name,
                         struct amp_file_id *id, char *err, size_t err_size)
{
    uint64_t expected = amp_weights_saved_bytes(s->desc);
    if (check_opens(f, name, err, err_size)) return -1;
    amp_save_as(s->net, f->temp, name);
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
    struct amp_owned host = host_list(s);
    struct amp_run r = run_of(s, &host);
    int failed = amp_sidecar_write(f->fd, &r, id, why, sizeof why);
    free_host_list(s, &host);
    if (failed) snprintf(err, err_size, "%s: %s", path, why);
    return failed;
}

// Gradients of a step that is not finished are in no file.
static bool in_a_step(const struct amp_session *s, const char *name)
{
    if (!s->step.passes) return false;
    fprintf(stderr,
            "darknet-amp: %s is saved in the middle of a step, after %d of %d subdivisions; it "
            "gets no sidecar\n",
            name, s->step.passes, s->step.subdivisions);
    return true;
}

// Says which array of the run's state is not finite; false: none is.
static bool name_spoilt(const struct amp_session *s, const char *array, int layer, char *what,
                        size_t size)
{
    snprintf(what, size, "%s of layer %d (%s)", array, layer,
             amp_layer_type_name(s->desc->layers[layer].type));
    return true;
}

static bool is_spoilt(const struct amp_session *s, char *what, size_t size)
{
    static const char *const names[] = {"weights", "biases", "batch-norm scales"};
    bool spoilt = false;
    struct amp_owned host = host_list(s);
    for (const struct amp_param *p = host.params; p < host.params + host.n_params && !spoilt; ++p) {
        const char *array = !amp_all_finite(p->value, p->n)    ? names[p->kind]
                            : !amp_all_finite(p->update, p->n) ? "momentum"
                            : p->m && (!amp_all_finite(p->m, p->n) || !amp_all_finite(p->v, p->n))
                                ? "Adam moments"
                                : NULL;
        spoilt = array && name_spoilt(s, array, p->layer, what, size);
    }
    for (int i = 0; i < host.n_rolling && !spoilt; ++i) {
        const struct amp_rolling *r = &host.rolling[i];
        spoilt = !amp_all_finite(r->value, r->n) &&
                 name_spoilt(s, amp_watch_name(AMP_WATCH_ROLLING), r->layer, what, size);
    }
    free_host_list(s, &host);
    return spoilt;
}

// Training cannot go on from such weights, and good ones must not be lost to them.
static void refuse_non_finite(struct amp_session *s, const char *name)
{
    char message[PATH_MAX + 300], what[100];
    if (!is_spoilt(s, what, sizeof what)) return;
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
    const char *place = behind(name, path);
    bool pair = wants_sidecar(s, name) && !in_a_step(s, name);
    int failed = amp_whole_begin(&weights, place, err, err_size) ||
                 write_weights(s, &weights, name, &id, err, err_size) ||
                 (pair && write_sidecar(s, &sidecar, place, &id, err, err_size)) ||
                 amp_checkpoint_place(&weights, pair ? &sidecar : NULL, err, err_size);
    amp_whole_drop(&weights);
    amp_whole_drop(&sidecar);
    return failed ? -1 : 0;
}

// A layer just left FP16, and nothing else is wrong so far: the step was dropped.
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

// Good weights must not be lost to those of a run that has blown up. A numbered file replaces
// nothing, unless an earlier run wrote one of this number.
static bool is_suspect(const struct amp_session *s, const char *name, char *err, size_t err_size)
{
    char losses[200];
    if (s->step.carry_on || (is_numbered(name) && access(name, F_OK))) return false;
    // After the final file there will be no other.
    const struct amp_session *bad = amp_gpus_find(s, is_final(name) ? lost_more : looks_diverged);
    if (!bad) return false;
    amp_divergence_describe(&bad->step.divergence, losses, sizeof losses);
    snprintf(err, err_size, "%s: %s%s (amp_on_divergence=continue would write it)", name,
             bad->log.who, losses);
    return true;
}

// Training goes on, since there will be another save; after the last one that would be a lie.
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

void amp_save_weights(network *net, const char *path)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s || is_special(path)) {
        AMP_REAL(save_weights)(net, (char *)path);
        return;
    }
    save_or_tell(s, path, is_final(path));
    if (ends_with(path, ".backup")) snprintf(s->backup, sizeof s->backup, "%s", path);
    if (!is_final(path)) amp_interrupt_obey(s);
}

AMP_INTERPOSE(void, save_weights, (network * net, char *filename))
{
    amp_ending_enter();
    amp_save_weights(net, filename);
    amp_ending_leave();
}

// Darknet's own writing, to a file of which nothing is seen before it is complete.
static int save_stock(network *net, const char *path, unsigned long long bytes, char *err,
                      size_t err_size)
{
    struct amp_whole_file f = {.fd = -1};
    struct stat info;
    int failed = amp_whole_begin(&f, path, err, err_size);
    if (!failed) amp_save_as(net, f.temp, path);
    if (!failed && (stat(f.temp, &info) || (unsigned long long)info.st_size != bytes)) {
        snprintf(err, err_size, "%s: could not be written in full (is the disk full?)", path);
        failed = -1;
    }
    failed = failed || amp_whole_flush(&f, err, err_size) || amp_whole_place(&f, err, err_size) ||
             amp_folder_flush(path, err, err_size);
    amp_whole_drop(&f);
    return failed ? -1 : 0;
}

int amp_save_whole(network *net, const char *path, unsigned long long bytes, char *err,
                   unsigned long err_size)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s) amp_gpu_use(s);
    return s ? save(s, path, err, err_size) : save_stock(net, path, bytes, err, err_size);
}

// ---- loading ----

static void load(struct amp_session *s, const char *name)
{
    char path[PATH_MAX], warning[ERR_SIZE], what[100];
    struct amp_checkpoint found;
    amp_gpu_use(s);
    struct amp_owned host = host_list(s);
    struct amp_run r = run_of(s, &host);
    const char *place = behind(name, path);
    amp_checkpoint_find(place, &r, &found, warning, sizeof warning);
    free_host_list(s, &host);
    if (*warning) fprintf(stderr, "darknet-amp: %s\n", warning);
    AMP_REAL(load_weights)(s->net, strcmp(found.weights, place) ? found.weights : (char *)name);
    amp_sidecar_close(s->sidecar);
    s->sidecar = found.sidecar;
    bool alone = !s->sidecar && !*warning && should_have_sidecar(s, name);
    snprintf(s->alone, sizeof s->alone, "%s", alone ? place : "");
    s->alone_seen = *s->net->seen;
    if (s->graph) amp_graph_weights_changed(s->graph);
    if (ends_with(name, ".backup")) snprintf(s->backup, sizeof s->backup, "%s", name);
    if (!is_spoilt(s, what, sizeof what)) return;
    snprintf(warning, sizeof warning, "%s: the %s are inf or NaN; train from another file",
             found.weights, what);
    amp_fail(warning);
}

void amp_load_weights(network *net, const char *path)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s)
        load(s, path);
    else
        AMP_REAL(load_weights)(net, (char *)path);
}

AMP_INTERPOSE(void, load_weights, (network * net, char *filename))
{
    amp_ending_enter();
    amp_load_weights(net, filename);
    amp_ending_leave();
}
