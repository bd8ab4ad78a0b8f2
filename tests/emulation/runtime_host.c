/* runtime.h on the host's memory: every call is done when it returns, and the devices (devices.c)
 * exist only in the emulation. Fresh memory is full of NaN; what is allocated is counted. What CUDA
 * forbids while a stream is captured ends the program. */
#include "kernels/cuda/runtime/runtime.h"
#include "emulation.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- device ---- */

int ampk_rt_device_count(void)
{
    return emulation_device_count();
}

static bool large;

void emulation_large_devices(bool are_large)
{
    large = are_large;
}

/* Small, unless a test asks for large ones, so that grid-stride loops do stride. */
bool ampk_rt_device_read(int device, struct ampk_rt_device *d)
{
    const char *card = getenv("AMPK_EMULATION_CARD"); /* default: every process has its own */
    *d = (struct ampk_rt_device){.name = "emulation",
                                 .compute_capability = 80, /* BF16 has products there */
                                 .multiprocessors = large ? 132 : 2,
                                 .threads_per_multiprocessor = large ? 2048 : 1024,
                                 .shared_bytes_per_block = 48 << 10,
                                 .l2_bytes = 1 << 20,
                                 .memory_bytes = (size_t)4 << 30};
    snprintf(d->card, sizeof d->card, "%s", card ? card : "");
    if (!card) snprintf(d->card, sizeof d->card, "%d:%d", (int)getpid(), device);
    return device >= 0 && device < emulation_device_count();
}

int ampk_rt_device_current(void)
{
    return emulation_device();
}

static _Thread_local const char *last_error = "";

const char *ampk_rt_error(void)
{
    return last_error;
}

void ampk_rt_launched(const char *kernel)
{
    (void)kernel;
}

void ampk_rt_forget_error(void) {}

/* ---- recordings ---- */

struct step {
    void (*work)(void *), (*drop)(void *);
    void *data;
    struct step *next;
};

struct ampk_rt_a_recording {
    struct step *first, **end;
    int device;
};

struct ampk_rt_a_stream {
    int device;
    unsigned last; /* on the clock: the latest work that its next work comes behind */
};

static _Thread_local unsigned clock_of_work;      /* counts what streams were given */
static _Thread_local ampk_rt_recording recording; /* being made */
static _Thread_local bool spoiled;

static void forbid_in_recording(const char *what)
{
    if (!recording) return;
    fprintf(stderr, "CUDA emulation: %s while work is recorded\n", what);
    abort();
}

/* Work for which other processes are needed, in the order of its coming. */
static _Thread_local struct later {
    const struct ampk_rt_a_stream *stream;
    bool (*work)(void *);
    void *data;
    struct later *next;
} * later;

/* Whether the stream has no such work left. */
static bool ask_later(const struct ampk_rt_a_stream *stream)
{
    struct later **at = &later;
    while (*at) {
        struct later *l = *at;
        bool is_here = l->stream == stream;
        if (is_here && !l->work(l->data)) return false;
        if (!is_here) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l->data);
        free(l);
    }
    return true;
}

static void finish_later(const struct ampk_rt_a_stream *stream)
{
    while (!ask_later(stream))
        usleep(100);
}

__attribute__((visibility("default"))) void emulation_later(struct ampk_rt_a_stream *stream,
                                                            bool (*work)(void *), void *data)
{
    forbid_in_recording("work of several devices");
    struct later **end = &later, *l = malloc(sizeof *l);
    if (!l) abort();
    *l = (struct later){stream, work, data, NULL};
    while (*end)
        end = &(*end)->next;
    *end = l;
    ask_later(stream);
}

/* NULL: the default stream of the thread's device. */
static void check_device(const struct ampk_rt_a_stream *stream, const char *what)
{
    if (stream) emulation_only_on(stream->device, what);
}

__attribute__((visibility("default"))) void emulation_check_stream(struct ampk_rt_a_stream *stream,
                                                                   const char *what)
{
    finish_later(stream);
    check_device(stream, what);
    if (stream) stream->last = ++clock_of_work;
}

__attribute__((visibility("default"))) void
emulation_check_behind(const struct ampk_rt_a_stream *stream, const char *what)
{
    check_device(stream, what);
    if (stream->last == clock_of_work) return;
    fprintf(stderr, "CUDA emulation: %s on a stream that does not wait for work before it\n", what);
    abort();
}

static atomic_size_t replays;

void emulation_allow_recordings(bool allowed)
{
    if (allowed)
        unsetenv("AMPK_CUDA_UNRECORDED");
    else
        setenv("AMPK_CUDA_UNRECORDED", "1", 1);
}

__attribute__((visibility("default"))) size_t emulation_replays(void)
{
    return replays;
}

bool emulation_record(void (*work)(void *), void *data, void (*drop)(void *))
{
    if (!recording) return false;
    struct step *s = malloc(sizeof *s);
    if (!s) abort();
    *s = (struct step){work, drop, data, NULL};
    *recording->end = s;
    recording->end = &s->next;
    return true;
}

bool ampk_rt_record_begin(ampk_rt_stream stream)
{
    emulation_check_stream(stream, "a recording");
    forbid_in_recording("another recording");
    recording = malloc(sizeof *recording);
    if (!recording) return false;
    *recording =
        (struct ampk_rt_a_recording){.end = &recording->first, .device = emulation_device()};
    spoiled = false;
    return true;
}

ampk_rt_recording ampk_rt_record_end(ampk_rt_stream stream)
{
    emulation_check_stream(stream, "a recording");
    ampk_rt_recording made = recording;
    recording = NULL;
    if (!spoiled) return made;
    ampk_rt_recording_destroy(made);
    return NULL;
}

bool ampk_rt_spoil_recording(const char *why)
{
    if (!recording) return false;
    last_error = why;
    return spoiled = true;
}

bool ampk_rt_replay(ampk_rt_recording r, ampk_rt_stream stream)
{
    emulation_check_stream(stream, "a replay");
    emulation_only_on(r->device, "a recording");
    forbid_in_recording("a replay");
    replays++;
    for (struct step *s = r->first; s; s = s->next)
        s->work(s->data);
    return true;
}

void ampk_rt_recording_destroy(ampk_rt_recording r)
{
    while (r && r->first) {
        struct step *s = r->first;
        r->first = s->next;
        s->drop(s->data);
        free(s);
    }
    free(r);
}

/* ---- memory ---- */

enum { ALIGNMENT = 256 };

struct allocation {
    void *data;
    size_t bytes;
    struct allocation *next;
};

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static struct emulation_memory memory;
static size_t limit = SIZE_MAX;

struct emulation_memory emulation_memory(void)
{
    pthread_mutex_lock(&memory_lock);
    struct emulation_memory now = memory;
    pthread_mutex_unlock(&memory_lock);
    return now;
}

void emulation_memory_limit(size_t bytes)
{
    limit = bytes;
}

/* Guarded memory lies in one range of addresses, from its start to the last that is in use. */
static char *arena;
static size_t arena_used;
static const size_t ARENA_BYTES = (size_t)1 << 40, PAGE_BYTES = 4096;
static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static int users; /* begun and not ended */

#ifndef __SANITIZE_ADDRESS__ /* which says more */
static void say_guarded(int signal, siginfo_t *info, void *context)
{
    static const char text[] = "CUDA emulation: the host touched the device's memory\n";
    size_t at = (size_t)((char *)info->si_addr - arena);
    (void)signal;
    (void)context;
    if (at < arena_used && write(2, text, sizeof text - 1) < 0) _exit(1);
    abort();
}

static void say_when_touched(void)
{
    struct sigaction action = {.sa_sigaction = say_guarded, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
}
#else
static void say_when_touched(void) {}
#endif

static bool is_guarded(void)
{
    const char *wanted = getenv("AMPK_EMULATION_GUARD");
    if (arena || !wanted || strcmp(wanted, "1")) return arena != NULL;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = mmap(NULL, ARENA_BYTES, PROT_NONE, flags, -1, 0);
    if (arena == MAP_FAILED) {
        perror("CUDA emulation: AMPK_EMULATION_GUARD");
        abort();
    }
    say_when_touched();
    return true;
}

void emulation_device_begin(void)
{
    pthread_mutex_lock(&users_lock);
    if (users++ == 0 && arena_used) mprotect(arena, arena_used, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&users_lock);
}

void emulation_device_end(void)
{
    pthread_mutex_lock(&users_lock);
    if (--users == 0 && arena_used) mprotect(arena, arena_used, PROT_NONE);
    pthread_mutex_unlock(&users_lock);
}

static size_t pages(size_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static void *take_memory(size_t bytes)
{
    void *data;
    if (!is_guarded()) return posix_memalign(&data, ALIGNMENT, bytes) ? NULL : data;
    if (bytes > ARENA_BYTES - arena_used - PAGE_BYTES) return NULL;
    data = arena + arena_used;
    arena_used += pages(bytes);
    return data;
}

static void give_back(const struct allocation *a)
{
    madvise(a->data, pages(a->bytes), MADV_DONTNEED);
    size_t used = 0;
    for (const struct allocation *other = allocations; other; other = other->next) {
        size_t end = (size_t)((char *)other->data - arena) + pages(other->bytes);
        if (end > used) used = end;
    }
    arena_used = used;
}

/* Under the lock, as what follows. */
static void *allocate(size_t bytes)
{
    struct allocation *a = malloc(sizeof *a);
    bool fits = bytes <= limit && memory.bytes <= limit - bytes;
    void *data = a && fits ? take_memory(bytes) : NULL;
    last_error = data ? "" : "out of memory";
    if (!data) {
        free(a);
        return NULL;
    }
    emulation_device_begin();
    memset(data, 0xff, bytes);
    emulation_device_end();
    *a = (struct allocation){data, bytes, allocations};
    allocations = a;
    memory.allocations++;
    memory.bytes += bytes;
    if (memory.bytes > memory.peak_bytes) memory.peak_bytes = memory.bytes;
    return data;
}

void *ampk_rt_alloc(size_t bytes)
{
    forbid_in_recording("memory is taken");
    pthread_mutex_lock(&memory_lock);
    void *data = allocate(bytes);
    pthread_mutex_unlock(&memory_lock);
    if (data) emulation_memory_made(data, bytes);
    return data;
}

static void deallocate(void *data)
{
    struct allocation **at = &allocations, *a;
    while (*at && (*at)->data != data)
        at = &(*at)->next;
    a = *at;
    if (!a) {
        fprintf(stderr, "CUDA emulation: %p was freed, but is not allocated\n", data);
        abort();
    }
    *at = a->next;
    memory.allocations--;
    memory.bytes -= a->bytes;
    if (arena)
        give_back(a);
    else
        free(data);
    free(a);
}

void ampk_rt_free(void *data)
{
    if (!data) return;
    forbid_in_recording("memory is given back");
    emulation_memory_gone(data);
    pthread_mutex_lock(&memory_lock);
    deallocate(data);
    pthread_mutex_unlock(&memory_lock);
}

bool ampk_rt_memory(size_t *free_bytes, size_t *total_bytes)
{
    struct ampk_rt_device d;
    ampk_rt_device_read(0, &d);
    *total_bytes = limit < d.memory_bytes ? limit : d.memory_bytes;
    size_t taken = emulation_memory().bytes;
    *free_bytes = *total_bytes > taken ? *total_bytes - taken : 0;
    return true;
}

static void copy(void *dst, const void *src, size_t bytes)
{
    emulation_device_begin();
    if (bytes) memcpy(dst, src, bytes);
    emulation_device_end();
}

/* On the device. */
struct span {
    void *dst;
    size_t bytes;
};

static void zero(void *data)
{
    const struct span *s = data;
    emulation_device_begin();
    if (s->bytes) memset(s->dst, 0, s->bytes);
    emulation_device_end();
}

void ampk_rt_copy_in(void *dev, const void *host, size_t bytes, ampk_rt_stream stream)
{
    emulation_check_stream(stream, "a copy on a stream");
    emulation_check_memory(dev, "a copy to memory");
    forbid_in_recording("the host's memory is read");
    copy(dev, host, bytes);
}

enum { MOST_PAGE_LOCKED = 64 };
static _Atomic(void *) page_locked[MOST_PAGE_LOCKED];
static atomic_size_t pageable; /* bytes copied out into other memory */

size_t emulation_pageable_bytes(void)
{
    return pageable;
}

void *ampk_rt_host_alloc(size_t bytes)
{
    for (int i = 0; i < MOST_PAGE_LOCKED; i++) {
        void *none = NULL, *memory = malloc(bytes);
        if (memory && atomic_compare_exchange_strong(&page_locked[i], &none, memory)) return memory;
        free(memory);
    }
    return NULL;
}

void ampk_rt_host_free(void *memory)
{
    for (int i = 0; i < MOST_PAGE_LOCKED; i++) {
        void *it = memory;
        if (atomic_compare_exchange_strong(&page_locked[i], &it, NULL)) free(memory);
    }
}

static bool is_page_locked(const void *memory)
{
    for (int i = 0; i < MOST_PAGE_LOCKED; i++)
        if (page_locked[i] == memory) return true;
    return false;
}

void ampk_rt_copy_out(void *host, const void *dev, size_t bytes, ampk_rt_stream stream)
{
    emulation_check_stream(stream, "a copy on a stream");
    emulation_check_memory(dev, "a copy from memory");
    forbid_in_recording("the host's memory is written");
    if (!is_page_locked(host)) pageable += bytes;
    copy(host, dev, bytes);
}

void ampk_rt_zero(void *dev, size_t bytes, ampk_rt_stream stream)
{
    emulation_check_stream(stream, "a filling on a stream");
    emulation_check_memory(dev, "a filling of memory");
    struct span *span = malloc(sizeof *span);
    if (!span) abort();
    *span = (struct span){dev, bytes};
    if (emulation_record(zero, span, free)) return;
    zero(span);
    free(span);
}

/* ---- streams, events ---- */

struct ampk_rt_an_event {
    ampk_rt_stream stream; /* it was recorded on last */
    unsigned at;           /* on the clock */
    int device;
};

ampk_rt_stream ampk_rt_stream_create(void)
{
    ampk_rt_stream stream = calloc(1, sizeof *stream);
    if (stream) stream->device = emulation_device();
    return stream;
}

void ampk_rt_stream_destroy(ampk_rt_stream stream)
{
    free(stream);
}

int ampk_rt_stream_done(ampk_rt_stream stream)
{
    return ask_later(stream);
}

bool ampk_rt_stream_wait(ampk_rt_stream stream)
{
    forbid_in_recording("the host waits");
    finish_later(stream);
    return true;
}

void ampk_rt_stream_after(ampk_rt_stream stream, ampk_rt_event event)
{
    finish_later(event->stream);
    if (stream && event->at > stream->last) stream->last = event->at;
}

ampk_rt_event ampk_rt_event_create(bool timed)
{
    (void)timed;
    ampk_rt_event event = calloc(1, sizeof *event);
    if (event) event->device = emulation_device();
    return event;
}

void ampk_rt_event_destroy(ampk_rt_event event)
{
    free(event);
}

void ampk_rt_event_record(ampk_rt_event event, ampk_rt_stream stream)
{
    emulation_check_stream(stream, "an event on a stream");
    emulation_only_on(event->device, "an event");
    event->stream = stream;
    event->at = clock_of_work;
}

float ampk_rt_event_ms(ampk_rt_event from, ampk_rt_event to)
{
    (void)from;
    (void)to;
    forbid_in_recording("the host waits");
    return 0;
}
