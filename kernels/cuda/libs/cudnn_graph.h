/* cuDNN's graph API from C: descriptors that live and die together, and the graph of one
 * convolution problem.
 *
 * A set keeps the first error, with the call it happened in and cuDNN's own words; calls after it
 * do nothing and return NULL, so that a sequence needs one check at its end.
 */
#ifndef AMPK_CUDA_CUDNN_GRAPH_H
#define AMPK_CUDA_CUDNN_GRAPH_H

#include <cudnn.h>

#include "tensor_core.h"

/* What plans are made for: a device that is here (handle), or the properties of one that is not;
 * then plans can be made and checked, not run. */
struct ampk_cudnn_device {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
    int compute_capability; /* 10 * major + minor */
};

enum { AMPK_CUDNN_SET = 256 };

struct ampk_cudnn_set {
    cudnnBackendDescriptor_t owned[AMPK_CUDNN_SET];
    int count;
    cudnnStatus_t status; /* of the first error */
    char error[400];      /* "": none */
};

/* Destroys its descriptors, forgets its error. */
void ampk_cudnn_clear(struct ampk_cudnn_set *);
cudnnBackendDescriptor_t ampk_cudnn_make(struct ampk_cudnn_set *, cudnnBackendDescriptorType_t);
void ampk_cudnn_attribute(struct ampk_cudnn_set *, cudnnBackendDescriptor_t,
                          cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t count,
                          const void *values);
void ampk_cudnn_attribute_int(struct ampk_cudnn_set *, cudnnBackendDescriptor_t,
                              cudnnBackendAttributeName_t, int64_t);
void ampk_cudnn_attribute_descriptor(struct ampk_cudnn_set *, cudnnBackendDescriptor_t,
                                     cudnnBackendAttributeName_t, cudnnBackendDescriptor_t);
/* The descriptor, or NULL if it cannot be. */
cudnnBackendDescriptor_t ampk_cudnn_finalize(struct ampk_cudnn_set *, cudnnBackendDescriptor_t,
                                             const char *what);

/* The tensors of a problem's graph; with them a plan is told their addresses. What follows the
 * first three are the vectors of ampk_tc_sums, those that are written first, and its y. */
enum {
    AMPK_CUDNN_X = 1,
    AMPK_CUDNN_WEIGHTS,
    AMPK_CUDNN_Y,
    AMPK_CUDNN_SUMS,
    AMPK_CUDNN_PARAMETERS = AMPK_CUDNN_SUMS + AMPK_TC_SUMS + AMPK_TC_UNREAD,
    AMPK_CUDNN_NORMALIZED = AMPK_CUDNN_PARAMETERS + AMPK_TC_PARAMETERS,
    AMPK_CUDNN_TENSORS = AMPK_CUDNN_NORMALIZED,
};

/* The problem as a graph of operations; NULL with the reason in the set. */
cudnnBackendDescriptor_t ampk_cudnn_graph(struct ampk_cudnn_set *, const struct ampk_cudnn_device *,
                                          const struct ampk_tc_problem *);

#endif
