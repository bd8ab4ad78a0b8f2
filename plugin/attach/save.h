/* Weights files of attached networks and their sidecars (plugin/core/checkpoint.h).
 *
 * Darknet's save_weights and load_weights, for a network with mixed_precision=1: files are written
 * whole or not at all, get a sidecar where amp_sidecar says so, and are loaded with it (resume.h
 * puts in place what it holds). For any other network both are Darknet's own. */
#ifndef AMP_SAVE_H
#define AMP_SAVE_H

#include "session.h"

/* As save_weights and load_weights. A save that fails is told, and training goes on; after the last
 * save of a run it ends the program. */
void amp_save(struct amp_session *, const char *path);
void amp_load(struct amp_session *, const char *path);
/* As save_weights, for a program that ends: it ends with a message where the save fails. */
void amp_save_last(struct amp_session *, const char *path);

#endif
