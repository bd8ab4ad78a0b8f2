/* Makes description, plan and graph of a session: when it is attached, and again when its size or
 * use changes or a layer leaves FP16. */
#ifndef AMP_REPLAN_H
#define AMP_REPLAN_H

#include "session.h"

/* Describes the network at the size and batch that it has now. */
void amp_session_describe(struct amp_session *, const network *view);
void amp_session_make_plan(struct amp_session *, bool train);
void amp_session_make_graph(struct amp_session *);

/* For n layers; free with free. */
enum amp_format *amp_session_no_demotions(int n);
/* For amp_step.demote: a layer leaves FP16 in the next plan. user: a session. */
void amp_session_demote(void *user, const struct amp_fault *);
/* The same for inference only: its rolling statistics may be young, and training need not pay for
 * that. */
void amp_session_demote_inference(struct amp_session *, const struct amp_fault *);

#endif
