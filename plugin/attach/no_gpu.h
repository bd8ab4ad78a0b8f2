/* A GPU build of Darknet on a machine without a GPU (see no_gpu.c). */
#ifndef AMP_NO_GPU_H
#define AMP_NO_GPU_H

/* True if this process has a usable CUDA device. The first call decides; if there is none, it
 * prints so once, with the reason. */
int amp_has_gpu(void);

struct network;

/* Call without a device: makes the CPU path of yolo, region and iseg layers apply their
 * activations. */
void amp_no_gpu_heads(struct network *net);

#endif
