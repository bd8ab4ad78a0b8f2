/* The gradient noise scale that a training has left in its amp_log. */
#ifndef AMP_NOISE_LOG_H
#define AMP_NOISE_LOG_H

#include <stddef.h>

/* The last one of the file. -1: there is none, or no such file. */
int amp_noise_log_read(const char *path, double *images, size_t *iteration);

#endif
