/* How the images of a batch are loaded: the keys amp_loader, amp_loader_threads, amp_jpeg_scale and
 * amp_image_cache. session: of the network that is trained; NULL: it has only a seed. */
#ifndef AMP_LOADER_H
#define AMP_LOADER_H

#include "pictures.h"
#include "plugin/attach/session.h"

#include <stdbool.h>

/* NULL: Darknet loads this batch, if its rules are stock's. Also tells the log what would shorten a
 * wait for images. */
const struct amp_image_loader *amp_loader_choose(struct amp_session *, const load_args *);
/* Loads a list of one image by our own path. False, and nothing drawn: it is left to Darknet. Any
 * number of threads may call it. */
bool amp_loader_load(const struct amp_image_loader *, const load_args *);
/* At least 1. */
int amp_loader_threads(const struct amp_session *, const load_args *);

#endif
