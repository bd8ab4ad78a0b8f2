/* Ends the program at once, with a message. */
#ifndef AMP_FAIL_H
#define AMP_FAIL_H

#include "plugin/core/read/cfg.h"

#include <stddef.h>
#include <stdio.h>

/* From now on amp_fail and amp_tell print on this descriptor in place of stderr. */
void amp_fail_on(int descriptor);
/* Prints "darknet-amp: message"; of several processes those after the first say which they are. */
void amp_tell(const char *message);
/* The same, and ends the program with status 1. Of several processes another one saves first. */
_Noreturn void amp_fail(const char *message);
/* Fails like that about a key under [net]: "darknet-amp: FILE:LINE: KEY=VALUE: why". */
_Noreturn void amp_fail_key(const struct amp_cfg_file *, const char *key, const char *why);
/* A file that keeps nothing: the log prints to a file, so silence is one too. It stays open. */
FILE *amp_nowhere(void);
/* n zeroed elements (of 0 one), for free; amp_fail where there is no memory for them. */
void *amp_allocate(size_t n, size_t size);

/* Before the program ends at once: does what amp_on_end asked for, the first time. */
void amp_act_on_end(void);

#endif
