/* What a measurement was taken on. */
#ifndef AMP_MACHINE_H
#define AMP_MACHINE_H

struct amp_machine {
    const char *backend; /* "cpu" or "cuda" */
    char device[256];    /* the GPU's name; "": the CPU */
    int threads;         /* of OpenMP, which the CPU's part of the work may use */
    struct {
        const char *name; /* "oneDNN", "CUDA runtime" ... */
        char number[32];
    } versions[3];
    int n_versions;
};

/* Takes -i N and -nogpu out of argv, as Darknet's main does, and sets its gpu_index. */
void amp_machine_choose(int argc, char **argv);

/* gpu: the device's number, below 0 for the CPU. */
void amp_machine_look(struct amp_machine *, int gpu);

#endif
