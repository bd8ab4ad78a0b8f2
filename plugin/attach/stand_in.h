/* What Darknet's parser is given where it would make another network than the cfg's, or complain
 * about keys that only the other Darknets know: a cfg in memory.
 *
 * A [route] that takes a part of its sources' channels (groups=) becomes a 1x1 convolution with as
 * many filters: the same place in the net, the same output, no other layer's index moves. When the
 * network is made, that layer is turned into a route, which has no weights to load, save or update;
 * only while Darknet resizes the network is it a convolution again. */
#ifndef AMP_STAND_IN_H
#define AMP_STAND_IN_H

#include "session.h"

/* The file for Darknet to parse: file itself, if it needs no changes. subdivisions: written in
 * place of the cfg's; 0: those stay. Close *variant afterwards. */
char *amp_stand_in_cfg(const struct amp_session *, char *file, int subdivisions,
                       struct amp_cfg_variant *variant);

/* Call when Darknet has made the network: also makes room for as many truths as the cfg asks for,
 * which Darknet does not look at. */
void amp_stand_in_complete(const struct amp_net_desc *, network *);

/* Call before Darknet resizes it, and afterwards. */
void amp_stand_in_show(const struct amp_net_desc *, network *);
void amp_stand_in_hide(const struct amp_net_desc *, network *);

#endif
