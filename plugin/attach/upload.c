#include "attach/upload.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { MOST = 16 }; // networks at once; Darknet has one for each GPU

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const float *pinned[MOST];

// The place of x, or the first that is free (NULL); -1: none.
static int place_of(const float *x)
{
    for (int i = 0; i < MOST; ++i)
        if (pinned[i] == x) return i;
    return -1;
}

static void tell_once(cudaError_t status)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    cudaGetLastError(); // Darknet takes a pending error for one of its own
    if (atomic_flag_test_and_set(&told)) return;
    fprintf(stderr,
            "darknet-amp: the images cannot be page-locked (%s): copying them to the GPU takes "
            "longer; a higher limit of locked memory (ulimit -l) may help\n",
            cudaGetErrorString(status));
}

void amp_upload_pin(const network *net)
{
    size_t bytes = (size_t)net->inputs * (size_t)net->batch * sizeof(float);
    pthread_mutex_lock(&lock);
    int i = place_of(NULL);
    cudaError_t status = i < 0 ? cudaSuccess : cudaHostRegister(net->input, bytes, 0);
    if (i >= 0 && status == cudaSuccess) pinned[i] = net->input;
    pthread_mutex_unlock(&lock);
    if (status != cudaSuccess) tell_once(status);
}

void amp_upload_unpin(const network *net)
{
    pthread_mutex_lock(&lock);
    int i = place_of(net->input);
    if (net->input && i >= 0) {
        cudaDeviceSynchronize(); // for a copy under way
        cudaHostUnregister(net->input);
        pinned[i] = NULL;
    }
    pthread_mutex_unlock(&lock);
}

bool amp_upload_start(float *x_gpu, const float *x, size_t n)
{
    pthread_mutex_lock(&lock);
    bool ours = x && place_of(x) >= 0;
    pthread_mutex_unlock(&lock);
    if (!ours) return false;
    return cudaMemcpyAsync(x_gpu, x, n * sizeof *x, cudaMemcpyHostToDevice, 0) == cudaSuccess;
}
