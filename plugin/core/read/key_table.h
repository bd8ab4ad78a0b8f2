/* One grammar for Darknet's keys: a row for each key and the sections that read it.
 *
 * Two Darknets matter. Stock is the one that this program is built on. The fork is AlexeyAB's,
 * whose keys hank-ai's has too; a cfg may be trained by the rules of either (dialect.h). A row says
 * which of them reads the key, what value it takes, and what holds without it. Words of other
 * trainers, which people try under [net], have rows too. */
#ifndef AMP_KEY_TABLE_H
#define AMP_KEY_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cfg_text.h"
#include "layer_types.h"

enum amp_cfg_kind {
    AMP_CFG_UNKNOWN, /* Darknet has no such key */
    AMP_CFG_SWITCH,  /* an integer that Darknet only compares with 0 */
    AMP_CFG_INTEGER,
    AMP_CFG_NUMBER,
    AMP_CFG_INTEGERS, /* with commas between them */
    AMP_CFG_NUMBERS,
    AMP_CFG_WORD
};

enum amp_key_reader {
    AMP_READ_BY_ALL,
    AMP_READ_BY_FORK,   /* with another value than `def` it trains another network than stock */
    AMP_KNOWN_TO_FORK,  /* the fork reads it, but trains the same network with any value */
    AMP_READ_BY_OTHERS, /* other trainers */
    AMP_READ_BY_NOBODY  /* stands in Darknet's own cfgs, as in writing.cfg */
};

/* What our fork's rules make of a key that has another value than `def`. */
enum amp_key_use {
    AMP_KEY_USED,
    AMP_KEY_IGNORED, /* noted once */
    AMP_KEY_REFUSED  /* `lost` says why */
};

struct amp_key_row {
    const char *name;
    uint64_t sections; /* one bit for each enum amp_layer_type */
    enum amp_cfg_kind kind;
    /* What stock does: its default; of a key that it does not read, the value that asks for the
     * same network. "=key": the value of that key in the same section. NULL: no value says it, or
     * the default depends on other keys. */
    const char *def;

    /* Of numbers. allowed NULL: any. */
    const char *allowed;
    double low, high;
    bool above_low, below_high; /* the limit itself is not allowed */

    const char *const
        *words; /* of a WORD: those that are known, then NULL. NULL: known elsewhere */

    enum amp_key_reader reader;
    enum amp_cfg_kind fork_kind; /* AMP_CFG_UNKNOWN: as kind */
    const char *fork_def;        /* NULL: as def */
    enum amp_key_use use;
    const char *lost; /* what the network would lose without the key */
};

/* The rows, sorted by name. */
const struct amp_key_row *amp_key_rows(size_t *count);

/* The type of a section: AMP_NETWORK for the first one, whatever its name. */
enum amp_layer_type amp_cfg_section_type(const struct amp_cfg_file *,
                                         const struct amp_cfg_section *);

/* The row of a key in a section of this type; NULL: nobody reads it there. */
const struct amp_key_row *amp_key_find(const char *name, enum amp_layer_type);
/* Whether stock reads it there. */
bool amp_key_is_stocks(const struct amp_key_row *);
/* The first row of that name which stock reads, in whichever section; NULL: none. */
const struct amp_key_row *amp_key_find_anywhere(const char *name);
/* The kind of value that stock reads from a key, in whichever section. */
enum amp_cfg_kind amp_cfg_key_kind(const char *name);

/* Whether stock reads a key of that name under [net] and nowhere else. */
bool amp_key_is_nets_only(const char *name);

/* Whether a value is the row's def (as numbers, if both are: "1" is "1.0"). section: where it
 * stands, for "=key". */
bool amp_key_is_default(const struct amp_key_row *, const struct amp_cfg_section *,
                        const char *value);
/* Whether a number is in the row's range. */
bool amp_key_allows(const struct amp_key_row *, double value);
/* The place of a word among row->words; -1: it is none of them. */
int amp_key_word(const struct amp_key_row *, const char *value);

/* ---- what a section says, or its Darknet's default ----
 * Converted as Darknet does (atoi, atof). A key that this Darknet does not read counts as absent;
 * without a row or a default it is 0 or "". */
const char *amp_key_string(const struct amp_cfg_section *, enum amp_layer_type, enum amp_dialect,
                           const char *key);
int amp_key_int(const struct amp_cfg_section *, enum amp_layer_type, enum amp_dialect,
                const char *key);
double amp_key_float(const struct amp_cfg_section *, enum amp_layer_type, enum amp_dialect,
                     const char *key);
/* The same for a key under [net]. */
int amp_net_int(const struct amp_cfg_file *, const char *key);
double amp_net_float(const struct amp_cfg_file *, const char *key);

#endif
