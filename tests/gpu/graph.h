/* cuDNN's graph API for the probes beside this: descriptors of one graph, the first error kept. */
#ifndef GPU_GRAPH_H
#define GPU_GRAPH_H

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define UNUSED __attribute__((unused))

enum { GRAPH_DESCRIPTORS = 200, GRAPH_OPERATIONS = 10 };

struct graph {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t owned[GRAPH_DESCRIPTORS], operations[GRAPH_OPERATIONS];
    int count, operation_count, failed;
    char error[400];
};

/* Ends the program with status 77 and a line that says why. */
UNUSED static void graph_need_device(void)
{
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) return;
    printf("SKIPPED: no GPU: %s\n", status ? cudaGetErrorString(status) : "CUDA finds none");
    exit(77);
}

UNUSED static void graph_note(struct graph *g, cudnnStatus_t status, const char *what)
{
    char words[256] = "";
    if (status == CUDNN_STATUS_SUCCESS || g->failed) return;
    g->failed = 1;
#if CUDNN_VERSION >= 90000
    cudnnGetLastErrorString(words, sizeof words);
#endif
    snprintf(g->error, sizeof g->error, "%s: %s %s", what, cudnnGetErrorString(status), words);
}

UNUSED static cudnnBackendDescriptor_t graph_make(struct graph *g,
                                                  cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    if (g->failed || g->count == GRAPH_DESCRIPTORS) return NULL;
    graph_note(g, cudnnBackendCreateDescriptor(type, &d), "descriptor");
    return g->failed ? NULL : (g->owned[g->count++] = d);
}

UNUSED static void graph_set(struct graph *g, cudnnBackendDescriptor_t d,
                             cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                             int64_t count, const void *values)
{
    char what[40];
    snprintf(what, sizeof what, "attribute %d", (int)name);
    if (!g->failed) graph_note(g, cudnnBackendSetAttribute(d, name, type, count, values), what);
}

UNUSED static void graph_link(struct graph *g, cudnnBackendDescriptor_t d,
                              cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other)
{
    graph_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

UNUSED static void graph_finalize(struct graph *g, cudnnBackendDescriptor_t d, const char *what)
{
    if (!g->failed) graph_note(g, cudnnBackendFinalize(d), what);
}

UNUSED static void graph_clear(struct graph *g)
{
    while (g->count)
        cudnnBackendDestroyDescriptor(g->owned[--g->count]);
    g->operation_count = g->failed = 0;
    g->error[0] = 0;
}

#endif
