/* Inside of tensor_core.h's implementation on cuDNN and cuBLASLt. Each file uses those above it:
 *
 * cudnn_graph, cudnn_plan, gemm_cublaslt, plan_cache   the libraries, and the file of plans
 * records    what is said, and kept for the next run
 * engine     one engine of a library: set up, run, named
 * bench      operands and memory to run engines on, and the clock
 * choose     the fastest engine for a problem; or the first guess, where nothing is timed
 * plans      a plan for each problem, as kept or chosen
 * contest    two ways to use plans, of which the faster is taken; and for gradients
 *            one after the other, or beside each other
 * contest_sums            batch-norm's sums by a kernel, or in the epilogue
 * contest_image           a convolution that reads images by a plan, or by our kernel
 * contest_image_gradient  the first weight gradient and dy by two kernels, or by one
 */
#ifndef AMPK_CUDA_PLANS_H
#define AMPK_CUDA_PLANS_H

#include "cudnn_plan.h"
#include "gemm_cublaslt.h"
#include "plan_cache.h"
#include "tensor_core.h"

enum {
    AMPK_TC_TIMED_RUNS = 5,
    AMPK_TC_WORKSPACE = 256 << 20,    /* more is too much */
    AMPK_TC_WORKSPACE_FP32 = 1 << 30, /* all cuDNN's engines but one may want 507 MiB */
    AMPK_TC_KEY = 512,                /* of a plan in the cache */
    AMPK_TC_VALUE = 512,
    AMPK_TC_CHOICE = AMPK_TC_VALUE - 32, /* in a value, behind its time */
    AMPK_TC_CHOICE_KEY = AMPK_TC_KEY + AMPK_TC_CHOICE + 2,
};

/* In the cache: nothing can compute it. Kept of problems with sums, which can do without. */
static const char AMPK_TC_NONE[] = "none";
/* There: it made the device fault. Kept of choices for a plan, and of contests. */
static const char AMPK_TC_FAULTED[] = "faulted";

struct ampk_tc {
    struct ampk_cudnn_device cudnn;
    cublasLtHandle_t cublaslt;
    struct ampk_tc_settings settings;
    struct ampk_plan_cache *cache;
    char device[300]; /* in keys of the cache */
    struct ampk_tc_plan *plans;
    /* The key of what the device runs to see how it does; NULL: nothing that could be left out. */
    const char *trying;
    bool said_timing, said_wrong, said_faulted;
    int clearings; /* of memory before a timed run; 0: the device is not warm yet */
};

/* One way to compute a problem. */
struct ampk_tc_engine {
    struct ampk_cudnn_plan *cudnn; /* or: */
    struct ampk_gemm *gemm;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    float ms; /* 0: not timed */
};

struct ampk_tc_plan {
    char key[AMPK_TC_KEY]; /* in the cache */
    struct ampk_tc_problem problem;
    struct ampk_tc_engine engine;
    const char *no_tensor_cores;
    struct ampk_tc_plan *next;
};

/* Print to stderr; ..._timing prints its message once per context. */
void ampk_tc_say(const char *text);
void ampk_tc_say_timing(struct ampk_tc *);
void ampk_tc_save_cache(struct ampk_tc *);
/* The most that a plan for the problem may ask for. */
size_t ampk_tc_workspace_limit(const struct ampk_tc *, const struct ampk_tc_problem *);

/* FP32 results of 16-bit operands: cuBLASLt's alone, of inner products. cuDNN has them only by
 * kernels that it compiles. */
bool ampk_tc_is_wide(const struct ampk_tc_problem *);

/* An empty way becomes one by that library; false where it refuses. */
bool ampk_tc_set_cudnn(struct ampk_tc *, const struct ampk_tc_problem *, struct ampk_tc_engine *,
                       const struct ampk_cudnn_choice *, size_t workspace_limit, char *why,
                       size_t why_size);
bool ampk_tc_set_gemm(struct ampk_tc *, const struct ampk_tc_problem *, struct ampk_tc_engine *,
                      const cublasLtMatmulAlgo_t *, size_t workspace_limit);
void ampk_tc_clear_engine(struct ampk_tc_engine *);
/* cuBLASLt's algorithms, best guess first; 0 with the reason where it has none. */
int ampk_tc_list_gemms(struct ampk_tc *, const struct ampk_tc_problem *, size_t workspace_limit,
                       cublasLtMatmulAlgo_t *, int most, char *why, size_t why_size);

/* A choice's own key: the plan's, then the choice, which is returned, as values have it. */
const char *ampk_tc_name_choice(const struct ampk_tc_plan *, const char *choice,
                                char key[AMPK_TC_CHOICE_KEY]);
const char *ampk_tc_name_cudnn(const struct ampk_tc_plan *, const struct ampk_cudnn_choice *,
                               char key[AMPK_TC_CHOICE_KEY]);
const char *ampk_tc_name_gemm(const struct ampk_tc_plan *, const cublasLtMatmulAlgo_t *,
                              char key[AMPK_TC_CHOICE_KEY]);

/* Whether the device faulted while it tried this, in an earlier run of the program; says so. */
bool ampk_tc_has_faulted(struct ampk_tc *, const char *key);
/* Of what is tried now. Whether the next run of the program knows it. */
bool ampk_tc_remember_fault(struct ampk_tc *);

/* The fastest way of all that can do it, as plan->engine and in the cache; false where timing is
 * not wanted, there is no memory for it, or nothing can. */
bool ampk_tc_choose_by_time(struct ampk_tc *, struct ampk_tc_plan *, ampk_rt_stream, char *why,
                            size_t why_size);
/* The first way that the libraries expect to be fast and that runs, where there is memory to see
 * that; as plan->engine. */
bool ampk_tc_choose_by_guess(struct ampk_tc *, struct ampk_tc_plan *, ampk_rt_stream, char *why,
                             size_t why_size);

/* ampk_tc_run of one way; false with the reason where the library refuses. */
bool ampk_tc_run_engine(struct ampk_tc *, const struct ampk_tc_engine *, const void *first,
                        const void *second, void *result, const struct ampk_tc_sums *,
                        void *workspace, ampk_rt_stream, char *why, size_t why_size);

#endif
