/* Decides when a run ends: on a signal, when memory ends, or when a save shows that it cannot go
 * on; and under which name its state is saved then. It must not know what a save writes (save.c) or
 * what a step is made of.
 *
 * A handler only notes the signal. The training thread acts on it, at places where no step is half
 * done: amp_run_obey is called after an update, before a batch is asked for, and after a save. */

#define _GNU_SOURCE
#include "run.h"

#include "amp.h"
#include "plugin/attach/feed/batches.h"
#include "claim.h"
#include "names.h"
#include "ranks.h"
#include "save.h"
#include "signals.h"
#include "plugin/attach/interposed.h"
#include "plugin/core/files/checkpoint.h"
#include "plugin/spread/group.h"

#include "parser.h"

#include <pthread.h>
#include <sys/stat.h>

/* ---- where a run saves ----
 * Darknet builds the names in its trainers and tells nobody: the folder is seen when a trainer
 * reads the option "backup", the rest follows from the cfg's name. */

/* The folder belongs to the process: a data file is read once, before any network exists. */
static pthread_mutex_t folder_lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX]; /* "": not known */

void amp_run_note_folder(const char *path)
{
    pthread_mutex_lock(&folder_lock);
    snprintf(folder, sizeof folder, "%s", path);
    pthread_mutex_unlock(&folder_lock);
}

#define OF_THE_AUTHOR "/home/pjreddie/backup/"

static bool redirected; /* the folder takes what would go there */

void amp_save_to(const char *path)
{
    redirected = true;
    amp_run_note_folder(path);
}

static void copy_folder(char to[PATH_MAX])
{
    pthread_mutex_lock(&folder_lock);
    memcpy(to, folder, sizeof folder);
    pthread_mutex_unlock(&folder_lock);
}

const char *amp_run_place_of_save(const char *name, char path[PATH_MAX])
{
    char in[PATH_MAX];
    size_t length = strlen(OF_THE_AUTHOR);
    if (!redirected || strncmp(name, OF_THE_AUTHOR, length)) return name;
    while (name[length] == '/')
        length++;
    copy_folder(in);
    int n = snprintf(path, PATH_MAX, "%s/%s", in, name + length);
    return n < PATH_MAX ? path : name;
}

/* True if the file is another run's: it exists, and this run neither loaded nor wrote it. Compared
 * by inode, since two names may be one file; none may be replaced meanwhile. */
static bool is_foreign(const char *backup, const char *path)
{
    struct stat there, ours;
    if (stat(path, &there)) return false;
    return !*backup || stat(backup, &ours) || there.st_ino != ours.st_ino ||
           there.st_dev != ours.st_dev;
}

int amp_run_place(const char *cfg_path, const char *backup, const char *ending, char path[PATH_MAX])
{
    /* Darknet's own basecfg, so that the name is the one that its trainers use. */
    char in[PATH_MAX], *base = AMP_USE(basecfg)((char *)cfg_path);
    copy_folder(in);
    int n = in[0] ? snprintf(path, PATH_MAX, "%s/%s%s", in, base, ending)
                  : snprintf(path, PATH_MAX, "%s", backup);
    if (in[0] && n < PATH_MAX && is_foreign(backup, path))
        n = snprintf(path, PATH_MAX, "%s/%s_stopped%s", in, base, ending);
    free(base);
    return n > 0 && n < PATH_MAX ? 0 : -1;
}

static int place_of_state(const struct amp_session *s, char path[PATH_MAX])
{
    return amp_run_place(s->cfg->path, s->backup, amp_names_backup_ending(s), path);
}

static void claim_folder(const struct amp_session *s)
{
    char in[PATH_MAX];
    copy_folder(in);
    if (!in[0]) return;
    char *base = AMP_USE(basecfg)(s->cfg->path);
    amp_claim_folder(s->cfg->path, in, base);
    free(base);
}

/* ---- when the signals are ours ---- */

/* Guards what follows: networks may train on several threads. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct amp_session *watched;
static int trained; /* how many train; of several, the state of one alone is no use */

static void release_signals(void)
{
    watched = NULL;
    amp_signals_release();
}

void amp_run_watch(struct amp_session *s)
{
    char path[PATH_MAX];
    pthread_mutex_lock(&lock);
    amp_signals_let_writes_fail();
    /* Once per session, before anything is written: two processes must not save to one name. */
    if (!s->trained && !amp_group_rank()) claim_folder(s);
    trained += !s->trained;
    s->trained = true;
    /* Two networks that train apart: neither one's state is the run. Signals end the program as
     * without the plugin. */
    if (trained > 1 && watched) {
        release_signals();
    } else if (trained == 1 && !watched && !place_of_state(s, path)) {
        watched = s;
        amp_signals_take();
    }
    pthread_mutex_unlock(&lock);
}

void amp_run_take_signals(bool on)
{
    pthread_mutex_lock(&lock);
    if (on)
        amp_signals_take();
    else
        release_signals();
    pthread_mutex_unlock(&lock);
}

void amp_run_unwatch(struct amp_session *s)
{
    pthread_mutex_lock(&lock);
    if (watched == s) release_signals();
    trained -= s->trained;
    s->trained = false;
    pthread_mutex_unlock(&lock);
}

/* ---- the end ---- */

/* Weights that are not finite end the run. Any other failed save does not. After the last one there
 * is none, and status 0 would be a lie. */
static void save(struct amp_session *s, const char *path, bool last)
{
    char err[AMP_SAVE_ERR_SIZE], message[AMP_SAVE_ERR_SIZE + 100];
    enum amp_save_result result = amp_save(s, path, err, sizeof err);
    if (result == AMP_SAVED) return;
    if (result == AMP_SAVE_DIVERGED) {
        amp_log_close(&s->log, &s->step.scaler);
        amp_fail(err);
    }
    snprintf(message, sizeof message,
             "weights are not saved: %s; what is there is whole: the files of before, or these",
             err);
    if (last) amp_fail(message);
    fprintf(stderr, "darknet-amp: %s\n", message); /* there will be another save */
}

/* Several processes obey what they have agreed on: one of them may know of a signal already that
 * the others will hear of in the next step. */
static int to_obey(const struct amp_session *s)
{
    return s->step.peers ? amp_ranks_signal(s) : amp_signals_asked();
}

void amp_run_obey(struct amp_session *s)
{
    char path[PATH_MAX], message[3 * PATH_MAX];
    int number = to_obey(s);
    /* step.passes: a step is half done, and its gradients are in no file. Wait for its end. */
    if (!number || s != watched || s->step.passes || place_of_state(s, path)) return;
    size_t iteration = amp_iterations_in(s->net, *s->net->seen);
    if (s->net->max_batches && iteration >= (size_t)s->net->max_batches)
        return; /* Darknet is about to write the final weights and end */
    amp_log_close(&s->log, &s->step.scaler);
    if (!amp_group_rank()) save(s, path, true); /* ends the program itself if it fails */
    snprintf(message, sizeof message,
             "stopped by %s after iteration %zu. To go on from there, give the same command with "
             "the weights file after the cfg, without -clear: %s %s",
             amp_signals_name(number), iteration, s->cfg->path, path);
    amp_ranks_exit(message, 128 + number);
}

/* ---- memory that ends ---- */

static bool is_random(const network *net)
{
    return net->layers[net->n - 1].random; /* Darknet's trainers ask the last layer, too */
}

/* Says why, and which key can help. The cfg's width and height are named, as the sizes that
 * random=0 would keep. */
static void report_remedy(const struct amp_session *s, const char *why)
{
    const struct amp_cfg_entry *w = amp_cfg_find(s->cfg->sections, "width");
    const struct amp_cfg_entry *h = amp_cfg_find(s->cfg->sections, "height");
    fprintf(stderr, "darknet-amp: %s\n", why);
    if (is_random(s->net))
        fprintf(stderr,
                "darknet-amp: with random=1 every size from 320x320 to 608x608 must fit; random=0 "
                "keeps %sx%s\n",
                w ? w->value : "?", h ? h->value : "?");
}

void amp_run_save_for_all(struct amp_session *s, const char *why)
{
    char path[PATH_MAX], message[3 * PATH_MAX];
    bool learned = s->log.iterations > 0;
    amp_ranks_abandon_step(s);
    amp_log_close(&s->log, &s->step.scaler);
    if (!learned || place_of_state(s, path)) {
        snprintf(message, sizeof message, "%s; nothing %s", why,
                 learned ? "was saved: it is not known where to" : "was trained");
        amp_tell(message);
        amp_group_saved();
    }
    save(s, path, true); /* if it fails, another process tries */
    snprintf(message, sizeof message,
             "%s. The state after iteration %zu is saved. To go on from there, give the same "
             "command with the weights file after the cfg, without -clear: %s %s",
             why, amp_iterations_in(s->net, *s->net->seen), s->cfg->path, path);
    amp_tell(message);
    amp_group_saved();
}

/* The order matters. `seen` gives back the images of a pass that never began, so that the saved
 * count is right. If nothing was learned, nothing is saved: older files are better than initial
 * weights. */
_Noreturn void amp_give_up(struct amp_session *s, const char *why)
{
    char path[PATH_MAX], message[2 * PATH_MAX + 300];
    *s->net->seen -= s->pass_images;
    fflush(stdout);
    amp_ranks_speak();
    if (amp_group_rank()) amp_fail(why);
    report_remedy(s, why);
    if (amp_group_is_on()) {
        amp_group_end(true, why);
        amp_run_save_for_all(s, why);
    }
    bool learned = s->log.iterations > 0;
    amp_log_close(&s->log, &s->step.scaler);
    if (!learned || place_of_state(s, path))
        amp_fail(learned ? "nothing was saved: it is not known where to" : "nothing was trained");
    save(s, path, true);
    snprintf(message, sizeof message,
             "the state after iteration %zu is saved. To go on from there, change %s as told above "
             "and give the same command with the weights file after the cfg, without -clear: %s %s",
             amp_iterations_in(s->net, *s->net->seen), s->cfg->path, s->cfg->path, path);
    amp_fail(message);
}

/* Size in bytes of an array that Darknet asked for and did not get; 0: all are there. Only arrays
 * that grow with batch and size are looked at: those are the ones that fail. */
static size_t missing(const network *net, const layer *l, bool had_delta)
{
    size_t bytes = (size_t)l->batch * (size_t)l->outputs * sizeof(float);
    if (!l->output || (l->batch_normalize && l->type == CONVOLUTIONAL && (!l->x || !l->x_norm)))
        return bytes;
    /* had_delta: whether the layer had one before attaching; some never have. */
    if (had_delta && !l->delta) return bytes;
    return net->workspace ? 0 : l->workspace_size;
}

void amp_check_arrays(struct amp_session *s)
{
    const network *net = s->net;
    char why[300];
    size_t bytes = net->input ? 0 : (size_t)net->inputs * (size_t)net->batch * sizeof(float);
    for (int i = 0; i < net->n && !bytes; i++)
        bytes = missing(net, &net->layers[i], s->saved[i].delta);
    if (!bytes && net->truth) return;
    snprintf(why, sizeof why,
             "no memory for %.1f MiB of Darknet's own arrays at %dx%d (%d images in a pass): lower "
             "batch or raise subdivisions",
             (double)bytes / (1 << 20), net->w, net->h, net->batch);
    amp_give_up(s, why);
}

/* ---- a run that has diverged ---- */

void amp_run_stop(void *user, const char *message)
{
    struct amp_session *s = user;
    const char *good = s->last_good;
    char text[PATH_MAX + 1000];
    amp_log_close(&s->log, &s->step.scaler);
    snprintf(text, sizeof text, "%s %s%s", message,
             *good ? "The last good weights are " : "This run has saved nothing.", good);
    amp_ranks_exit(text, 1);
}

/* ---- Darknet's saves and loads ---- */

/* Special files (/dev/null, a pipe) cannot be written beside and renamed: Darknet writes them
 * itself. After a save no step is half done, so a signal can be obeyed; not after the final file,
 * when the program ends anyway. */
void amp_save_weights(network *net, const char *path)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s || amp_weights_is_special(path)) {
        AMP_REAL(save_weights)(net, (char *)path);
        return;
    }
    char name[PATH_MAX];
    bool last = amp_weights_is_final(path);
    if (!amp_group_rank() && amp_names_numbered(s, path, name)) save(s, name, false);
    if (!amp_group_rank() && amp_names_choose(s, path, name) && amp_save_is_due(s, name))
        save(s, name, last);
    if (!last) amp_run_obey(s);
}

void amp_load_weights(network *net, const char *path)
{
    char err[AMP_SAVE_ERR_SIZE];
    struct amp_session *s = amp_session_of(net->layers);
    if (!s)
        AMP_REAL(load_weights)(net, (char *)path);
    else if (amp_load(s, path, err, sizeof err))
        amp_fail(err);
}
