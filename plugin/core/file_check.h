/* Files and folders, looked at before anything depends on them. */
#ifndef AMP_FILE_CHECK_H
#define AMP_FILE_CHECK_H

#include <stddef.h>
#include <stdint.h>

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

#endif
