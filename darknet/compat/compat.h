/* Included in front of every file of Darknet (compiler option -include): supplies what newer CUDA
 * toolkits and cuDNN removed since Darknet was written. Without GPU defined it is empty.
 *
 *   CUDA 13   cudaThreadSynchronize
 *   cuDNN 8   cudnnGetConvolution{Forward,BackwardData,BackwardFilter}Algorithm and the macros that
 *             choose "the fastest within a workspace limit"
 *
 * A GPU build of one's own checkout uses it too: make GPU=1 CUDNN=1 CC="gcc -include .../compat.h".
 */
#ifndef AMP_COMPAT_H
#define AMP_COMPAT_H

#ifdef GPU
#include <cuda_runtime_api.h>
#if CUDART_VERSION >= 13000
#define cudaThreadSynchronize cudaDeviceSynchronize
#endif
#endif

#if defined(GPU) && defined(CUDNN)
#include <cudnn.h>
#if CUDNN_MAJOR >= 8

#define CUDNN_CONVOLUTION_FWD_SPECIFY_WORKSPACE_LIMIT        2
#define CUDNN_CONVOLUTION_BWD_DATA_SPECIFY_WORKSPACE_LIMIT   2
#define CUDNN_CONVOLUTION_BWD_FILTER_SPECIFY_WORKSPACE_LIMIT 2

/* One removed function: the first algorithm of cuDNN's list, fastest first, that works and needs at
 * most limit_bytes of workspace. a, b, conv and c are the descriptors in the order of the old
 * function; preference is the macro above. Without a device the result is the algorithm numbered
 * 0, which is never run, and the status says why. */
#define AMP_COMPAT_GET_ALGORITHM(name, a_type, b_type, c_type, algo_type, perf_type)               \
    static inline cudnnStatus_t name(cudnnHandle_t handle, a_type a, b_type b,                     \
                                     cudnnConvolutionDescriptor_t conv, c_type c, int preference,  \
                                     size_t limit_bytes, algo_type *algo)                          \
    {                                                                                              \
        perf_type found[16];                                                                       \
        int count = 0;                                                                             \
        (void)preference;                                                                          \
        *algo = (algo_type)0;                                                                      \
        cudnnStatus_t status = handle ? name##_v7(handle, a, b, conv, c, 16, &count, found)        \
                                      : CUDNN_STATUS_NOT_INITIALIZED;                              \
        if (status != CUDNN_STATUS_SUCCESS) return status;                                         \
        for (int i = 0; i < count; i++) {                                                          \
            if (found[i].status == CUDNN_STATUS_SUCCESS && found[i].memory <= limit_bytes) {       \
                *algo = found[i].algo;                                                             \
                return CUDNN_STATUS_SUCCESS;                                                       \
            }                                                                                      \
        }                                                                                          \
        return CUDNN_STATUS_NOT_SUPPORTED;                                                         \
    }

AMP_COMPAT_GET_ALGORITHM(cudnnGetConvolutionForwardAlgorithm, cudnnTensorDescriptor_t,
                         cudnnFilterDescriptor_t, cudnnTensorDescriptor_t,
                         cudnnConvolutionFwdAlgo_t, cudnnConvolutionFwdAlgoPerf_t)
AMP_COMPAT_GET_ALGORITHM(cudnnGetConvolutionBackwardDataAlgorithm, cudnnFilterDescriptor_t,
                         cudnnTensorDescriptor_t, cudnnTensorDescriptor_t,
                         cudnnConvolutionBwdDataAlgo_t, cudnnConvolutionBwdDataAlgoPerf_t)
AMP_COMPAT_GET_ALGORITHM(cudnnGetConvolutionBackwardFilterAlgorithm, cudnnTensorDescriptor_t,
                         cudnnTensorDescriptor_t, cudnnFilterDescriptor_t,
                         cudnnConvolutionBwdFilterAlgo_t, cudnnConvolutionBwdFilterAlgoPerf_t)

#endif
#endif
#endif
