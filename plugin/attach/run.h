/* When a run is saved and ended before its time: by a signal, or because memory ends.
 *
 * SIGINT, SIGTERM, SIGHUP, SIGPIPE (nobody reads the output any more) and SIGXCPU (a batch system's
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
#ifndef AMP_RUN_H
#define AMP_RUN_H

#include "session.h"

/* A training pass of this session begins. */
void amp_run_watch(struct amp_session *);
/* The session ends: signals act as they did before. */
void amp_run_unwatch(struct amp_session *);
/* Does not return where a signal came and no step is half done. For the thread that trains; of
 * networks that are trained together for the one that trains all, with the first of them. */
void amp_run_obey(struct amp_session *);

/* Ends the program with status 1 and a message: why (which names the size), what to change, and
 * where the state is. That is saved as BACKUP_FOLDER/CFG.backup (run.h) where this run has
 * trained; otherwise nothing is written, and older files stay as they are. Between two steps that
 * has a sidecar, from which training goes on with another batch, subdivisions, random or size. */
_Noreturn void amp_give_up(struct amp_session *, const char *why);

/* After Darknet's parse_network_cfg or resize_network, which go on whatever calloc and realloc
 * give: gives up where an array is missing. */
void amp_check_arrays(struct amp_session *);

#endif
