/* Describes a convolution problem to cuDNN as a graph of operations. Dimensions are always in the
 * order n, c, h, w; the strides say that memory is NHWC. The channels of the filter imply the
 * groups. Must not know engines or plans. */
#include "libraries.h"

#include <stdio.h>
#include <string.h>

/* ---- descriptors ---- */

/* cuDNN's words for its last error, in one line: messages go into one line of output. */
static void last_words(char *text, size_t size)
{
    text[0] = 0;
#if CUDNN_VERSION >= 90000
    cudnnGetLastErrorString(text, size);
#else
    (void)size;
#endif
    for (; *text; text++)
        if (*text == '\n' || *text == '\t') *text = ' ';
}

/* Keeps the first error of a set; returns whether this call failed. */
static bool failed(struct ampk_cudnn_set *set, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS) return false;
    if (set->status != CUDNN_STATUS_SUCCESS) return true;
    char words[300];
    last_words(words, sizeof words);
    set->status = status;
    snprintf(set->error, sizeof set->error, "cuDNN: %s: %s; %s", what, cudnnGetErrorString(status),
             words);
    return true;
}

void ampk_cudnn_clear(struct ampk_cudnn_set *set)
{
    while (set->count)
        cudnnBackendDestroyDescriptor(set->owned[--set->count]);
    set->status = CUDNN_STATUS_SUCCESS;
    set->error[0] = 0;
}

/* A set owns all its descriptors, so that no caller destroys one by one. A full set counts as lack
 * of memory. */
cudnnBackendDescriptor_t ampk_cudnn_make(struct ampk_cudnn_set *set,
                                         cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (set->status != CUDNN_STATUS_SUCCESS) return NULL;
    cudnnStatus_t status = set->count == AMPK_CUDNN_SET ? CUDNN_STATUS_ALLOC_FAILED
                                                        : cudnnBackendCreateDescriptor(type, &made);
    if (failed(set, status, "create a descriptor")) return NULL;
    return set->owned[set->count++] = made;
}

void ampk_cudnn_attribute(struct ampk_cudnn_set *set, cudnnBackendDescriptor_t to,
                          cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t count, const void *values)
{
    char what[40];
    if (set->status != CUDNN_STATUS_SUCCESS) return;
    snprintf(what, sizeof what, "set attribute %d", (int)name);
    failed(set, cudnnBackendSetAttribute(to, name, type, count, values), what);
}

void ampk_cudnn_attribute_int(struct ampk_cudnn_set *set, cudnnBackendDescriptor_t to,
                              cudnnBackendAttributeName_t name, int64_t value)
{
    ampk_cudnn_attribute(set, to, name, CUDNN_TYPE_INT64, 1, &value);
}

void ampk_cudnn_attribute_descriptor(struct ampk_cudnn_set *set, cudnnBackendDescriptor_t to,
                                     cudnnBackendAttributeName_t name,
                                     cudnnBackendDescriptor_t value)
{
    ampk_cudnn_attribute(set, to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

cudnnBackendDescriptor_t ampk_cudnn_finalize(struct ampk_cudnn_set *set,
                                             cudnnBackendDescriptor_t descriptor, const char *what)
{
    if (set->status != CUDNN_STATUS_SUCCESS) return NULL;
    return failed(set, cudnnBackendFinalize(descriptor), what) ? NULL : descriptor;
}

/* ---- tensors and operations ---- */

/* How a tensor is stored; products are summed in FP32 in any case. */
static cudnnDataType_t data_type(enum ampk_dtype t)
{
    return t == AMPK_FP16   ? CUDNN_DATA_HALF
           : t == AMPK_BF16 ? CUDNN_DATA_BFLOAT16
                            : CUDNN_DATA_FLOAT;
}

/* In elements; for weights n is k, and c is that of one group. */
struct dimensions {
    int64_t n, c, h, w;
};

/* A tensor with the memory order and the alignment that tensor_core.h promises. */
static cudnnBackendDescriptor_t make_tensor(struct ampk_cudnn_set *set, int64_t id,
                                            enum ampk_dtype dtype, struct dimensions d)
{
    cudnnDataType_t type = data_type(dtype);
    int64_t sizes[] = {d.n, d.c, d.h, d.w}, strides[] = {d.h * d.w * d.c, 1, d.w * d.c, d.c};
    cudnnBackendDescriptor_t t = ampk_cudnn_make(set, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    ampk_cudnn_attribute(set, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    ampk_cudnn_attribute(set, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes);
    ampk_cudnn_attribute(set, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    ampk_cudnn_attribute_int(set, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    ampk_cudnn_attribute_int(set, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
    return ampk_cudnn_finalize(set, t, "a tensor");
}

/* Darknet computes cross-correlations, like all frameworks: it does not flip the filter. Products
 * are summed in FP32 whatever the operands. */
static cudnnBackendDescriptor_t make_convolution(struct ampk_cudnn_set *set, int pad, int stride)
{
    int64_t pads[] = {pad, pad}, strides[] = {stride, stride}, dilations[] = {1, 1};
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t c = ampk_cudnn_make(set, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    ampk_cudnn_attribute(set, c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    ampk_cudnn_attribute(set, c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1,
                         &mode);
    ampk_cudnn_attribute_int(set, c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2);
    ampk_cudnn_attribute(set, c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    ampk_cudnn_attribute(set, c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    ampk_cudnn_attribute(set, c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2,
                         strides);
    ampk_cudnn_attribute(set, c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
    return ampk_cudnn_finalize(set, c, "a convolution");
}

/* The attributes in which the three passes differ by name only. */
struct pass_names {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t convolution, x, weights, y, alpha, beta;
    const char *what;
};

static const struct pass_names names[] = {
    [AMPK_TC_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, "forward"},
    [AMPK_TC_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, "data gradient"},
    [AMPK_TC_WEIGHTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, "weight gradient"},
};

/* The operation of the pass itself. beta 1 adds to the old result. */
static cudnnBackendDescriptor_t
make_pass(struct ampk_cudnn_set *set, const struct ampk_tc_problem *p, cudnnBackendDescriptor_t x,
          cudnnBackendDescriptor_t weights, cudnnBackendDescriptor_t y)
{
    const struct pass_names *name = &names[p->pass];
    float alpha = 1, beta = p->accumulate ? 1 : 0;
    cudnnBackendDescriptor_t convolution = make_convolution(set, p->pad, p->stride);
    cudnnBackendDescriptor_t op = ampk_cudnn_make(set, name->operation);
    ampk_cudnn_attribute_descriptor(set, op, name->convolution, convolution);
    ampk_cudnn_attribute_descriptor(set, op, name->x, x);
    ampk_cudnn_attribute_descriptor(set, op, name->weights, weights);
    ampk_cudnn_attribute_descriptor(set, op, name->y, y);
    ampk_cudnn_attribute(set, op, name->alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    ampk_cudnn_attribute(set, op, name->beta, CUDNN_TYPE_FLOAT, 1, &beta);
    return ampk_cudnn_finalize(set, op, name->what);
}

/* ---- graphs ---- */

cudnnBackendDescriptor_t ampk_cudnn_graph(struct ampk_cudnn_set *set,
                                          const struct ampk_cudnn_device *device,
                                          const struct ampk_tc_problem *p)
{
    enum ampk_dtype operand = ampk_tc_operand(p->compute);
    struct dimensions sizes[] = {
        {p->n, p->c, p->h, p->w},
        {p->k, p->c / p->groups, p->kh, p->kw},
        {p->n, p->k, ampk_tc_out(p, p->h, p->kh), ampk_tc_out(p, p->w, p->kw)},
    };
    enum ampk_dtype types[] = {operand, operand, operand};
    /* The tensor that is written: dx, weights, y. */
    types[p->pass == AMPK_TC_DATA ? 0 : p->pass == AMPK_TC_WEIGHTS ? 1 : 2] = p->result;
    cudnnBackendDescriptor_t tensors[3];
    for (int i = 0; i < 3; i++)
        tensors[i] = make_tensor(set, AMPK_CUDNN_X + i, types[i], sizes[i]);
    cudnnBackendDescriptor_t pass = make_pass(set, p, tensors[0], tensors[1], tensors[2]);
    cudnnBackendDescriptor_t g = ampk_cudnn_make(set, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    ampk_cudnn_attribute_descriptor(set, g, CUDNN_ATTR_OPERATIONGRAPH_OPS, pass);
    if (device->handle)
        ampk_cudnn_attribute(set, g, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                             &device->handle);
    return ampk_cudnn_finalize(set, g, "the graph");
}
