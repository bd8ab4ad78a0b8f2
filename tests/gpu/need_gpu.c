/* Linked into test programs that need a GPU: without one they end with status 77. */
#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void need_gpu(void)
{
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) return;
    printf("SKIPPED: no GPU: %s\n", status ? cudaGetErrorString(status) : "CUDA finds none");
    exit(77);
}
