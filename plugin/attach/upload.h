// The images of a network on their way to the device.
//
// Darknet copies net->input to the device at the start of every forward, out of ordinary memory,
// and waits. Page-locked, it goes at the speed of the bus and while the host goes on; it is not
// written again before the pass has been judged, which waits for the device.
#ifndef AMP_UPLOAD_H
#define AMP_UPLOAD_H

#include "darknet.h"

#include <stdbool.h>

// Page-locks net->input until amp_upload_unpin, which must come before it is freed. Where that
// fails, copies stay Darknet's; it is said once.
void amp_upload_pin(const network *net);
void amp_upload_unpin(const network *net);

// For cuda_push_array: starts the copy. False: x is nobody's input.
bool amp_upload_start(float *x_gpu, const float *x, size_t n);

#endif
