/* A layer's arrays and functions exist on the host, and in a GPU build of Darknet also on the
 * device, under the same name with _gpu. AMP_SIDE(device, layer, name) is the one that is in
 * use. */
#ifndef AMP_SIDE_H
#define AMP_SIDE_H

#include <stdbool.h>

#ifdef GPU
#define AMP_SIDE(device, object, name) (*((device) ? &(object)->name##_gpu : &(object)->name))
#else
#define AMP_SIDE(device, object, name) (*((void)(device), &(object)->name))
#endif

#endif
