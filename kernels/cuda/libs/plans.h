/* Inside of tensor_core.h's implementation on cuDNN and cuBLASLt. Each file uses those above it:
 *
 *  cudnn_graph, cudnn_plan, gemm_cublaslt, plan_cache   the libraries, and the file of plans
 *  records    messages, and facts kept for the next run
 *  engine     one engine of a library: set up, run, named
 *  bench      operands and memory to run engines on, and the clock
 *  choose     the fastest engine for a problem; or the first guess, where nothing is timed
 *  plans      a plan for each problem, as kept or chosen
 *  contest    two ways to use plans, timed against each other; and that for gradients
 *             one after the other, or beside each other
 *  contest_sums            batch-norm's sums by a kernel, or in the epilogue
 *  contest_image           a convolution that reads images by a plan, or by our kernel
 *  contest_image_gradient  the first weight gradient and dy by two kernels, or by one */
#ifndef AMPK_CUDA_PLANS_H
#define AMPK_CUDA_PLANS_H

#include "cudnn_plan.h"
#include "gemm_cublaslt.h"
#include "plan_cache.h"
#include "tensor_core.h"

enum {
    AMPK_TC_TIMED_RUNS = 5,
    AMPK_TC_WORKSPACE = 256 << 20, /* bytes; a plan may not want more */
    AMPK_TC_WORKSPACE_FP32 =
        1 << 30,       /* bytes: in FP32, all but one of cuDNN's engines may want 507 MiB */
    AMPK_TC_KEY = 512, /* room for a plan's key in the cache */
    AMPK_TC_VALUE = 512,
    AMPK_TC_CHOICE = AMPK_TC_VALUE - 32, /* room for a choice in a value, behind its time */
    AMPK_TC_CHOICE_KEY = AMPK_TC_KEY + AMPK_TC_CHOICE + 2,
};

/* A value in the cache: nothing can compute this problem. Kept only for problems with sums,
 * because a convolution can do without them. */
static const char AMPK_TC_NONE[] = "none";
/* A value in the cache: this made the device fault. Kept for choices of a plan, and for contests.
 */
static const char AMPK_TC_FAULTED[] = "faulted";

struct ampk_tc {
    struct ampk_cudnn_device cudnn;
    cublasLtHandle_t cublaslt;
    struct ampk_tc_settings settings;
    struct ampk_plan_cache *cache;
    char device[300]; /* GPU and library versions, the start of every key in the cache */
    struct ampk_tc_plan *plans;
    /* The key of what the device tries out at the moment. NULL: nothing that a later run could
     * leave out. */
    const char *trying;
    bool said_timing, said_wrong, said_faulted;
    int clearings; /* how often to clear memory before a timed run; 0: not warm yet */
};

/* One way to compute a problem. */
struct ampk_tc_engine {
    struct ampk_cudnn_plan *cudnn; /* either this or gemm is set */
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
/* The most workspace, in bytes, that a plan for the problem may ask for. */
size_t ampk_tc_workspace_limit(const struct ampk_tc *, const struct ampk_tc_problem *);

/* Whether the problem wants FP32 results of 16-bit operands. cuBLASLt alone has them, for inner
 * products; cuDNN has them only by kernels that it compiles. */
bool ampk_tc_is_wide(const struct ampk_tc_problem *);

/* Sets up an empty engine with that library. False if the library refuses. */
bool ampk_tc_set_cudnn(struct ampk_tc *, const struct ampk_tc_problem *, struct ampk_tc_engine *,
                       const struct ampk_cudnn_choice *, size_t workspace_limit, char *why,
                       size_t why_size);
bool ampk_tc_set_gemm(struct ampk_tc *, const struct ampk_tc_problem *, struct ampk_tc_engine *,
                      const cublasLtMatmulAlgo_t *, size_t workspace_limit);
void ampk_tc_clear_engine(struct ampk_tc_engine *);
/* cuBLASLt's algorithms, best guess first; 0 with the reason where it has none. */
int ampk_tc_list_gemms(struct ampk_tc *, const struct ampk_tc_problem *, size_t workspace_limit,
                       cublasLtMatmulAlgo_t *, int most, char *why, size_t why_size);

/* Writes a choice's own key: the plan's key, then the choice. Returns the part with the choice, as
 * values have it. */
const char *ampk_tc_name_choice(const struct ampk_tc_plan *, const char *choice,
                                char key[AMPK_TC_CHOICE_KEY]);
const char *ampk_tc_name_cudnn(const struct ampk_tc_plan *, const struct ampk_cudnn_choice *,
                               char key[AMPK_TC_CHOICE_KEY]);
const char *ampk_tc_name_gemm(const struct ampk_tc_plan *, const cublasLtMatmulAlgo_t *,
                              char key[AMPK_TC_CHOICE_KEY]);

/* Whether the device faulted while it tried this in an earlier run of the program. If so, says it.
 */
bool ampk_tc_has_faulted(struct ampk_tc *, const char *key);
/* Keeps in the file that the current trial made the device fault. True if the next run of the
 * program will know it. */
bool ampk_tc_remember_fault(struct ampk_tc *);

/* Finds the fastest engine of all that can compute the problem, and puts it into plan->engine and
 * the cache. False where timing is not wanted, there is no memory for it, or nothing can compute
 * it. */
bool ampk_tc_choose_by_time(struct ampk_tc *, struct ampk_tc_plan *, ampk_rt_stream, char *why,
                            size_t why_size);
/* Finds the first engine that the libraries expect to be fast and that runs, if there is memory to
 * see that, and puts it into plan->engine. */
bool ampk_tc_choose_by_guess(struct ampk_tc *, struct ampk_tc_plan *, ampk_rt_stream, char *why,
                             size_t why_size);

/* ampk_tc_run with one engine. False with the reason if the library refuses. */
bool ampk_tc_run_engine(struct ampk_tc *, const struct ampk_tc_engine *, const void *first,
                        const void *second, void *result, const struct ampk_tc_sums *,
                        void *workspace, ampk_rt_stream, char *why, size_t why_size);

#endif
