/* cuDNN's graph API from C: descriptors that live and die together, and the graph of one
 * convolution problem.
 *
 * A set of descriptors keeps its first error, with the call that failed and cuDNN's own words.
 * Later calls do nothing and return NULL, so a sequence of calls needs one check at its end. */
#ifndef AMPK_CUDA_CUDNN_GRAPH_H
#define AMPK_CUDA_CUDNN_GRAPH_H

#include <cudnn.h>

#include "tensor_core.h"

/* The device that plans are made for: one that is here (handle), or the properties of one that is
 * not. For the latter, plans can be made and checked, but not run. */
struct ampk_cudnn_device {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
    int compute_capability; /* 10 * major + minor */
};

enum { AMPK_CUDNN_SET = 256 }; /* descriptors in a set at most */

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
/* Returns the descriptor, or NULL if cuDNN rejects it. */
cudnnBackendDescriptor_t ampk_cudnn_finalize(struct ampk_cudnn_set *, cudnnBackendDescriptor_t,
                                             const char *what);

/* Numbers of the tensors in a problem's graph; a plan gets their addresses by these numbers.
 * Behind the first three come the vectors of ampk_tc_sums, the written ones first, and its y. */
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
