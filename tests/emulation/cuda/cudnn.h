/* As cuda_runtime_api.h beside it, of cuDNN: what choosing among its plans needs, not what making
 * one does. */
#ifndef EMULATED_CUDNN_H
#define EMULATED_CUDNN_H

#include <stddef.h>

#include "cuda_runtime_api.h"

typedef enum { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_ALLOC_FAILED = 4003 } cudnnStatus_t;
typedef enum {
    CUDNN_HEUR_MODE_B = 1,
    CUDNN_HEUR_MODE_FALLBACK = 2,
    CUDNN_HEUR_MODE_A = 3,
} cudnnBackendHeurMode_t;
typedef enum { CUDNN_ATTR_ENGINE_GLOBAL_INDEX = 1301 } cudnnBackendAttributeName_t;
typedef enum { CUDNN_TYPE_INT64 = 3 } cudnnBackendAttributeType_t;
typedef enum { CUDNN_BACKEND_ENGINE_DESCRIPTOR = 2 } cudnnBackendDescriptorType_t;
typedef struct cudnnContext *cudnnHandle_t;
typedef void *cudnnBackendDescriptor_t;

cudnnStatus_t cudnnCreate(cudnnHandle_t *);
cudnnStatus_t cudnnDestroy(cudnnHandle_t);
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t);
size_t cudnnGetVersion(void);
size_t cudnnGetCudartVersion(void);
const char *cudnnGetErrorString(cudnnStatus_t);

#endif
