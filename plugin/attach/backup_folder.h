/* Where a run saves: in the folder that the program read as the option "backup".
 *
 * Two processes that train cfgs of one name in one folder would overwrite each other's backup and
 * final weights, so the second one is refused. */
#ifndef AMP_BACKUP_FOLDER_H
#define AMP_BACKUP_FOLDER_H

#include "session.h"

/* Path for this session's state when it must end: BACKUP_FOLDER/CFG.backup, or CFG_stopped.backup
 * if that is another run's file. -1: not known. */
int amp_backup_place(const struct amp_session *, char path[PATH_MAX]);

/* Call when training begins. Ends the program if another process trains a cfg of this name in the
 * same folder; else keeps others out until this process ends. */
void amp_backup_claim(const struct amp_session *);

#endif
