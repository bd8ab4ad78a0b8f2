/* Resumes a run that was saved with a sidecar, and says what is not as it was.
 *
 * The first training pass puts the sidecar's state in place, not the load: load_network's `clear`
 * sets seen to 0 after loading, and then momentum and loss scale must start anew too. */
#ifndef AMP_RESUME_H
#define AMP_RESUME_H

#include "session.h"

/* Call before a training pass or a save. Puts the state of the sidecar in place that was found with
 * the loaded weights, if there is one. seen: images before this pass. */
void amp_session_resume(struct amp_session *, size_t seen);

/* ---- the state of a run, in Darknet's arrays and in the session, as a sidecar keeps it ---- */
struct amp_run_state {
    struct amp_owned host; /* Darknet's arrays; copies on the host if Darknet's are on a device */
    struct amp_run run;    /* points into host */
};

/* Free with amp_run_state_free. */
struct amp_run_state amp_run_state_of(const struct amp_session *);
void amp_run_state_free(const struct amp_session *, struct amp_run_state *);
/* Writes back a state that a sidecar was restored into. */
void amp_run_state_put_back(struct amp_session *, const struct amp_run_state *);

/* True if training cannot go on. what: the array that is not finite. */
bool amp_run_is_spoilt(const struct amp_session *, char *what, size_t size);

#endif
