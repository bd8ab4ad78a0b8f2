/* Decides the order of flushes and renames with which a pair of weights and sidecar is replaced,
 * and which pair is loaded. No other file knows this order. It must not know what the files hold:
 * sidecar.c says whether two of them match.
 *
 * A pair matches if the sidecar names the size and hash of the weights. That is why the order below
 * is safe: a kill between two renames leaves a NAME that does not match, and then NAME.prev is
 * found. */
#define _GNU_SOURCE
#include "checkpoint.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ERR_SIZE (2 * PATH_MAX)

/* The other names of one weights file. */
struct names {
    char sidecar[PATH_MAX], previous[PATH_MAX], previous_sidecar[PATH_MAX];
};

/* Makes the names; -1 if one is too long for the system. previous_sidecar is the longest of
 * them. */
static int make_names(const char *name, struct names *n)
{
    int longest = snprintf(n->previous_sidecar, PATH_MAX, "%s.prev" AMP_SIDECAR_SUFFIX, name);
    if (longest >= PATH_MAX) return -1;
    int ends = snprintf(n->sidecar, PATH_MAX, "%s" AMP_SIDECAR_SUFFIX, name) < PATH_MAX &&
               snprintf(n->previous, PATH_MAX, "%s.prev", name) < PATH_MAX;
    return ends ? 0 : -1;
}

/* Opens the sidecar if it matches these weights; NULL with the reason in err. */
static struct amp_sidecar *open_pair(const char *weights, const char *sidecar, char *err,
                                     size_t err_size)
{
    struct amp_file_id id;
    struct amp_sidecar *s = amp_sidecar_open(sidecar, err, err_size);
    if (!s) return NULL;
    if (!amp_file_identify(weights, &id, err, err_size) &&
        !amp_sidecar_check_weights(s, &id, weights, err, err_size))
        return s;
    amp_sidecar_close(s);
    return NULL;
}

/* ---- placing ---- */

/* Gives the present pair a second name. A pair that does not match is no state to return to: it
 * must not replace a good NAME.prev. */
static int keep_previous(const char *name, const struct names *n, char *err, size_t err_size)
{
    char why[ERR_SIZE];
    struct amp_sidecar *old = open_pair(name, n->sidecar, why, sizeof why);
    if (!old) return 0;
    amp_sidecar_close(old);
    /* Links, not renames: NAME must exist all the time, for whoever reads it. */
    return amp_whole_keep(name, n->previous, err, err_size) ||
           amp_whole_keep(n->sidecar, n->previous_sidecar, err, err_size) ||
           amp_folder_flush(name, err, err_size);
}

/* Errors are ignored: if the files stay, the next save replaces them. */
static void remove_previous(const struct names *n)
{
    unlink(n->previous_sidecar);
    unlink(n->previous);
}

/* Both files are flushed before any rename. The sidecar goes first: with old weights and a new
 * sidecar, loading falls back to NAME.prev. The folder is flushed before the previous pair is
 * removed, since a crash could otherwise undo the renames but not the removal. */
static int place_pair(struct amp_whole_file *weights, struct amp_whole_file *sidecar,
                      const struct names *n, char *err, size_t err_size)
{
    if (amp_whole_flush(weights, err, err_size) || amp_whole_flush(sidecar, err, err_size) ||
        keep_previous(weights->path, n, err, err_size) || amp_whole_place(sidecar, err, err_size) ||
        amp_whole_place(weights, err, err_size) || amp_folder_flush(weights->path, err, err_size))
        return -1;
    remove_previous(n);
    return 0;
}

static int place_alone(struct amp_whole_file *weights, const struct names *n, char *err,
                       size_t err_size)
{
    if (amp_whole_flush(weights, err, err_size) || amp_whole_place(weights, err, err_size) ||
        amp_folder_flush(weights->path, err, err_size))
        return -1;
    /* After the weights: until they are in place the old pair must stay whole. */
    unlink(n->sidecar);
    remove_previous(n);
    return 0;
}

int amp_checkpoint_place(struct amp_whole_file *weights, struct amp_whole_file *sidecar, char *err,
                         size_t err_size)
{
    struct names n;
    if (make_names(weights->path, &n)) {
        snprintf(err, err_size, "%s: the name is too long", weights->path);
        return -1;
    }
    return sidecar ? place_pair(weights, sidecar, &n, err, err_size)
                   : place_alone(weights, &n, err, err_size);
}

/* ---- finding ---- */

/* Opens the sidecar if it matches these weights and this network. *matches: it matches the weights
 * at least. */
static struct amp_sidecar *open_for(const char *weights, const char *sidecar,
                                    const struct amp_run *r, bool *matches, char *err,
                                    size_t err_size)
{
    struct amp_sidecar *s = open_pair(weights, sidecar, err, err_size);
    *matches = s;
    if (!s || !amp_sidecar_check_net(s, r, err, err_size)) return s;
    amp_sidecar_close(s);
    return NULL;
}

void amp_checkpoint_find(const char *name, const struct amp_run *r, struct amp_checkpoint *found,
                         char *warning, size_t warning_size)
{
    struct names n;
    char why[ERR_SIZE], also[ERR_SIZE];
    bool matches;
    *warning = 0;
    found->sidecar = NULL;
    snprintf(found->weights, sizeof found->weights, "%s", name);
    /* No sidecar is the normal case of any pretrained file: no warning. */
    if (make_names(name, &n) || (access(n.sidecar, F_OK) && errno == ENOENT)) return;
    found->sidecar = open_for(name, n.sidecar, r, &matches, why, sizeof why);
    if (found->sidecar) return;
    /* If the pair matches but the network differs, the previous pair would differ as well. */
    if (!matches)
        found->sidecar = open_for(n.previous, n.previous_sidecar, r, &matches, also, sizeof also);
    if (found->sidecar) snprintf(found->weights, sizeof found->weights, "%s", n.previous);
    snprintf(warning, warning_size, "%s; %s%s", why,
             found->sidecar ? "the last good pair is loaded, "
                            : "momentum and loss scale start anew",
             found->sidecar ? n.previous : "");
}

/* ---- names of weights files ---- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

bool amp_weights_is_backup(const char *name)
{
    return ends_with(name, ".backup") || ends_with(name, AMP_WEIGHTS_LAST);
}

bool amp_weights_is_final(const char *name)
{
    /* The subtraction may wrap for a shorter name; ends_with then returns before stem is used. */
    size_t stem = strlen(name) - strlen(".weights"), digits = 0;
    if (!ends_with(name, ".weights") || amp_weights_is_backup(name)) return false;
    while (digits < stem && isdigit((unsigned char)name[stem - 1 - digits]))
        digits++;
    /* Numbered is NAME_123.weights. A name of digits alone, or digits without "_", is the user's
     * own. */
    return digits == 0 || digits == stem || name[stem - 1 - digits] != '_';
}

bool amp_weights_is_numbered(const char *name)
{
    return ends_with(name, ".weights") && !amp_weights_is_final(name) &&
           !amp_weights_is_backup(name);
}

const char *amp_weights_behind(const char *name, char path[PATH_MAX])
{
    struct stat info;
    /* A rename replaces a link, not its target; Darknet's fopen would write to the target. */
    bool is_link = !lstat(name, &info) && S_ISLNK(info.st_mode);
    return is_link && realpath(name, path) ? path : name;
}

bool amp_weights_is_special(const char *name)
{
    struct stat info;
    return !stat(name, &info) && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}
