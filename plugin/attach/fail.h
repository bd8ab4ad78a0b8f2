// How the plugin ends a program that cannot go on.
#ifndef AMP_FAIL_H
#define AMP_FAIL_H

// Prints "darknet-amp: message" and ends the program with status 1.
_Noreturn void amp_fail(const char *message);

#endif
