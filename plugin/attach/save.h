// Weights files of attached networks and their sidecars (plugin/train/checkpoint.h).
//
// Darknet's save_weights and load_weights, for a network with mixed_precision=1: files are written
// whole or not at all, get a sidecar where amp_sidecar says so, and are loaded with it. What the
// sidecar holds is put in place by the first training pass: load_network's `clear` sets seen to 0
// after loading, and then momentum and loss scale must start anew too. For any other network both
// are Darknet's own.
#ifndef AMP_SAVE_H
#define AMP_SAVE_H

#include "session.h"

// Before a training pass or a save: takes up the state of the sidecar that was found with the
// loaded weights, if there is one. seen: images before this pass.
void amp_session_resume(struct amp_session *, size_t seen);

// As save_weights, for a program that ends: it ends with a message where the save fails.
void amp_save_last(struct amp_session *, const char *path);

#endif
