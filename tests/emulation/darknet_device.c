/* Devices for a GPU build of Darknet where there is none: what Darknet calls of the CUDA runtime,
 * on the host's memory (emulation_devices: how many). Its kernels are counted, not run, so that a
 * test sees whether the plugin leaves any of them in a pass. Linked into a program, these come
 * before those of libcudart. */
#include "darknet_device.h"

#include "emulation.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_long launches, bytes_out, registered, asynchronous, waits, page_locked, unordered;

long darknet_device_launches(void)
{
    return launches;
}

static _Atomic float argument;

float darknet_device_argument(void)
{
    return argument;
}

long darknet_device_bytes_out(void)
{
    return bytes_out;
}

long darknet_device_registered(void)
{
    return registered;
}

long darknet_device_waits(void)
{
    return waits;
}

long darknet_device_asynchronous(void)
{
    return asynchronous;
}

long darknet_device_page_locked(void)
{
    return page_locked;
}

long darknet_device_unordered(void)
{
    return unordered;
}

/* ---- streams: copies that have not happened yet ---- */

struct copy {
    struct copy *next;
    void *to;
    const void *from;
    size_t bytes;
};

/* What cudaStream_t and cudaEvent_t point to here. */
struct stream {
    struct stream *next;
    struct copy *copies, **end;
    long started, done;
    int device;
};
struct event {
    struct stream *stream;
    long after; /* so many of its copies */
    int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;
static bool delay;

void darknet_device_delay(bool on)
{
    delay = on;
}

/* Under the lock. */
static void catch_up(struct stream *s, long until)
{
    while (s->done < until) {
        struct copy *c = s->copies;
        s->copies = c->next;
        if (!s->copies) s->end = &s->copies;
        memcpy(c->to, c->from, c->bytes);
        free(c);
        s->done++;
    }
}

static void catch_up_all(void)
{
    pthread_mutex_lock(&lock);
    for (struct stream *s = streams; s; s = s->next)
        catch_up(s, s->started);
    pthread_mutex_unlock(&lock);
}

static cudaError_t start_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    struct copy *c = malloc(sizeof *c);
    if (!c) return cudaErrorMemoryAllocation;
    *c = (struct copy){NULL, to, from, bytes};
    pthread_mutex_lock(&lock);
    *s->end = c;
    s->end = &c->next;
    s->started++;
    if (!delay) catch_up(s, s->started);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

#pragma GCC visibility push(default)

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s || flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    s->end = &s->copies;
    s->device = emulation_device();
    *stream = (cudaStream_t)s;
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct stream *s = (struct stream *)stream;
    pthread_mutex_lock(&lock);
    catch_up(s, s->started);
    struct stream **p = &streams;
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    pthread_mutex_unlock(&lock);
    free(s);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    struct stream *s = (struct stream *)stream;
    pthread_mutex_lock(&lock);
    if (s) catch_up(s, s->started);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    struct event *e = calloc(1, sizeof *e);
    *event = (cudaEvent_t)e;
    if (!e) return cudaErrorMemoryAllocation;
    e->device = emulation_device();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    struct stream *s = (struct stream *)stream;
    struct event *e = (struct event *)event;
    emulation_only_on(s->device, "an event on a stream");
    emulation_only_on(e->device, "an event");
    pthread_mutex_lock(&lock);
    e->stream = s;
    e->after = s->started;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    const struct event *e = (struct event *)event;
    if (stream || flags) return cudaErrorInvalidValue; /* what is needed so far */
    pthread_mutex_lock(&lock);
    if (e->stream) catch_up(e->stream, e->after);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* With its size before it. */
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    size_t *p = malloc(64 + bytes);
    if (!p) return cudaErrorMemoryAllocation;
    *p = bytes;
    *memory = (char *)p + 64;
    page_locked += (long)bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    size_t *p = memory ? (size_t *)((char *)memory - 64) : NULL;
    catch_up_all(); /* as freeing waits for the device */
    if (p) page_locked -= (long)*p;
    free(p);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = emulation_device_count();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return emulation_use_device(device) ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = emulation_device();
    return cudaSuccess;
}

#undef cudaGetDeviceProperties /* a macro in CUDA 12 */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "emulation");
    return device >= 0 && device < emulation_device_count() ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = 0;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    waits++;
    catch_up_all();
    return cudaSuccess;
}

/* Zeroed, since the kernel that would do it does not run. */
cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = calloc(1, bytes ? bytes : 1);
    if (!*memory) return cudaErrorMemoryAllocation;
    emulation_memory_made(*memory, bytes ? bytes : 1);
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    catch_up_all();
    emulation_memory_gone(memory);
    free(memory);
    return cudaSuccess;
}

/* From and to any device. It waits for the thread's own alone. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    int device = emulation_memory_device(kind == cudaMemcpyHostToDevice ? to : from);
    unordered += device >= 0 && device != emulation_device();
    memcpy(to, from, bytes);
    if (kind == cudaMemcpyDeviceToHost) bytes_out += (long)bytes;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *host, size_t bytes, unsigned flags)
{
    (void)host, (void)bytes, (void)flags;
    registered++;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *host)
{
    (void)host;
    registered--;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    asynchronous++;
    if (stream) emulation_only_on(((struct stream *)stream)->device, "a copy on a stream");
    emulation_check_memory(kind == cudaMemcpyHostToDevice ? to : from, "a copy of memory");
    if (stream) return start_copy((struct stream *)stream, to, from, bytes);
    return cudaMemcpy(to, from, bytes, kind);
}

#if CUDART_VERSION >= 13000
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream)
#else
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream)
#endif
{
    (void)kernel, (void)grid, (void)block, (void)shared_bytes, (void)stream;
    argument = *(const float *)arguments[1];
    launches++;
    return cudaSuccess;
}
