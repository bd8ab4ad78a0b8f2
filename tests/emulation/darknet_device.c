/* A device for a GPU build of Darknet where there is none: what Darknet calls of the CUDA runtime,
 * on the host's memory. Its kernels are counted, not run, so that a test sees whether the plugin
 * leaves any of them in a pass. Linked into a program, these come before those of libcudart. */
#include "tests/emulation/darknet_device.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

static long launches, bytes_out, registered, asynchronous, waits;

long darknet_device_launches(void)
{
    return launches;
}

long darknet_device_bytes_out(void)
{
    return bytes_out;
}

long darknet_device_registered(void)
{
    return registered;
}

long darknet_device_waits(void)
{
    return waits;
}

long darknet_device_asynchronous(void)
{
    return asynchronous;
}

#pragma GCC visibility push(default)

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    waits++;
    return cudaSuccess;
}

/* Zeroed, since the kernel that would do it does not run. */
cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = calloc(1, bytes ? bytes : 1);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    memcpy(to, from, bytes);
    if (kind == cudaMemcpyDeviceToHost) bytes_out += (long)bytes;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *host, size_t bytes, unsigned flags)
{
    (void)host, (void)bytes, (void)flags;
    registered++;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *host)
{
    (void)host;
    registered--;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)stream;
    asynchronous++;
    return cudaMemcpy(to, from, bytes, kind);
}

#if CUDART_VERSION >= 13000
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream)
#else
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream)
#endif
{
    (void)kernel, (void)grid, (void)block, (void)arguments, (void)shared_bytes, (void)stream;
    launches++;
    return cudaSuccess;
}
