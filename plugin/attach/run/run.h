/* Ends a run early, with its state saved: after a signal, or when memory ends. What cannot
 * begin, because a cfg or a file is wrong, ends where that is found (amp_fail).
 *
 * While a network trains and a signal asks to stop (signals.h), the running iteration is finished,
 * the state is saved as BACKUP_FOLDER/CFG.backup, and the program ends with status 128 + signal.
 *
 * The handlers are set only while exactly one network trains, and if it is known where to save: in
 * the folder that the program read as the option "backup", else under the last name that ended in
 * .backup. If CFG.backup is another run's file (this run neither loaded nor wrote it), it stays,
 * and the state is saved as CFG_stopped.backup. After the last iteration a signal changes nothing:
 * the final weights are written, and the program ends. */
#ifndef AMP_RUN_H
#define AMP_RUN_H

#include "plugin/attach/session.h"

/* The program has read this folder as the option "backup". */
void amp_run_note_folder(const char *path);

/* Where Darknet saves what it wants to save as `name`: name, or a file of amp_save_to's folder,
 * whose path is then in `path`. */
const char *amp_run_place_of_save(const char *name, char path[PATH_MAX]);

/* A training pass of this session begins. Sets the handlers at the first one. */
void amp_run_watch(struct amp_session *);
/* The session ends: signals act as they did before. */
void amp_run_unwatch(struct amp_session *);
/* Saves and ends the program if a signal came and no step is half done; else returns. Call it on
 * the training thread.
 */
void amp_run_obey(struct amp_session *);

/* For networks without a session (stock.c): sets the handlers, or gives back what signals did
 * before. */
void amp_run_take_signals(bool on);
/* Where the state of a run goes when it must end: BACKUP_FOLDER/CFG and the ending of a backup, or
 * CFG_stopped and the ending if that is another run's file. backup: the last one that this run
 * loaded or saved, "" for none. -1: not known. */
int amp_run_place(const char *cfg_path, const char *backup, const char *ending,
                  char path[PATH_MAX]);

/* For amp_step.stop: ends a run that has diverged, with the message and the name of the last good
 * weights. user: a session. */
void amp_run_stop(void *user, const char *message);

/* Ends the program with status 1 and a message: why (which names the size), what to change, and
 * where the state is. If this run has trained, the state is saved as BACKUP_FOLDER/CFG.backup;
 * otherwise nothing is written, and older files stay as they are. Between two steps the save has a
 * sidecar, and training can go on from it with another batch, subdivisions, random or size. */
_Noreturn void amp_give_up(struct amp_session *, const char *why);

/* For amp_ranks_join: saves the last finished step for all processes, says why, and ends the
 * program with status 1. */
void amp_run_save_for_all(struct amp_session *, const char *why);

/* Gives up if one of the network's arrays is missing. parse_network_cfg and resize_network do not
 * check what calloc and realloc return, so this is called after both. */
void amp_check_arrays(struct amp_session *);

#endif
