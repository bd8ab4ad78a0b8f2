/* kernels/cuda/runtime/runtime_cuda.c with a CUDA runtime of our own in place of the real one: what
 * it is told, and what becomes of its errors. */
#include "kernels/cuda/runtime/runtime.h"
#include "tests/rig/harness.h"

#include <cuda_runtime_api.h>
#include <stdarg.h>

/* ---- in place of the runtime ---- */

static char calls[1000];       /* since begin(), one after the other */
static const char *failing;    /* the call that fails; NULL: none */
static cudaError_t status_now; /* with this */
static cudaError_t pending;    /* what cudaGetLastError finds */

static void begin(const char *call, cudaError_t status)
{
    calls[0] = 0;
    failing = call;
    status_now = status;
}

__attribute__((format(printf, 2, 3))) static cudaError_t called(const char *name,
                                                                const char *format, ...)
{
    size_t used = strlen(calls);
    va_list list;
    va_start(list, format);
    used += (size_t)snprintf(calls + used, sizeof calls - used, "%s(", name);
    used += (size_t)vsnprintf(calls + used, sizeof calls - used, format, list);
    va_end(list);
    snprintf(calls + used, sizeof calls - used, ") ");
    if (!failing || strcmp(failing, name)) return cudaSuccess;
    return pending = status_now;
}

#define AT(p) (int)(uintptr_t)(p)

const char *cudaGetErrorString(cudaError_t status)
{
    return status == cudaErrorMemoryAllocation ? "out of memory" : "invalid value";
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t last = pending;
    pending = cudaSuccess;
    return last;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 3;
    return called("cudaGetDeviceCount", "%s", "");
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 2;
    return called("cudaGetDevice", "%s", "");
}

#undef cudaGetDeviceProperties /* a macro in CUDA 12 */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    strcpy(p->name, "a card");
    p->totalGlobalMem = (size_t)5 << 30;
    p->sharedMemPerBlockOptin = 101;
    p->major = 8, p->minor = 6;
    p->multiProcessorCount = 102, p->maxThreadsPerMultiProcessor = 103, p->l2CacheSize = 104;
    p->pciDomainID = 1, p->pciBusID = 0x2a, p->pciDeviceID = 3;
    return called("cudaGetDeviceProperties", "%d", device);
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = (void *)7;
    return called("cudaMalloc", "%zu", bytes);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    *memory = (void *)8;
    return called("cudaMallocHost", "%zu", bytes);
}

cudaError_t cudaFree(void *memory)
{
    return called("cudaFree", "%d", AT(memory));
}

cudaError_t cudaFreeHost(void *memory)
{
    return called("cudaFreeHost", "%d", AT(memory));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = 1000;
    *total_bytes = 2000;
    return called("cudaMemGetInfo", "%s", "");
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return called("cudaMemcpyAsync", "%d %d %zu %s %d", AT(to), AT(from), bytes,
                  kind == cudaMemcpyHostToDevice ? "in" : "out", AT(stream));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return called("cudaMemsetAsync", "%d %d %zu %d", AT(to), value, bytes, AT(stream));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    *stream = (cudaStream_t)5;
    return called("cudaStreamCreate", "%s", flags == cudaStreamNonBlocking ? "apart" : "?");
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return called("cudaStreamDestroy", "%d", AT(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return called("cudaStreamSynchronize", "%d", AT(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return called("cudaStreamQuery", "%d", AT(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return called("cudaStreamWaitEvent", "%d %d %u", AT(stream), AT(event), flags);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = (cudaEvent_t)6;
    return called("cudaEventCreate", "%s", flags == cudaEventDefault ? "timed" : "untimed");
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return called("cudaEventDestroy", "%d", AT(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return called("cudaEventRecord", "%d %d", AT(event), AT(stream));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return called("cudaEventSynchronize", "%d", AT(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = 1.5f;
    return called("cudaEventElapsedTime", "%d %d", AT(from), AT(to));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return called("cudaStreamBeginCapture", "%d %s", AT(stream),
                  mode == cudaStreamCaptureModeThreadLocal ? "thread" : "?");
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = (cudaGraph_t)9;
    return called("cudaStreamEndCapture", "%d", AT(stream));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph,
                                          unsigned long long flags)
{
    cudaError_t status = called("cudaGraphInstantiate", "%d %d", AT(graph), (int)flags);
    *made = status == cudaSuccess ? (cudaGraphExec_t)10 : NULL;
    return status;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return called("cudaGraphDestroy", "%d", AT(graph));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t stream)
{
    return called("cudaGraphLaunch", "%d %d", AT(made), AT(stream));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made)
{
    return called("cudaGraphExecDestroy", "%d", AT(made));
}

/* ---- tests ---- */

static void check_calls(const char *expected)
{
    if (strcmp(calls, expected)) TEST_FAIL("it called %s, not %s", calls, expected);
    CHECK_INT(cudaGetLastError(), cudaSuccess); /* a later launch would take it for its own */
    calls[0] = 0;
}

#define S ((ampk_rt_stream)5)
#define E ((ampk_rt_event)6)

AMP_TEST(the_device)
{
    struct ampk_rt_device d;
    begin(NULL, cudaSuccess);
    CHECK_INT(ampk_rt_device_count(), 3);
    CHECK_INT(ampk_rt_device_current(), 2);
    REQUIRE(ampk_rt_device_read(2, &d));
    check_calls("cudaGetDeviceCount() cudaGetDevice() cudaGetDeviceProperties(2) ");
    CHECK(!strcmp(d.name, "a card") && !strcmp(d.card, "1:2a:3"));
    CHECK_INT(d.compute_capability, 86);
    CHECK_INT(d.multiprocessors, 102);
    CHECK_INT(d.threads_per_multiprocessor, 103);
    CHECK_INT(d.shared_bytes_per_block, 101);
    CHECK_INT(d.l2_bytes, 104);
    CHECK(d.memory_bytes == (size_t)5 << 30);
    begin("cudaGetDeviceCount", cudaErrorInvalidValue);
    CHECK_INT(ampk_rt_device_count(), 0);
    begin("cudaGetDevice", cudaErrorInvalidValue);
    CHECK_INT(ampk_rt_device_current(), -1);
    begin("cudaGetDeviceProperties", cudaErrorInvalidValue);
    CHECK(!ampk_rt_device_read(1, &d));
    check_calls("cudaGetDeviceProperties(1) ");
    CHECK(!strcmp(ampk_rt_error(), "cudaGetDeviceProperties: invalid value"));
}

AMP_TEST(memory)
{
    size_t left, all;
    begin(NULL, cudaSuccess);
    CHECK(ampk_rt_alloc(100) == (void *)7 && ampk_rt_host_alloc(200) == (void *)8);
    CHECK(ampk_rt_memory(&left, &all) && left == 1000 && all == 2000);
    check_calls("cudaMalloc(100) cudaMallocHost(200) cudaMemGetInfo() ");
    ampk_rt_copy_in((void *)1, (void *)2, 30, S);
    ampk_rt_copy_out((void *)3, (void *)4, 50, NULL);
    ampk_rt_zero((void *)1, 40, S);
    check_calls("cudaMemcpyAsync(1 2 30 in 5) cudaMemcpyAsync(3 4 50 out 0) "
                "cudaMemsetAsync(1 0 40 5) ");
    ampk_rt_free((void *)7);
    ampk_rt_host_free((void *)8);
    check_calls("cudaFree(7) cudaFreeHost(8) ");
}

AMP_TEST(streams_and_events)
{
    begin(NULL, cudaSuccess);
    CHECK(ampk_rt_stream_create() == S && ampk_rt_event_create(true) == E);
    CHECK(ampk_rt_event_create(false) == E);
    check_calls("cudaStreamCreate(apart) cudaEventCreate(timed) cudaEventCreate(untimed) ");
    ampk_rt_order(E, S, NULL);
    check_calls("cudaEventRecord(6 5) cudaStreamWaitEvent(0 6 0) ");
    CHECK(ampk_rt_event_ms(E, (ampk_rt_event)11) == 1.5f);
    check_calls("cudaEventSynchronize(6) cudaEventSynchronize(11) cudaEventElapsedTime(6 11) ");
    CHECK(ampk_rt_stream_wait(S));
    CHECK_INT(ampk_rt_stream_done(S), 1);
    ampk_rt_event_destroy(E);
    ampk_rt_event_destroy(NULL);
    ampk_rt_stream_destroy(S);
    check_calls("cudaStreamSynchronize(5) cudaStreamQuery(5) cudaEventDestroy(6) "
                "cudaStreamDestroy(5) ");
    begin("cudaStreamQuery", cudaErrorNotReady);
    CHECK_INT(ampk_rt_stream_done(S), 0);
    check_calls("cudaStreamQuery(5) ");
    begin("cudaStreamQuery", cudaErrorInvalidValue);
    CHECK_INT(ampk_rt_stream_done(S), -1);
    check_calls("cudaStreamQuery(5) ");
}

/* What cannot say so itself is reported by the next wait, and the first reason counts. */
AMP_TEST(a_failure_is_reported_once)
{
    begin("cudaMalloc", cudaErrorMemoryAllocation);
    CHECK(ampk_rt_alloc(100) == NULL);
    CHECK(!strcmp(ampk_rt_error(), "cudaMalloc: out of memory"));
    CHECK(ampk_rt_stream_wait(S)); /* the caller knows */
    begin("cudaFree", cudaErrorInvalidValue);
    ampk_rt_free(NULL);
    begin("cudaMemsetAsync", cudaErrorMemoryAllocation);
    ampk_rt_zero((void *)1, 4, S);
    CHECK(!strcmp(ampk_rt_error(), "cudaFree: invalid value"));
    begin(NULL, cudaSuccess);
    CHECK(!ampk_rt_stream_wait(S));
    CHECK(ampk_rt_stream_wait(S));
    pending = cudaErrorInvalidValue; /* a kernel that could not start */
    ampk_rt_launched("a_kernel");
    CHECK(!strcmp(ampk_rt_error(), "a_kernel: invalid value"));
    CHECK(!ampk_rt_stream_wait(S));
    pending = cudaErrorInvalidValue;
    ampk_rt_forget_error();
    ampk_rt_launched("a_kernel");
    CHECK(ampk_rt_stream_wait(S));
}

AMP_TEST(recordings)
{
    begin(NULL, cudaSuccess);
    CHECK(!ampk_rt_spoil_recording("nobody records"));
    REQUIRE(ampk_rt_record_begin(S));
    ampk_rt_recording made = ampk_rt_record_end(S);
    REQUIRE(made == (ampk_rt_recording)10);
    CHECK(ampk_rt_replay(made, S));
    ampk_rt_recording_destroy(made);
    ampk_rt_recording_destroy(NULL);
    check_calls("cudaStreamBeginCapture(5 thread) cudaStreamEndCapture(5) cudaGraphInstantiate(9 "
                "0) cudaGraphDestroy(9) cudaGraphLaunch(10 5) cudaGraphExecDestroy(10) ");
    CHECK(!ampk_rt_spoil_recording("nobody records any more"));
    begin("cudaGraphLaunch", cudaErrorInvalidValue);
    CHECK(!ampk_rt_replay(made, S));
}

/* A failure meanwhile spoils the recording and nothing else. */
AMP_TEST(a_spoiled_recording)
{
    for (int told = 0; told < 2; told++) {
        begin(NULL, cudaSuccess);
        REQUIRE(ampk_rt_record_begin(S));
        if (told) CHECK(ampk_rt_spoil_recording("somebody waits"));
        begin("cudaFree", cudaErrorInvalidValue);
        ampk_rt_free(NULL);
        begin("cudaStreamEndCapture", cudaErrorMemoryAllocation);
        CHECK(ampk_rt_record_end(S) == NULL);
        check_calls("cudaStreamEndCapture(5) cudaGraphDestroy(9) ");
        CHECK(!strcmp(ampk_rt_error(), told ? "somebody waits" : "cudaFree: invalid value"));
        CHECK(ampk_rt_stream_wait(S));
        begin(NULL, cudaSuccess); /* and the next one is another */
        REQUIRE(ampk_rt_record_begin(S));
        CHECK(ampk_rt_record_end(S) != NULL);
    }
    begin("cudaStreamBeginCapture", cudaErrorInvalidValue);
    CHECK(!ampk_rt_record_begin(S));
    CHECK(!ampk_rt_spoil_recording("nobody records"));
    begin("cudaGraphInstantiate", cudaErrorMemoryAllocation);
    REQUIRE(ampk_rt_record_begin(S));
    CHECK(ampk_rt_record_end(S) == NULL);
    CHECK(!strcmp(ampk_rt_error(), "cudaGraphInstantiate: out of memory"));
}

AMP_TEST_MAIN
