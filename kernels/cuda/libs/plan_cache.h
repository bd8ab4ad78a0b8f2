/* Keeps what was found fastest over runs of the program, in a small text file of keys and values.
 *
 * A key names everything that the choice depends on (GPU, library version, operation, shape,
 * types), a value what was chosen. Both are one line of text without tabs. Each line of the file
 * carries a checksum. The reader leaves out a damaged line and ignores a file of another version,
 * and says so once. Several programs may use one file at a time: saving adds to what others wrote
 * meanwhile and replaces the file whole.
 *
 * Plain C; knows nothing of GPUs. */
#ifndef AMPK_CUDA_PLAN_CACHE_H
#define AMPK_CUDA_PLAN_CACHE_H

#include <stdbool.h>
#include <stddef.h>

struct ampk_plan_cache;

/* The default place of the file: $XDG_CACHE_HOME/darknet-amp/plans or ~/.cache/darknet-amp/plans.
 * False if there is neither variable nor home. */
bool ampk_plan_cache_default_path(char *path, size_t path_size);

/* Opens the plans in that file; a missing file is empty. path NULL: keeps nothing. Returns NULL
 * only without memory. warning: "" or what is wrong with the file, for the user. */
struct ampk_plan_cache *ampk_plan_cache_open(const char *path, char *warning, size_t warning_size);
void ampk_plan_cache_close(struct ampk_plan_cache *);

/* The value of a key, valid until the next add; NULL if there is none. */
const char *ampk_plan_cache_find(const struct ampk_plan_cache *, const char *key);
/* Reads the entries that others have saved since. */
void ampk_plan_cache_refresh(struct ampk_plan_cache *);
/* Adds or replaces an entry. Drops what does not fit a line or memory. */
void ampk_plan_cache_add(struct ampk_plan_cache *, const char *key, const char *value);
/* Writes the added entries; creates the folder. Does nothing if nothing was added. False with the
 * reason the first time it cannot; later calls do nothing. */
bool ampk_plan_cache_save(struct ampk_plan_cache *, char *err, size_t err_size);
/* Whether the file has all entries of this cache. */
bool ampk_plan_cache_is_saved(const struct ampk_plan_cache *);

/* ---- what is tried ----
 * A program writes down what it tries, before it does, in a file beside the plans (PATH.trying.N).
 * If it never comes back, because the device hangs or somebody ends the program, the next one finds
 * the key there. */

/* The key of what is tried from now on; NULL: nothing. Does nothing where files cannot be locked,
 * for then it is not known which programs still run. */
void ampk_plan_cache_try(struct ampk_plan_cache *, const char *key);
/* Saves this value for every key that a program tried when it ended. Returns how many there were,
 * without those that have this value already; `first`: the first one's key. */
int ampk_plan_cache_take_up(struct ampk_plan_cache *, const char *value, char *first,
                            size_t first_size);

#endif
