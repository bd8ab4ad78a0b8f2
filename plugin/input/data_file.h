/* The keys of a .data file, before anything that they name is looked at. Pure C. */
#ifndef AMP_DATA_FILE_H
#define AMP_DATA_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "labels.h"
#include "plugin/core/cfg.h"

/* Names every key that no Darknet reads, with the known one that is nearest, and every value with a
 * blank inside, since Darknet drops blanks. A misspelt key is told as a fault if `refuse` is set;
 * all else goes to warn (NULL: nowhere). */
void amp_data_file_check(const struct amp_cfg_file *data, bool refuse, amp_tell *tell,
                         void *context, FILE *warn);

/* "" where the data file has the key, else words for the end of a message about Darknet's default
 * for it. They hold until the next call. */
const char *amp_data_file_default(const struct amp_cfg_file *data, const char *key);

#endif
