// Darknet's save_weights under another file name than the one it says.
#ifndef AMP_SAVING_LINE_H
#define AMP_SAVING_LINE_H

#include "darknet.h"

// Lets Darknet write the weights to temp; its line "Saving weights to ..." names name.
void amp_save_as(network *net, char *temp, const char *name);

#endif
