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

#endif
