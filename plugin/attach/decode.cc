#include <cstdio>
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
    snprintf(why, why_size, "%s", e.what());
    return -1;
}
