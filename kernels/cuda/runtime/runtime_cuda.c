/* runtime.h on the CUDA runtime. libcuda is not linked: without a driver the runtime finds no
 * device, and the program goes on without one. Must not know operations or tensors. */
#include "runtime.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

static _Thread_local char last_error[256];
static _Thread_local bool failed; /* a call failed that could not return an error */
static _Thread_local bool recording, spoiled;

/* Whether a call worked. Keeps the reason if not, unless an earlier one was not reported yet:
 * after something spoiled a recording, everything fails. */
static bool check(cudaError_t status, const char *what)
{
    if (status == cudaSuccess) return true;
    cudaGetLastError(); /* else a later call would report this error */
    if (!failed && !(recording && spoiled))
        snprintf(last_error, sizeof last_error, "%s: %s", what, cudaGetErrorString(status));
    return false;
}

/* For functions that cannot return an error: the next wait reports it, or the end of the recording
 * does. */
static void expect(cudaError_t status, const char *what)
{
    if (check(status, what)) return;
    if (recording)
        spoiled = true;
    else
        failed = true;
}

const char *ampk_rt_error(void)
{
    return last_error;
}

void ampk_rt_launched(const char *kernel)
{
    expect(cudaGetLastError(), kernel);
}

void ampk_rt_forget_error(void)
{
    cudaGetLastError();
}

/* ---- device ---- */

int ampk_rt_device_count(void)
{
    int count = 0;
    return check(cudaGetDeviceCount(&count), "cudaGetDeviceCount") ? count : 0;
}

int ampk_rt_device_current(void)
{
    int device = 0;
    return check(cudaGetDevice(&device), "cudaGetDevice") ? device : -1;
}

bool ampk_rt_device_read(int device, struct ampk_rt_device *d)
{
    struct cudaDeviceProp p;
    if (!check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties")) return false;
    snprintf(d->name, sizeof d->name, "%s", p.name);
    snprintf(d->card, sizeof d->card, "%x:%x:%x", p.pciDomainID, p.pciBusID, p.pciDeviceID);
    d->compute_capability = 10 * p.major + p.minor;
    d->multiprocessors = p.multiProcessorCount;
    d->threads_per_multiprocessor = p.maxThreadsPerMultiProcessor;
    d->shared_bytes_per_block = p.sharedMemPerBlockOptin;
    d->l2_bytes = (size_t)p.l2CacheSize;
    d->memory_bytes = p.totalGlobalMem;
    return true;
}

/* ---- memory ---- */

void *ampk_rt_alloc(size_t bytes)
{
    void *memory = NULL;
    return check(cudaMalloc(&memory, bytes), "cudaMalloc") ? memory : NULL;
}

void ampk_rt_free(void *memory)
{
    expect(cudaFree(memory), "cudaFree");
}

bool ampk_rt_memory(size_t *free_bytes, size_t *total_bytes)
{
    return check(cudaMemGetInfo(free_bytes, total_bytes), "cudaMemGetInfo");
}

void *ampk_rt_host_alloc(size_t bytes)
{
    void *memory = NULL;
    return check(cudaMallocHost(&memory, bytes), "cudaMallocHost") ? memory : NULL;
}

void ampk_rt_host_free(void *memory)
{
    expect(cudaFreeHost(memory), "cudaFreeHost");
}

static void copy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                 ampk_rt_stream stream)
{
    expect(cudaMemcpyAsync(dst, src, bytes, kind, (cudaStream_t)stream), "cudaMemcpyAsync");
}

void ampk_rt_copy_in(void *dev, const void *host, size_t bytes, ampk_rt_stream stream)
{
    copy(dev, host, bytes, cudaMemcpyHostToDevice, stream);
}

void ampk_rt_copy_out(void *host, const void *dev, size_t bytes, ampk_rt_stream stream)
{
    copy(host, dev, bytes, cudaMemcpyDeviceToHost, stream);
}

void ampk_rt_zero(void *dev, size_t bytes, ampk_rt_stream stream)
{
    expect(cudaMemsetAsync(dev, 0, bytes, (cudaStream_t)stream), "cudaMemsetAsync");
}

/* ---- streams and events ---- */

/* Non-blocking: a stream that synchronised with the default stream would wait for Darknet's
 * kernels at every launch. */
ampk_rt_stream ampk_rt_stream_create(void)
{
    cudaStream_t stream = NULL;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return (ampk_rt_stream)stream;
}

void ampk_rt_stream_destroy(ampk_rt_stream stream)
{
    expect(cudaStreamDestroy((cudaStream_t)stream), "cudaStreamDestroy");
}

/* False also if an earlier call failed that could not say so. */
bool ampk_rt_stream_wait(ampk_rt_stream stream)
{
    bool fine = check(cudaStreamSynchronize((cudaStream_t)stream), "cudaStreamSynchronize");
    fine = fine && !failed;
    failed = false;
    return fine;
}

int ampk_rt_stream_done(ampk_rt_stream stream)
{
    cudaError_t status = cudaStreamQuery((cudaStream_t)stream);
    if (status != cudaErrorNotReady) return check(status, "cudaStreamQuery") ? 1 : -1;
    cudaGetLastError(); /* "not ready" would pass for a launch's error */
    return 0;
}

void ampk_rt_stream_after(ampk_rt_stream stream, ampk_rt_event event)
{
    expect(cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0), "cudaStreamWaitEvent");
}

/* Events that only order streams do without time stamps. */
ampk_rt_event ampk_rt_event_create(bool timed)
{
    cudaEvent_t event = NULL;
    check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
          "cudaEventCreateWithFlags");
    return (ampk_rt_event)event;
}

void ampk_rt_event_destroy(ampk_rt_event event)
{
    if (event) expect(cudaEventDestroy((cudaEvent_t)event), "cudaEventDestroy");
}

void ampk_rt_event_record(ampk_rt_event event, ampk_rt_stream stream)
{
    expect(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "cudaEventRecord");
}

float ampk_rt_event_ms(ampk_rt_event from, ampk_rt_event to)
{
    float ms = 0;
    expect(cudaEventSynchronize((cudaEvent_t)from), "cudaEventSynchronize");
    expect(cudaEventSynchronize((cudaEvent_t)to), "cudaEventSynchronize");
    expect(cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to), "cudaEventElapsedTime");
    return ms;
}

/* ---- recordings: stream capture, then an executable graph ---- */

/* Thread-local mode: what other threads copy and start (Darknet's loaders) does not disturb the
 * capture. */
bool ampk_rt_record_begin(ampk_rt_stream stream)
{
    spoiled = false;
    recording =
        check(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal),
              "cudaStreamBeginCapture");
    return recording;
}

bool ampk_rt_spoil_recording(const char *why)
{
    if (!recording) return false;
    if (!spoiled) snprintf(last_error, sizeof last_error, "%s", why);
    return spoiled = true;
}

ampk_rt_recording ampk_rt_record_end(ampk_rt_stream stream)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t made = NULL;
    cudaError_t ended = cudaStreamEndCapture((cudaStream_t)stream, &graph);
    recording = false;
    if (spoiled)
        cudaGetLastError(); /* last_error has the reason */
    else if (check(ended, "cudaStreamEndCapture"))
        check(cudaGraphInstantiateWithFlags(&made, graph, 0), "cudaGraphInstantiate");
    if (graph) cudaGraphDestroy(graph);
    return (ampk_rt_recording)made;
}

bool ampk_rt_replay(ampk_rt_recording recording, ampk_rt_stream stream)
{
    return check(cudaGraphLaunch((cudaGraphExec_t)recording, (cudaStream_t)stream),
                 "cudaGraphLaunch");
}

void ampk_rt_recording_destroy(ampk_rt_recording recording)
{
    if (recording) expect(cudaGraphExecDestroy((cudaGraphExec_t)recording), "cudaGraphExecDestroy");
}
