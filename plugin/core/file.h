/* Files and folders: what is looked at before anything depends on them, and files that appear whole
 * or not at all. */
#ifndef AMP_FILE_H
#define AMP_FILE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* ---- checks ---- */

/* NULL for a regular file that can be read, else why not. */
const char *amp_file_unreadable(const char *path);
/* The same for a text file that is read line by line: not above 1 GiB either. */
const char *amp_text_unreadable(const char *path);

/* Can files of so many bytes (each at least 1) be written into this folder, one beside the other?
 * Reserves them in files that have a name only while they are created. 0, or -1 with text in err,
 * "BYTES bytes of WHAT cannot be written": there is no such folder, it is not one, is read-only, or
 * full. */
int amp_folder_check(const char *path, const uint64_t *bytes, int files, const char *what,
                     char *err, size_t err_size);

/* ---- whole files ----
 *
 * They are written beside their place under an unpredictable name, flushed to the disk, and
 * renamed.
 *
 *   begin ─► anyone writes to .temp (or .fd) ─► flush ─► place (the old file is replaced) ─► drop
 *                                                  └──── drop alone: the old file stays
 *
 * A program that is killed in between leaves NAME.part-<16 hex digits> behind. The next begin in
 * that folder removes it where NAME is its own, or ends as files of a training do (.weights,
 * .backup, .amp, .prev, _best.json); a lock tells such a file from one that is still being written.
 *
 * All return 0, or -1 with text in err that names the file. */

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
