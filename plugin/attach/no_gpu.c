// A GPU build of Darknet on a machine without a GPU: runs on the CPU.
//
// Darknet's own -nogpu only sets gpu_index to -1; its layers go on asking for device memory, and
// the first failure is an assertion. Here, without a device, gpu_index stays -1 whatever the
// command line asks for, device memory is NULL, and copies to and from it do nothing. Darknet then
// takes its CPU path everywhere. With a device every function is Darknet's own.

#include "attach/no_gpu.h"
#include "attach/symbols.h"

#include "cuda.h"
#include "darknet.h"

#include <pthread.h>

static int has_gpu;

static void look_for_gpu(void)
{
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    has_gpu = status == cudaSuccess && count > 0;
    if (has_gpu) return;
    cudaGetLastError(); // Darknet takes a pending error for one of its own
    fprintf(stderr, "darknet-amp: no usable GPU (%s), running on the CPU\n",
            status == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(status));
}

int amp_has_gpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_for_gpu);
    return has_gpu;
}

AMP_INTERPOSE(void, cuda_set_device, (int n))
{
    if (amp_has_gpu()) {
        AMP_REAL(cuda_set_device)(n);
    } else {
        *AMP_USE(gpu_index) = -1;
    }
}

AMP_INTERPOSE(float *, cuda_make_array, (float *x, size_t n))
{
    return amp_has_gpu() ? AMP_REAL(cuda_make_array)(x, n) : NULL;
}

AMP_INTERPOSE(int *, cuda_make_int_array, (int *x, size_t n))
{
    return amp_has_gpu() ? AMP_REAL(cuda_make_int_array)(x, n) : NULL;
}

AMP_INTERPOSE(void, cuda_free, (float *x_gpu))
{
    if (amp_has_gpu()) AMP_REAL(cuda_free)(x_gpu);
}

AMP_INTERPOSE(void, cuda_push_array, (float *x_gpu, float *x, size_t n))
{
    if (amp_has_gpu()) AMP_REAL(cuda_push_array)(x_gpu, x, n);
}

AMP_INTERPOSE(void, cuda_pull_array, (float *x_gpu, float *x, size_t n))
{
    if (amp_has_gpu()) AMP_REAL(cuda_pull_array)(x_gpu, x, n);
}

AMP_INTERPOSE(void, cuda_random, (float *x_gpu, size_t n))
{
    if (amp_has_gpu()) AMP_REAL(cuda_random)(x_gpu, n);
}

AMP_INTERPOSE(cublasHandle_t, blas_handle, ())
{
    return amp_has_gpu() ? AMP_REAL(blas_handle)() : NULL;
}

// Without a device the layers' cuDNN descriptors do not exist either; what is done with them on a
// change of size or batch answers with an error status that Darknet does not look at.
AMP_INTERPOSE(cudnnHandle_t, cudnn_handle, ())
{
    return amp_has_gpu() ? AMP_REAL(cudnn_handle)() : NULL;
}

AMP_INTERPOSE(float, train_networks, (network * *nets, int n, data d, int interval))
{
    if (!amp_has_gpu()) {
        fprintf(stderr, "darknet-amp: -gpus asks for %d GPUs, this machine has none\n", n);
        exit(1);
    }
    return AMP_REAL(train_networks)(nets, n, d, interval);
}
