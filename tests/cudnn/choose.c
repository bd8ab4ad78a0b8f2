/* Which plan is chosen (tensor_core_cuda.c), with clocks and libraries in place of the real ones:
 * every engine has a time here, and a plan runs that long when the device comes to it. What is
 * given to another stream takes a time of its own there, and the two do not wait for each other. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/conv_layout.h"
#include "kernels/cuda/cudnn_plan.h"
#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/plan_cache.h"
#include "kernels/cuda/tensor_core_cuda.h"
#include "tests/harness.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENGINES = 16, SETTINGS = 8 };

/* What there is; engine i is cuDNN's choice with engine number i. */
static struct scene {
    float cudnn[ENGINES], gemm[ENGINES]; /* milliseconds; 0: no such engine, below 0: it refuses */
    float start[ENGINES];                /* what the host takes to start a run of cuDNN's */
    bool tensor_cores, no_memory, untimed, search;
    bool last_resort; /* the first engine is one, without Tensor Cores */
    size_t workspace; /* of every engine */
    size_t more;      /* of cuDNN's, times the engine's number */
    size_t limit;     /* of workspace, by the device's memory; 0: 4 MiB */
    size_t largest;   /* piece of memory that there is; 0: any */
    float beside;     /* a run takes so many times as long on another stream; below 0: it fails */
    int disturbed;    /* every so many runs one takes thrice as long; 0: none */
    float summed[ENGINES]; /* as cudnn, of problems with sums */
    size_t for_sums;       /* workspace that engines with sums take more */
    float kernel;          /* that takes sums of the result */
    /* What is wrong with sums, relatively: the last channel's first one and the first channel's
     * second one, by the result beside them; and that result. */
    float first_off, second_off, result_off;
    bool adds; /* to sums that are there */
    /* The device does in this engine's runs, from this setting on, in this algorithm's, or in our
     * kernel that takes sums, in what is beside, or in the run of this number; 0: in none. */
    int faults, fault_setting, gemm_faults, fault_run;
    bool kernel_faults, side_faults;
    bool fault_refuses, dead_refuses; /* the run that faults is refused, those after it */
    unsigned stuck, stuck_gemms;      /* bits: of engines whose plans refuse to run */
    /* An engine's settings, by 1 apart: a run takes so many times as long; 0: refused. Without a
     * first one there are none. */
    float settings[SETTINGS];
    bool older_cuda; /* is what cuDNN is made for */
    int wrong_from;  /* these and later settings give other results; 0: none does */
} scene;

/* Clocks: the host's, and when the device has done what a stream was given. */
static float host, device[2];
static int runs, live, allocated; /* plans run; descriptors and memory: not freed, ever taken */
static int timings;
static bool faulted;
static const ampk_rt_stream side = (ampk_rt_stream)&device[1]; /* the other one is NULL */

/* The device works for so long, on what the stream was given before first. */
static void work(ampk_rt_stream stream, float ms)
{
    float *clock = &device[stream == side];
    *clock = (*clock > host ? *clock : host) + ms;
}

/* ---- in place of the runtime ---- */

void *ampk_rt_alloc(size_t bytes)
{
    if (scene.no_memory || (scene.largest && bytes > scene.largest)) return NULL;
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
    work(stream, 0);
    *(float *)event = device[stream == side];
}

void ampk_rt_stream_after(ampk_rt_stream stream, ampk_rt_event event)
{
    float *clock = &device[stream == side];
    if (*clock < *(float *)event) *clock = *(float *)event;
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
    (void)memory, (void)bytes;
    work(stream, 100);
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
    (void)stream, (void)data, (void)dtype, (void)n, (void)mean;
}

/* Of what convolve leaves. */
void ampk_conv_compare(ampk_rt_stream stream, const void *a, const void *b, enum ampk_dtype dtype,
                       size_t bytes, uint32_t words[2])
{
    (void)stream, (void)dtype;
    const float found[2] = {fabsf(*(const float *)a - *(const float *)b), *(const float *)a};
    CHECK(bytes >= sizeof *found);
    memcpy(words, found, sizeof found);
}

/* Whether a library does not refuse a run. */
static bool can_start(ampk_rt_stream stream, bool faults, bool stuck)
{
    bool dead = faulted;
    runs++;
    faulted |= faults || (scene.side_faults && stream == side) || runs == scene.fault_run;
    return !stuck && !(dead && scene.dead_refuses) && !(faulted && scene.fault_refuses);
}

static bool pass_time(ampk_rt_stream stream, float start, float ms)
{
    host += start;
    if (stream == side) ms *= scene.beside;
    if (ms <= 0) return false;
    work(stream, scene.disturbed && runs % scene.disturbed == 0 ? 3 * ms : ms);
    return true;
}

void ampk_rt_copy_in(void *memory, const void *host_memory, size_t bytes, ampk_rt_stream stream)
{
    (void)stream;
    memcpy(memory, host_memory, bytes);
}

/* ---- in place of the convolution and batch-norm's kernels ----
 * Channel c of a result has the mean (c + 1) * result[0] and the variance 2; so have the sums that
 * cuDNN leaves of y. Of g they are the sums of as many values as there are, of such a mean, and of
 * 1/4 for g * (y - mean), which the activation does not change.
 */

enum { CHANNELS = 16, FILTERS = 8, VALUES = 4 * 9 * 9 }; /* of a data gradient */

static float first_sum(bool gradient, int c, float result)
{
    return (float)(c + 1) * result * (gradient ? VALUES : 1);
}

static float second_sum(bool gradient, float result)
{
    return gradient ? .25f * result * VALUES : 2;
}

static void convolve(bool gradient, float *result, float *sums)
{
    float right = sums ? 1 + scene.result_off : 1;
    if (result) *result = right;
    for (int c = 0; sums && c < CHANNELS; c++) {
        float first = first_sum(gradient, c, right), second = second_sum(gradient, right);
        if (c == CHANNELS - 1) first += first * scene.first_off;
        if (c == 0) second += second * scene.second_off;
        sums[c] = first + (scene.adds ? sums[c] : 0);
        sums[CHANNELS + c] = second + (scene.adds ? sums[CHANNELS + c] : 0);
    }
}

/* Of the bench: no rounding decides on which side of the activation's turn a y is. */
void ampk_cuda_list_parameters(struct ampk_context *ctx, const struct ampk_batchnorm *bn,
                               const struct ampk_tensor *y, float *to)
{
    CHECK_INT(y->c, CHANNELS);
    work(ctx->stream, .0625f);
    for (int c = 0; c < CHANNELS; c++) {
        float factor = bn->scale[c] / sqrtf(bn->variance[c] + 1e-5f);
        float turn = bn->mean[c] - bn->bias[c] / factor;
        CHECK(turn > .5f && turn < .75f);
        CHECK_NEAR(fmod((double)turn * 0x1p11, 1), .5, .01); /* FP16 numbers are whole there */
        CHECK(fabsf(bn->mean[c] - .5f) <= .5f);              /* y is within 1 of it */
        to[c] = bn->mean[c];
    }
}

void ampk_cuda_bn_act_backward(struct ampk_context *ctx, const struct ampk_tensor *y,
                               const struct ampk_tensor *out, const struct ampk_batchnorm *bn,
                               enum ampk_activation activation, const struct ampk_tensor *d,
                               const struct ampk_tensor *dy, float *dscale, float *dbias,
                               uint32_t *dy_amax, uint32_t *db_amax)
{
    CHECK(y->data != d->data && d->data == dy->data && !out && !dy_amax && !db_amax);
    CHECK(activation == AMPK_LEAKY || activation == AMPK_LINEAR);
    work(ctx->stream, scene.kernel + .125f);
    for (int c = 0; c < CHANNELS; c++) {
        dbias[c] = first_sum(true, c, *(float *)d->data);
        dscale[c] = second_sum(true, *(float *)d->data) / sqrtf(bn->variance[c] + 1e-5f);
    }
}

void ampk_cuda_bn_backward_summed(struct ampk_context *ctx, const struct ampk_tensor *y,
                                  const struct ampk_batchnorm *bn, const struct ampk_tensor *g,
                                  const float *sums, const struct ampk_tensor *dy, float *dscale,
                                  float *dbias, uint32_t *dy_amax, uint32_t *db_amax)
{
    (void)bn, (void)sums, (void)dscale, (void)dbias;
    CHECK(y->data != g->data && g->data == dy->data && !dy_amax && !db_amax);
    work(ctx->stream, .1875f);
}

void ampk_cuda_bn_statistics(struct ampk_context *ctx, const struct ampk_tensor *y,
                             const struct ampk_bn_statistics *s)
{
    CHECK_INT(y->c, CHANNELS);
    faulted |= scene.kernel_faults;
    work(ctx->stream, scene.kernel);
    for (int c = 0; c < CHANNELS; c++) {
        s->mean[c] = (float)(c + 1) * *(float *)y->data;
        s->variance[c] = 2;
    }
}

void ampk_cuda_summed_statistics(struct ampk_context *ctx, const float *sums,
                                 const struct ampk_tensor *y, const struct ampk_bn_statistics *s)
{
    CHECK_INT(y->c, CHANNELS);
    work(ctx->stream, .125f);
    memcpy(s->mean, sums, CHANNELS * sizeof *sums);
    memcpy(s->variance, sums + CHANNELS, CHANNELS * sizeof *sums);
}

/* ---- in place of the libraries ---- */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = (cudnnHandle_t)&scene;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    (void)handle;
    return CUDNN_STATUS_SUCCESS;
}

static ampk_rt_stream of_cudnn;

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    (void)handle;
    of_cudnn = (ampk_rt_stream)stream;
    return CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion(void)
{
    return 91900;
}

size_t cudnnGetCudartVersion(void)
{
    return CUDART_VERSION - (scene.older_cuda ? 1000 : 0);
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
    const float *times = p->sums ? scene.summed : scene.cudnn;
    if (mode == CUDNN_HEUR_MODE_B) return count;
    snprintf(why, why_size, "cuDNN has none");
    for (int i = 0; i < ENGINES; i++) {
        bool fallback = scene.last_resort && i == 0;
        if (times[i] && fallback == (mode == CUDNN_HEUR_MODE_FALLBACK))
            choices[count++] =
                (struct ampk_cudnn_choice){.engine = i,
                                           .knobs = scene.settings[0] > 0,
                                           .tensor_cores = scene.tensor_cores && !fallback};
    }
    return count;
}

int ampk_cudnn_neighbours(const struct ampk_cudnn_device *device, const struct ampk_tc_problem *p,
                          const struct ampk_cudnn_choice *from, struct ampk_cudnn_choice *choices,
                          int count, int most)
{
    (void)device, (void)p;
    CHECK_INT(from->knobs, scene.settings[0] > 0);
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
    const float *times = p->sums ? scene.summed : scene.cudnn;
    size_t workspace =
        scene.workspace + (p->sums ? scene.for_sums : 0) + scene.more * (size_t)choice->engine;
    float setting = scene.settings[0] > 0 ? scene.settings[choice->knob[0].value] : 1;
    bool refused = times[choice->engine] <= 0 || setting <= 0 || workspace > workspace_limit;
    if (refused) snprintf(why, why_size, "engine %d refuses", (int)choice->engine);
    struct ampk_cudnn_plan *plan = refused ? NULL : calloc(1, sizeof *plan);
    if (!plan) return NULL;
    live++;
    plan->engine = choice->engine + ENGINES * choice->knob[0].value;
    plan->tensor_cores = scene.tensor_cores;
    plan->pass = p->pass;
    plan->channels = ampk_tc_summed_channels(p);
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
    const float *times = p->sums ? scene.summed : scene.cudnn;
    for (int i = 0; i < ENGINES; i++) {
        if (!times[i]) continue;
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
                         const void *first, const void *second, void *result,
                         const struct ampk_tc_sums *sums, void *workspace, char *why,
                         size_t why_size)
{
    (void)device, (void)first, (void)second, (void)workspace;
    int engine = (int)plan->engine % ENGINES, setting = (int)plan->engine / ENGINES;
    bool faults = scene.faults && engine == scene.faults && setting >= scene.fault_setting;
    snprintf(why, why_size, "a run of engine %d is refused", engine);
    if (!can_start(of_cudnn, faults, scene.stuck & 1u << engine)) return false;
    convolve(plan->pass == AMPK_TC_DATA, result, plan->channels && sums ? sums->sums : NULL);
    if (result && scene.wrong_from && setting >= scene.wrong_from) *(float *)result *= 1.5f;
    float ms = plan->channels ? scene.summed[engine] : scene.cudnn[engine];
    return pass_time(of_cudnn, scene.start[engine],
                     scene.settings[0] > 0 ? ms * scene.settings[setting] : ms);
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
        if (scene.gemm[i] && count < most) algorithms[count++].data[0] = (uint64_t)i;
    return count;
}

size_t ampk_gemm_workspace(cublasLtHandle_t handle, const struct ampk_gemm *gemm,
                           const cublasLtMatmulAlgo_t *algorithm)
{
    (void)handle, (void)gemm;
    return scene.gemm[algorithm->data[0]] > 0 ? scene.workspace : SIZE_MAX;
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
    (void)handle, (void)gemm, (void)first, (void)second, (void)result, (void)workspace;
    (void)workspace_bytes;
    int i = (int)algorithm->data[0];
    snprintf(why, why_size, "a run of algorithm %d is refused", i);
    bool starts =
        can_start(stream, scene.gemm_faults && scene.gemm_faults == i, scene.stuck_gemms & 1u << i);
    return starts && pass_time(stream, 0, scene.gemm[i]);
}

/* ---- choices ---- */

static char cache[64];

static void begin(void)
{
    strcpy(cache, "/tmp/plans-XXXXXX");
    int fd = mkstemp(cache);
    REQUIRE(fd >= 0);
    close(fd);
    scene = (struct scene){.tensor_cores = true, .workspace = 1000};
    live = allocated = 0;
}

static void end(void)
{
    char lock[80];
    snprintf(lock, sizeof lock, "%s.lock", cache);
    unlink(cache);
    unlink(lock);
    CHECK_INT(live, 0);
}

static struct ampk_tc *open_tc(void)
{
    char err[200];
    struct ampk_rt_device gpu = {.name = "A GPU", .compute_capability = 90};
    struct ampk_tc_settings settings = {.workspace_limit = scene.limit ? scene.limit : 4 << 20,
                                        .cache = cache,
                                        .search = scene.search,
                                        .untimed = scene.untimed};
    struct ampk_tc *tc = ampk_tc_create(&gpu, &settings, err, sizeof err);
    REQUIRE(tc != NULL);
    return tc;
}

/* window 1: also a product of matrices */
static struct ampk_tc_problem problem(enum ampk_tc_pass pass, int window, enum ampk_dtype result)
{
    struct ampk_conv_shape s = {4, 8, 9, 9, 16, window, window, 1, 0, 1, AMPK_COMPUTE_FP16, false};
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
        CHECK_INT(info.workspace, scene.workspace + (p.sums ? scene.for_sums : 0));
        CHECK((info.no_tensor_cores != NULL) == (note != NULL));
        if (note && info.no_tensor_cores) CHECK_STR(info.no_tensor_cores, note);
        CHECK(ampk_tc_plan_create(tc, &p, NULL, why, sizeof why) == plan); /* kept */
        ampk_tc_run(tc, plan, NULL, NULL, NULL, NULL, NULL, NULL);
        CHECK_INT(runs, timed + 1);
    } else {
        CHECK(strlen(why) > 0);
    }
    ampk_tc_destroy(tc);
    return timed;
}

AMP_TEST(the_fastest_is_chosen_once)
{
    begin();
    scene.cudnn[1] = 3, scene.cudnn[2] = -1, scene.cudnn[5] = 2, scene.cudnn[6] = 9;
    scene.gemm[0] = 1, scene.gemm[1] = 2.1f; /* not for 3x3 */
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 2, NULL), 0); /* from the file */
    CHECK(check_choice(forward(1, AMPK_FP16), 1, NULL) > 0);
    CHECK_INT(check_choice(forward(1, AMPK_FP16), 1, NULL), 0);
    end();
}

AMP_TEST(a_bad_guess_of_the_library_costs_nothing)
{
    begin();
    for (int i = 0; i < ENGINES; i++)
        scene.cudnn[i] = 3 + .1f * (float)i;
    scene.cudnn[ENGINES - 1] = 2;
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    end();
}

AMP_TEST(plain_loops_are_timed_only_where_there_is_nothing_else)
{
    begin();
    scene.cudnn[0] = 1, scene.last_resort = true;
    CHECK(check_choice(forward(3, AMPK_FP16), 1, NULL) > 0);
    end();
    begin();
    scene.cudnn[0] = 1, scene.cudnn[1] = 2, scene.last_resort = true;
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    end();
}

AMP_TEST(what_no_library_computes_takes_no_memory_to_time)
{
    begin();
    scene.cudnn[0] = 1;
    struct ampk_tc *tc = open_tc();
    struct ampk_tc_problem p = problem(AMPK_TC_WEIGHTS, 3, AMPK_FP32);
    char why[200];
    int had = live;
    CHECK(ampk_tc_plan_create(tc, &p, NULL, why, sizeof why) == NULL);
    CHECK_INT(allocated, 0);
    CHECK_INT(live, had);
    ampk_tc_destroy(tc);
    end();
}

/* Where nothing is compiled for it at run time, FP32 has few engines, which want much workspace. */
AMP_TEST(fp32_may_have_more_workspace)
{
    begin();
    scene.cudnn[1] = 1, scene.workspace = 500 << 20, scene.limit = (size_t)2 << 30;
    check_choice(forward(3, AMPK_FP16), -1, NULL);
    struct ampk_tc_problem p = forward(3, AMPK_FP32);
    p.compute = AMPK_COMPUTE_FP32;
    check_choice(p, 1, NULL);
    end();
}

/* The second engine is the fastest as it is named, 2 ms, and by its fourth setting 1.25. */
static void begin_search(void)
{
    static const float settings[SETTINGS] = {1, .875f, .75f, .625f, .6875f, 0, .0625f};
    begin();
    scene.cudnn[1] = 2.5f, scene.cudnn[2] = 2;
    memcpy(scene.settings, settings, sizeof settings);
    scene.search = true;
}

AMP_TEST(a_search_goes_on_while_settings_are_faster)
{
    begin_search();
    CHECK(check_choice(forward(3, AMPK_FP16), 1.25f, NULL) > 0);
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 1.25f, NULL), 0); /* from the file */
    scene.search = false;                                           /* has plans of its own */
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 2, NULL), 0);
    end();
}

AMP_TEST(a_search_does_not_begin_where_cublaslt_is_much_faster)
{
    begin_search();
    scene.gemm[0] = 1.5f;
    CHECK(check_choice(forward(1, AMPK_FP16), 1.5f, NULL) > 0);
    end();
    begin_search();
    scene.gemm[0] = 1.6f;
    CHECK(check_choice(forward(1, AMPK_FP16), 1.25f, NULL) > 0);
    end();
}

AMP_TEST(settings_that_give_other_results_are_not_used)
{
    begin_search();
    scene.wrong_from = 3;
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    scene.wrong_from = 0;
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 2, NULL), 0); /* from the file */
    end();
}

AMP_TEST(without_memory_for_two_results_there_is_no_search)
{
    begin_search();
    struct ampk_tc_problem p = forward(3, AMPK_FP16);
    scene.limit = 256; /* of workspace: less than the second result */
    scene.workspace = 0;
    scene.largest = (size_t)p.n * 7 * 7 * p.k * 2;
    CHECK(check_choice(p, 2, NULL) > 0);
    end();
}

AMP_TEST(what_the_host_takes_to_start_a_run_does_not_count)
{
    begin();
    scene.cudnn[1] = 2, scene.cudnn[2] = 1, scene.start[2] = 5;
    CHECK(check_choice(forward(3, AMPK_FP16), 1, NULL) > 0);
    end();
}

AMP_TEST(without_timing_the_library_is_believed)
{
    begin();
    scene.cudnn[4] = 3, scene.cudnn[5] = 2, scene.untimed = true;
    timings = 0;
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 0, NULL), 1); /* to see that it can */
    CHECK_INT(timings, 0);
    scene.untimed = false;
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    scene.untimed = true; /* what the file has is taken */
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 2, NULL), 0);
    end();
}

AMP_TEST(a_kept_plan_that_no_longer_works_is_timed_again)
{
    begin();
    scene.cudnn[1] = 3, scene.cudnn[5] = 2;
    check_choice(forward(3, AMPK_FP16), 2, NULL);
    scene.cudnn[5] = -1;
    CHECK(check_choice(forward(3, AMPK_FP16), 3, NULL) > 0);
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 3, NULL), 0);
    end();
}

AMP_TEST(without_memory_the_library_is_believed)
{
    begin();
    scene.cudnn[4] = 3, scene.cudnn[5] = 2, scene.no_memory = true;
    CHECK_INT(check_choice(forward(3, AMPK_FP16), 0, NULL), 0);
    scene.no_memory = false; /* what was not timed is not kept in the file */
    CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
    end();
}

AMP_TEST(fp32_results_are_inner_products_only)
{
    begin();
    scene.cudnn[0] = 1, scene.gemm[3] = 2;
    check_choice(forward(1, AMPK_FP32), 2, NULL);
    check_choice(forward(3, AMPK_FP32), -1, NULL);
    end();
}

AMP_TEST(nothing_that_works_is_said)
{
    begin();
    scene.cudnn[0] = -1;
    check_choice(forward(3, AMPK_FP16), -1, NULL);
    scene.cudnn[0] = 1, scene.workspace = 8 << 20;
    check_choice(forward(3, AMPK_FP16), -1, NULL);
    end();
}

AMP_TEST(why_there_are_no_tensor_cores)
{
    begin();
    scene.cudnn[0] = 1, scene.tensor_cores = false;
    check_choice(forward(3, AMPK_FP16), 1, "cuDNN names no engine with them, or they are slower");
    struct ampk_tc_problem p = forward(3, AMPK_FP32);
    p.compute = AMPK_COMPUTE_FP32;
    check_choice(p, 1, "FP32 products are not for Tensor Cores");
    end();
}

/* ---- faults of the device ---- */

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
static void check_fault(void (*program)(void), const char *name, const char *key)
{
    char said[4000];
    int status = hear(program, said);
    const char *named = strstr(said, name), *keyed = strstr(said, key);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    if (!named || !keyed || !strstr(said, "left out from the next start on"))
        TEST_FAIL("not said: %s, %s: %s", name, key, said);
}

static void plan_3x3(void)
{
    check_choice(forward(3, AMPK_FP16), 0, NULL);
}

static void plan_1x1(void)
{
    check_choice(forward(1, AMPK_FP16), 0, NULL);
}

/* Which of cuDNN's engines computes it, with a new context; -1: none, and why. */
static int engine_of(struct ampk_tc_problem p, char why[200])
{
    struct ampk_tc *tc = open_tc();
    runs = timings = 0;
    why[0] = 0;
    struct ampk_tc_plan *plan = ampk_tc_plan_create(tc, &p, NULL, why, 200);
    int engine = !plan ? -1 : plan->way.cudnn ? (int)plan->way.cudnn->engine : ENGINES;
    ampk_tc_destroy(tc);
    return engine;
}

static void check_engine(struct ampk_tc_problem p, int engine)
{
    char why[200];
    CHECK_INT(engine_of(p, why), engine);
}

static const char KEY_3X3[] = "forward fp16 to fp16; 4x8x9x9 by 16 of 3x3 stride 1 pad 0 groups 1";

AMP_TEST(an_engine_that_makes_the_device_fault_is_left_out_from_the_next_start_on)
{
    for (int i = 0; i < 2; i++) {
        char key[200];
        begin();
        scene.cudnn[1] = 2, scene.cudnn[5] = 1, scene.cudnn[6] = 3, scene.faults = 5;
        scene.dead_refuses = i > 0; /* the fault shows as a refusal of the next run */
        snprintf(key, sizeof key, "%s; cudnn 5=0)", KEY_3X3);
        check_fault(plan_3x3, "cuDNN's engine 5 failed while it was timed", key);
        CHECK(check_choice(forward(3, AMPK_FP16), 2, NULL) > 0);
        CHECK_INT(check_choice(forward(3, AMPK_FP16), 2, NULL), 0); /* from the file */
        end();
    }
}

AMP_TEST(an_algorithm_of_cublaslt_that_makes_the_device_fault_is_left_out)
{
    begin();
    scene.cudnn[1] = 2, scene.gemm[1] = 3, scene.gemm[2] = 1, scene.gemm_faults = 2;
    check_fault(plan_1x1, "cuBLASLt failed while it was timed", "; gemm 2)");
    CHECK(check_choice(forward(1, AMPK_FP16), 2, NULL) > 0);
    end();
}

AMP_TEST(settings_that_make_the_device_fault_are_left_out)
{
    begin_search();
    scene.faults = 2, scene.fault_setting = 2;
    check_fault(plan_3x3, "cuDNN's engine", "; searched; cudnn 2=2)");
    CHECK(check_choice(forward(3, AMPK_FP16), 2 * .875f, NULL) > 0);
    end();
    begin_search();
    int last = check_choice(forward(3, AMPK_FP16), 1.25f, NULL); /* compares results */
    end();
    begin_search();
    scene.fault_run = last - 1;
    check_fault(plan_3x3, "cuDNN's engine", "; searched; cudnn 2=3)");
    scene.fault_run = 0;
    CHECK(check_choice(forward(3, AMPK_FP16), 1.5f, NULL) > 0);
    end();
    begin_search();
    scene.fault_run = last; /* the named way's */
    check_fault(plan_3x3, "cuDNN's engine", "; searched; cudnn 2=0)");
    scene.fault_run = 0;
    CHECK(check_choice(forward(3, AMPK_FP16), 2.5f * .625f, NULL) > 0);
    end();
}

/* As two programs that ended by it leave them. */
static void keep_as_faulted(const int engines[2])
{
    char key[300], warning[200], err[200];
    struct ampk_plan_cache *kept = ampk_plan_cache_open(cache, warning, sizeof warning);
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof key, "A GPU, 9.0, cuDNN 91900, cuBLASLt 130000; %s; cudnn %d=0",
                 KEY_3X3, engines[i]);
        ampk_plan_cache_add(kept, key, AMPK_TC_FAULTED);
    }
    CHECK(ampk_plan_cache_save(kept, err, sizeof err));
    ampk_plan_cache_close(kept);
}

AMP_TEST(what_faulted_is_no_guess_and_not_taken_as_kept)
{
    begin();
    scene.cudnn[4] = 1, scene.cudnn[5] = 2, scene.cudnn[6] = 3, scene.faults = 4;
    keep_as_faulted((const int[]){4, 5});
    scene.untimed = true;
    check_engine(forward(3, AMPK_FP16), 6);
    scene.no_memory = true;
    check_engine(forward(3, AMPK_FP16), 6);
    end();
    begin();
    scene.cudnn[4] = 1, scene.cudnn[5] = 2, scene.cudnn[6] = 3;
    check_choice(forward(3, AMPK_FP16), 1, NULL);
    scene.faults = 4;
    keep_as_faulted((const int[]){4, 5});
    CHECK(check_choice(forward(3, AMPK_FP16), 3, NULL) > 0);
    end();
}

AMP_TEST(where_everything_faulted_nothing_is_planned)
{
    char why[200];
    begin();
    scene.cudnn[4] = 1, scene.cudnn[5] = 2, scene.faults = 4;
    keep_as_faulted((const int[]){4, 5});
    CHECK_INT(engine_of(forward(3, AMPK_FP16), why), -1);
    CHECK(strstr(why, "made this GPU fault") != NULL);
    CHECK_INT(runs, 0);
    end();
}

static void plan_twice(void)
{
    plan_3x3();
    plan_3x3();
}

AMP_TEST(libraries_that_do_not_belong_together_are_named_once)
{
    static const char words[] = "cuDNN 91900 of CUDA ";
    char said[4000];
    begin();
    scene.cudnn[0] = 1;
    hear(plan_3x3, said);
    CHECK(!strstr(said, "LD_LIBRARY_PATH"));
    scene.older_cuda = true;
    hear(plan_twice, said);
    const char *first = strstr(said, words);
    CHECK(first && !strstr(first + 1, words));
    end();
}

AMP_TEST(what_is_left_out_is_said_once)
{
    static const char words[] = "made this GPU fault in an earlier run";
    char said[4000];
    begin();
    scene.cudnn[4] = 1, scene.cudnn[5] = 2, scene.cudnn[6] = 0.5f;
    keep_as_faulted((const int[]){4, 5});
    hear(plan_3x3, said);
    const char *first = strstr(said, words);
    CHECK(first && strstr(said, "; cudnn 4=0: made") && !strstr(first + 1, words));
    end();
}

AMP_TEST(where_no_fault_can_be_kept_the_way_without_timing_is_named)
{
    char said[4000];
    begin();
    scene.cudnn[5] = 1, scene.faults = 5;
    char file[sizeof cache];
    strcpy(file, cache);
    strcpy(cache, "/dev/null/plans");
    int status = hear(plan_3x3, said);
    strcpy(cache, file);
    CHECK(WIFSIGNALED(status));
    CHECK(strstr(said, "cuDNN's engine 5 failed while it was timed") != NULL);
    CHECK(strstr(said, "AMPK_CUDA_UNTIMED=1") && !strstr(said, "next start"));
    end();
}

static void plan_on_a_dead_device(void)
{
    faulted = true;
    plan_3x3();
}

AMP_TEST(a_device_that_faulted_before_is_no_fault_of_what_is_timed)
{
    char said[4000];
    begin();
    scene.cudnn[5] = 1, scene.dead_refuses = true;
    CHECK(WIFSIGNALED(hear(plan_on_a_dead_device, said)));
    CHECK(strstr(said, "the device failed while it was timed") && !strstr(said, "next start"));
    CHECK(check_choice(forward(3, AMPK_FP16), 1, NULL) > 0);
    end();
}

/* ---- guesses ---- */

AMP_TEST(a_guess_that_refuses_to_run_gives_way_to_the_next)
{
    for (size_t more = 0; more < 2000; more += 1000) {
        begin();
        scene.cudnn[3] = 1, scene.cudnn[4] = 3, scene.cudnn[5] = 2, scene.untimed = true;
        scene.stuck = 1 << 3 | 1 << 4;
        scene.more = more;
        char why[200];
        CHECK_INT(engine_of(forward(3, AMPK_FP16), why), 5);
        CHECK_INT(runs, 3);
        CHECK_INT(timings, 0);
        end();
    }
}

/* A connected layer's, or an FP32 result: cuBLASLt's first. */
AMP_TEST(a_guess_of_cublaslt_that_refuses_to_run_gives_way)
{
    struct ampk_conv_shape s = {4, 8, 1, 1, 16, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16, false};
    struct ampk_tc_problem connected = ampk_conv_problem(&s, AMPK_TC_FORWARD, AMPK_FP16, false);
    begin();
    scene.cudnn[4] = 3, scene.gemm[1] = 1, scene.gemm[2] = 1, scene.untimed = true;
    scene.stuck_gemms = 1 << 1;
    check_engine(connected, ENGINES);
    check_engine(forward(1, AMPK_FP32), ENGINES);
    CHECK_INT(runs, 2);
    scene.stuck_gemms |= 1 << 2;
    check_engine(connected, 4);
    CHECK_INT(runs, 3);
    check_engine(forward(1, AMPK_FP32), -1);
    end();
}

AMP_TEST(where_every_guess_refuses_to_run_the_reason_is_given)
{
    char why[200];
    begin();
    scene.cudnn[3] = 1, scene.cudnn[4] = 3, scene.gemm[1] = 1;
    scene.stuck = 1 << 3 | 1 << 4, scene.stuck_gemms = 1 << 1;
    for (int i = 0; i < 2; i++) {
        scene.untimed = i > 0;
        CHECK_INT(engine_of(forward(3, AMPK_FP16), why), -1);
        CHECK_STR(why, "a run of engine 4 is refused");
        CHECK_INT(engine_of(forward(1, AMPK_FP32), why), -1);
        CHECK_STR(why, "a run of algorithm 1 is refused");
    }
    end();
}

AMP_TEST(a_guess_is_not_run_where_there_is_no_memory_for_it)
{
    begin();
    scene.cudnn[4] = 3, scene.cudnn[5] = 2, scene.untimed = true, scene.stuck = 1 << 4;
    scene.no_memory = true;
    check_engine(forward(3, AMPK_FP16), 4);
    CHECK_INT(runs, 0);
    scene.no_memory = false, scene.workspace = 2 << 20, scene.largest = 1 << 20;
    check_engine(forward(3, AMPK_FP16), 4);
    CHECK_INT(runs, 0);
    scene.largest = 2 << 20;
    check_engine(forward(3, AMPK_FP16), 5);
    end();
}

AMP_TEST(a_guess_that_makes_the_device_fault_is_left_out)
{
    for (int i = 0; i < 3; i++) {
        begin();
        scene.cudnn[4] = 1, scene.cudnn[5] = 2, scene.untimed = i < 2, scene.faults = 4;
        scene.fault_refuses = i > 0;       /* at once */
        if (i == 2) scene.largest = 10000; /* too little memory to time them */
        check_fault(plan_3x3, "cuDNN's engine 4 failed while it was tried", "; cudnn 4=0)");
        check_engine(forward(3, AMPK_FP16), 5);
        scene.untimed = false;
        check_engine(forward(3, AMPK_FP16), 5);
        end();
    }
}

/* ---- gradients beside each other ---- */

enum timed { TIMED, NOT_TIMED };

struct gradients {
    struct ampk_tc *tc;
    struct ampk_tc_plan *data, *weights;
};

/* Those of 3x3, planned with a new context. */
static struct gradients plan_gradients(void)
{
    char why[200];
    struct ampk_tc_problem data = problem(AMPK_TC_DATA, 3, AMPK_FP16);
    struct ampk_tc_problem weights = problem(AMPK_TC_WEIGHTS, 3, AMPK_FP16);
    struct gradients g = {.tc = open_tc()};
    g.data = ampk_tc_plan_create(g.tc, &data, NULL, why, sizeof why);
    g.weights = ampk_tc_plan_create(g.tc, &weights, NULL, why, sizeof why);
    REQUIRE(g.data && g.weights);
    return g;
}

static void check_answer(const struct gradients *g, bool expected, enum timed timed)
{
    runs = 0;
    CHECK_INT(ampk_tc_pays_beside(g->tc, g->data, g->weights, NULL, side), expected);
    CHECK((runs > 0) == (timed == TIMED));
}

/* With a new context, and asked again if it was timed. */
static void check_beside(bool expected, enum timed timed)
{
    int disturbed = scene.disturbed;
    scene.disturbed = 0; /* while plans are timed */
    struct gradients g = plan_gradients();
    scene.disturbed = disturbed;
    check_answer(&g, expected, timed);
    if (timed == TIMED && scene.beside > 0) check_answer(&g, expected, NOT_TIMED);
    ampk_tc_destroy(g.tc);
}

/* A scene where either gradient takes 2 ms, that of the weights so many times as long beside. */
static void begin_gradients(float beside)
{
    begin();
    scene.cudnn[1] = 3, scene.cudnn[5] = 2, scene.beside = beside;
}

/* How long the other way takes, and whether it pays: also where runs are disturbed, and as the file
 * knows it. */
struct contest_case {
    float ms;
    bool pays;
};

/* slow: an engine that takes part, and is slow to start. */
static void check_contest(const struct contest_case cases[6], int slow, void (*begin_with)(float),
                          void (*check)(bool expected, enum timed))
{
    static const int disturbed[] = {0, 5, 6}; /* the last run of either way too */
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 3; j++) {
            begin_with(cases[i].ms);
            scene.disturbed = disturbed[j];
            scene.start[slow] = 20; /* hidden */
            check(cases[i].pays, TIMED);
            check(cases[i].pays, NOT_TIMED); /* from the file */
            scene.untimed = true;
            check(cases[i].pays, NOT_TIMED);
            end();
        }
}

AMP_TEST(gradients_run_beside_each_other_where_it_is_faster)
{
    static const struct contest_case cases[] = {{1, true},      {.5f, true}, {1.9f, true},
                                                {1.96f, false}, {2, false},  {3, false}};
    check_contest(cases, 5, begin_gradients, check_beside);
}

AMP_TEST(without_timing_gradients_run_one_after_the_other)
{
    begin_gradients(1);
    scene.workspace = 2 << 20;
    scene.untimed = true;
    check_beside(false, NOT_TIMED); /* nor are the plans */
    scene.untimed = false, scene.no_memory = true;
    struct gradients guessed = plan_gradients();
    scene.no_memory = false;
    check_answer(&guessed, false, NOT_TIMED);
    ampk_tc_destroy(guessed.tc);
    check_choice(problem(AMPK_TC_DATA, 3, AMPK_FP16), 2, NULL);
    check_choice(problem(AMPK_TC_WEIGHTS, 3, AMPK_FP16), 2, NULL);
    scene.untimed = true;
    check_beside(false, NOT_TIMED); /* the plans are kept, by a program that knew no more */
    scene.untimed = false, scene.no_memory = true;
    check_beside(false, NOT_TIMED);
    scene.no_memory = false, scene.largest = 1 << 20; /* too short a workspace */
    check_beside(false, NOT_TIMED);
    scene.largest = 0, scene.beside = -1;
    check_beside(false, TIMED);
    check_beside(false, TIMED); /* what failed is not kept */
    scene.beside = 1;
    check_beside(true, TIMED);
    scene.workspace++; /* together more than a plan may have */
    check_beside(false, NOT_TIMED);
    end();
}

/* Gives the answer that the file keeps, by the end of its key, another value. */
static void keep_answer(const char *key_end, const char *value)
{
    char line[2048], *key = NULL;
    char warning[200], err[200];
    FILE *f = fopen(cache, "r");
    REQUIRE(f != NULL);
    while (!key && fgets(line, sizeof line, f))
        if (strstr(line, key_end)) key = strchr(line, '\t') + 1;
    fclose(f);
    REQUIRE(key != NULL);
    *strchr(key, '\t') = 0;
    struct ampk_plan_cache *kept = ampk_plan_cache_open(cache, warning, sizeof warning);
    CHECK_STR(warning, "");
    ampk_plan_cache_add(kept, key, value);
    CHECK(ampk_plan_cache_save(kept, err, sizeof err));
    ampk_plan_cache_close(kept);
}

static const char BESIDE[] = "; beside weights to fp16\t";

AMP_TEST(an_answer_is_kept_for_the_plans_that_it_was_timed_with)
{
    begin_gradients(1);
    check_beside(true, TIMED);
    keep_answer(BESIDE, "2 2: one stream 4, beside 3.9");
    check_beside(false, NOT_TIMED);
    static const char *const others[] = {"", "2 2", "2 2: maybe", "2 1: one stream 4, beside 3.9",
                                         "2 2.5: one stream 4, beside 3.9"};
    for (int i = 0; i < 5; i++) {
        keep_answer(BESIDE, others[i]);
        check_beside(true, TIMED);
        check_beside(true, NOT_TIMED);
    }
    scene.cudnn[5] = -1, scene.beside = 2; /* other plans now */
    check_beside(false, TIMED);
    check_beside(false, NOT_TIMED);
    end();
}

/* ---- batch-norm's sums in the epilogue ---- */

/* A forward pass, or the data gradient of a convolution with as many channels behind a leaky. */
static struct ampk_tc_problem summable(enum ampk_tc_pass pass, int window)
{
    struct ampk_conv_shape s = {4,      CHANNELS, 9, 9, FILTERS,           window,
                                window, 1,        0, 1, AMPK_COMPUTE_FP16, false};
    return pass == AMPK_TC_DATA ? ampk_conv_problem(&s, pass, AMPK_FP16, false)
                                : forward(window, AMPK_FP16);
}

static struct ampk_tc_problem with_sums_of(enum ampk_tc_pass pass, int window)
{
    struct ampk_tc_problem p = summable(pass, window);
    p.sums = true;
    if (pass == AMPK_TC_DATA) p.slope = .1f;
    return p;
}

static struct ampk_tc_problem with_sums(int window)
{
    return with_sums_of(AMPK_TC_FORWARD, window);
}

/* A scene where a pass takes 2 ms, its sums 1; with sums it is 1/8 more than `summed`. */
static void begin_sums(float summed)
{
    begin();
    scene.cudnn[1] = 3, scene.cudnn[5] = 2, scene.kernel = 1;
    scene.summed[2] = summed, scene.summed[3] = summed + 1;
}

static bool ask_about_sums(struct ampk_context *ctx, const struct ampk_tc_plan *apart,
                           const struct ampk_tc_plan *summed)
{
    return summed->problem.pass == AMPK_TC_DATA
               ? ampk_tc_pays_gradient_sums(ctx, apart, summed, AMPK_LEAKY)
               : ampk_tc_pays_sums(ctx, apart, summed);
}

/* With a new context. */
static void check_sums_of(enum ampk_tc_pass pass, bool expected, enum timed timed)
{
    char why[200];
    int disturbed = scene.disturbed;
    scene.disturbed = 0; /* while plans are timed */
    struct ampk_context ctx = {.tensor_core = open_tc()};
    struct ampk_tc_problem p = summable(pass, 3), q = with_sums_of(pass, 3);
    struct ampk_tc_plan *apart = ampk_tc_plan_create(ctx.tensor_core, &p, NULL, why, sizeof why);
    struct ampk_tc_plan *summed = ampk_tc_plan_create(ctx.tensor_core, &q, NULL, why, sizeof why);
    REQUIRE(apart && summed);
    scene.disturbed = disturbed;
    for (int i = 0; i < 2; i++) {
        runs = 0;
        CHECK_INT(ask_about_sums(&ctx, apart, summed), expected);
        CHECK((runs > 0) == (timed == TIMED && i == 0));
    }
    ampk_tc_destroy(ctx.tensor_core);
}

static void check_sums(bool expected, enum timed timed)
{
    check_sums_of(AMPK_TC_FORWARD, expected, timed);
}

static void check_gradient_sums(bool expected, enum timed timed)
{
    check_sums_of(AMPK_TC_DATA, expected, timed);
}

AMP_TEST(sums_are_in_the_epilogue_where_it_is_faster)
{
    static const struct contest_case cases[] = {{2, true},     {2.5f, true}, {2.78f, true},
                                                {2.8f, false}, {3, false},   {5, false}};
    check_contest(cases, 2, begin_sums, check_sums);
}

/* What is left of batch-norm's backward takes 1/8 longer either way, the parameters 1/16. */
AMP_TEST(sums_of_gradients_are_in_the_epilogue_where_it_is_faster)
{
    static const struct contest_case cases[] = {{2, true},     {2.5f, true}, {2.77f, true},
                                                {2.8f, false}, {3, false},   {5, false}};
    check_contest(cases, 2, begin_sums, check_gradient_sums);
}

/* What is off, by less than roundings of sums, and of the result, may do, and by more. */
struct wrong_case {
    float first_off, second_off, result_off;
    bool adds, right;
};

static void check_wrong(const struct wrong_case *cases, int count,
                        void (*check)(bool expected, enum timed))
{
    for (int i = 0; i < count; i++) {
        begin_sums(2);
        scene.first_off = cases[i].first_off, scene.second_off = cases[i].second_off;
        scene.result_off = cases[i].result_off, scene.adds = cases[i].adds;
        check(cases[i].right, TIMED);
        scene.first_off = scene.second_off = scene.result_off = 0, scene.adds = false;
        check(cases[i].right, NOT_TIMED); /* from the file, however it would be now */
        end();
    }
}

AMP_TEST(wrong_sums_are_not_used)
{
    static const struct wrong_case cases[] = {
        {0, .0033f, 0, false, true},   {0, .0034f, 0, false, false}, {.00055f, 0, 0, false, true},
        {.00057f, 0, 0, false, false}, {-.5f, 0, 0, false, false},   {0, 0, .001f, false, true},
        {0, 0, .00105f, false, false}, {0, NAN, 0, false, false},    {NAN, 0, 0, false, false},
        {0, 0, NAN, false, false},     {0, 0, 0, true, false},
    };
    check_wrong(cases, sizeof cases / sizeof *cases, check_sums);
}

/* A slope of 0 or 1 in place of .1 is a result that is off by 1/11 and more where half of it is
 * negative. */
AMP_TEST(wrong_sums_of_gradients_are_not_used)
{
    static const struct wrong_case cases[] = {
        {.00043f, 0, 0, false, true},    {.00046f, 0, 0, false, false},
        {0, .0030f, 0, false, true},     {0, .0031f, 0, false, false},
        {0, 0, .001f, false, true},      {0, 0, .0012f, false, false},
        {0, 0, -1 / 11.f, false, false}, {0, 0, 9 / 11.f, false, false},
        {-.5f, 0, 0, false, false},      {NAN, 0, 0, false, false},
        {0, NAN, 0, false, false},       {0, 0, NAN, false, false},
        {0, 0, INFINITY, false, false},  {0, 0, 0, true, false},
    };
    check_wrong(cases, sizeof cases / sizeof *cases, check_gradient_sums);
}

AMP_TEST(problems_with_sums_have_plans_of_their_own)
{
    begin();
    scene.cudnn[1] = 3, scene.gemm[0] = 1, scene.summed[4] = 2;
    check_choice(forward(1, AMPK_FP16), 1, NULL);
    CHECK(check_choice(with_sums(1), 2, NULL) > 0); /* not cuBLASLt's */
    CHECK_INT(check_choice(with_sums(1), 2, NULL), 0);
    check_choice(forward(1, AMPK_FP16), 1, NULL);
    struct ampk_tc_problem gradient = with_sums_of(AMPK_TC_DATA, 1);
    CHECK(check_choice(gradient, 2, NULL) > 0);
    gradient.slope = 0; /* another one's */
    CHECK(check_choice(gradient, 2, NULL) > 0);
    CHECK_INT(check_choice(gradient, 2, NULL), 0);
    end();
}

AMP_TEST(that_no_engine_has_sums_is_kept)
{
    begin();
    scene.cudnn[1] = 3;
    check_choice(with_sums(3), -1, NULL);
    scene.summed[2] = 1; /* of which nobody asks */
    check_choice(with_sums(3), -1, NULL);
    scene.untimed = true;
    check_choice(with_sums(3), -1, NULL);
    end();
    begin();
    scene.largest = 2 << 20; /* perhaps with more workspace */
    check_choice(with_sums(3), -1, NULL);
    scene.largest = 0, scene.summed[2] = 1;
    check_choice(with_sums(3), 1, NULL);
    end();
}

AMP_TEST(without_timing_a_kernel_takes_the_sums)
{
    begin_sums(2);
    scene.workspace = 3 << 20;
    scene.untimed = true;
    check_sums(false, NOT_TIMED); /* nor are the plans */
    scene.untimed = false;
    check_choice(forward(3, AMPK_FP16), 2, NULL);
    check_choice(with_sums(3), 2, NULL);
    scene.untimed = true;
    check_sums(false, NOT_TIMED); /* the plans are kept, by a program that knew no more */
    scene.untimed = false, scene.no_memory = true;
    check_sums(false, NOT_TIMED);
    scene.no_memory = false, scene.largest = 2 << 20; /* too short a workspace */
    check_sums(false, NOT_TIMED);
    scene.largest = 0;
    check_sums(true, TIMED);
    end();
    begin_sums(2);
    scene.for_sums = 3 << 20;
    check_choice(forward(3, AMPK_FP16), 2, NULL);
    check_choice(with_sums(3), 2, NULL);
    scene.largest = 2 << 20; /* enough for the usual way */
    check_sums(false, NOT_TIMED);
    end();
}

static void check_kept(const char *key, void (*check)(bool expected, enum timed))
{
    static const char *const others[] = {
        "", "2 2", "2 2: maybe", "2 2: wrong?", "2 1: wrong", "2 1: kernel 3, epilogue 3"};
    begin_sums(2);
    check(true, TIMED);
    keep_answer(key, "2 2: kernel 3, epilogue 2.95");
    check(false, NOT_TIMED);
    keep_answer(key, "2 2: wrong");
    check(false, NOT_TIMED);
    for (int i = 0; i < 6; i++) {
        keep_answer(key, others[i]);
        check(true, TIMED);
        check(true, NOT_TIMED);
    }
    end();
}

AMP_TEST(an_answer_about_sums_is_kept_for_the_plans_that_it_was_timed_with)
{
    check_kept("; sums in the epilogue\t", check_sums);
    check_kept("; sums of slope 0.1 in the epilogue\t", check_gradient_sums);
}

/* ---- faults in contests ---- */

static void ask_about_gradients(void)
{
    check_beside(false, TIMED);
}

static void ask_about_forward_sums(void)
{
    check_sums(false, TIMED);
}

/* It is not held again, with other plans neither. */
AMP_TEST(a_contest_that_makes_the_device_fault_is_lost)
{
    for (int i = 0; i < 2; i++) {
        begin_sums(2);
        scene.kernel_faults = true, scene.dead_refuses = i > 0;
        check_fault(ask_about_forward_sums, "the device failed while it was timed",
                    "; sums in the epilogue)");
        check_sums(false, NOT_TIMED);
        scene.cudnn[5] = -1;
        check_sums(false, NOT_TIMED);
        end();
        begin_gradients(1);
        scene.side_faults = true, scene.dead_refuses = i > 0;
        check_fault(ask_about_gradients, "the device failed while it was timed",
                    "; beside weights to fp16)");
        check_beside(false, NOT_TIMED);
        end();
    }
}

AMP_TEST_MAIN
