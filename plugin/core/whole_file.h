/* Files that appear whole or not at all: written beside their place under an unpredictable name,
 * flushed to the disk, and renamed.
 *
 *   begin ─► anyone writes to .temp (or .fd) ─► flush ─► place (the old file is replaced) ─► drop
 *                                                  └──── drop alone: the old file stays
 *
 * A program that is killed in between leaves NAME.part-<16 hex digits> behind. The next begin in
 * that folder removes it where NAME is its own, or ends as files of a training do (.weights,
 * .backup, .amp, .prev, _best.json); a lock tells such a file from one that is still being written.
 *
 * All return 0, or -1 with text in err that names the file.
 */
#ifndef AMP_WHOLE_FILE_H
#define AMP_WHOLE_FILE_H

#include <limits.h>
#include <stddef.h>

struct amp_whole_file {
    char path[PATH_MAX]; /* its place */
    char temp[PATH_MAX]; /* "" once placed */
    int fd;              /* -1: not begun */
};

/* Empty file at .temp, with the access rights of the file that it will replace, if there is one,
 * which must be one that may be written. */
int amp_whole_begin(struct amp_whole_file *, const char *path, char *err, size_t err_size);
/* What was written is on the disk. */
int amp_whole_flush(struct amp_whole_file *, char *err, size_t err_size);
int amp_whole_place(struct amp_whole_file *, char *err, size_t err_size);
/* Ends it; also for one that was never begun (all zero but .fd = -1) or dropped before. */
void amp_whole_drop(struct amp_whole_file *);

/* The present file also under another name, whatever was there: a second link to the same bytes,
 * or a copy on a file system without links. */
int amp_whole_keep(const char *path, const char *other, char *err, size_t err_size);

/* Renames and removals in the folder of this file are on the disk. */
int amp_folder_flush(const char *path_in_it, char *err, size_t err_size);

#endif
