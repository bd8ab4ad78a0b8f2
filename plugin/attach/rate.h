/* Hands the learning rate of our policies (core/read/schedule.h) to Darknet, as a constant. */
#ifndef AMP_RATE_H
#define AMP_RATE_H

#include "session.h"

/* Call before each training pass, when `seen` counts its images: the network then has the rate (and
 * the momentum) of the iteration that the pass belongs to. Darknet updates with it and prints it.
 */
void amp_rate_hand(struct amp_session *);
/* Puts Darknet's own values back. */
void amp_rate_put_back(struct amp_session *);

/* What Darknet is told in place of the policy of a [net] section: "constant" if it is one of ours
 * and mixed_precision=1 stands there too, else value. */
char *amp_rate_policy(const list *options, char *value);

#endif
