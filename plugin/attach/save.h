/* Saves and loads weights files of attached networks, with their sidecars
 * (plugin/core/checkpoint.h).
 *
 * Both replace Darknet's save_weights and load_weights for a network with mixed_precision=1. A file
 * is written whole or not at all. It gets a sidecar if amp_sidecar says so, and is loaded with it;
 * resume.h puts the sidecar's state in place. For any other network both are Darknet's own. */
#ifndef AMP_SAVE_H
#define AMP_SAVE_H

#include "session.h"

/* As save_weights and load_weights. If a save fails, that is printed and training goes on; a failed
 * final save ends the program. */
void amp_save(struct amp_session *, const char *path);
void amp_load(struct amp_session *, const char *path);
/* As save_weights, for a program that is about to end: a failed save ends it with a message. */
void amp_save_last(struct amp_session *, const char *path);

#endif
