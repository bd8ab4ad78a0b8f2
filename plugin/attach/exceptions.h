/* Calls C code through which C++ may throw. An exception that nobody catches ends the program, and
 * nothing in Darknet's C catches one. */
#ifndef AMP_EXCEPTIONS_H
#define AMP_EXCEPTIONS_H

#include <stddef.h>

/* run(argument). 0, or -1 with the first line of what it threw in why. The file with run must be
 * compiled with -fexceptions. */
int amp_catch_exception(void (*run)(void *argument), void *argument, char *why, size_t why_size);

#endif
