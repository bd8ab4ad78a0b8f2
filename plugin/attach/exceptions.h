/* Calls of C++: what is thrown through Darknet's C, which nobody there would catch, ends the
 * program. */
#ifndef AMP_EXCEPTIONS_H
#define AMP_EXCEPTIONS_H

#include <stddef.h>

/* run(argument). 0, or -1 with the first line of what it threw in why. The file with run must be
 * compiled with -fexceptions. */
int amp_catch_exception(void (*run)(void *argument), void *argument, char *why, size_t why_size);

#endif
