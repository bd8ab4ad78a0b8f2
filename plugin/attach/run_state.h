/* What a run has in Darknet's arrays and in the session, as a sidecar keeps it
 * (plugin/core/sidecar.h): read, put back, and looked at. */
#ifndef AMP_RUN_STATE_H
#define AMP_RUN_STATE_H

#include "session.h"

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
