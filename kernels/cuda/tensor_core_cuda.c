/* tensor_core.h on cuDNN and cuBLASLt: which of their plans is taken. Every plan that could do it
 * is timed once on this device; what was fastest is kept in a file (plan_cache.h). */
#include "tensor_core_cuda.h"

#include "tensor_core_bench.h"

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CUDNN_TRIED = 128, /* choices at most */
    GEMM_TRIED = 16,
};

/* A plan that takes so much longer than the best in its first run is not run again. */
static const float HOPELESS = 1.3f;
/* In the cache: nothing can compute it. Kept of problems with sums, which can do without. */
static const char NONE[] = "none";

void ampk_tc_say(const char *text)
{
    if (text[0]) fprintf(stderr, "darknet-amp: %s\n", text);
}

void ampk_tc_say_timing(struct ampk_tc *tc)
{
    if (!tc->said_timing)
        ampk_tc_say("timing the ways to compute each convolution on this GPU, once");
    tc->said_timing = true;
}

void ampk_tc_save_cache(struct ampk_tc *tc)
{
    char err[400] = "";
    if (!ampk_plan_cache_save(tc->cache, err, sizeof err)) ampk_tc_say(err);
}

size_t ampk_tc_workspace_limit(const struct ampk_tc *tc, const struct ampk_tc_problem *p)
{
    size_t much = p->compute == AMPK_COMPUTE_FP32 ? AMPK_TC_WORKSPACE_FP32 : AMPK_TC_WORKSPACE;
    return tc->settings.workspace_limit < much ? tc->settings.workspace_limit : much;
}

const char *ampk_tc_name_of(enum ampk_dtype dtype)
{
    static const char *const names[] = {"fp32", "fp16", "bf16"};
    return names[dtype];
}

/* ---- plans ---- */

/* Results that only kernels compiled by cuDNN have. */
static bool is_wide(const struct ampk_tc_problem *p)
{
    return p->result != ampk_tc_operand(p->compute);
}

/* Added to in FP32, nothing of cuDNN's is. */
static bool uses_cudnn(const struct ampk_tc *tc, const struct ampk_tc_problem *p)
{
    return !is_wide(p) || (tc->settings.compile && !p->accumulate);
}

static void clear_way(struct ampk_tc_way *way)
{
    ampk_cudnn_plan_destroy(way->cudnn);
    ampk_gemm_destroy(way->gemm);
    *way = (struct ampk_tc_way){.cudnn = NULL};
}

static bool set_cudnn(struct ampk_tc *tc, const struct ampk_tc_problem *p, struct ampk_tc_way *way,
                      const struct ampk_cudnn_choice *choice, size_t workspace_limit, char *why,
                      size_t why_size)
{
    way->cudnn = ampk_cudnn_plan_create(&tc->cudnn, p, choice, workspace_limit, why, why_size);
    if (way->cudnn) way->workspace = way->cudnn->workspace;
    return way->cudnn != NULL;
}

static bool set_gemm(struct ampk_tc *tc, const struct ampk_tc_problem *p, struct ampk_tc_way *way,
                     const cublasLtMatmulAlgo_t *algorithm, size_t workspace_limit)
{
    char why[100];
    way->gemm = ampk_gemm_create(p, why, sizeof why);
    if (!way->gemm) return false;
    way->algorithm = *algorithm;
    way->workspace = ampk_gemm_workspace(tc->cublaslt, way->gemm, algorithm);
    if (way->workspace <= workspace_limit) return true;
    clear_way(way);
    return false;
}

bool ampk_tc_run_way(struct ampk_tc *tc, const struct ampk_tc_way *way, const void *first,
                     const void *second, void *result, const struct ampk_tc_sums *sums,
                     void *workspace, ampk_rt_stream stream, char *why, size_t why_size)
{
    if (way->gemm)
        return ampk_gemm_run(tc->cublaslt, way->gemm, &way->algorithm, first, second, result,
                             workspace, way->workspace, stream, why, why_size);
    if (cudnnSetStream(tc->cudnn.handle, (cudaStream_t)stream) != CUDNN_STATUS_SUCCESS) {
        snprintf(why, why_size, "cuDNN: the stream cannot be set");
        return false;
    }
    return ampk_cudnn_plan_run(&tc->cudnn, way->cudnn, first, second, result, sums, workspace, why,
                               why_size);
}

void ampk_tc_run(struct ampk_tc *tc, const struct ampk_tc_plan *plan, const void *first,
                 const void *second, void *result, const struct ampk_tc_sums *sums, void *workspace,
                 ampk_rt_stream stream)
{
    char why[400];
    if (ampk_tc_run_way(tc, &plan->way, first, second, result, sums, workspace, stream, why,
                        sizeof why))
        return;
    ampk_rt_forget_error();
    if (ampk_rt_spoil_recording(why)) return;
    fprintf(stderr, "CUDA backend: a convolution that was planned cannot run: %s\n", why);
    abort();
}

struct ampk_tc_plan_info ampk_tc_plan_info(const struct ampk_tc_plan *plan)
{
    return (struct ampk_tc_plan_info){plan->way.workspace, plan->way.ms, plan->no_tensor_cores};
}

/* ---- timing ---- */

/* Milliseconds of the fastest run; 0 where it cannot run. */
static float time_way(struct ampk_tc_bench *b, const struct ampk_tc_way *way, float best)
{
    float fastest = 0;
    if (!ampk_tc_bench_run(b, way)) return 0; /* loads the kernel */
    for (int i = 0; i < AMPK_TC_TIMED_RUNS; i++) {
        ampk_tc_bench_start(b);
        if (!ampk_tc_bench_run(b, way)) return 0;
        float ms = ampk_tc_bench_stop(b);
        if (ms <= 0) return 0;
        if (i == 0 || ms < fastest) fastest = ms;
        if (best > 0 && fastest > HOPELESS * best) break;
    }
    return fastest;
}

/* Whether the candidate is the fastest so far, which it then is. */
static bool is_best(struct ampk_tc_bench *b, struct ampk_tc_way *best,
                    struct ampk_tc_way *candidate)
{
    candidate->ms = time_way(b, candidate, best->ms);
    b->ran = NULL;
    bool better = candidate->ms > 0 && (best->ms <= 0 || candidate->ms < best->ms);
    if (better) {
        clear_way(best);
        *best = *candidate;
    } else {
        clear_way(candidate);
    }
    return better;
}

/* value: the best way's, for the cache. */
static void time_gemms(struct ampk_tc_bench *b, struct ampk_tc_plan *plan,
                       char value[AMPK_TC_VALUE])
{
    char why[100], text[AMPK_GEMM_TEXT];
    cublasLtMatmulAlgo_t algorithms[GEMM_TRIED];
    struct ampk_gemm *gemm = ampk_gemm_create(&plan->problem, why, sizeof why);
    int count = 0;
    if (gemm)
        count =
            ampk_gemm_candidates(b->tc->cublaslt, gemm, b->workspace_bytes, algorithms, GEMM_TRIED);
    ampk_gemm_destroy(gemm);
    for (int i = 0; i < count; i++) {
        struct ampk_tc_way way = {.ms = 0};
        if (!set_gemm(b->tc, &plan->problem, &way, &algorithms[i], b->workspace_bytes)) continue;
        if (!is_best(b, &plan->way, &way)) continue;
        ampk_gemm_write(&algorithms[i], text);
        snprintf(value, AMPK_TC_VALUE, "%.6g gemm %s", plan->way.ms, text);
    }
}

/* What cuDNN names for want of anything better, where there is something. It is expected to be so
 * much slower that running it twice would take longer than all the others. */
static bool is_last_resort(const struct ampk_cudnn_choice *choice, int mode,
                           const struct ampk_tc_plan *plan)
{
    bool is_fallback = ampk_cudnn_modes[mode] == CUDNN_HEUR_MODE_FALLBACK;
    return is_fallback && !choice->tensor_cores && plan->way.ms > 0;
}

static void time_cudnn(struct ampk_tc_bench *b, struct ampk_tc_plan *plan,
                       char value[AMPK_TC_VALUE], char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &plan->problem;
    struct ampk_cudnn_choice choices[CUDNN_TRIED];
    char text[AMPK_TC_VALUE / 2];
    int tried = 0, count = 0;
    for (int mode = 0; mode < AMPK_CUDNN_MODES; mode++) {
        count = ampk_cudnn_candidates(&b->tc->cudnn, p, ampk_cudnn_modes[mode], choices, count,
                                      CUDNN_TRIED, why, why_size);
        for (; tried < count; tried++) {
            const struct ampk_cudnn_choice *choice = &choices[tried];
            struct ampk_tc_way way = {.ms = 0};
            if (choice->compiled != is_wide(p) || is_last_resort(choice, mode, plan)) continue;
            if (!set_cudnn(b->tc, p, &way, choice, b->workspace_bytes, why, why_size)) continue;
            if (!is_best(b, &plan->way, &way)) continue;
            ampk_cudnn_choice_write(choice, text, sizeof text);
            snprintf(value, AMPK_TC_VALUE, "%.6g cudnn %s", plan->way.ms, text);
        }
    }
}

/* Times all that can do it; false where that is not wanted, there is no memory for it, or nothing
 * can. */
static bool choose_by_time(struct ampk_tc *tc, struct ampk_tc_plan *plan, ampk_rt_stream stream,
                           char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &plan->problem;
    struct ampk_tc_bench b = {.tc = tc, .stream = stream, .what = plan->key};
    struct ampk_tc_matrix m;
    char value[AMPK_TC_VALUE];
    if (tc->settings.untimed || (!uses_cudnn(tc, p) && !ampk_tc_is_matrix(p, &m))) return false;
    ampk_tc_say_timing(tc);
    bool begun = ampk_tc_bench_begin(&b, p);
    if (begun) {
        time_gemms(&b, plan, value);
        if (uses_cudnn(tc, p)) time_cudnn(&b, plan, value, why, why_size);
    }
    ampk_tc_bench_end(&b);
    if (plan->way.ms > 0)
        ampk_plan_cache_add(tc->cache, plan->key, value);
    else if (p->sums && begun && b.workspace_bytes == ampk_tc_workspace_limit(tc, p))
        ampk_plan_cache_add(tc->cache, plan->key, NONE);
    return plan->way.ms > 0;
}

/* ---- without timing ---- */

static bool choose_gemm(struct ampk_tc *tc, struct ampk_tc_plan *plan, char *why, size_t why_size)
{
    cublasLtMatmulAlgo_t algorithm;
    struct ampk_gemm *gemm = ampk_gemm_create(&plan->problem, why, why_size);
    size_t limit = ampk_tc_workspace_limit(tc, &plan->problem);
    int count = gemm ? ampk_gemm_candidates(tc->cublaslt, gemm, limit, &algorithm, 1) : 0;
    ampk_gemm_destroy(gemm);
    return count && set_gemm(tc, &plan->problem, &plan->way, &algorithm, limit);
}

/* As the libraries expect. Connected layers and FP32 results are cuBLASLt's, the rest cuDNN's. */
static bool choose_by_guess(struct ampk_tc *tc, struct ampk_tc_plan *plan, char *why,
                            size_t why_size)
{
    const struct ampk_tc_problem *p = &plan->problem;
    struct ampk_cudnn_choice choice;
    bool image = p->kh == p->h && p->kw == p->w;
    if ((image || is_wide(p)) && choose_gemm(tc, plan, why, why_size)) return true;
    if (!uses_cudnn(tc, p)) return false;
    struct ampk_tc_way *way = &plan->way;
    way->cudnn = ampk_cudnn_plan_expected(&tc->cudnn, p, ampk_tc_workspace_limit(tc, p), is_wide(p),
                                          &choice, why, why_size);
    if (way->cudnn) way->workspace = way->cudnn->workspace;
    return way->cudnn != NULL;
}

/* ---- with the cache ---- */

static bool is_kept_as_none(const struct ampk_tc *tc, const struct ampk_tc_plan *plan)
{
    const char *value = ampk_plan_cache_find(tc->cache, plan->key);
    return value && !strcmp(value, NONE);
}

static bool choose_as_kept(struct ampk_tc *tc, struct ampk_tc_plan *plan)
{
    const char *value = ampk_plan_cache_find(tc->cache, plan->key);
    struct ampk_cudnn_choice choice;
    cublasLtMatmulAlgo_t algorithm;
    size_t limit = ampk_tc_workspace_limit(tc, &plan->problem);
    char why[400];
    float ms = 0;
    int at = 0;
    bool chosen = false;
    if (!value || sscanf(value, "%f %n", &ms, &at) != 1 || !at) return false;
    if (!strncmp(value + at, "gemm ", 5) && ampk_gemm_read(value + at + 5, &algorithm))
        chosen = set_gemm(tc, &plan->problem, &plan->way, &algorithm, limit);
    else if (!strncmp(value + at, "cudnn ", 6) && ampk_cudnn_choice_read(value + at + 6, &choice))
        chosen = set_cudnn(tc, &plan->problem, &plan->way, &choice, limit, why, sizeof why);
    if (chosen) plan->way.ms = ms;
    return chosen;
}

static void write_key(const struct ampk_tc *tc, const struct ampk_tc_problem *p,
                      char key[AMPK_TC_KEY])
{
    static const char *const pass[] = {"forward", "data", "weights"};
    static const char *const compute[] = {"fp32", "tf32", "fp16", "bf16"};
    char slope[24] = "";
    if (p->sums && p->pass == AMPK_TC_DATA)
        snprintf(slope, sizeof slope, " of slope %g", (double)p->slope);
    snprintf(key, AMPK_TC_KEY,
             "%s; %s%s%s%s %s to %s; %dx%dx%dx%d by %d of %dx%d stride %d pad %d groups %d",
             tc->device, pass[p->pass], p->accumulate ? " added" : "", p->sums ? " with sums" : "",
             slope, compute[p->compute], ampk_tc_name_of(p->result), p->n, p->c, p->h, p->w, p->k,
             p->kh, p->kw, p->stride, p->pad, p->groups);
}

static const char *why_no_tensor_cores(const struct ampk_tc *tc, const struct ampk_tc_plan *plan)
{
    const char *obstacle = ampk_tc_obstacle(&plan->problem, tc->cudnn.compute_capability);
    if (plan->way.cudnn && plan->way.cudnn->tensor_cores) return NULL;
    if (obstacle || plan->way.gemm) return obstacle;
    return "cuDNN names no engine with them, or they are slower";
}

static bool choose(struct ampk_tc *tc, struct ampk_tc_plan *plan, ampk_rt_stream stream, char *why,
                   size_t why_size)
{
    bool chosen = choose_as_kept(tc, plan);
    if (!chosen) {
        ampk_plan_cache_refresh(tc->cache); /* contexts beside this one make the same choices */
        chosen = choose_as_kept(tc, plan) ||
                 (!is_kept_as_none(tc, plan) && choose_by_time(tc, plan, stream, why, why_size)) ||
                 (!is_kept_as_none(tc, plan) && choose_by_guess(tc, plan, why, why_size));
    }
    ampk_tc_save_cache(tc);
    return chosen;
}

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
        snprintf(err, err_size, "cuDNN cannot be used: %s", cudnnGetErrorString(cudnn));
        return false;
    }
    cublasStatus_t cublaslt = cublasLtCreate(&tc->cublaslt);
    if (cublaslt == CUBLAS_STATUS_SUCCESS) return true;
    tc->cublaslt = NULL;
    snprintf(err, err_size, "cuBLASLt cannot be used: %s", cublasLtGetStatusString(cublaslt));
    return false;
}

struct ampk_tc *ampk_tc_create(const struct ampk_rt_device *device,
                               const struct ampk_tc_settings *settings, char *err, size_t err_size)
{
    char warning[PATH_MAX + 200];
    struct ampk_tc *tc = calloc(1, sizeof *tc);
    if (tc) tc->cache = ampk_plan_cache_open(settings->cache, warning, sizeof warning);
    if (!tc || !tc->cache) {
        snprintf(err, err_size, "out of memory");
        free(tc);
        return NULL;
    }
    ampk_tc_say(warning);
    tc->settings = *settings;
    tc->cudnn.compute_capability = device->compute_capability;
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
    while (tc->plans) {
        struct ampk_tc_plan *plan = tc->plans;
        tc->plans = plan->next;
        clear_way(&plan->way);
        free(plan);
    }
    if (tc->cudnn.handle) cudnnDestroy(tc->cudnn.handle);
    if (tc->cublaslt) cublasLtDestroy(tc->cublaslt);
    ampk_plan_cache_close(tc->cache);
    free(tc);
}
