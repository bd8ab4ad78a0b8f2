#include "attach/fail.h"

#include <stdio.h>
#include <unistd.h>

// Not exit(): loader threads are still at work in libraries that it would take apart.
_Noreturn void amp_fail(const char *message)
{
    fflush(stdout);
    fprintf(stderr, "darknet-amp: %s\n", message);
    _exit(1);
}
