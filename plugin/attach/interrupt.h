/* SIGINT, SIGTERM, SIGHUP, SIGPIPE (nobody reads the output any more) and SIGXCPU (a batch system's
 * limit) while a network is trained: the running iteration is finished, the state saved as
 * BACKUP_FOLDER/CFG.backup, and the program ends with status 128 + signal. A second signal ends it
 * at once; what comes within 200 ms of the first, and what the system repeats, is no second one.
 *
 * The handlers stand only where a signal would have ended the program (a handler of the program's
 * own and an ignored signal stay), while one network is trained, and where it is known where to
 * save: in the folder that the program read as the option "backup", else as the last file that it
 * saved under a name with the ending .backup. A CFG.backup that was there before and that this run
 * neither loaded nor wrote stays: the state is then saved as CFG_stopped.backup. After the last
 * iteration a signal changes nothing: the final weights are written, and the program ends.
 *
 * Networks that are trained together (gpus.h) count as one: all finish their iteration, the weights
 * are averaged and saved as those of the first.
 *
 * From the first training pass on SIGXFSZ (a file larger than allowed) is ignored, where it would
 * have ended the program: the write fails instead. */
#ifndef AMP_INTERRUPT_H
#define AMP_INTERRUPT_H

#include "session.h"

/* A training pass of this session begins. */
void amp_interrupt_watch(struct amp_session *);
/* The session ends: signals act as they did before. */
void amp_interrupt_unwatch(struct amp_session *);
/* Does not return where a signal came and no step is half done. For the thread that trains; of
 * networks that are trained together for the one that trains all, with the first of them. */
void amp_interrupt_obey(struct amp_session *);

/* Where this session's state is saved when it must end: BACKUP_FOLDER/CFG.backup. -1: not known. */
int amp_backup_place(const struct amp_session *, char path[PATH_MAX]);

#endif
