/* A weights file and its sidecar, kept as a pair. One matching pair is in the folder at every
 * moment, even if the program is killed or the disk fills up.
 *
 *   NAME        NAME.amp          the pair that training resumes from
 *   NAME.prev   NAME.prev.amp     the pair before, while NAME's is being replaced
 *
 *   both new files are on the disk, under other names
 *   NAME, NAME.amp  ─► also NAME.prev, NAME.prev.amp      (unless NAME's do not match)
 *   new sidecar     ─► NAME.amp                           from here NAME's do not match,
 *   new weights     ─► NAME                               from here they do
 *   NAME.prev, NAME.prev.amp removed */
#ifndef AMP_CHECKPOINT_H
#define AMP_CHECKPOINT_H

#include <stdbool.h>

#include "file.h"
#include "sidecar.h"

#define AMP_SIDECAR_SUFFIX ".amp"

/* Replaces the old files by the new ones; the caller has begun and written the whole files. sidecar
 * NULL: the weights get none, and the sidecar of the old weights is removed. 0, or -1 with text in
 * err: then a matching pair, old or new, is still there. Drop the files afterwards. */
int amp_checkpoint_place(struct amp_whole_file *weights, struct amp_whole_file *sidecar, char *err,
                         size_t err_size);

struct amp_checkpoint {
    char weights[PATH_MAX]; /* the file to load */
    struct amp_sidecar
        *sidecar; /* matches the file and the network; NULL: none. The caller closes it */
};

/* Finds what to load for the weights file NAME. That is NAME with its sidecar, if it has one; the
 * previous pair, if NAME's sidecar is damaged or belongs to other weights; else NAME alone.
 * warning: "", or why the sidecar is not used and what is done instead. */
void amp_checkpoint_find(const char *name, const struct amp_run *, struct amp_checkpoint *,
                         char *warning, size_t warning_size);

/* ---- what the name of a weights file says ---- */

/* What AlexeyAB's Darknet calls a backup. */
#define AMP_WEIGHTS_LAST "_last.weights"
/* NAME.backup or NAME_last.weights, which every save of a run replaces. */
bool amp_weights_is_backup(const char *name);
/* Any NAME.weights but a numbered one: Darknet writes it when training is over. */
bool amp_weights_is_final(const char *name);
/* NAME_1000.weights, written once. */
bool amp_weights_is_numbered(const char *name);

/* The file behind the name if the name is a link, since Darknet itself would write or read that
 * file. */
const char *amp_weights_behind(const char *name, char path[PATH_MAX]);
/* A device or a pipe: a rename would replace it by a file. */
bool amp_weights_is_special(const char *name);

#endif
