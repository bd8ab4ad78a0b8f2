/* How the plugin ends a program that cannot go on. */
#ifndef AMP_FAIL_H
#define AMP_FAIL_H

#include "plugin/core/cfg.h"

#include <stddef.h>

/* Prints "darknet-amp: message" and ends the program with status 1. */
_Noreturn void amp_fail(const char *message);
/* The same about a key under [net]: "darknet-amp: FILE:LINE: KEY=VALUE: why". */
_Noreturn void amp_fail_key(const struct amp_cfg_file *, const char *key, const char *why);
/* n zeroed elements (of 0 one), for free; amp_fail where there is no memory for them. */
void *amp_allocate(size_t n, size_t size);

#endif
