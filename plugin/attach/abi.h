/* The Darknet in this process must be the kind the plugin was compiled for (see abi.c). */
#ifndef AMP_ABI_H
#define AMP_ABI_H

#include <stddef.h>

/* 0 if it is. Else -1, and err says what was found and what to use instead. */
int amp_check_abi(char *err, size_t err_size);

#endif
