/* Times training steps layer by layer: Darknet's own through its function pointers, mixed precision
 * through the plugin (amp_observe.h). On a GPU the device is waited for before and after every
 * layer. Belongs to the `darknet` program. */
#ifndef AMP_PROFILE_TIME_H
#define AMP_PROFILE_TIME_H

#include "darknet.h"
#include "profile.h"

/* Steps on what net->input and net->truth hold, both ways in turns. nets[AMP_PROFILE_FP32]: NULL,
 * or a network without the plugin; nets[AMP_PROFILE_MIXED]: an attached one, to be freed
 * afterwards; one pass is a step. Sets p's seconds (p->layers is the caller's), rounds and plan,
 * which lives as long as the network. Tells on progress what it does, and every five seconds how
 * far it is. 0, or -1 with text in err. */
int amp_profile_time(struct amp_profile *p, network *nets[AMP_PROFILE_WAYS], FILE *progress,
                     char *err, size_t err_size);

#endif
