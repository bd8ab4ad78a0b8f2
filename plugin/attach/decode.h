// Decoding by OpenCV, which throws where a file's header asks for too much. (Darknet is C: nobody
// would catch it, and the program would abort.)
#ifndef AMP_DECODE_H
#define AMP_DECODE_H

#include "darknet.h"

// *im = decode(name, channels). 0, or -1 with text in why where that throws.
int amp_decode(image (*decode)(char *, int), char *name, int channels, image *im, char *why,
               size_t why_size);

#endif
