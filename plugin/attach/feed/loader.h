/* How the images of a batch are loaded: the keys amp_loader, amp_loader_threads, amp_jpeg_scale and
 * amp_image_cache. session: of the network that is trained; NULL: it has only a seed. */
#ifndef AMP_LOADER_H
#define AMP_LOADER_H

#include "crops.h"
#include "pictures.h"
#include "plugin/attach/session.h"

#include <stdbool.h>

/* How the rows of a batch are loaded. */
struct amp_row_loader {
    const struct amp_image_loader *fast; /* NULL: Darknet loads */
    struct amp_crops crops;              /* if by_crops: rules that are not stock's */
    bool by_crops;
};

/* Also tells the log what would shorten a wait for images. */
void amp_loader_choose(struct amp_session *, const load_args *, struct amp_row_loader *);
/* Loads one row into *a->d. *name: its file, drawn from a->paths here. False: it cannot be decoded,
 * it has been named, and nothing is loaded. Any number of threads may call it. */
bool amp_loader_load(const struct amp_row_loader *, const load_args *a, char **name);
/* At least 1. */
int amp_loader_threads(const struct amp_session *, const load_args *);

#endif
