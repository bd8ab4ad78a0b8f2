/* The sidecar: the state that a weights file lacks, so that training goes on exactly where it
 * stopped.
 *
 * It holds momentum, Adam moments and t, the loss scale with its tracker and counters, the layers
 * that left FP16, the dtype, and the identity of its weights file. All values are those between two
 * steps: unscaled, finite, no pass half done.
 *
 * The file, in the machine's byte order, as weights files are:
 *
 * - head: fixed size: magic, format version, counts, weights file's size and hash, state, dtype
 * - rows: n_params: layer, kind, count and number of arrays of each parameter
 * - demoted: n_demoted layer indices, ascending
 * - arrays: per row: momentum, then Adam's m and v if it has them; 32-bit floats
 * - checksum: hash (plugin/core/file.h) of everything before
 *
 * Head and rows give the exact size of the file, and it must agree: no memory is allocated on the
 * word of a damaged file beyond that file's own size. */
#ifndef AMP_SIDECAR_H
#define AMP_SIDECAR_H

#include "graph.h"
#include "file.h"
#include "guard.h"

/* Version 1, which is still read, ends its head before the dtype. */
#define AMP_SIDECAR_VERSION 2

/* A run's state: saving reads it, restoring writes it. */
struct amp_run {
    uint64_t seen;               /* images, as in the weights file */
    int64_t t;                   /* Adam's count of steps */
    enum amp_dtype_choice dtype; /* what it computes in; only written (amp_sidecar_dtype) */
    struct amp_scaler scaler;
    int n_layers;
    enum amp_format *demoted; /* per layer; AMP_FORMATS = not */
    int n_params;
    const struct amp_param *params; /* update, m, v; nothing else is read or written */
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

/* Do they belong together? -1 with the reason in err: the sidecar belongs to another weights file
 * (name is for the message), or to a network with other parameters. */
int amp_sidecar_check_weights(const struct amp_sidecar *, const struct amp_file_id *,
                              const char *name, char *err, size_t err_size);
int amp_sidecar_check_net(const struct amp_sidecar *, const struct amp_run *, char *err,
                          size_t err_size);

/* Restores the state of a run that amp_sidecar_check_net accepts: seen, t, demotions, the arrays of
 * its params, and the scaler's state (amp_scaler_resume: the run keeps its own settings). -1 with
 * text in err: the file changed after it was opened; the run is then spoilt and must end. */
int amp_sidecar_restore(struct amp_sidecar *, struct amp_run *, char *err, size_t err_size);

#endif
