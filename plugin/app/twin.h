/* A second network beside one that is trained, built from the same cfg for inference, one image at
 * a time: what is done with it leaves no trace in the first. */
#ifndef AMP_TWIN_H
#define AMP_TWIN_H

#include "darknet.h"

/* To be called before the network that is trained is built, on the same thread: whatever the parser
 * draws or notes down starts anew with that one. -1 with text in err: the cfg, or a layer whose
 * weights are not copied (recurrent ones). */
int amp_twin_create(const char *cfg_path, network **twin, char *err, size_t err_size);
/* The weights that a weights file would hold. Only reads from. */
void amp_twin_take_weights(network *twin, network *from);

#endif
