/* How the images of a batch are loaded: the keys amp_loader, amp_loader_threads, amp_jpeg_scale and
 * amp_image_cache. session: of the network that is trained; NULL: it has only a seed. */
#ifndef AMP_LOADER_H
#define AMP_LOADER_H

#include "detection.h"
#include "plugin/attach/session.h"

/* NULL: Darknet loads this batch, if its rules are stock's. Also tells the log what would shorten a
 * wait for images. */
const struct amp_detection_loader *amp_loader_choose(struct amp_session *, const load_args *);
/* At least 1. */
int amp_loader_threads(const struct amp_session *, const load_args *);

#endif
