/* runtime.h on the host's memory: every call is done when it returns, and there is one device,
 * which exists only in the emulation. Fresh memory is full of NaN; what is allocated is counted. */
#include "kernels/cuda/runtime.h"
#include "tests/emulation/emulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- device ---- */

int ampk_rt_device_count(void)
{
    return 1;
}

/* Small, so that grid-stride loops do stride. */
bool ampk_rt_device_read(int device, struct ampk_rt_device *d)
{
    *d = (struct ampk_rt_device){.name = "emulation",
                                 .compute_capability = 75,
                                 .multiprocessors = 2,
                                 .threads_per_multiprocessor = 1024,
                                 .shared_bytes_per_block = 48 << 10,
                                 .l2_bytes = 1 << 20,
                                 .memory_bytes = (size_t)4 << 30};
    return device == 0;
}

int ampk_rt_device_current(void)
{
    return 0;
}

static const char *last_error = "";

const char *ampk_rt_error(void)
{
    return last_error;
}

void ampk_rt_launched(const char *kernel)
{
    (void)kernel;
}

/* ---- memory ---- */

enum { ALIGNMENT = 256 };

/* In the ALIGNMENT bytes before the memory. */
struct header {
    void *start;
    size_t bytes;
};

static struct emulation_memory memory;
static size_t limit = SIZE_MAX;

struct emulation_memory emulation_memory(void)
{
    return memory;
}

void emulation_memory_limit(size_t bytes)
{
    limit = bytes;
}

static struct header *header_of(void *data)
{
    return (struct header *)((char *)data - ALIGNMENT);
}

void *ampk_rt_alloc(size_t bytes)
{
    void *start;
    last_error = "out of memory";
    if (bytes > limit || memory.bytes > limit - bytes) return NULL;
    if (bytes > SIZE_MAX - ALIGNMENT || posix_memalign(&start, ALIGNMENT, ALIGNMENT + bytes))
        return NULL;
    last_error = "";
    void *data = (char *)start + ALIGNMENT;
    *header_of(data) = (struct header){start, bytes};
    memset(data, 0xff, bytes);
    memory.allocations++;
    memory.bytes += bytes;
    if (memory.bytes > memory.peak_bytes) memory.peak_bytes = memory.bytes;
    return data;
}

void ampk_rt_free(void *data)
{
    if (!data) return;
    memory.allocations--;
    memory.bytes -= header_of(data)->bytes;
    free(header_of(data)->start);
}

void *ampk_rt_alloc_pinned(size_t bytes)
{
    return malloc(bytes);
}

void ampk_rt_free_pinned(void *data)
{
    free(data);
}

bool ampk_rt_is_pinned(const void *host)
{
    (void)host;
    return false;
}

bool ampk_rt_memory(size_t *free_bytes, size_t *total_bytes)
{
    struct ampk_rt_device d;
    ampk_rt_device_read(0, &d);
    *total_bytes = limit < d.memory_bytes ? limit : d.memory_bytes;
    *free_bytes = *total_bytes > memory.bytes ? *total_bytes - memory.bytes : 0;
    return true;
}

static void copy(void *dst, const void *src, size_t bytes)
{
    if (bytes) memcpy(dst, src, bytes);
}

void ampk_rt_copy_in(void *dev, const void *host, size_t bytes, ampk_rt_stream stream)
{
    (void)stream;
    copy(dev, host, bytes);
}

void ampk_rt_copy_out(void *host, const void *dev, size_t bytes, ampk_rt_stream stream)
{
    (void)stream;
    copy(host, dev, bytes);
}

void ampk_rt_copy(void *dst_dev, const void *src_dev, size_t bytes, ampk_rt_stream stream)
{
    (void)stream;
    copy(dst_dev, src_dev, bytes);
}

void ampk_rt_zero(void *dev, size_t bytes, ampk_rt_stream stream)
{
    (void)stream;
    if (bytes) memset(dev, 0, bytes);
}

/* ---- streams, events, recordings: nothing to do, nothing to wait for ---- */

static char one_stream, one_event;

ampk_rt_stream ampk_rt_stream_create(void)
{
    return (ampk_rt_stream)&one_stream;
}

void ampk_rt_stream_destroy(ampk_rt_stream stream)
{
    (void)stream;
}

bool ampk_rt_stream_wait(ampk_rt_stream stream)
{
    (void)stream;
    return true;
}

void ampk_rt_stream_after(ampk_rt_stream stream, ampk_rt_event event)
{
    (void)stream;
    (void)event;
}

ampk_rt_event ampk_rt_event_create(bool timed)
{
    (void)timed;
    return (ampk_rt_event)&one_event;
}

void ampk_rt_event_destroy(ampk_rt_event event)
{
    (void)event;
}

void ampk_rt_event_record(ampk_rt_event event, ampk_rt_stream stream)
{
    (void)event;
    (void)stream;
}

float ampk_rt_event_ms(ampk_rt_event from, ampk_rt_event to)
{
    (void)from;
    (void)to;
    return 0;
}

bool ampk_rt_can_record(void)
{
    return false;
}

bool ampk_rt_record_begin(ampk_rt_stream stream)
{
    (void)stream;
    last_error = "the emulation cannot record";
    return false;
}

ampk_rt_recording ampk_rt_record_end(ampk_rt_stream stream)
{
    (void)stream;
    return NULL;
}

bool ampk_rt_replay(ampk_rt_recording recording, ampk_rt_stream stream)
{
    (void)recording;
    (void)stream;
    return false;
}

void ampk_rt_recording_destroy(ampk_rt_recording recording)
{
    (void)recording;
}
