/* Taking up a run that was saved with a sidecar, and saying what of it is not as it was.
 *
 * What the sidecar holds is put in place by the first training pass: load_network's `clear` sets
 * seen to 0 after loading, and then momentum and loss scale must start anew too. */
#ifndef AMP_RESUME_H
#define AMP_RESUME_H

#include "session.h"

/* Before a training pass or a save: takes up the state of the sidecar that was found with the
 * loaded weights, if there is one. seen: images before this pass. */
void amp_session_resume(struct amp_session *, size_t seen);

/* ---- what a run has in Darknet's arrays and in the session, as a sidecar keeps it ---- */

struct amp_run_state {
    struct amp_owned host; /* what Darknet owns, copied to the host where it stands on a device */
    struct amp_run run;    /* of its params */
};

/* Free with amp_run_state_free. */
struct amp_run_state amp_run_state_of(const struct amp_session *);
void amp_run_state_free(const struct amp_session *, struct amp_run_state *);
/* After a sidecar was restored into it. */
void amp_run_state_put_back(struct amp_session *, const struct amp_run_state *);

/* True where training cannot go on, with the array that is not finite in what. */
bool amp_run_is_spoilt(const struct amp_session *, char *what, size_t size);

#endif
