/* What was found fastest, kept over runs: a small text file of keys and values.
 *
 * A key says everything that the choice depends on (GPU, library version, operation, shape, types),
 * a value what was chosen; both are one line of text without tabs. Each line of the file carries a
 * checksum: a line that is damaged is left out, a file of another version is not used, and either
 * is said once. Several programs may use one file at a time: saving adds to what others wrote
 * meanwhile and replaces the file whole.
 *
 * Plain C; knows nothing of GPUs.
 */
#ifndef AMPK_CUDA_PLAN_CACHE_H
#define AMPK_CUDA_PLAN_CACHE_H

#include <stdbool.h>
#include <stddef.h>

struct ampk_plan_cache;

/* Where plans are kept unless told otherwise: $XDG_CACHE_HOME/darknet-amp/plans or
 * ~/.cache/darknet-amp/plans. False where there is neither variable nor home. */
bool ampk_plan_cache_default_path(char *path, size_t path_size);

/* The plans in that file; a file that is not there is empty. path NULL: nothing is kept. NULL only
 * without memory. warning: "" or what is wrong with the file, for the user. */
struct ampk_plan_cache *ampk_plan_cache_open(const char *path, char *warning, size_t warning_size);
void ampk_plan_cache_close(struct ampk_plan_cache *);

/* NULL: not there. Valid until the next add. */
const char *ampk_plan_cache_find(const struct ampk_plan_cache *, const char *key);
/* Takes what others have saved since. */
void ampk_plan_cache_refresh(struct ampk_plan_cache *);
/* Adds or replaces. What does not fit a line, or memory, is left out. */
void ampk_plan_cache_add(struct ampk_plan_cache *, const char *key, const char *value);
/* Writes what was added; creates the folder. Does nothing if nothing was added. False with the
 * reason the first time it cannot; later calls do nothing. */
bool ampk_plan_cache_save(struct ampk_plan_cache *, char *err, size_t err_size);
/* Whether a file has all that is here. */
bool ampk_plan_cache_is_saved(const struct ampk_plan_cache *);

#endif
