/* tensor_core.h on cuDNN and cuBLASLt: creates a plan for each problem, from the file of plans
 * (plan_cache.h) if it knows one, else chosen now (choose.c), and opens and closes the libraries.
 */
#include "plans.h"

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plans ---- */

void ampk_tc_run(struct ampk_tc *tc, const struct ampk_tc_plan *plan, const void *first,
                 const void *second, void *result, void *workspace, ampk_rt_stream stream)
{
    char why[400];
    if (ampk_tc_run_engine(tc, &plan->engine, first, second, result, workspace, stream, why,
                           sizeof why))
        return;
    ampk_rt_forget_error();
    if (ampk_rt_spoil_recording(why)) return;
    fprintf(stderr, "CUDA backend: a convolution that was planned cannot run: %s\n", why);
    abort();
}

struct ampk_tc_plan_info ampk_tc_plan_info(const struct ampk_tc_plan *plan)
{
    return (struct ampk_tc_plan_info){plan->engine.workspace, plan->engine.ms,
                                      plan->no_tensor_cores};
}

/* ---- with the cache ---- */

/* Sets up the engine that the file names. False if there is none, it is damaged, it is left out
 * since, or this library refuses it now: then the caller chooses anew. */
static bool choose_as_kept(struct ampk_tc *tc, struct ampk_tc_plan *plan)
{
    const char *value = ampk_plan_cache_find(tc->cache, plan->key);
    char key[AMPK_TC_CHOICE_KEY];
    float ms = 0;
    int at = 0;
    if (!value || sscanf(value, "%f %n", &ms, &at) != 1 || !at) return false;
    ampk_tc_name_choice(plan, value + at, key);
    if (ampk_tc_is_left_out(tc, key)) return false;
    bool chosen = ampk_tc_set_choice(tc, &plan->problem, &plan->engine, value + at,
                                     ampk_tc_workspace_limit(tc, &plan->problem));
    if (chosen) plan->engine.ms = ms;
    return chosen;
}

/* The key names everything that may change which engine is fastest: GPU and versions, pass, types,
 * shape, and whether the user wants the search. Changing this text makes every kept plan unknown.
 */
static void write_key(const struct ampk_tc *tc, const struct ampk_tc_problem *p,
                      char key[AMPK_TC_KEY])
{
    static const char *const pass[] = {"forward", "data", "weights"};
    static const char *const compute[] = {"fp32", "tf32", "fp16", "bf16"};
    snprintf(key, AMPK_TC_KEY,
             "%s; %s%s %s to %s; %dx%dx%dx%d by %d of %dx%d stride %d pad %d groups %d%s",
             tc->device, pass[p->pass], p->accumulate ? " added" : "", compute[p->compute],
             ampk_dtype_name(p->result), p->n, p->c, p->h, p->w, p->k, p->kh, p->kw, p->stride,
             p->pad, p->groups, tc->settings.search ? "; searched" : "");
}

/* An engine of cuBLASLt without an obstacle uses Tensor Cores; cuDNN says for each engine whether
 * it does. */
static const char *why_no_tensor_cores(const struct ampk_tc *tc, const struct ampk_tc_plan *plan)
{
    const char *obstacle = ampk_tc_obstacle(&plan->problem, tc->cudnn.compute_capability);
    if (plan->engine.cudnn && plan->engine.cudnn->tensor_cores) return NULL;
    if (obstacle || plan->engine.gemm) return obstacle;
    return "cuDNN names no engine with them, or they are slower";
}

/* The file comes first, then the clock, then a guess. The file is read again before timing,
 * because timing takes long. */
static bool choose(struct ampk_tc *tc, struct ampk_tc_plan *plan, ampk_rt_stream stream, char *why,
                   size_t why_size)
{
    bool chosen = choose_as_kept(tc, plan);
    if (!chosen) {
        ampk_plan_cache_refresh(tc->cache); /* contexts beside this one make the same choices */
        chosen = choose_as_kept(tc, plan) ||
                 ampk_tc_choose_by_time(tc, plan, stream, why, why_size) ||
                 ampk_tc_choose_by_guess(tc, plan, stream, why, why_size);
    }
    ampk_tc_save_cache(tc);
    return chosen;
}

/* Layers of one shape share a plan, so a net times each shape once. A list is enough: plans are
 * made once, at creation of a convolution. */
struct ampk_tc_plan *ampk_tc_plan_create(struct ampk_tc *tc, const struct ampk_tc_problem *p,
                                         ampk_rt_stream stream, char *why, size_t why_size)
{
    char key[AMPK_TC_KEY];
    write_key(tc, p, key);
    for (struct ampk_tc_plan *plan = tc->plans; plan; plan = plan->next)
        if (!strcmp(plan->key, key)) return plan;
    struct ampk_tc_plan *plan = calloc(1, sizeof *plan);
    snprintf(why, why_size, "no library can compute it");
    if (!plan) return NULL;
    plan->problem = *p;
    strcpy(plan->key, key);
    if (!choose(tc, plan, stream, why, why_size)) {
        free(plan);
        return NULL;
    }
    plan->no_tensor_cores = why_no_tensor_cores(tc, plan);
    plan->next = tc->plans;
    return tc->plans = plan;
}

/* ---- libraries ---- */

static bool open_libraries(struct ampk_tc *tc, char *err, size_t err_size)
{
    cudnnStatus_t cudnn = cudnnCreate(&tc->cudnn.handle);
    if (cudnn != CUDNN_STATUS_SUCCESS) {
        tc->cudnn.handle = NULL;
        snprintf(err, err_size, "cuDNN cannot be used: %s",
                 cudnn == CUDNN_STATUS_ALLOC_FAILED ? AMPK_NO_MEMORY : cudnnGetErrorString(cudnn));
        return false;
    }
    cublasStatus_t cublaslt = cublasLtCreate(&tc->cublaslt);
    if (cublaslt == CUBLAS_STATUS_SUCCESS) return true;
    tc->cublaslt = NULL;
    snprintf(err, err_size, "cuBLASLt cannot be used: %s",
             cublaslt == CUBLAS_STATUS_ALLOC_FAILED ? AMPK_NO_MEMORY
                                                    : cublasLtGetStatusString(cublaslt));
    return false;
}

/* Warns if another cuDNN was loaded than the program was built for: LD_LIBRARY_PATH comes before
 * the libraries that the program was linked with. Says so once per program. */
static void compare_versions(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    char text[200];
    int major = (int)(cudnnGetCudartVersion() / 1000);
    if (major == CUDART_VERSION / 1000 || atomic_flag_test_and_set(&said)) return;
    snprintf(text, sizeof text,
             "cuDNN %zu of CUDA %d was loaded, but this program is built with CUDA %d: look at "
             "LD_LIBRARY_PATH",
             cudnnGetVersion(), major, CUDART_VERSION / 1000);
    ampk_tc_say(text);
}

struct ampk_tc *ampk_tc_create(const struct ampk_rt_device *device,
                               const struct ampk_tc_settings *settings, char *err, size_t err_size)
{
    char warning[PATH_MAX + 200];
    struct ampk_tc *tc = calloc(1, sizeof *tc);
    if (tc) tc->cache = ampk_plan_cache_open(settings->cache, warning, sizeof warning);
    if (!tc || !tc->cache) {
        snprintf(err, err_size, AMPK_NO_MEMORY);
        free(tc);
        return NULL;
    }
    ampk_tc_say(warning);
    ampk_tc_take_up_trials(tc);
    tc->settings = *settings;
    tc->cudnn.compute_capability = device->compute_capability;
    compare_versions();
    if (open_libraries(tc, err, err_size)) {
        snprintf(tc->device, sizeof tc->device, "%s, %d.%d, cuDNN %zu, cuBLASLt %zu", device->name,
                 device->compute_capability / 10, device->compute_capability % 10,
                 cudnnGetVersion(), cublasLtGetVersion());
        return tc;
    }
    ampk_tc_destroy(tc);
    return NULL;
}

void ampk_tc_destroy(struct ampk_tc *tc)
{
    if (!tc) return;
    ampk_tc_say_timed(tc); /* where no pass was recorded since */
    while (tc->plans) {
        struct ampk_tc_plan *plan = tc->plans;
        tc->plans = plan->next;
        ampk_tc_clear_engine(&plan->engine);
        free(plan);
    }
    if (tc->cudnn.handle) cudnnDestroy(tc->cudnn.handle);
    if (tc->cublaslt) cublasLtDestroy(tc->cublaslt);
    ampk_plan_cache_close(tc->cache);
    free(tc);
}
