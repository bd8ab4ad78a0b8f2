/* Which GPU or CPU the program uses, and the versions of the libraries that compute on it. */
#ifndef AMP_MACHINE_H
#define AMP_MACHINE_H

#include "plugin/core/options.h"

struct amp_machine {
    const char *backend; /* "cpu" or "cuda" */
    char device[256];    /* the GPU's name; "": the CPU */
    int threads;         /* of OpenMP, for work on the CPU */
    struct {
        const char *name; /* "oneDNN", "CUDA runtime" ... */
        char number[32];
    } versions[4];
    int n_versions;
};

/* gpu: the number after -i, or -1. Sets Darknet's gpu_index as its main does. If there is no such
 * GPU, gpu_index may be -1 afterwards. */
void amp_machine_choose(int gpu);

/* gpu: the device's number, below 0 for the CPU. */
void amp_machine_look(struct amp_machine *, int gpu);

/* amp_options_settle_dtype for this machine: for its GPUs, unless gpu is below 0 or there is
 * none. */
void amp_machine_settle_dtype(struct amp_options *, int gpu);

#endif
