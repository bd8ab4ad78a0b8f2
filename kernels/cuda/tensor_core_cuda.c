/* tensor_core.h on cuDNN and cuBLASLt: which of their plans is taken. Every plan that could do it
 * is timed once on this device; what was fastest is kept in a file (plan_cache.h). */
#include "tensor_core.h"

#include "cudnn_plan.h"
#include "gemm_cublaslt.h"
#include "kernels/cuda/conv_layout.h"
#include "plan_cache.h"

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CUDNN_TRIED = 128, /* choices at most */
    GEMM_TRIED = 16,
    TIMED_RUNS = 5,
    PATIENCE = 8, /* choices of one heuristic, best guess first, that are not faster one by one */
    LEAST_WORKSPACE = 1 << 20, /* when memory is short */
    KEY = 512,
    PAIR_KEY = KEY + 32,
    VALUE = 512,
};

/* A plan that takes so much longer than the best in its first run is not run again. */
static const float HOPELESS = 1.3f;
/* Gradients are computed one after the other unless that takes this much longer. */
static const float BESIDE_WORTH = 1.03f;

struct ampk_tc {
    struct ampk_cudnn_device cudnn;
    cublasLtHandle_t cublaslt;
    struct ampk_tc_settings settings;
    struct ampk_plan_cache *cache;
    char device[300]; /* in keys of the cache */
    struct ampk_tc_plan *plans;
    bool said_timing;
};

/* One way to compute a problem. */
struct way {
    struct ampk_cudnn_plan *cudnn; /* or: */
    struct ampk_gemm *gemm;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    float ms; /* 0: not timed */
};

struct ampk_tc_plan {
    char key[KEY]; /* in the cache */
    struct ampk_tc_problem problem;
    struct way way;
    const char *no_tensor_cores;
    struct ampk_tc_plan *next;
};

static void say(const char *text)
{
    if (text[0]) fprintf(stderr, "darknet-amp: %s\n", text);
}

static void say_timing(struct ampk_tc *tc)
{
    if (!tc->said_timing) say("timing the ways to compute each convolution on this GPU, once");
    tc->said_timing = true;
}

static void save_cache(struct ampk_tc *tc)
{
    char err[400] = "";
    if (!ampk_plan_cache_save(tc->cache, err, sizeof err)) say(err);
}

static const char *name_of(enum ampk_dtype dtype)
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

static void clear_way(struct way *way)
{
    ampk_cudnn_plan_destroy(way->cudnn);
    ampk_gemm_destroy(way->gemm);
    *way = (struct way){.cudnn = NULL};
}

static bool set_cudnn(struct ampk_tc *tc, const struct ampk_tc_problem *p, struct way *way,
                      const struct ampk_cudnn_choice *choice, size_t workspace_limit, char *why,
                      size_t why_size)
{
    way->cudnn = ampk_cudnn_plan_create(&tc->cudnn, p, choice, workspace_limit, why, why_size);
    if (way->cudnn) way->workspace = way->cudnn->workspace;
    return way->cudnn != NULL;
}

static bool set_gemm(struct ampk_tc *tc, const struct ampk_tc_problem *p, struct way *way,
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

static bool run(struct ampk_tc *tc, const struct way *way, const void *first, const void *second,
                void *result, void *workspace, ampk_rt_stream stream, char *why, size_t why_size)
{
    if (way->gemm)
        return ampk_gemm_run(tc->cublaslt, way->gemm, &way->algorithm, first, second, result,
                             workspace, way->workspace, stream, why, why_size);
    if (cudnnSetStream(tc->cudnn.handle, (cudaStream_t)stream) != CUDNN_STATUS_SUCCESS) {
        snprintf(why, why_size, "cuDNN: the stream cannot be set");
        return false;
    }
    return ampk_cudnn_plan_run(&tc->cudnn, way->cudnn, first, second, result, workspace, why,
                               why_size);
}

void ampk_tc_run(struct ampk_tc *tc, const struct ampk_tc_plan *plan, const void *first,
                 const void *second, void *result, void *workspace, ampk_rt_stream stream)
{
    char why[400];
    if (run(tc, &plan->way, first, second, result, workspace, stream, why, sizeof why)) return;
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

/* What plans for one problem are timed on. */
struct bench {
    struct ampk_tc *tc;
    ampk_rt_stream stream;
    void *first, *second, *result, *workspace; /* a second operand that is there is taken */
    size_t workspace_bytes;
    ampk_rt_event from, to;
};

static void *make_operand(struct bench *b, size_t n, enum ampk_dtype dtype)
{
    void *memory = ampk_rt_alloc(n * ampk_dtype_bytes(dtype));
    if (memory) ampk_conv_fill(b->stream, memory, dtype, n);
    return memory;
}

static bool begin_bench(struct bench *b, const struct ampk_tc_problem *p)
{
    size_t x = (size_t)p->n * p->h * p->w * p->c;
    size_t weights = (size_t)p->k * p->kh * p->kw * (p->c / p->groups);
    size_t y = (size_t)p->n * ampk_tc_out(p, p->h, p->kh) * ampk_tc_out(p, p->w, p->kw) * p->k;
    enum ampk_dtype operand = ampk_tc_operand(p->compute);
    b->first = make_operand(b, p->pass == AMPK_TC_DATA ? y : x, operand);
    if (!b->second) b->second = make_operand(b, p->pass == AMPK_TC_WEIGHTS ? y : weights, operand);
    b->result = make_operand(b,
                             p->pass == AMPK_TC_FORWARD ? y
                             : p->pass == AMPK_TC_DATA  ? x
                                                        : weights,
                             p->result);
    b->workspace_bytes = b->tc->settings.workspace_limit;
    while (!(b->workspace = ampk_rt_alloc(b->workspace_bytes)) &&
           b->workspace_bytes > LEAST_WORKSPACE)
        b->workspace_bytes /= 2;
    b->from = ampk_rt_event_create(true);
    b->to = ampk_rt_event_create(true);
    return b->first && b->second && b->result && b->workspace && b->from && b->to;
}

static void end_bench(struct bench *b)
{
    ampk_rt_stream_wait(b->stream);
    ampk_rt_free(b->first);
    ampk_rt_free(b->second);
    ampk_rt_free(b->result);
    ampk_rt_free(b->workspace);
    if (b->from) ampk_rt_event_destroy(b->from);
    if (b->to) ampk_rt_event_destroy(b->to);
}

static bool run_once(struct bench *b, const struct way *way)
{
    char why[400];
    bool done =
        run(b->tc, way, b->first, b->second, b->result, b->workspace, b->stream, why, sizeof why);
    if (!done) ampk_rt_forget_error();
    return done;
}

/* Milliseconds of the fastest run; 0 where it cannot run. The device is busy clearing the workspace
 * while the host starts a run: what starting takes is not in the time, as in a recording. Operands
 * come from memory then, not from the cache. */
static float time_way(struct bench *b, const struct way *way, float best)
{
    float fastest = 0;
    if (!run_once(b, way)) return 0; /* loads the kernel */
    for (int i = 0; i < TIMED_RUNS; i++) {
        ampk_rt_zero(b->workspace, b->workspace_bytes, b->stream);
        ampk_rt_event_record(b->from, b->stream);
        if (!run_once(b, way)) return 0;
        ampk_rt_event_record(b->to, b->stream);
        float ms = ampk_rt_event_ms(b->from, b->to);
        if (ms <= 0) return 0;
        if (i == 0 || ms < fastest) fastest = ms;
        if (best > 0 && fastest > HOPELESS * best) break;
    }
    return fastest;
}

/* Whether the candidate is the fastest so far, which it then is. */
static bool is_best(struct bench *b, struct way *best, struct way *candidate)
{
    candidate->ms = time_way(b, candidate, best->ms);
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
static void time_gemms(struct bench *b, struct ampk_tc_plan *plan, char value[VALUE])
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
        struct way way = {.ms = 0};
        if (!set_gemm(b->tc, &plan->problem, &way, &algorithms[i], b->workspace_bytes)) continue;
        if (!is_best(b, &plan->way, &way)) continue;
        ampk_gemm_write(&algorithms[i], text);
        snprintf(value, VALUE, "%.6g gemm %s", plan->way.ms, text);
    }
}

static void time_cudnn(struct bench *b, struct ampk_tc_plan *plan, char value[VALUE], char *why,
                       size_t why_size)
{
    const struct ampk_tc_problem *p = &plan->problem;
    struct ampk_cudnn_choice choices[CUDNN_TRIED];
    char text[VALUE / 2];
    int tried = 0;
    for (int mode = 0; mode < AMPK_CUDNN_MODES; mode++) {
        int count = ampk_cudnn_candidates(&b->tc->cudnn, p, ampk_cudnn_modes[mode], choices, tried,
                                          CUDNN_TRIED, why, why_size);
        for (int slower = 0; tried < count && slower < PATIENCE; tried++) {
            const struct ampk_cudnn_choice *choice = &choices[tried];
            struct way way = {.ms = 0};
            if (choice->compiled != is_wide(p)) continue;
            if (!set_cudnn(b->tc, p, &way, choice, b->workspace_bytes, why, why_size)) continue;
            slower++;
            if (!is_best(b, &plan->way, &way)) continue;
            slower = 0;
            ampk_cudnn_choice_write(choice, text, sizeof text);
            snprintf(value, VALUE, "%.6g cudnn %s", plan->way.ms, text);
        }
        tried = count;
    }
}

/* Times all that can do it; false where that is not wanted, there is no memory for it, or nothing
 * can. */
static bool choose_by_time(struct ampk_tc *tc, struct ampk_tc_plan *plan, ampk_rt_stream stream,
                           char *why, size_t why_size)
{
    struct bench b = {.tc = tc, .stream = stream};
    char value[VALUE];
    if (tc->settings.untimed) return false;
    say_timing(tc);
    if (begin_bench(&b, &plan->problem)) {
        time_gemms(&b, plan, value);
        if (uses_cudnn(tc, &plan->problem)) time_cudnn(&b, plan, value, why, why_size);
    }
    end_bench(&b);
    if (plan->way.ms > 0) ampk_plan_cache_add(tc->cache, plan->key, value);
    return plan->way.ms > 0;
}

/* ---- without timing ---- */

static bool choose_gemm(struct ampk_tc *tc, struct ampk_tc_plan *plan, char *why, size_t why_size)
{
    cublasLtMatmulAlgo_t algorithm;
    struct ampk_gemm *gemm = ampk_gemm_create(&plan->problem, why, why_size);
    size_t limit = tc->settings.workspace_limit;
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
    struct way *way = &plan->way;
    way->cudnn = ampk_cudnn_plan_expected(&tc->cudnn, p, tc->settings.workspace_limit, is_wide(p),
                                          &choice, why, why_size);
    if (way->cudnn) way->workspace = way->cudnn->workspace;
    return way->cudnn != NULL;
}

/* ---- with the cache ---- */

static bool choose_as_kept(struct ampk_tc *tc, struct ampk_tc_plan *plan)
{
    const char *value = ampk_plan_cache_find(tc->cache, plan->key);
    struct ampk_cudnn_choice choice;
    cublasLtMatmulAlgo_t algorithm;
    size_t limit = tc->settings.workspace_limit;
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

static void write_key(const struct ampk_tc *tc, const struct ampk_tc_problem *p, char key[KEY])
{
    static const char *const pass[] = {"forward", "data", "weights"};
    static const char *const compute[] = {"fp32", "tf32", "fp16", "bf16"};
    snprintf(key, KEY, "%s; %s%s %s to %s; %dx%dx%dx%d by %d of %dx%d stride %d pad %d groups %d",
             tc->device, pass[p->pass], p->accumulate ? " added" : "", compute[p->compute],
             name_of(p->result), p->n, p->c, p->h, p->w, p->k, p->kh, p->kw, p->stride, p->pad,
             p->groups);
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
        chosen = choose_as_kept(tc, plan) || choose_by_time(tc, plan, stream, why, why_size) ||
                 choose_by_guess(tc, plan, why, why_size);
    }
    save_cache(tc);
    return chosen;
}

struct ampk_tc_plan *ampk_tc_plan_create(struct ampk_tc *tc, const struct ampk_tc_problem *p,
                                         ampk_rt_stream stream, char *why, size_t why_size)
{
    char key[KEY];
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

/* ---- gradients beside each other ---- */

/* What both gradients of a convolution are timed on. */
struct pair {
    const struct ampk_tc_plan *data_plan, *weights_plan;
    struct bench data, weights; /* dy is the same */
    ampk_rt_stream side;
    ampk_rt_event fork, join;
};

static bool begin_pair(struct pair *p)
{
    bool ready = begin_bench(&p->data, &p->data_plan->problem);
    p->weights.second = p->data.first;
    ready = ready && begin_bench(&p->weights, &p->weights_plan->problem);
    p->fork = ampk_rt_event_create(false);
    p->join = ampk_rt_event_create(false);
    return ready && p->fork && p->join && p->data.workspace_bytes >= p->data_plan->way.workspace &&
           p->weights.workspace_bytes >= p->weights_plan->way.workspace;
}

static void end_pair(struct pair *p)
{
    ampk_rt_stream_wait(p->side);
    p->weights.second = NULL;
    end_bench(&p->data);
    end_bench(&p->weights);
    if (p->fork) ampk_rt_event_destroy(p->fork);
    if (p->join) ampk_rt_event_destroy(p->join);
}

/* Milliseconds of both gradients as conv.c computes them; 0 where one cannot run. The host's time
 * is hidden as in time_way. */
static float time_pair(struct pair *p, bool beside)
{
    struct bench *data = &p->data, *weights = &p->weights;
    ampk_rt_zero(data->workspace, data->workspace_bytes, data->stream);
    ampk_rt_zero(weights->workspace, weights->workspace_bytes, data->stream);
    ampk_rt_event_record(data->from, data->stream);
    weights->stream = beside ? p->side : data->stream;
    if (beside) ampk_rt_order(p->fork, data->stream, p->side);
    bool done = !beside || run_once(weights, &p->weights_plan->way);
    done = done && run_once(data, &p->data_plan->way);
    done = done && (beside || run_once(weights, &p->weights_plan->way));
    if (beside) ampk_rt_order(p->join, p->side, data->stream);
    ampk_rt_event_record(data->to, data->stream);
    return done ? ampk_rt_event_ms(data->from, data->to) : 0;
}

/* The fastest of each, taken in turns, the first of which load the kernels; false where they cannot
 * run. */
static bool time_both(struct pair *p, float *one_stream, float *beside)
{
    for (int i = 0; i < TIMED_RUNS; i++) {
        float one = time_pair(p, false), two = one > 0 ? time_pair(p, true) : 0;
        if (two <= 0) return false;
        if (i == 0 || one < *one_stream) *one_stream = one;
        if (i == 0 || two < *beside) *beside = two;
    }
    return true;
}

/* In the file: the times of the plans that are paired, then the fastest of each kind. Those of
 * other plans do not count. */
static bool read_pair(const struct ampk_tc *tc, const char *key, const char *plans, bool *pays)
{
    const char *value = ampk_plan_cache_find(tc->cache, key);
    size_t paired = strlen(plans);
    float one_stream, beside;
    if (!value || strncmp(value, plans, paired)) return false;
    if (sscanf(value + paired, ": one stream %f, beside %f", &one_stream, &beside) != 2)
        return false;
    *pays = one_stream > BESIDE_WORTH * beside;
    return true;
}

/* False where that is not wanted, there is no memory for it, or the plans cannot run. */
static bool measure_pair(struct ampk_tc *tc, struct pair *p, const char *key, const char *plans)
{
    char value[VALUE];
    float one_stream, beside;
    if (tc->settings.untimed) return false;
    say_timing(tc);
    bool timed = begin_pair(p) && time_both(p, &one_stream, &beside);
    end_pair(p);
    if (!timed) return false;
    snprintf(value, sizeof value, "%s: one stream %.6g, beside %.6g", plans, one_stream, beside);
    ampk_plan_cache_add(tc->cache, key, value);
    save_cache(tc);
    return true;
}

bool ampk_tc_pays_beside(struct ampk_tc *tc, const struct ampk_tc_plan *data,
                         const struct ampk_tc_plan *weights, ampk_rt_stream stream,
                         ampk_rt_stream side)
{
    struct bench bench = {.tc = tc, .stream = stream};
    struct pair p = {data, weights, bench, bench, side, NULL, NULL};
    char key[PAIR_KEY], plans[64];
    bool pays = false;
    if (data->way.ms <= 0 || weights->way.ms <= 0) return false;
    snprintf(key, sizeof key, "%s; beside weights to %s", data->key,
             name_of(weights->problem.result));
    snprintf(plans, sizeof plans, "%.6g %.6g", data->way.ms, weights->way.ms);
    if (read_pair(tc, key, plans, &pays)) return pays;
    ampk_plan_cache_refresh(tc->cache);
    if (!read_pair(tc, key, plans, &pays) && measure_pair(tc, &p, key, plans))
        read_pair(tc, key, plans, &pays);
    return pays;
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
    say(warning);
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
