/* Files and folders, looked at before anything depends on them. */
#ifndef AMP_FILE_CHECK_H
#define AMP_FILE_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* NULL for a regular file that can be read, else why not. */
const char *amp_file_unreadable(const char *path);
/* The same for a text file that is read line by line: not above 1 GiB either. */
const char *amp_text_unreadable(const char *path);

/* Can so many bytes (at least 1) be written into this folder? Reserves them in a file
 * that has a name only while it is created. 0, or -1 with text in err: there is no such folder, it
 * is not one, is read-only, or full. */
int amp_folder_check(const char *path, uint64_t bytes, char *err, size_t err_size);

#endif
