#include <cstdio>
#include <cstring>
#include <exception>

extern "C" {
#include "attach/decode.h"
}

int amp_decode(image (*decode)(char *, int), char *name, int channels, image *im, char *why,
               size_t why_size)
try {
    *im = decode(name, channels);
    return 0;
} catch (const std::exception &e) {
    const char *what = e.what();
    snprintf(why, why_size, "%.*s", (int)strcspn(what, "\n"), what);
    return -1;
}
