/* Files and folders: checks before anything depends on them, and files that appear whole or not at
 * all. */
#ifndef AMP_FILE_H
#define AMP_FILE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- checks ---- */

/* Can these files (each of at least 1 byte) be written into this folder, all at once? Reserves
 * their bytes in files that have a name only while they are created. 0, or -1 with text in err,
 * "BYTES bytes of WHAT cannot be written": the folder does not exist, is not a folder, is
 * read-only, or is full. */
int amp_folder_check(const char *path, const uint64_t *bytes, int files, const char *what,
                     char *err, size_t err_size);

/* ---- whole files ----
 *
 * A whole file is written beside its place under an unpredictable name, flushed to the disk, and
 * renamed. Whoever reads its place sees the old file or the new one, never a part.
 *
 *   begin ─► anyone writes to .temp (or .fd) ─► flush ─► place (the old file is replaced) ─► drop
 *                                                  └──── drop alone: the old file stays
 *
 * A program that is killed in between leaves NAME.part-<16 hex digits> behind. The next begin in
 * that folder removes it if NAME is its own, or if NAME ends as files of a training do (.weights,
 * .backup, .amp, .prev, _best.json). A lock protects files that are still being written.
 *
 * All return 0, or -1 with text in err that names the file. */

struct amp_whole_file {
    char path[PATH_MAX]; /* its place */
    char temp[PATH_MAX]; /* "" once placed */
    int fd;              /* -1: not begun */
};

/* Creates an empty file at .temp. It gets the access rights of the file that it will replace, if
 * there is one; that file must be writable. */
int amp_whole_begin(struct amp_whole_file *, const char *path, char *err, size_t err_size);
/* For printing into it; close it by amp_whole_end_stream before flush or place, also after an error
 * of ours. NULL: err says why. */
FILE *amp_whole_stream(struct amp_whole_file *, char *err, size_t err_size);
/* -1: not all of it could be written. */
int amp_whole_end_stream(struct amp_whole_file *, FILE *, char *err, size_t err_size);
/* Whether the file can be written: begins it and drops it. */
int amp_whole_try(const char *path, char *err, size_t err_size);
/* The same of a file that has this mark among its first AMP_MARK_WITHIN bytes, before the work:
 * what is there already, is not empty and has no such mark is not replaced, since its name is
 * probably a mistake; nor is what is no regular file, such as /dev/stdout. */
#define AMP_MARK_WITHIN 512
int amp_whole_try_marked(const char *path, const char *mark, char *err, size_t err_size);
/* All of it, from begin to drop. print: 0, or -1: out of memory. */
int amp_whole_print(const char *path, int (*print)(FILE *, const void *user), const void *user,
                    char *err, size_t err_size);
/* Flushes what was written to the disk. */
int amp_whole_flush(struct amp_whole_file *, char *err, size_t err_size);
int amp_whole_place(struct amp_whole_file *, char *err, size_t err_size);
/* Ends it. Also allowed if it was never begun (all zero but .fd = -1) or was dropped before. */
void amp_whole_drop(struct amp_whole_file *);

/* Gives the present file another name as well, and replaces whatever had that name: by a second
 * link to the same bytes, or by a copy on a file system without links. */
int amp_whole_keep(const char *path, const char *other, char *err, size_t err_size);

/* Flushes renames and removals in the folder of this file to the disk. */
int amp_folder_flush(const char *path_in_it, char *err, size_t err_size);

/* ---- hashes: whether a file is the one that was written ----
 *
 * The function is XXH64 with seed 0, by libxxhash. It guards against damage and mix-ups, not
 * against someone who wants a collision. */

struct amp_hash {
    uint64_t state[11]; /* state of the library, whose header only file.c includes */
};

void amp_hash_begin(struct amp_hash *);
void amp_hash_add(struct amp_hash *, const void *, size_t bytes);
/* The hash of all bytes so far; more may be added afterwards. */
uint64_t amp_hash_value(const struct amp_hash *);

/* Identity of a file. */
struct amp_file_id {
    uint64_t bytes, hash;
};

/* 0, or -1 with text in err that names the file. */
int amp_file_identify(const char *path, struct amp_file_id *, char *err, size_t err_size);

#endif
