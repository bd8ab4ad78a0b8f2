/* What becomes of a network's results that are not finite (amp_refuse_bad_outputs). */
#ifndef AMP_OUTPUTS_H
#define AMP_OUTPUTS_H

#include "darknet.h"

/* After a pass: does not return if the program refuses such results and they are. */
void amp_outputs_require(const network *);

#endif
