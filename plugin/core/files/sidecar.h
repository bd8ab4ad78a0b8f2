/* The sidecar: the state that a weights file lacks, so that training goes on exactly where it
 * stopped.
 *
 * It holds momentum, moments and t, the loss scale with its tracker and counters, the layers that
 * left FP16, the dtype, moving averages, and the identity of its weights file. All values are those
 * between two steps: unscaled, finite, no pass half done.
 *
 * The file, in the machine's byte order, as weights files are:
 *
 * - head: fixed size: magic, format version, counts, weights file's size and hash, state, dtype
 * - rows: n_params: layer, kind, count and number of arrays of each parameter
 * - demoted: n_demoted layer indices, ascending
 * - names (version 3): counts of both; scalars: name and value; arrays: name, what it belongs to (a
 *   row, or one of the network's running statistics, in their order), count
 * - arrays: per row: momentum, then m and v if it has them; then the named arrays (version 3);
 *   32-bit floats
 * - checksum: hash (plugin/core/files/file.h) of everything before
 *
 * A reader passes over names that it does not know, so further ones need no other version. A run
 * that has nothing to name writes version 2.
 *
 * Head, rows and names give the exact size of the file, and it must agree: no memory is allocated
 * on the word of a damaged file beyond that file's own size. */
#ifndef AMP_SIDECAR_H
#define AMP_SIDECAR_H

#include "plugin/core/engine/graph.h"
#include "file.h"
#include "plugin/core/engine/guard.h"

/* All are still read. Version 1 ends its head before the dtype; 2 has no names. */
#define AMP_SIDECAR_VERSION 3

/* A run's state: saving reads it, restoring writes it. */
struct amp_run {
    uint64_t seen;               /* images, as in the weights file */
    int64_t t;                   /* Adam's count of steps */
    enum amp_dtype_choice dtype; /* what it computes in; only written (amp_sidecar_dtype) */
    struct amp_scaler scaler;
    int n_layers;
    enum amp_format *demoted; /* per layer; AMP_FORMATS = not */
    int n_params;
    const struct amp_param *params; /* update, m, v, average; nothing else is read or written */
    int n_rolling;
    const struct amp_rolling *rolling; /* average; nothing else is read or written */
    enum amp_optimizer optimizer;
    bool keeps_moments;       /* every row has moments, also where m and v are not made yet */
    struct amp_counts counts; /* 0 where nobody counts */
};

/* Appends the sidecar to the file. 0, or -1 with the system's reason in err. */
int amp_sidecar_write(int fd, const struct amp_run *, const struct amp_file_id *weights, char *err,
                      size_t err_size);

struct amp_sidecar;

/* Opens a file and reads it to its end. NULL with the reason in err unless the file is whole, of a
 * known version, undamaged, and free of values that no run has. The file stays open, so the state
 * can be restored later even if a newer file has taken its name. */
struct amp_sidecar *amp_sidecar_open(const char *path, char *err, size_t err_size);
void amp_sidecar_close(struct amp_sidecar *);

const char *amp_sidecar_path(const struct amp_sidecar *);
uint64_t amp_sidecar_seen(const struct amp_sidecar *);
/* What the run computed in. Version 1 does not tell: AMP_DTYPE_FP16, its default. */
enum amp_dtype_choice amp_sidecar_dtype(const struct amp_sidecar *);

/* The layers that had left FP16, ascending; they are the sidecar's. Returns how many. */
int amp_sidecar_demoted(const struct amp_sidecar *, const uint32_t **layers);

/* Whether it has moving averages. */
bool amp_sidecar_has_averages(const struct amp_sidecar *);

/* Do they belong together? -1 with the reason in err: the sidecar belongs to another weights file
 * (name is for the message), or to a network with other parameters or another optimizer. */
int amp_sidecar_check_weights(const struct amp_sidecar *, const struct amp_file_id *,
                              const char *name, char *err, size_t err_size);
int amp_sidecar_check_net(const struct amp_sidecar *, const struct amp_run *, char *err,
                          size_t err_size);

/* Restores the state of a run that amp_sidecar_check_net accepts: seen, t, demotions, counts, the
 * arrays of its params (averages only where both have them), and the scaler's state
 * (amp_scaler_resume: the run keeps its own settings). -1 with text in err: the file changed after
 * it was opened; the run is then spoilt and must end. */
int amp_sidecar_restore(struct amp_sidecar *, struct amp_run *, char *err, size_t err_size);

#endif
