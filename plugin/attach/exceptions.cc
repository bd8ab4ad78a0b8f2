/* The one file in C++: C cannot catch what OpenCV throws. */
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

extern "C" {
#include "exceptions.h"
}

int amp_catch_exception(void (*run)(void *argument), void *argument, char *why, size_t why_size)
try {
    run(argument);
    return 0;
} catch (const std::bad_alloc &) {
    snprintf(why, why_size, "no memory; raise the limit of memory (ulimit -v), or lower batch");
    return -1;
} catch (const std::exception &e) {
    const char *what = e.what();
    snprintf(why, why_size, "%.*s", (int)strcspn(what, "\n"), what);
    return -1;
}
