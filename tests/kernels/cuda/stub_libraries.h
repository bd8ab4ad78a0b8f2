/* Stand-ins for cuDNN, cuBLASLt and the clock, for the tests of plans. Every engine has a time
 * here, and a plan runs that long when the device comes to it.
 *
 * Defines what it stands in for: for the one file of a test program. */
#ifndef CUDNN_STUB_LIBRARIES_H
#define CUDNN_STUB_LIBRARIES_H

#include "kernels/cuda/runtime/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/conv/conv_kernels.h"
#include "kernels/cuda/libs/plans.h"
#include "tests/rig/harness.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ENGINES = 16, SETTINGS = 8 };

/* What there is; engine i is cuDNN's choice with engine number i. */
static struct stub {
    float cudnn[ENGINES], gemm[ENGINES]; /* milliseconds; 0: no such engine, below 0: it refuses */
    float start[ENGINES];                /* what the host takes to start a run of cuDNN's */
    bool tensor_cores, no_memory, untimed, search;
    bool last_resort; /* the first engine is one, without Tensor Cores */
    size_t workspace; /* of every engine */
    size_t more;      /* of cuDNN's, times the engine's number */
    size_t limit;     /* of workspace, by the device's memory; 0: 4 MiB */
    size_t largest;   /* piece of memory that there is; 0: any */
    int disturbed;    /* every so many runs one takes thrice as long; 0: none */
    /* The device does in this engine's runs, from this setting on, in this algorithm's, or in the
     * run of this number; 0: in none. */
    int faults, fault_setting, gemm_faults, fault_run;
    bool hangs;                       /* and somebody kills the program */
    bool fault_refuses, dead_refuses; /* the run that faults is refused, those after it */
    unsigned stuck, stuck_gemms;      /* bits: of engines whose plans refuse to run */
    /* An engine's settings, by 1 apart: a run takes so many times as long; 0: refused. Without a
     * first one there are none. */
    float settings[SETTINGS];
    bool older_cuda; /* is what cuDNN is made for */
    int wrong_from;  /* these and later settings give other results; 0: none does */
    /* Bits: engines and algorithms that give other results, all the same ones; engines that give
     * other results each time. */
    unsigned wrong, wrong_gemms, restless;
    unsigned swallows; /* bits: engines that lose a negative infinity */
    bool overflows;    /* one of a result's values is infinite with any operands */
    float off;         /* so far, relatively, are results of `wrong`; 0: by their own size */
    bool accumulates;  /* cuDNN's engines do, to what is there */
} stub;

/* Clocks: the host's, and when the device has done what it was given. */
static float host, device;
static int runs, live, allocated; /* plans run; descriptors and memory: not freed, ever taken */
static int timings;
static int infinite;    /* the sign of the infinity that an operand has; 0: none */
static size_t compared; /* bytes of results, the last time */
static bool faulted;

/* The device works for so long, on what it was given before first. */
static void work(float ms)
{
    device = (device > host ? device : host) + ms;
}

/* The clock of timing's limit. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    double seconds = (double)(device > host ? device : host) * 1e-3;
    (void)id;
    *t = (struct timespec){(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    return 0;
}

/* ---- in place of the runtime ---- */

void *ampk_rt_alloc(size_t bytes)
{
    if (stub.no_memory || (stub.largest && bytes > stub.largest)) return NULL;
    live++, allocated++;
    return calloc(1, bytes);
}

void ampk_rt_free(void *memory)
{
    if (memory) live--;
    free(memory);
}

ampk_rt_event ampk_rt_event_create(bool timed)
{
    (void)timed;
    live++;
    return calloc(1, sizeof(float));
}

void ampk_rt_event_destroy(ampk_rt_event event)
{
    live--;
    free(event);
}

void ampk_rt_event_record(ampk_rt_event event, ampk_rt_stream stream)
{
    (void)stream;
    work(0);
    *(float *)event = device;
}

float ampk_rt_event_ms(ampk_rt_event from, ampk_rt_event to)
{
    timings++;
    if (host < *(float *)to) host = *(float *)to;
    if (faulted) return 0;
    return *(float *)to - *(float *)from;
}

void ampk_rt_zero(void *memory, size_t bytes, ampk_rt_stream stream)
{
    (void)stream;
    if (bytes < 1000) memset(memory, 0, bytes); /* not all of a workspace, each time */
    work(16);
}

void ampk_rt_copy_out(void *host_memory, const void *memory, size_t bytes, ampk_rt_stream stream)
{
    (void)stream;
    memcpy(host_memory, memory, bytes);
}

bool ampk_rt_stream_wait(ampk_rt_stream stream)
{
    (void)stream;
    return !faulted;
}

void ampk_rt_forget_error(void) {}

const char *ampk_rt_error(void)
{
    return "";
}

bool ampk_rt_spoil_recording(const char *why)
{
    (void)why;
    return false;
}

void ampk_conv_fill(ampk_rt_stream stream, void *data, enum ampk_dtype dtype, size_t n, float mean)
{
    (void)stream, (void)dtype, (void)mean;
    CHECK(n * ampk_dtype_bytes(dtype) >= sizeof(float));
    *(float *)data = -1;
}

/* Of what convolve leaves. NaN: nothing was written. */
void ampk_conv_compare(ampk_rt_stream stream, const void *a, const void *b, enum ampk_dtype dtype,
                       size_t bytes, uint32_t words[2])
{
    (void)stream, (void)dtype;
    const float *x = a, *y = b, first = fabsf(x[0] - y[0]),
                second = x[1] == y[1] ? 0 : fabsf(x[1] - y[1]);
    const float found[2] = {first <= second ? second : first, x[0]};
    CHECK(bytes >= 2 * sizeof *found);
    compared = bytes;
    memcpy(words, found, sizeof found);
}

/* Whether a library does not refuse a run. */
static bool can_start(bool faults, bool stuck)
{
    bool dead = faulted;
    runs++;
    bool does = faults || runs == stub.fault_run;
    if (does && stub.hangs) raise(SIGKILL);
    faulted |= does;
    return !stuck && !(dead && stub.dead_refuses) && !(faulted && stub.fault_refuses);
}

static bool pass_time(float start, float ms)
{
    host += start;
    if (ms <= 0) return false;
    work(stub.disturbed && runs % stub.disturbed == 0 ? 3 * ms : ms);
    return true;
}

/* Of one element at a time: an infinity, or what was there. */
void ampk_rt_copy_in(void *memory, const void *host_memory, size_t bytes, ampk_rt_stream stream)
{
    uint32_t word = 0;
    (void)stream;
    CHECK(bytes == 2 || bytes == 4);
    memcpy(memory, host_memory, bytes);
    memcpy(&word, host_memory, bytes);
    if (bytes == 2) word <<= 16;
    bool above = word == 0x7c000000 || word == 0x7f800000;
    bool below = word == 0xfc000000 || word == 0xff800000;
    infinite = above - below;
}

/* The result's first number, and another one behind it. */
static void convolve(float *result, int engine)
{
    result[0] = stub.accumulates ? result[0] + 2 : 1;
    result[1] = stub.overflows ? INFINITY : 0;
    if (infinite > 0) result[0] = INFINITY;
    if (infinite < 0) result[0] = stub.swallows >> engine & 1 ? 0 : -INFINITY;
}

/* ---- in place of the libraries ---- */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = (cudnnHandle_t)&stub;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    (void)handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    (void)handle, (void)stream;
    return CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion(void)
{
    return 91900;
}

size_t cudnnGetCudartVersion(void)
{
    return CUDART_VERSION - (stub.older_cuda ? 1000 : 0);
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    (void)status;
    return "no";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    (void)status;
    return "no";
}

/* ---- in place of cudnn_plan.c ---- */

const cudnnBackendHeurMode_t ampk_cudnn_modes[AMPK_CUDNN_MODES] = {
    CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK};

int ampk_cudnn_candidates(const struct ampk_cudnn_device *device, const struct ampk_tc_problem *p,
                          cudnnBackendHeurMode_t mode, struct ampk_cudnn_choice *choices, int count,
                          int most, char *why, size_t why_size)
{
    (void)device, (void)most;
    CHECK(!ampk_tc_is_wide(p));
    if (mode == CUDNN_HEUR_MODE_B) return count;
    snprintf(why, why_size, "cuDNN has none");
    for (int i = 0; i < ENGINES; i++) {
        bool fallback = stub.last_resort && i == 0;
        if (stub.cudnn[i] && fallback == (mode == CUDNN_HEUR_MODE_FALLBACK))
            choices[count++] =
                (struct ampk_cudnn_choice){.engine = i,
                                           .knobs = stub.settings[0] > 0,
                                           .tensor_cores = stub.tensor_cores && !fallback};
    }
    return count;
}

int ampk_cudnn_neighbours(const struct ampk_cudnn_device *device, const struct ampk_tc_problem *p,
                          const struct ampk_cudnn_choice *from, struct ampk_cudnn_choice *choices,
                          int count, int most)
{
    (void)device, (void)p;
    CHECK_INT(from->knobs, stub.settings[0] > 0);
    for (int step = -1; step <= 1 && from->knobs; step += 2) {
        struct ampk_cudnn_choice changed = *from;
        bool known = false;
        changed.knob[0].value += step;
        for (int i = 0; i < count; i++)
            known |= choices[i].engine == from->engine &&
                     choices[i].knob[0].value == changed.knob[0].value;
        bool possible = changed.knob[0].value >= 0 && changed.knob[0].value < SETTINGS;
        if (possible && !known && count < most) choices[count++] = changed;
    }
    return count;
}

void ampk_cudnn_choice_write(const struct ampk_cudnn_choice *choice, char *text, size_t size)
{
    snprintf(text, size, "%d=%d", (int)choice->engine, (int)choice->knob[0].value);
}

bool ampk_cudnn_choice_read(const char *text, struct ampk_cudnn_choice *choice)
{
    int engine, setting;
    if (sscanf(text, "%d=%d", &engine, &setting) != 2) return false;
    *choice = (struct ampk_cudnn_choice){.engine = engine};
    choice->knob[0].value = setting;
    return true;
}

struct ampk_cudnn_plan *ampk_cudnn_plan_create(const struct ampk_cudnn_device *device,
                                               const struct ampk_tc_problem *p,
                                               const struct ampk_cudnn_choice *choice,
                                               size_t workspace_limit, char *why, size_t why_size)
{
    (void)device;
    size_t workspace = stub.workspace + stub.more * (size_t)choice->engine;
    float setting = stub.settings[0] > 0 ? stub.settings[choice->knob[0].value] : 1;
    bool refused = stub.cudnn[choice->engine] <= 0 || setting <= 0 || workspace > workspace_limit;
    if (refused) snprintf(why, why_size, "engine %d refuses", (int)choice->engine);
    struct ampk_cudnn_plan *plan = refused ? NULL : calloc(1, sizeof *plan);
    if (!plan) return NULL;
    live++;
    plan->engine = choice->engine + ENGINES * choice->knob[0].value;
    plan->tensor_cores = stub.tensor_cores;
    plan->pass = p->pass;
    plan->workspace = workspace;
    return plan;
}

struct ampk_cudnn_plan *ampk_cudnn_plan_expected(const struct ampk_cudnn_device *device,
                                                 const struct ampk_tc_problem *p,
                                                 const struct ampk_cudnn_terms *terms,
                                                 struct ampk_cudnn_choice *chosen, char *why,
                                                 size_t why_size)
{
    CHECK(!ampk_tc_is_wide(p));
    for (int i = 0; i < ENGINES; i++) {
        if (!stub.cudnn[i]) continue;
        *chosen = (struct ampk_cudnn_choice){.engine = i};
        struct ampk_cudnn_plan *plan =
            ampk_cudnn_plan_create(device, p, chosen, terms->workspace_limit, why, why_size);
        if (plan && terms->accepts(terms->by, chosen, plan, why, why_size)) return plan;
        ampk_cudnn_plan_destroy(plan);
    }
    return NULL;
}

void ampk_cudnn_plan_destroy(struct ampk_cudnn_plan *plan)
{
    if (plan) live--;
    free(plan);
}

bool ampk_cudnn_plan_run(const struct ampk_cudnn_device *device, const struct ampk_cudnn_plan *plan,
                         const void *first, const void *second, void *result, void *workspace,
                         char *why, size_t why_size)
{
    (void)device, (void)first, (void)second, (void)workspace;
    int engine = (int)plan->engine % ENGINES, setting = (int)plan->engine / ENGINES;
    bool faults = stub.faults && engine == stub.faults && setting >= stub.fault_setting;
    snprintf(why, why_size, "a run of engine %d is refused", engine);
    if (!can_start(faults, stub.stuck & 1u << engine)) return false;
    if (result) convolve(result, engine);
    if (result && stub.wrong_from && setting >= stub.wrong_from) *(float *)result *= 1.5f;
    if (result && stub.wrong & 1u << engine) *(float *)result *= 1 + (stub.off > 0 ? stub.off : 1);
    if (result && stub.restless & 1u << engine) *(float *)result += (float)runs * 0x1p-20f;
    float ms = stub.cudnn[engine];
    return pass_time(stub.start[engine], stub.settings[0] > 0 ? ms * stub.settings[setting] : ms);
}

/* ---- in place of gemm_cublaslt.c ---- */

struct ampk_gemm {
    int unused;
};

struct ampk_gemm *ampk_gemm_create(const struct ampk_tc_problem *p, char *why, size_t why_size)
{
    struct ampk_tc_matrix m;
    snprintf(why, why_size, "not a product of matrices");
    if (!ampk_tc_is_matrix(p, &m)) return NULL;
    live++;
    return calloc(1, sizeof(struct ampk_gemm));
}

void ampk_gemm_destroy(struct ampk_gemm *gemm)
{
    if (gemm) live--;
    free(gemm);
}

int ampk_gemm_candidates(cublasLtHandle_t handle, const struct ampk_gemm *gemm,
                         size_t workspace_limit, cublasLtMatmulAlgo_t *algorithms, int most)
{
    (void)handle, (void)gemm, (void)workspace_limit;
    int count = 0;
    for (int i = 0; i < ENGINES; i++)
        if (stub.gemm[i] && count < most) algorithms[count++].data[0] = (uint64_t)i;
    return count;
}

size_t ampk_gemm_workspace(cublasLtHandle_t handle, const struct ampk_gemm *gemm,
                           const cublasLtMatmulAlgo_t *algorithm, size_t workspace_limit)
{
    (void)handle, (void)gemm, (void)workspace_limit;
    return stub.gemm[algorithm->data[0]] > 0 ? stub.workspace : SIZE_MAX;
}

void ampk_gemm_write(const cublasLtMatmulAlgo_t *algorithm, char text[AMPK_GEMM_TEXT])
{
    snprintf(text, AMPK_GEMM_TEXT, "%d", (int)algorithm->data[0]);
}

bool ampk_gemm_read(const char *text, cublasLtMatmulAlgo_t *algorithm)
{
    memset(algorithm, 0, sizeof *algorithm);
    algorithm->data[0] = (uint64_t)atoi(text);
    return true;
}

bool ampk_gemm_run(cublasLtHandle_t handle, const struct ampk_gemm *gemm,
                   const cublasLtMatmulAlgo_t *algorithm, const void *first, const void *second,
                   void *result, void *workspace, size_t workspace_bytes, ampk_rt_stream stream,
                   char *why, size_t why_size)
{
    (void)handle, (void)gemm, (void)first, (void)second, (void)workspace, (void)workspace_bytes;
    int i = (int)algorithm->data[0];
    snprintf(why, why_size, "a run of algorithm %d is refused", i);
    (void)stream;
    bool starts = can_start(stub.gemm_faults && stub.gemm_faults == i, stub.stuck_gemms & 1u << i);
    if (starts && result) *(float *)result = stub.wrong_gemms & 1u << i ? 2 : 1;
    if (starts && result && infinite) *(float *)result = (float)infinite * INFINITY;
    return starts && pass_time(0, stub.gemm[i]);
}

/* ---- what tests do with it ---- */

static char cache[64];

static void begin(void)
{
    strcpy(cache, "/tmp/plans-XXXXXX");
    int fd = mkstemp(cache);
    REQUIRE(fd >= 0);
    close(fd);
    stub = (struct stub){.tensor_cores = true, .workspace = 1000};
    live = allocated = infinite = 0;
    host = device = 0;
}

static void end(void)
{
    static const char *const ends[] = {"", ".lock", ".trying.0"};
    char path[80];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", cache, ends[i]);
        unlink(path);
    }
    CHECK_INT(live, 0);
}

static struct ampk_tc *open_tc(void)
{
    char err[200];
    struct ampk_rt_device gpu = {.name = "A GPU", .compute_capability = 90};
    struct ampk_tc_settings settings = {.workspace_limit = stub.limit ? stub.limit : 4 << 20,
                                        .cache = cache,
                                        .search = stub.search,
                                        .untimed = stub.untimed};
    struct ampk_tc *tc = ampk_tc_create(&gpu, &settings, err, sizeof err);
    REQUIRE(tc != NULL);
    return tc;
}

/* window 1: also a product of matrices */
static struct ampk_tc_problem problem(enum ampk_tc_pass pass, int window, enum ampk_dtype result)
{
    struct ampk_conv_shape s = {
        4, 8, 9, 9, 16, window, window, 1, 0, 1, AMPK_COMPUTE_FP16, false, false, false};
    return ampk_conv_problem(&s, pass, result, false);
}

static struct ampk_tc_problem forward(int window, enum ampk_dtype result)
{
    return problem(AMPK_TC_FORWARD, window, result);
}

/* Plans a problem with a new context. ms < 0: there must be no plan. Returns how many runs were
 * timed. */
static int check_choice(struct ampk_tc_problem p, float ms, const char *note)
{
    char why[200] = "";
    struct ampk_tc *tc = open_tc();
    runs = 0;
    struct ampk_tc_plan *plan = ampk_tc_plan_create(tc, &p, NULL, why, sizeof why);
    int timed = runs;
    CHECK((plan != NULL) == (ms >= 0));
    if (plan) {
        struct ampk_tc_plan_info info = ampk_tc_plan_info(plan);
        CHECK_NEAR(info.ms, ms, 1e-4);
        CHECK_INT(info.workspace, stub.workspace);
        CHECK((info.no_tensor_cores != NULL) == (note != NULL));
        if (note && info.no_tensor_cores) CHECK_STR(info.no_tensor_cores, note);
        CHECK(ampk_tc_plan_create(tc, &p, NULL, why, sizeof why) == plan); /* kept */
        ampk_tc_run(tc, plan, NULL, NULL, NULL, NULL, NULL);
        CHECK_INT(runs, timed + 1);
    } else {
        CHECK(strlen(why) > 0);
    }
    ampk_tc_destroy(tc);
    return timed;
}

/* Runs it as a program of its own. Returns how that ended, as wait does, and what it said. */
static int hear(void (*program)(void), char said[4000])
{
    int ends[2], status = 0;
    REQUIRE(pipe(ends) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        program();
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n = 1; n > 0 && length<3999; length += n> 0 ? (size_t)n : 0)
        n = read(ends[0], said + length, 3999 - length);
    said[length] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

/* A program that a fault ends, with these words. */
__attribute__((unused)) static void check_fault(void (*program)(void), const char *name,
                                                const char *key)
{
    char said[4000];
    int status = hear(program, said);
    const char *named = strstr(said, name), *keyed = strstr(said, key);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    if (!named || !keyed || !strstr(said, "left out from the next start on"))
        TEST_FAIL("not said: %s, %s: %s", name, key, said);
}

/* The second engine is the fastest as it is named, 2 ms, and by its fourth setting 1.25. */
__attribute__((unused)) static void begin_search(void)
{
    static const float settings[SETTINGS] = {1, .875f, .75f, .625f, .6875f, 0, .0625f};
    begin();
    stub.cudnn[1] = 2.5f, stub.cudnn[2] = 2;
    memcpy(stub.settings, settings, sizeof settings);
    stub.search = true;
}

/* Which of cuDNN's engines computes it, with a new context; -1: none, and why. */
static int engine_of(struct ampk_tc_problem p, char why[200])
{
    struct ampk_tc *tc = open_tc();
    runs = timings = 0;
    why[0] = 0;
    struct ampk_tc_plan *plan = ampk_tc_plan_create(tc, &p, NULL, why, 200);
    int engine = !plan ? -1 : plan->engine.cudnn ? (int)plan->engine.cudnn->engine : ENGINES;
    ampk_tc_destroy(tc);
    return engine;
}

__attribute__((unused)) static void check_engine(struct ampk_tc_problem p, int engine)
{
    char why[200];
    CHECK_INT(engine_of(p, why), engine);
}

#endif
