/* The list of sessions: which one a network or a layer belongs to, and whose weights somebody wrote
 * to. */
#ifndef AMP_SESSIONS_H
#define AMP_SESSIONS_H

#include "session.h"

void amp_session_enlist(struct amp_session *);
void amp_session_delist(struct amp_session *);

struct amp_session *amp_session_of(const layer *layers);
/* The session and index of the layer that an update call got by value; NULL where it is none of
 * ours. */
struct amp_session *amp_session_of_update(const layer *l, int *index);
/* What a layer with an update has for itself and never moves: another thread may be resizing its
 * network while the list is searched. NULL: nothing. */
const void *amp_session_identity(const layer *l);
/* There is a session of the same cfg on another GPU. */
bool amp_session_is_planned_alike(const struct amp_session *);
/* The end of the program. */
void amp_sessions_close_logs(void);

/* Darknet has written to x on the device; any thread may. */
void amp_session_see_write(const float *x);
/* Before a pass: whether the convolutions take their weights anew. */
void amp_session_judge_weights(struct amp_session *);

#endif
