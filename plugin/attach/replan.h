/* Description, plan and graph of a session: made when it is attached, and anew when its size or use
 * changes or a layer leaves FP16. */
#ifndef AMP_REPLAN_H
#define AMP_REPLAN_H

#include "session.h"

/* Of the size and batch that the network has now. */
void amp_session_describe(struct amp_session *, const network *view);
void amp_session_make_plan(struct amp_session *, bool train);
void amp_session_make_graph(struct amp_session *);

/* For n layers; free with free. */
enum amp_format *amp_session_no_demotions(int n);
/* For amp_step.demote: a layer leaves FP16 in the next plan. user: a session. */
void amp_session_demote(void *user, const struct amp_fault *);
/* The same in inference alone, whose running statistics may be young. */
void amp_session_demote_inference(struct amp_session *, const struct amp_fault *);

#endif
