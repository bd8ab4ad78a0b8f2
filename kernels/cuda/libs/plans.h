/* Inside of tensor_core.h's implementation on cuDNN and cuBLASLt. Each file uses those above it:
 *
 *  problem    what a convolution's passes ask of a library (tensor_core.h)
 *  cudnn_graph, cudnn_plan, gemm_cublaslt, plan_cache   the libraries, and the file of plans
 *  engine     one engine of a library: set up, run, named
 *  bench      operands and memory to run engines on, and the clock; messages, and faults kept for
 *             the next run
 *  verify     the fastest engine that is right, of those that were timed
 *  choose     times the engines for a problem; or takes the first guess, where nothing is timed
 *  plans      a plan for each problem, as kept or chosen */
#ifndef AMPK_CUDA_PLANS_H
#define AMPK_CUDA_PLANS_H

#include "libraries.h"
#include "plan_cache.h"

enum {
    AMPK_TC_TIMED_RUNS = 5,
    AMPK_TC_KEY = 512, /* room for a plan's key in the cache */
    AMPK_TC_VALUE = 512,
    AMPK_TC_CHOICE = AMPK_TC_VALUE - 32, /* room for a choice in a value, behind its time */
    AMPK_TC_CHOICE_KEY = AMPK_TC_KEY + AMPK_TC_CHOICE + 2,
};

/* A value in the cache: this made the device fault, or hang. Kept for choices of a plan. */
static const char AMPK_TC_FAULTED[] = "faulted";
/* A value in the cache: this gave other results than others. Kept for choices of a plan. */
static const char AMPK_TC_WRONG[] = "wrong";

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
    bool said_timing, said_wrong, said_left_out, said_unverified;
    int clearings; /* how often to clear memory before a timed run; 0: not warm yet */
    struct {       /* since it was last said */
        int engines, problems, cut_short;
        double seconds;
    } timed;
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

/* ---- engine.c ---- */

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
/* The same with the choice that a value in the cache names. False also if it names none. */
bool ampk_tc_set_choice(struct ampk_tc *, const struct ampk_tc_problem *, struct ampk_tc_engine *,
                        const char *choice, size_t workspace_limit);
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

/* ampk_tc_run with one engine. False with the reason if the library refuses. */
bool ampk_tc_run_engine(struct ampk_tc *, const struct ampk_tc_engine *, const void *first,
                        const void *second, void *result, void *workspace, ampk_rt_stream,
                        char *why, size_t why_size);

/* ---- bench.c: messages, and facts kept for the next run ---- */

/* Print to stderr; ..._timing prints its message once per context. */
void ampk_tc_say(const char *text);
void ampk_tc_say_timing(struct ampk_tc *);
/* Seconds of a clock that is never set back. */
double ampk_tc_now(void);
void ampk_tc_save_cache(struct ampk_tc *);
/* Writes down what the device is given from now on, before it is: a device that hangs lets nobody
 * write it later. key NULL: nothing that a later run could leave out. */
void ampk_tc_try(struct ampk_tc *, const char *key);
/* Leaves out what programs tried when they ended, and says so. */
void ampk_tc_take_up_trials(struct ampk_tc *);
/* Whether this made the device fault in an earlier run of the program, or was wrong. If so, says
 * it. */
bool ampk_tc_is_left_out(struct ampk_tc *, const char *key);

/* ---- bench.c: operands, result and workspace of a problem's size, on which its plans are timed,
 * and the clock ---- */

struct ampk_tc_bench {
    struct ampk_tc *tc;
    ampk_rt_stream stream;
    void *first, *second, *result, *workspace;
    size_t result_bytes;
    size_t workspace_bytes; /* 0 before begin: as much as plans may want, or as there is */
    ampk_rt_event from, to;
    const char *what;                    /* the plan's key, for a message */
    const struct ampk_tc_engine *blamed; /* NULL: none */
    bool guessed;                        /* engines are tried, not timed */
    char refusal[400];                   /* the reason of the last engine that refused */
};

/* False if there is no memory. Call end in either case. */
bool ampk_tc_bench_begin(struct ampk_tc_bench *, const struct ampk_tc_problem *);
void ampk_tc_bench_end(struct ampk_tc_bench *);

/* Waits until the device has done everything. A device that faulted ends the program with a
 * message. */
void ampk_tc_bench_wait(struct ampk_tc_bench *);
/* Sets whom to blame for a fault from now on: this engine, and the key to leave it out by. NULL:
 * nobody. */
void ampk_tc_bench_blame(struct ampk_tc_bench *, const struct ampk_tc_engine *, const char *key);

/* False if the library refuses. A fault of the device does not return: it ends the program. */
bool ampk_tc_bench_run(struct ampk_tc_bench *, const struct ampk_tc_engine *);

/* Call these around what is timed, on the bench's stream. Between them the host starts the work
 * while the device is still busy clearing the workspace. So the time excludes what starting takes,
 * as in a recording. Clearing also pushes the operands out of the cache: they come from memory. */
void ampk_tc_bench_start(struct ampk_tc_bench *);
float ampk_tc_bench_stop(struct ampk_tc_bench *); /* milliseconds */

/* ---- verify.c ---- */

/* An engine that was timed. */
struct ampk_tc_trial {
    float ms;
    bool named; /* by a library; else the search found it */
    bool wrong;
    char choice[AMPK_TC_CHOICE]; /* as values in the cache have it */
};

/* All that were, for one problem. */
struct ampk_tc_trials {
    struct ampk_tc_trial *list;
    int count;
    float best;     /* milliseconds; 0: none yet */
    double until;   /* when to stop, as ampk_tc_now has it */
    bool cut_short; /* that time came before all were timed */
    bool searching; /* what is timed from now on is found, not named */
};

/* Whether an infinity in the first operand reaches the result, as itself or as a NaN. Overwrites
 * the bench's result. True also where none can be put in, because the window's padding is wider
 * than the window. */
bool ampk_tc_carries_infinity(struct ampk_tc_bench *, const struct ampk_tc_problem *,
                              const struct ampk_tc_engine *);

/* Puts the fastest that is right into plan->engine, and into the cache. Leaves the engine empty
 * where none is. */
void ampk_tc_take_right(struct ampk_tc_bench *, struct ampk_tc_plan *, struct ampk_tc_trials *);

/* ---- choose.c ---- */

/* Finds the fastest right engine of all that can compute the problem, and puts it into
 * plan->engine and the cache. False where timing is not wanted, there is no memory for it, or
 * nothing can compute it. */
bool ampk_tc_choose_by_time(struct ampk_tc *, struct ampk_tc_plan *, ampk_rt_stream, char *why,
                            size_t why_size);
/* Finds the first engine that the libraries expect to be fast and that runs, if there is memory to
 * see that, and puts it into plan->engine. */
bool ampk_tc_choose_by_guess(struct ampk_tc *, struct ampk_tc_plan *, ampk_rt_stream, char *why,
                             size_t why_size);

#endif
