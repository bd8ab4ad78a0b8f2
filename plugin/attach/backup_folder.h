/* Where a run saves: the folder that the program read as the option "backup", and the names in it.
 *
 * Two processes that train a cfg of one name in one folder would overwrite each other's backup and
 * final weights, so the second one is refused. */
#ifndef AMP_BACKUP_FOLDER_H
#define AMP_BACKUP_FOLDER_H

#include "session.h"

/* Where this session's state is saved when it must end: BACKUP_FOLDER/CFG.backup, or, where another
 * run's file of that name is there, CFG_stopped.backup. -1: not known. */
int amp_backup_place(const struct amp_session *, char path[PATH_MAX]);

/* Training begins. Ends the program where another process trains a cfg of this name in the same
 * folder; keeps others out until this process ends. */
void amp_backup_claim(const struct amp_session *);

#endif
