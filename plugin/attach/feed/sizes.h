/* Sizes that a network is trained at, with random= by the rules of AlexeyAB's Darknet. Stock's
 * trainer decides when to change the size, draws a square of its own and asks for a batch and a
 * network of that size; here both get the size that the other rules draw. */
#ifndef AMP_SIZES_H
#define AMP_SIZES_H

#include "plugin/attach/session.h"

/* The trainer asks for a batch, after it has freed one untrained (redraws), for a change of size:
 * sets its size. Nothing happens for a net whose sizes follow stock's rules, or never change. */
void amp_sizes_choose(struct amp_session *, bool redraws, load_args *);
/* The trainer asks for a network of this size: sets what it gets. */
void amp_sizes_apply(const struct amp_session *, int *w, int *h);

#endif
