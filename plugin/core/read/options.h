/* The plugin's cfg keys: one table, and the values that a cfg gives them.
 *
 * Keys stand in the first section, [net] (or [network]); `mixed_precision` may also stand in any
 * layer's section, `freeze` stands only there. Without mixed_precision=1 every key is still
 * checked, but all except `seed` then keep their defaults. `loss_scale`, which AlexeyAB's Darknet
 * has too, may then be any number.
 *
 * These are always errors: a value outside the table's range; a key of ours twice in a section or
 * in the wrong one; an unknown key that begins with amp_ or loss_scale or looks like a misspelt key
 * of ours; loss_scale_min above loss_scale_max; loss_scale_init outside of both; and a fixed
 * loss_scale=<number> together with any loss_scale_* key, since those steer the dynamic scale
 * only; and, with mixed_precision=1, adam=1 beside another optimizer, both ways to clip, or a key
 * that amp_level sets. */
#ifndef AMP_OPTIONS_H
#define AMP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cfg.h"
#include "complaints.h"
#include "dialect.h"
#include "rules.h"
#include "schedule.h"

#define AMP_LOSS_SCALE_MAX 16777216 /* 2^24, dynamic or fixed */
#define AMP_COUNT_AUTO     -1       /* the word in place of a count */

/* The numbers are part of the sidecar's format. */
enum amp_dtype_choice {
    AMP_DTYPE_AUTO,
    AMP_DTYPE_FP16,
    AMP_DTYPE_BF16,
    AMP_DTYPE_TF32,
    AMP_DTYPE_FP32
};
enum amp_overflow_policy { AMP_OVERFLOW_RETRY, AMP_OVERFLOW_SKIP };
enum amp_backend_choice { AMP_BACKEND_AUTO, AMP_BACKEND_CPU, AMP_BACKEND_CUDA };
enum amp_divergence_policy { AMP_DIVERGENCE_STOPS, AMP_DIVERGENCE_GOES_ON };
enum amp_loader { AMP_LOADER_FAST, AMP_LOADER_DARKNET };
enum amp_reduce { AMP_REDUCE_FAST, AMP_REDUCE_ORDERED };
enum amp_wire { AMP_WIRE_FP32, AMP_WIRE_BF16 };
enum amp_sidecar_policy { AMP_SIDECAR_BACKUP, AMP_SIDECAR_ALL, AMP_SIDECAR_NONE };

/* As NVIDIA's Apex names them. */
enum amp_level { AMP_LEVEL_NONE, AMP_LEVEL_O0, AMP_LEVEL_O1, AMP_LEVEL_O2, AMP_LEVEL_O3 };

struct amp_options {
    bool mixed_precision;
    enum amp_dialect_choice dialect; /* what was asked for; the cfg file has what follows */
    enum amp_level level;            /* it has set dtype and loss scale */
    enum amp_dtype_choice dtype;     /* not AUTO once amp_options_settle_dtype was called */
    const char *dtype_reason;        /* why AUTO became that; NULL: the cfg names it */
    bool loss_scale_dynamic;
    double loss_scale;      /* static scale, a power of two; only when not dynamic */
    double loss_scale_init; /* 0: search at start-up */
    int loss_scale_window;  /* 0: clamp(max_batches/50, 20, 2000) */
    double loss_scale_growth, loss_scale_backoff, loss_scale_min, loss_scale_max;
    enum amp_overflow_policy on_overflow;
    enum amp_divergence_policy on_divergence;
    enum amp_backend_choice backend;
    enum amp_sidecar_policy sidecar;
    int backup_every; /* iterations, at least; 0: every one is written; or AMP_COUNT_AUTO */
    enum amp_loader loader;
    enum amp_reduce reduce;
    enum amp_wire wire;
    bool sync_bn;
    double bucket_mb; /* MiB; 0: gradients leave in one piece */
    int rank_timeout; /* seconds */
    bool jpeg_scale;
    int image_cache;       /* MiB */
    int loader_threads;    /* 0: as many as there are cores */
    char log_path[4096];   /* "" = none */
    int log_layers;        /* iterations; 0: never */
    double checkpoint_gib; /* backward computes so much again that activations fit; 0: not asked */
    struct amp_rules rules;
    struct amp_schedule schedule;
    bool seeded;
    uint64_t seed;
};

/* How a key's value is read; this also fixes the type of the member that it sets. */
enum amp_option_kind {
    AMP_OPTION_SWITCH,       /* bool */
    AMP_OPTION_WORD,         /* an enum whose values are the places of the words */
    AMP_OPTION_NUMBER,       /* double, between the row's two numbers */
    AMP_OPTION_NUMBER_OF,    /* double, one of the row's two numbers */
    AMP_OPTION_POWER_OF_TWO, /* double */
    AMP_OPTION_COUNT,        /* int, between the row's two numbers, or the word as AMP_COUNT_AUTO */
    AMP_OPTION_PATH,         /* log_path */
    AMP_OPTION_LOSS_SCALE,   /* loss_scale and loss_scale_dynamic */
    AMP_OPTION_SEED,         /* seed and seeded */
    AMP_OPTION_CHECKPOINT    /* checkpoint_gib under [net]; a switch in a layer's section */
};

/* The sections that a key may stand in. What a layer's section says is read by
 * amp_option_layer_..., not into struct amp_options. */
enum amp_option_place { AMP_IN_NET, AMP_IN_LAYERS, AMP_IN_BOTH };

/* One row of the table. docs/options.md and the error messages are made from it too. */
struct amp_option_row {
    const char *key, *type, *range, *default_text, *help;
    bool described; /* default_text is no value but says how it comes about; the member is 0 */
    enum amp_option_kind kind;
    size_t offset;            /* of the member that it sets, in struct amp_options */
    const char *const *words; /* the allowed words, then NULL */
    double numbers[2];
    enum amp_option_place place;
};
const struct amp_option_row *amp_option_rows(int *count);
/* "O2" and the keys that it stands for; not for AMP_LEVEL_NONE. */
const char *amp_level_word(enum amp_level);
const char *amp_level_keys(enum amp_level);
/* The word that selects it in amp_dtype. */
const char *amp_dtype_word(enum amp_dtype_choice);
/* True for a key of ours. (Darknet's "Unused field" report leaves these out.) */
bool amp_option_is_key(const char *key);

/* What holds without any key. */
void amp_options_default(struct amp_options *);

/* Reads and checks our keys. 0, or -1 with file, line, key, value and the allowed values in err.
 * notes (may be NULL) receives lines worth printing once: a static scale that was rounded down,
 * keys without effect beside the others, and, with mixed_precision=1, any key given twice. */
int amp_options_read(const struct amp_cfg_file *, struct amp_options *, char *notes,
                     size_t notes_size, char *err, size_t err_size);

/* Checks Darknet's own keys as amp_options_read does with mixed_precision=1: unknown ones
 * and values that train something else (cfg_checks.h). */
int amp_options_check_all_keys(const struct amp_complaints *);

/* Turns amp_dtype=auto into what suits the machine; any other value stays. device: it computes on
 * a GPU; bf16: on a CPU that multiplies BF16 (multiplies_bf16 in kernels.h). */
void amp_options_settle_dtype(struct amp_options *, bool device, bool bf16);

/* Whether a backward pass that overflows is run again, at a lower loss scale. Only FP16 has one:
 * BF16 and TF32 have the range of FP32. amp_dtype is settled. */
bool amp_options_replay(const struct amp_options *);

/* mixed_precision of a layer's section: 1, 0, or -1 where absent. */
int amp_option_layer_override(const struct amp_cfg_section *);
/* freeze of a layer's section. */
bool amp_option_layer_freeze(const struct amp_cfg_section *);
/* checkpoint of a layer's section. */
bool amp_option_layer_checkpoint(const struct amp_cfg_section *);

#endif
