/* Creates and destroys the CUDA backend's context, manages its work memory, and reads the backend's
 * switches from the environment. Must not know operations or libraries (backend.c closes those
 * first), nor what a switch means. */
#include "context.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- switches ---- */

#define NAMED(of) [of] = #of

static const char *const names[] = {
    NAMED(AMPK_CUDA_IMAGE_FORWARD), NAMED(AMPK_CUDA_IMAGE_GRADIENT), NAMED(AMPK_CUDA_SEARCH),
    NAMED(AMPK_CUDA_UNTIMED),       NAMED(AMPK_CUDA_UNRECORDED),
};

static atomic_bool
    said[sizeof names / sizeof *names]; /* whether the message about a bad value was printed */

enum ampk_setting ampk_cuda_setting(enum ampk_switch of)
{
    const char *value = getenv(names[of]);
    if (!value || !value[0]) return AMPK_UNSET;
    if (!strcmp(value, "0")) return AMPK_NEVER;
    if (!strcmp(value, "1")) return AMPK_ALWAYS;
    if (!atomic_exchange(&said[of], true))
        fprintf(stderr, "darknet-amp: %s=%s in the environment: 0 or 1 are allowed; ignored\n",
                names[of], value);
    return AMPK_UNSET;
}

/* ---- the context ---- */

enum { FIRST_WORK_BYTES = 4 << 20 }; /* bytes; enough for all operations but convolutions */

/* The compute capability of the code that the device runs, 0 if none. AMPK_CUDA_COMPILED lists the
 * capabilities that kernels are compiled for, the lowest first. A device runs the code for the
 * nearest capability below it in its own generation. If there is none, the driver compiles the
 * portable code, which exists for the last and the first of the list. */
static int compiled_for(int capability)
{
    static const int of[] = {AMPK_CUDA_COMPILED};
    const int last = of[sizeof of / sizeof *of - 1];
    int found = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i] <= capability && of[i] / 10 == capability / 10) found = of[i];
    if (found) return found;
    return last <= capability ? last : of[0] <= capability ? of[0] : 0;
}

/* Opens the device that this thread uses, and rejects one that no compiled code runs on. */
static bool open_device(struct ampk_context *ctx, char *err, size_t err_size)
{
    if (ampk_rt_device_count() < 1) {
        snprintf(err, err_size, "no CUDA device: %s", ampk_rt_error());
        return false;
    }
    int device = ampk_rt_device_current();
    if (device < 0 || !ampk_rt_device_read(device, &ctx->device)) {
        snprintf(err, err_size, "CUDA device %d cannot be used: %s", device, ampk_rt_error());
        return false;
    }
    int capability = ctx->device.compute_capability;
    ctx->compiled = compiled_for(capability);
    if (!ctx->compiled) {
        const int oldest = (const int[]){AMPK_CUDA_COMPILED}[0];
        snprintf(err, err_size,
                 "%s has compute capability %d.%d; the kernels are compiled for %d.%d and higher",
                 ctx->device.name, capability / 10, capability % 10, oldest / 10, oldest % 10);
        return false;
    }
    return true;
}

/* The counters start at 0; each kernel that uses them leaves them at 0. */
static bool make_counters(struct ampk_context *ctx)
{
    size_t bytes = AMPK_COUNTERS * sizeof *ctx->counters;
    ctx->counters = (unsigned *)ampk_rt_alloc(bytes);
    if (ctx->counters) ampk_rt_zero(ctx->counters, bytes, ctx->stream);
    return ctx->counters != NULL;
}

static bool make_stream(struct ampk_context *ctx)
{
    ctx->stream = ampk_rt_stream_create();
    ctx->turn = ampk_rt_event_create(false);
    return ctx->stream && ctx->turn;
}

/* Also destroys a context that was made only in part. */
void ampk_cuda_context_destroy(struct ampk_context *ctx)
{
    if (!ctx) return;
    if (ctx->turn) ampk_rt_event_destroy(ctx->turn);
    if (ctx->stream) ampk_rt_stream_destroy(ctx->stream);
    if (ctx->beside) ampk_rt_stream_destroy(ctx->beside);
    ampk_cuda_work_tidy(ctx);
    ampk_rt_free(ctx->work);
    ampk_rt_free(ctx->counters);
    if (ctx->read_back) ampk_rt_host_free(ctx->read_back);
    free(ctx);
}

struct ampk_context *ampk_cuda_context_create(int threads, char *err, size_t err_size)
{
    (void)threads;
    struct ampk_context *ctx = calloc(1, sizeof *ctx);
    if (!ctx) {
        snprintf(err, err_size, "out of memory");
        return NULL;
    }
    if (!open_device(ctx, err, err_size)) {
        free(ctx);
        return NULL;
    }
    ctx->read_back = ampk_rt_host_alloc(AMPK_READ_BACK_BYTES);
    if (ctx->read_back && make_stream(ctx) && make_counters(ctx) &&
        ampk_cuda_work_reserve(ctx, FIRST_WORK_BYTES))
        return ctx;
    snprintf(err, err_size, "%s: no stream or memory: %s", ctx->device.name, ampk_rt_error());
    ampk_cuda_context_destroy(ctx);
    return NULL;
}

void ampk_cuda_wait(struct ampk_context *ctx)
{
    if (ampk_rt_spoil_recording("the host waits for the device")) return;
    if (ampk_rt_stream_wait(ctx->stream)) return;
    fprintf(stderr, "CUDA backend: %s: %s\n", ctx->device.name, ampk_rt_error());
    abort();
}

/* ---- work memory ---- */

/* Work memory that became too small but that recordings still use. */
struct ampk_outgrown {
    struct ampk_outgrown *next;
    void *work;
};

void ampk_cuda_work_tidy(struct ampk_context *ctx)
{
    while (ctx->outgrown) {
        struct ampk_outgrown *o = ctx->outgrown;
        ctx->outgrown = o->next;
        ampk_rt_free(o->work);
        free(o);
    }
}

/* Keeps the work memory for the recordings that use it. */
static bool leave_to_recordings(struct ampk_context *ctx)
{
    struct ampk_outgrown *o = malloc(sizeof *o);
    if (!o) return false;
    *o = (struct ampk_outgrown){ctx->outgrown, ctx->work};
    ctx->outgrown = o;
    return true;
}

/* A recording contains addresses, so memory that a recording uses cannot be freed when work memory
 * grows: it is kept aside until the last recording is gone. */
bool ampk_cuda_work_reserve(struct ampk_context *ctx, size_t bytes)
{
    if (bytes <= ctx->work_bytes) return true;
    if (ctx->recordings) {
        if (!leave_to_recordings(ctx)) return false;
    } else {
        ampk_cuda_wait(ctx); /* kernels may still use the old one */
        ampk_rt_free(ctx->work);
    }
    ctx->work = ampk_rt_alloc(bytes);
    ctx->work_bytes = ctx->work ? bytes : 0;
    return ctx->work != NULL;
}

void *ampk_cuda_work(struct ampk_context *ctx, size_t bytes)
{
    if (bytes <= ctx->work_bytes) return ctx->work;
    if (ampk_rt_spoil_recording("work memory is short"))
        return ctx->work; /* the recording is void: nothing will use it */
    if (ampk_cuda_work_reserve(ctx, bytes)) return ctx->work;
    fprintf(stderr, "CUDA backend: out of memory: %zu bytes of work memory\n", bytes);
    abort();
}

/* Only as many blocks as are resident at once: each then loops, and none waits for another to end.
 */
unsigned ampk_cuda_blocks(const struct ampk_context *ctx, size_t items, int per_block, int threads)
{
    size_t needed = (items + per_block - 1) / per_block;
    size_t resident =
        (size_t)ctx->device.multiprocessors * (ctx->device.threads_per_multiprocessor / threads);
    if (needed < 1) return 1;
    return (unsigned)(needed < resident ? needed : resident);
}
