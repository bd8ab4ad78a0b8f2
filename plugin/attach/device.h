/* Where this Darknet computes, on the host or on a GPU, and what follows from it: which of a
 * layer's arrays count, which backend computes, which GPU a thread uses. */
#ifndef AMP_DEVICE_H
#define AMP_DEVICE_H

#include "plugin/core/read/options.h"
#include "kernels/kernels.h"

#include <stdbool.h>

struct amp_session;
struct network;

/* A layer's arrays and functions exist on the host, and in a GPU build of Darknet also on the
 * device, under the same name with _gpu. AMP_SIDE(device, layer, name) is the one that is in
 * use. */
#ifdef GPU
#define AMP_SIDE(device, object, name) (*((device) ? &(object)->name##_gpu : &(object)->name))
#else
#define AMP_SIDE(device, object, name) (*((void)(device), &(object)->name))
#endif

/* True if this Darknet computes on a GPU: the arrays that count are then the ones with _gpu. */
bool amp_darknet_on_device(void);
/* The backend that amp_backend asks for, on the side where this Darknet computes. Ends the program
 * with a message if the key asks for the impossible. */
const struct ampk_backend *amp_backend_choose(const struct amp_cfg_file *,
                                              const struct amp_options *);

#ifdef GPU

/* True if this process has a usable CUDA device. The first call decides; if there is none, it
 * prints so once, with the reason. */
bool amp_has_gpu(void);
/* Call without a device: makes the CPU path of yolo, region and iseg layers apply their
 * activations. */
void amp_no_gpu_heads(struct network *);

/* amp_gpu_use: the thread uses the session's GPU from now on, if there is one. Darknet's functions
 * that save, load and resize leave it set like that, too. enter and leave: only between the two;
 * enter returns what leave takes. */
void amp_gpu_use(const struct amp_session *);
int amp_gpu_enter(const struct amp_session *);
void amp_gpu_leave(int before);

#else
static inline void amp_gpu_use(const struct amp_session *s)
{
    (void)s;
}
static inline int amp_gpu_enter(const struct amp_session *s)
{
    (void)s;
    return 0;
}
static inline void amp_gpu_leave(int before)
{
    (void)before;
}
#endif

#endif
