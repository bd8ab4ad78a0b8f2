/* What to tell when a network does not fit: what there was no memory for, how large its activations
 * are, and what would fit. */
#ifndef AMP_NO_MEMORY_H
#define AMP_NO_MEMORY_H

#include "net_desc.h"
#include "plan.h"

/* what: that there was no memory for. left: bytes that are free without this network, but for work
 * memory that a backend keeps, so that rather too little is advised; 0: unknown. */
void amp_no_memory(const struct amp_net_desc *, const struct amp_plan *, const char *what,
                   size_t left, char *err, size_t err_size);

#endif
