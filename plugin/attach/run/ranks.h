/* Several processes, started by a launcher, train one network (plugin/spread): what that changes
 * for Darknet. It draws a batch of this process's images only, counts `seen` as if it ran all
 * passes of a step, and is silent unless this is rank 0.
 *
 * Whoever only asks which rank this is includes plugin/spread/group.h. */
#ifndef AMP_RANKS_H
#define AMP_RANKS_H

#include "plugin/attach/session.h"

/* Call for a cfg with mixed_precision=1, before its network is made. If a launcher started several
 * processes, waits for all of them (once) and gives the cfg the seed that all use. */
void amp_ranks_start(struct amp_options *);
/* The subdivisions that Darknet is to be given in place of the cfg's: those of subdivisions=auto,
 * or more, if there are more processes than subdivisions. 0: the cfg's. */
int amp_ranks_subdivisions(struct amp_session *);
/* Call when the session is complete: it will run its share of every step. signal: asks this
 * process to stop; 0: none. save: another process is lost or cannot go on, and this one has to save
 * the last finished step; does not return. leave: this process alone cannot go on; neither. */
void amp_ranks_join(struct amp_session *, int (*signal)(void),
                    void (*save)(struct amp_session *, const char *why),
                    void (*leave)(struct amp_session *, const char *why));

/* The program has read this list of training images. */
void amp_ranks_note_list(const char *path);

/* Call before and after Darknet's train_network. Resume the session before the first call; NULL:
 * the network has none. rows: images in the batch. The second ends the step and returns the loss of
 * all passes. */
void amp_ranks_begin_step(struct amp_session *, network *, int rows);
float amp_ranks_end_step(struct amp_session *, network *, float loss);

/* Makes a step that is under way one that never was: its passes cannot be finished. */
void amp_ranks_abandon_step(struct amp_session *);

/* The signal that all processes obey now; 0: none. */
int amp_ranks_signal(const struct amp_session *);
/* What this process prints from now on is seen, as in a run that fails. */
void amp_ranks_speak(void);
/* This file cannot be opened (errno says why). Does not return in a process that prints nothing,
 * whose message from Darknet nobody would see. */
void amp_ranks_miss(const char *file);
/* Ends the program on all ranks, which must all come here in the same step. Rank 0 prints the
 * message first. */
_Noreturn void amp_ranks_exit(const char *message, int status);

#endif
