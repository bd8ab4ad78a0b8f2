/* What the name of a weights file says: which of a run's files it is, and what is there already. */
#ifndef AMP_WEIGHTS_NAME_H
#define AMP_WEIGHTS_NAME_H

#include <limits.h>
#include <stdbool.h>

/* NAME.backup, which every save of a run replaces. */
bool amp_weights_is_backup(const char *name);
/* What is written when training is over: any NAME.weights but a numbered one. */
bool amp_weights_is_final(const char *name);
/* NAME_1000.weights, written once. */
bool amp_weights_is_numbered(const char *name);

/* The file behind the name, if that is a link: what Darknet itself would write or read. */
const char *amp_weights_behind(const char *name, char path[PATH_MAX]);
/* A device or a pipe, which cannot be replaced. */
bool amp_weights_is_special(const char *name);

#endif
