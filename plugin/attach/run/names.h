/* Names of the files that a training saves. Stock's trainer asks for NAME.backup every 100
 * iterations, for NAME_N.weights every 100 of the first 1000 and then every 10000, and for
 * NAME_final.weights. By the rules of AlexeyAB's Darknet the first is NAME_last.weights, and N is
 * every 1000th iteration, every 10000th of a run of 10000 or more. */
#ifndef AMP_NAMES_H
#define AMP_NAMES_H

#include "plugin/attach/session.h"

/* What the name of a backup ends with, after NAME. */
const char *amp_names_backup_ending(const struct amp_session *);
/* The name to save under where the trainer asks for another; false: nothing is to be saved. */
bool amp_names_choose(const struct amp_session *, const char *asked, char name[PATH_MAX]);
/* The numbered file to save beside a backup that the trainer asks for; false: none. */
bool amp_names_numbered(const struct amp_session *, const char *asked, char name[PATH_MAX]);

#endif
