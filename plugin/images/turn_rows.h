/* The pass of turn.h, compiled once per instruction set. */
#ifndef AMP_TURN_ROWS_H
#define AMP_TURN_ROWS_H

#include "turn.h"

typedef void amp_turn_function(const struct amp_pixels *, const struct amp_turn *, float *canvas);

amp_turn_function amp_turn_base, amp_turn_avx2, amp_turn_avx512;

#endif
