/* Ends a run without mixed_precision=1 on a signal, with its weights saved, if the program asks for
 * it (amp_obey_signals). What run.h says of signals holds; there is no sidecar, since Darknet's own
 * saves have no more than the weights. Nothing here touches a network in another way. */
#ifndef AMP_STOCK_H
#define AMP_STOCK_H

#include "darknet.h"

/* A network without a session has been parsed from this cfg, has loaded or saved this file, or is
 * freed. */
void amp_stock_parsed(network *, const char *cfg_path);
void amp_stock_file(network *, const char *path);
void amp_stock_freed(network *);

/* Darknet's save_weights_upto: the first layers' weights, written whole or not at all. A file that
 * cannot be written ends the program, unless a training will save again. */
void amp_stock_save(network *, const char *path, int layers);

/* It begins an iteration. The first one sets the handlers; a second network that trains takes them
 * away. */
void amp_stock_begin(network *);
/* An iteration of this network has ended: saves and ends the program if a signal came. */
void amp_stock_obey(network *);
/* Several networks train on threads: signals end the program as without the plugin. */
void amp_stock_give_up(void);

#endif
