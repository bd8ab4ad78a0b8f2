// A GPU build of Darknet on a machine without a GPU (see no_gpu.c).
#ifndef AMP_NO_GPU_H
#define AMP_NO_GPU_H

// Whether this process has a usable CUDA device. The first call decides; if there is none it says
// so, once, and why.
int amp_has_gpu(void);

#endif
