/* Saves and loads weights files of attached networks, with their sidecars
 * (plugin/core/files/checkpoint.h), and resumes a run that was saved with one. */
#ifndef AMP_SAVE_H
#define AMP_SAVE_H

#include "plugin/attach/session.h"

/* ---- files (save.c) ----
 * What Darknet's save_weights and load_weights become for a network with mixed_precision=1. A file
 * is written whole or not at all. It gets a sidecar if amp_sidecar says so, and is loaded with it.
 */

enum amp_save_result {
    AMP_SAVED,
    AMP_SAVE_FAILED,  /* older files are left as they were; a later save may succeed */
    AMP_SAVE_DIVERGED /* the weights are not finite: training cannot go on from them */
};
/* Whether the file is to be written: not a backup that follows the one of this name too soon for
 * amp_backup_every. */
bool amp_save_is_due(const struct amp_session *, const char *path);
/* err: why it was not saved. */
enum amp_save_result amp_save(struct amp_session *, const char *path, char *err, size_t err_size);
/* 0, or -1 with text in err: the weights are not finite. */
int amp_load(struct amp_session *, const char *path, char *err, size_t err_size);
/* The first layers of a network, without a sidecar; whole files have so many bytes. 0, or -1 with
 * text in err: nothing has changed. */
int amp_save_stock(network *, const char *path, int layers, uint64_t bytes, char *err,
                   size_t err_size);
/* For the errors. */
#define AMP_SAVE_ERR_SIZE (3 * PATH_MAX)

/* ---- resuming (resume.c) ----
 * The first training pass puts the sidecar's state in place, not the load: load_network's `clear`
 * sets seen to 0 after loading, and then momentum and loss scale must start anew too. */

/* Call before a training pass or a save. Puts the state of the sidecar in place that was found with
 * the loaded weights, if there is one, and says what is not as it was. seen: images before this
 * pass. */
void amp_session_resume(struct amp_session *, size_t seen);

/* Call when weights were loaded: moments and averages of the weights before begin anew. */
void amp_session_restart_kept(struct amp_session *);

/* Exchanges moving averages and the network's weights and running statistics; a second call puts
 * both back. -1 with text in err: no memory, nothing has changed. */
int amp_session_swap_averages(struct amp_session *, char *err, size_t err_size);

/* The state of a run, in Darknet's arrays and in the session, as a sidecar keeps it. */
struct amp_run_state {
    struct amp_owned host; /* Darknet's arrays; copies on the host if Darknet's are on a device */
    struct amp_run run;    /* points into host */
};

/* Free with amp_run_state_free. */
struct amp_run_state amp_run_state_of(const struct amp_session *);
void amp_run_state_free(const struct amp_session *, struct amp_run_state *);
/* True if training cannot go on. what: the array that is not finite. */
bool amp_run_is_spoilt(const struct amp_session *, const struct amp_run_state *, char *what,
                       size_t size);

#endif
