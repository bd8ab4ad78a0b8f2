/* The list of sessions. It answers which session a network or a layer belongs to, and notes whose
 * weights somebody wrote to. */
#ifndef AMP_SESSIONS_H
#define AMP_SESSIONS_H

#include "session.h"

void amp_session_enlist(struct amp_session *);
void amp_session_delist(struct amp_session *);

struct amp_session *amp_session_of(const layer *layers);
/* The session and index of the layer that an update call got by value; NULL if the layer is none of
 * ours. */
struct amp_session *amp_session_of_update(const layer *l, int *index);
/* An address that only this layer has and that never moves; NULL: none. Layers are compared by it,
 * because another thread may be resizing its network while the list is searched. */
const void *amp_session_identity(const layer *l);
/* True if a session of the same cfg is on another GPU. */
bool amp_session_is_planned_alike(const struct amp_session *);
/* At the end of the program: closes the logs of all sessions. */
void amp_sessions_close_logs(void);

/* Darknet has written to x on the device. Any thread may call it. */
void amp_session_see_write(const float *x);
/* Call before a pass: tells the graph if the convolutions must read their weights again. */
void amp_session_judge_weights(struct amp_session *);

#endif
