/* The structs of a sidecar's file (sidecar.h), for the two files that write and read it. */
#ifndef AMP_SIDECAR_FORMAT_H
#define AMP_SIDECAR_FORMAT_H

#include "sidecar.h"

/* The first byte is no ASCII, so the file is not taken for text. The line ends show whether a
 * transfer has converted them anyway. */
static const unsigned char magic[8] = {0x89, 'A', 'M', 'P', '\r', '\n', 0x1a, '\n'};

#define MAX_ROWS (1u << 20) /* far more than any network has */

/* These structs are the format itself: written and read as they are, so they must have no
 * padding. */
struct head {
    unsigned char magic[8];
    uint32_t version, n_layers, n_params, n_demoted;
    uint64_t weights_bytes, weights_hash, seen;
    int64_t t;
    double scale;
    uint32_t dynamic, searching;
    int64_t tracker, floor_skips, redone, skipped, applied, grown, backed_off;
    uint32_t dtype; /* enum amp_dtype_choice; from version 2 on */
    uint32_t zero;
};
_Static_assert(sizeof(struct head) == 136, "the head has no padding");

/* zero fills the struct up; a reader checks that it is 0. */
struct row {
    uint32_t layer, kind;
    uint64_t n;
    uint32_t arrays; /* 1: momentum; 3: and moments */
    uint32_t zero;
};
_Static_assert(sizeof(struct row) == 24, "a row has no padding");

/* What version 3 adds: counts of the two tables, and their entries. Names end with zeros. */
struct names {
    uint32_t n_scalars, n_arrays;
};
#define NAME_SIZE 24
struct scalar {
    char name[NAME_SIZE];
    double value;
};
_Static_assert(sizeof(struct scalar) == 32, "a scalar has no padding");
enum owner { OF_ROW, OF_STATISTICS, OWNERS };
struct array {
    char name[NAME_SIZE];
    uint32_t owner, index; /* enum owner; of a row, or of a running statistic */
    uint64_t n;
};
_Static_assert(sizeof(struct array) == 40, "an array's entry has no padding");

/* The names that this version knows. */
#define OPTIMIZER "optimizer"
#define AVERAGED  "averaged" /* struct amp_counts */
#define CLIPPED   "clipped"
#define AVERAGE   "average"
#define SCALARS   3

/* The row of a parameter. The same function serves writing and comparing, so that both agree. */
struct row amp_sidecar_row(const struct amp_run *, const struct amp_param *);

#endif
