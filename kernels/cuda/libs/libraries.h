/* What we use of cuDNN and cuBLASLt, from C. */
#ifndef AMPK_CUDA_LIBRARIES_H
#define AMPK_CUDA_LIBRARIES_H

#include <cublasLt.h>
#include <cudnn.h>

#include "tensor_core.h"

/* ---- cudnn_graph.c: cuDNN's graph API ----
 *
 * Descriptors that live and die together, and the graph of one convolution problem. A set of
 * descriptors keeps its first error, with the call that failed and cuDNN's own words. Later calls
 * do nothing and return NULL, so a sequence of calls needs one check at its end. */

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

/* Numbers of the tensors in a problem's graph; a plan gets their addresses by these numbers. */
enum { AMPK_CUDNN_X = 1, AMPK_CUDNN_WEIGHTS, AMPK_CUDNN_Y };

/* The problem as a graph of operations; NULL with the reason in the set. */
cudnnBackendDescriptor_t ampk_cudnn_graph(struct ampk_cudnn_set *, const struct ampk_cudnn_device *,
                                          const struct ampk_tc_problem *);

/* ---- cudnn_plan.c: plans of cuDNN for one problem ----
 *
 * Lists the engines that could compute it, makes a plan of one of them, runs a plan.
 *
 * Engines whose results we could not stand by are never candidates: those that round operands or
 * sums below FP32 on the way (down-converting, Winograd, FFT), and those that add in another order
 * each time. Nor are engines that are compiled when a plan is made: that takes a second or so at
 * every start. */

enum { AMPK_CUDNN_KNOBS = 24 };

/* An engine and its settings. */
struct ampk_cudnn_choice {
    int64_t engine;
    int knobs;
    struct {
        int64_t type, value;
    } knob[AMPK_CUDNN_KNOBS];
    bool tensor_cores;
};

/* cuDNN's ways to guess what is fast, best first: two models, then what works for most problems. */
enum { AMPK_CUDNN_MODES = 3 };
extern const cudnnBackendHeurMode_t ampk_cudnn_modes[AMPK_CUDNN_MODES];

/* Adds the choices that one mode names, best guess first, to `count` existing ones, at most `most`
 * in all, without duplicates. Returns the new count. Writes why if a mode names none. */
int ampk_cudnn_candidates(const struct ampk_cudnn_device *, const struct ampk_tc_problem *,
                          cudnnBackendHeurMode_t, struct ampk_cudnn_choice *, int count, int most,
                          char *why, size_t why_size);

/* Adds in the same way the choices that differ from `from` in one setting: by every value that its
 * engine has for the setting if there are few, else by half and twice the value. `from` may be one
 * of the choices. Only making a plan shows whether the engine takes such settings. */
int ampk_cudnn_neighbours(const struct ampk_cudnn_device *, const struct ampk_tc_problem *,
                          const struct ampk_cudnn_choice *from, struct ampk_cudnn_choice *,
                          int count, int most);

/* "ENGINE TYPE=VALUE TYPE=VALUE ..." */
void ampk_cudnn_choice_write(const struct ampk_cudnn_choice *, char *text, size_t size);
bool ampk_cudnn_choice_read(const char *text, struct ampk_cudnn_choice *);

struct ampk_cudnn_plan {
    int64_t engine;
    struct ampk_cudnn_set set;
    cudnnBackendDescriptor_t plan;
    size_t workspace;
    bool tensor_cores;
    enum ampk_tc_pass pass;
};

/* NULL with the reason if the engine refuses or wants more workspace. */
struct ampk_cudnn_plan *ampk_cudnn_plan_create(const struct ampk_cudnn_device *,
                                               const struct ampk_tc_problem *,
                                               const struct ampk_cudnn_choice *,
                                               size_t workspace_limit, char *why, size_t why_size);

/* Terms that a plan must meet if it is not timed. */
struct ampk_cudnn_terms {
    size_t workspace_limit;
    /* Whether a plan will do, else the reason. NULL: every plan does. */
    bool (*accepts)(void *by, const struct ampk_cudnn_choice *, struct ampk_cudnn_plan *, char *why,
                    size_t why_size);
    void *by;
};

/* The plan that cuDNN expects to be fastest, for when nothing can be timed: of the choices that
 * meet the terms, the first with Tensor Cores, else the first. */
struct ampk_cudnn_plan *ampk_cudnn_plan_expected(const struct ampk_cudnn_device *,
                                                 const struct ampk_tc_problem *,
                                                 const struct ampk_cudnn_terms *,
                                                 struct ampk_cudnn_choice *chosen, char *why,
                                                 size_t why_size);
void ampk_cudnn_plan_destroy(struct ampk_cudnn_plan *);

/* Runs on the handle's stream, with operands as in ampk_tc_run. False with the reason if cuDNN
 * refuses. */
bool ampk_cudnn_plan_run(const struct ampk_cudnn_device *, const struct ampk_cudnn_plan *,
                         const void *first, const void *second, void *result, void *workspace,
                         char *why, size_t why_size);

/* ---- gemm_cublaslt.c: inner products through cuBLASLt ----
 *
 * Convolutions in which every output reads each input once (1x1 with stride 1, and connected
 * layers), all three passes, with results of 16 bits or FP32. */

/* One product of matrices. Several algorithms can compute it. */
struct ampk_gemm;

/* NULL with the reason; also where the problem is not a product of matrices. */
struct ampk_gemm *ampk_gemm_create(const struct ampk_tc_problem *, char *why, size_t why_size);
void ampk_gemm_destroy(struct ampk_gemm *);

/* The algorithms that cuBLASLt names, best guess first, at most `most`. */
int ampk_gemm_candidates(cublasLtHandle_t, const struct ampk_gemm *, size_t workspace_limit,
                         cublasLtMatmulAlgo_t *, int most);
/* Bytes of workspace that the algorithm wants; SIZE_MAX if this device and version cannot use it:
 * cuBLASLt's check refuses it, and its heuristics, with that limit, do not name it either. */
size_t ampk_gemm_workspace(cublasLtHandle_t, const struct ampk_gemm *, const cublasLtMatmulAlgo_t *,
                           size_t workspace_limit);

/* An algorithm as text: its bytes in hex, valid for the same version of cuBLASLt. */
enum { AMPK_GEMM_TEXT = 2 * sizeof(cublasLtMatmulAlgo_t) + 1 };
void ampk_gemm_write(const cublasLtMatmulAlgo_t *, char text[AMPK_GEMM_TEXT]);
bool ampk_gemm_read(const char *text, cublasLtMatmulAlgo_t *);

/* Operands as in ampk_tc_run. False with the reason if cuBLASLt refuses. */
bool ampk_gemm_run(cublasLtHandle_t, const struct ampk_gemm *, const cublasLtMatmulAlgo_t *,
                   const void *first, const void *second, void *result, void *workspace,
                   size_t workspace_bytes, ampk_rt_stream, char *why, size_t why_size);

#endif
