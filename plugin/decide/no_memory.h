/* What to tell when activations do not fit: how large they are, and what would fit. */
#ifndef AMP_NO_MEMORY_H
#define AMP_NO_MEMORY_H

#include "net_desc.h"
#include "plan.h"

/* left: bytes that are free; 0: unknown. */
void amp_no_memory(const struct amp_net_desc *, const struct amp_plan *, size_t left, char *err,
                   size_t err_size);

#endif
