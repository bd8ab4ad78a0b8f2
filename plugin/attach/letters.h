/* The letters that Darknet writes beside its boxes. */
#ifndef AMP_LETTERS_H
#define AMP_LETTERS_H

#include "darknet.h"

/* In the place of load_alphabet. A missing letter ends the program with an error that names it. */
image **amp_letters_load(void);

#endif
