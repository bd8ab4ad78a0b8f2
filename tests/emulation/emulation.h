/* What a test can ask of the emulation and tell it. For C and C++. */
#ifndef EMULATION_H
#define EMULATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Order of blocks and threads; AMPK_EMULATION_SEED sets the first one. */
void emulation_seed(uint64_t seed);

/* Devices (default: one) and the one that the calling thread uses (first: 0). Memory, streams and
 * events belong to the one that their maker used. Another's streams and events, and kernels and
 * copies on a stream with another's memory, end the program: CUDA answers
 * cudaErrorInvalidResourceHandle, or faults. (It lets copies go along on another's stream; ours
 * never do.) To be set before anything is made. */
void emulation_devices(int count);
int emulation_device_count(void);
int emulation_device(void);
/* What follows is told of devices as large as an H100, not as small as possible: grid-stride loops
 * then have more blocks and fewer rounds, which must not change a bit of any result. */
void emulation_large_devices(bool);
bool emulation_use_device(int device); /* false: there is none */
/* Ends the program, naming what, unless the thread uses that device. */
void emulation_only_on(int device, const char *what);
/* Memory of the thread's device begins or ends; whose p is in (-1: no device's), and whether it may
 * be used. */
void emulation_memory_made(const void *data, size_t bytes);
void emulation_memory_gone(const void *data);
int emulation_memory_device(const void *p);
void emulation_check_memory(const void *p, const char *what);
/* The same for every address in there, and for a stream. */
void emulation_check_words(const void *words, size_t bytes, const char *what);
struct ampk_rt_a_stream;
void emulation_check_stream(struct ampk_rt_a_stream *, const char *what);
/* Ends the program, naming what, unless the stream waits for all work that the thread has given to
 * any stream. */
void emulation_check_behind(const struct ampk_rt_a_stream *, const char *what);

/* The emulated devices' memory, all together (runtime_host.c). */
struct emulation_memory {
    size_t allocations, bytes, peak_bytes; /* live now, and the most that ever was */
};
struct emulation_memory emulation_memory(void);
/* Bytes of ranges that ampk_reserve gave and that have no memory (reserve_host.c). */
size_t emulation_bytes_without_memory(void);
/* Whether the driver gives no memory to addresses later. */
void emulation_reserve_nothing(bool);
/* Around what a device does with its memory: kernels and copies, and libraries that stand in for
 * NVIDIA's. With AMPK_EMULATION_GUARD=1 in the environment, the memory cannot be touched outside:
 * an executor that reads it without the backend's help ends the program. May be nested. */
void emulation_device_begin(void);
void emulation_device_end(void);
/* Work of several devices, as NCCL's: asked when all such work before it on the stream is done, at
 * once or when somebody asks whether the stream is done; other operations on the stream, and
 * whoever waits for it, wait until it says that it is. data is freed after it. */
void emulation_later(struct ampk_rt_a_stream *, bool (*work)(void *), void *data);
/* Work given while a recording is made: taken into it, to be done at every replay, and true; else
 * false. drop ends data with the recording. */
bool emulation_record(void (*work)(void *), void *data, void (*drop)(void *));
/* Whether there are recordings (default: yes), and how many were played. */
void emulation_allow_recordings(bool);
size_t emulation_replays(void);
/* How many kernels of ours ran. */
size_t emulation_launches(void);
/* Bytes copied out into memory that is not page-locked. */
size_t emulation_pageable_bytes(void);
/* ampk_rt_alloc and ampk_commit fail rather than exceed this; SIZE_MAX: no limit. */
void emulation_memory_limit(size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
