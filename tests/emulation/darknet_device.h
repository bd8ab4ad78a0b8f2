/* What darknet_device.c has counted. */
#ifndef DARKNET_DEVICE_H
#define DARKNET_DEVICE_H

#include <stdbool.h>

/* Kernels of Darknet's own that were launched, and not run. */
long darknet_device_launches(void);
/* The second argument of the last one, taken for a float. */
float darknet_device_argument(void);
/* Bytes that Darknet copied from the device. */
long darknet_device_bytes_out(void);
/* Arrays that are page-locked. */
long darknet_device_registered(void);
/* Copies that did not wait for the device whose memory they are about: the thread used another. */
long darknet_device_unordered(void);
/* How often the host waited for all that the device does. */
long darknet_device_waits(void);
/* Copies that the host did not wait for. */
long darknet_device_asynchronous(void);
/* Bytes that it allocated page-locked and has not freed. */
long darknet_device_page_locked(void);
/* Whether copies on a stream of their own happen as late as a device may: when somebody waits for
 * them. Else at once. */
void darknet_device_delay(bool);

#endif
