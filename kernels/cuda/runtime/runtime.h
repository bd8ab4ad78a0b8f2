/* The thin layer between the CUDA backend and the device: memory, copies, streams, events,
 * recorded work. Apart from kernels and library calls, nothing else in the backend touches the
 * CUDA runtime.
 *
 * Two implementations: runtime_cuda.c on the CUDA runtime, and tests/emulation/runtime_host.c on
 * the host's memory, where every call is done when it returns. With the latter the complete
 * backend runs without a GPU.
 *
 * Errors. Functions that can run out of something return false or NULL and leave the reason to
 * ampk_rt_error. The next ampk_rt_stream_wait reports what fails later or elsewhere (a kernel that
 * faulted, a call that returns nothing). */
#ifndef AMPK_CUDA_RUNTIME_H
#define AMPK_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ampk_rt_a_stream *ampk_rt_stream;       /* a cudaStream_t */
typedef struct ampk_rt_an_event *ampk_rt_event;        /* a cudaEvent_t */
typedef struct ampk_rt_a_recording *ampk_rt_recording; /* a cudaGraphExec_t */

/* Properties by which kernels and plans are chosen. */
struct ampk_rt_device {
    char name[256];
    char card[32];          /* tells it from the others of its host */
    int compute_capability; /* 10 * major + minor */
    int multiprocessors;
    int threads_per_multiprocessor;
    size_t shared_bytes_per_block; /* bytes that a kernel can opt in to at most */
    size_t l2_bytes, memory_bytes;
};

/* Devices that can be used; 0 where there is no GPU or no driver. */
int ampk_rt_device_count(void);
/* The device that this thread uses, as Darknet's -i chose it; -1 if none. */
int ampk_rt_device_current(void);
bool ampk_rt_device_read(int device, struct ampk_rt_device *);
/* The last error of this thread, in words; "" if none. */
const char *ampk_rt_error(void);
/* Call it after every launch (AMPK_LAUNCH does): keeps the error of a kernel that could not start.
 */
void ampk_rt_launched(const char *kernel);
/* Forgets the error that a failed library call may have left; the next launch would take it for
 * its own. */
void ampk_rt_forget_error(void);

void *ampk_rt_alloc(size_t bytes); /* device memory, 256-byte aligned */
void ampk_rt_free(void *);
/* Bytes free on the device and in all. */
bool ampk_rt_memory(size_t *free_bytes, size_t *total_bytes);

/* Host memory that a device copies to and from by itself, page-locked. */
void *ampk_rt_host_alloc(size_t bytes);
void ampk_rt_host_free(void *);

/* These run in stream order. Host memory may be used again once the stream was waited for. */
void ampk_rt_copy_in(void *dev, const void *host, size_t bytes, ampk_rt_stream);
void ampk_rt_copy_out(void *host, const void *dev, size_t bytes, ampk_rt_stream);
void ampk_rt_zero(void *dev, size_t bytes, ampk_rt_stream);

ampk_rt_stream ampk_rt_stream_create(void); /* does not synchronise with the default stream */
void ampk_rt_stream_destroy(ampk_rt_stream);
bool ampk_rt_stream_wait(ampk_rt_stream); /* the host waits */
int ampk_rt_stream_done(ampk_rt_stream);  /* it does not: 1: all is done, 0: not yet, -1: failed */
void ampk_rt_stream_after(ampk_rt_stream, ampk_rt_event); /* the stream waits */
/* NULL as a stream is Darknet's, the legacy default stream. */
ampk_rt_event ampk_rt_event_create(bool timed);
void ampk_rt_event_destroy(ampk_rt_event);
void ampk_rt_event_record(ampk_rt_event, ampk_rt_stream);
float ampk_rt_event_ms(ampk_rt_event from, ampk_rt_event to); /* waits for both */
/* Work given to `first` so far runs before work given to `second` from now on. */
static inline void ampk_rt_order(ampk_rt_event event, ampk_rt_stream first, ampk_rt_stream second)
{
    ampk_rt_event_record(event, first);
    ampk_rt_stream_after(second, event);
}

/* Work launched on the stream between begin and end is recorded instead of run. end returns NULL
 * if the work cannot be recorded. A failure meanwhile spoils the recording and nothing else. */
bool ampk_rt_record_begin(ampk_rt_stream);
ampk_rt_recording ampk_rt_record_end(ampk_rt_stream);
/* Spoils the recording: for failures that only a caller sees, and for what cannot be recorded
 * (taking memory, waiting). False: nothing is being recorded. */
bool ampk_rt_spoil_recording(const char *why);
bool ampk_rt_replay(ampk_rt_recording, ampk_rt_stream);
void ampk_rt_recording_destroy(ampk_rt_recording);

#ifdef __cplusplus
}
#endif

#endif
