/* Decides whether a training can start from a weights file, and whether what it saves has a place.
 * It must not know which trainer it is. */

#define _GNU_SOURCE
#include "checker.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "plugin/core/files/file.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/core/read/lines.h"

/* Size of the buffer in which Darknet builds the name of a weights file; it writes past a longer
 * one. */
#define DARKNET_NAME_SIZE 256

/* ---- the weights that it starts from ---- */

/* Darknet would load for minutes, train nothing, and write a final file. */
static void check_seen(struct amp_checker *k, const char *path, uint64_t seen)
{
    uint64_t batch = (uint64_t)k->net->batch * (uint64_t)k->net->subdivisions;
    uint64_t iterations = seen / batch;
    if (k->net->max_batches < 1 || iterations < (uint64_t)k->net->max_batches) return;
    amp_checker_fault(k,
                      "weights file %s: has seen %" PRIu64 " images, %" PRIu64
                      " batches, and max_batches is "
                      "%d: nothing to train: use -clear or raise max_batches",
                      path, seen, iterations, k->net->max_batches);
}

void amp_checker_weights(struct amp_checker *k, const char *path, bool clear)
{
    char err[2 * PATH_MAX];
    struct amp_weights_info info;
    const char *why = amp_file_unreadable(path);
    if (why) {
        amp_checker_fault(k, "weights file %s: %s", path, why);
        return;
    }
    if (!k->net) return;
    if (amp_weights_check(path, k->net, &info, err, sizeof err)) {
        amp_checker_tell(k, err);
        return;
    }
    /* With mixed precision what is loaded is looked at, and the layer named. */
    if (!k->options.mixed_precision && amp_weights_check_numbers(path, err, sizeof err))
        amp_checker_tell(k, err);
    if (info.layers_found < info.layers && k->progress)
        fprintf(k->progress,
                "weights file %s ends before layer %d: %d of %d layers with weights are loaded, "
                "layer %d and later ones start anew\n",
                path, info.first_absent, info.layers_found, info.layers, info.first_absent);
    /* With -clear the count starts at 0. */
    if (!clear) check_seen(k, path, info.seen);
}

/* ---- the folder that it saves to ---- */

/* The cfg's name as Darknet uses it in names of weights files: up to the first dot, like its
 * basecfg. *length: its length. */
static const char *base_name(const struct amp_checker *k, int *length)
{
    const char *slash = strrchr(k->cfg->path, '/'), *base = slash ? slash + 1 : k->cfg->path;
    *length = (int)strcspn(base, ".");
    return base;
}

/* Checks the longest name that Darknet puts together in its fixed buffer. */
static void check_name_length(struct amp_checker *k, const char *folder)
{
    int length;
    const char *base = base_name(k, &length);
    int numbered =
        snprintf(NULL, 0, "%s/%.*s_%d.weights", folder, length, base, k->net->max_batches);
    int final = snprintf(NULL, 0, "%s/%.*s_final.weights", folder, length, base);
    int longest = numbered > final ? numbered : final;
    if (longest >= DARKNET_NAME_SIZE)
        amp_checker_fault(
            k,
            "backup folder %s: its weights files would have names of %d bytes; Darknet has "
            "room for %d",
            folder, longest, DARKNET_NAME_SIZE - 1);
}

static bool has_backup(const struct amp_checker *k, const char *folder)
{
    char path[PATH_MAX];
    int length;
    const char *base = base_name(k, &length);
    snprintf(path, sizeof path, "%s/%.*s.backup", folder, length, base);
    return !amp_file_unreadable(path);
}

/* Sizes of the files of one save: the weights; beside them the sidecar, an array as long as the
 * weights, three with moments, one more with averages; and the averages themselves. Returns the
 * number of files. */
static int list_save(const struct amp_checker *k, uint64_t bytes[3])
{
    const struct amp_rules *rules = &k->options.rules;
    bool averages = rules->ema_alpha > 0;
    bool moments = k->net->adam || amp_rules_keep_moments(rules);
    int files = 1;
    bytes[0] = amp_weights_saved_bytes(k->net);
    if (k->options.mixed_precision && averages) bytes[files++] = bytes[0];
    if (!k->options.mixed_precision || k->options.sidecar == AMP_SIDECAR_NONE) return files;
    if (__builtin_mul_overflow(bytes[0], (moments ? 3 : 1) + averages, &bytes[files]))
        bytes[files] = UINT64_MAX;
    return files + 1;
}

/* Checks that a save fits. Mixed precision replaces no file before the next one is whole, so it
 * needs room for two saves; if a backup is there already, one of the two is. */
static void check_room(struct amp_checker *k, const char *folder, const char *explanation)
{
    static const char *const what[][3] = {
        {"weights files", "weights and sidecar", "weights, their averages and sidecar"},
        {"weights, twice (the old stay until the new are whole; numbered files come on top),",
         "weights and sidecar, twice (the old stay until the new are whole; numbered files come on "
         "top),",
         "weights, their averages and sidecar, twice (the old stay until the new are whole; "
         "numbered files come on top),"},
    };
    char err[2 * PATH_MAX];
    uint64_t bytes[6] = {1};
    int files = k->net ? list_save(k, bytes) : 1;
    bool twice = k->net && k->options.mixed_precision && !has_backup(k, folder);
    memcpy(bytes + files, bytes, (size_t)files * sizeof *bytes);
    if (amp_folder_check(folder, bytes, twice ? 2 * files : files, what[twice][files - 1], err,
                         sizeof err))
        amp_checker_fault(k, "backup %s%s", err, explanation);
}

void amp_checker_folder(struct amp_checker *k, const char *folder, const char *explanation)
{
    check_room(k, folder, explanation);
    if (k->net) check_name_length(k, folder);
}
