#include "machine.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>

#include "darknet.h"

#ifdef GPU
#include <cuda_runtime.h>
#include <cudnn.h>
#endif

static void add_version(struct amp_machine *m, const char *name, int major, int minor, int patch)
{
    char *number = m->versions[m->n_versions].number;
    size_t size = sizeof m->versions[0].number;
    m->versions[m->n_versions++].name = name;
    if (patch < 0)
        snprintf(number, size, "%d.%d", major, minor);
    else
        snprintf(number, size, "%d.%d.%d", major, minor, patch);
}

#ifdef GPU
static void look_at_gpu(struct amp_machine *m, int gpu)
{
    struct cudaDeviceProp properties;
    int driver = 0, runtime = 0, cudnn = (int)cudnnGetVersion();
    int thousand = cudnn >= 90000 ? 10000 : 1000; /* since cuDNN 9 */
    snprintf(m->device, sizeof m->device, "GPU %d", gpu);
    if (cudaGetDeviceProperties(&properties, gpu) == cudaSuccess)
        snprintf(m->device, sizeof m->device, "%s", properties.name);
    if (cudaDriverGetVersion(&driver) == cudaSuccess)
        add_version(m, "CUDA driver", driver / 1000, driver % 1000 / 10, -1);
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        add_version(m, "CUDA runtime", runtime / 1000, runtime % 1000 / 10, -1);
    add_version(m, "cuDNN", cudnn / thousand, cudnn % thousand / 100, cudnn % 100);
}
#endif

void amp_machine_choose(int argc, char **argv)
{
    gpu_index = find_int_arg(argc, argv, "-i", 0);
    if (find_arg(argc, argv, "-nogpu")) gpu_index = -1;
#ifdef GPU
    if (gpu_index >= 0) cuda_set_device(gpu_index);
#else
    gpu_index = -1;
#endif
}

void amp_machine_look(struct amp_machine *m, int gpu)
{
    *m =
        (struct amp_machine){.backend = gpu < 0 ? "cpu" : "cuda", .threads = omp_get_max_threads()};
#ifdef GPU
    if (gpu >= 0) {
        look_at_gpu(m, gpu);
        return;
    }
#endif
    const dnnl_version_t *version = dnnl_version();
    add_version(m, "oneDNN", version->major, version->minor, version->patch);
}
