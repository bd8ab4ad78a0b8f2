/* The CUDA backend's table, and the operations on memory, streams and recordings. It is the top
 * file of the backend: no other file calls it. Computes nothing. */
#include "backend.h"
#include "context.h"

#include "kernels/cuda/conv/conv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory that alloc has given. There are few: a graph takes its tensors in one piece. */
struct ampk_block {
    struct ampk_block *next;
    void *memory;
    size_t bytes;
};

/* 0 bytes are a valid request. */
static void *memory_alloc(struct ampk_context *ctx, size_t bytes)
{
    struct ampk_block *b = malloc(sizeof *b);
    void *memory = b ? ampk_rt_alloc(bytes ? bytes : 1) : NULL;
    if (!memory) {
        free(b);
        return NULL;
    }
    *b = (struct ampk_block){ctx->blocks, memory, bytes};
    ctx->blocks = b;
    return memory;
}

/* Waits first: the stream may still run operations on this memory. */
static void memory_free(struct ampk_context *ctx, void *memory)
{
    if (!memory) return;
    struct ampk_block **p = &ctx->blocks, *b;
    while ((b = *p) && b->memory != memory)
        p = &b->next;
    if (b) *p = b->next;
    free(b);
    ampk_cuda_wait(ctx);
    ampk_rt_free(memory);
}

static void memory_in_use(struct ampk_context *ctx, size_t *used, size_t *reserved)
{
    size_t left = 0, all = 0;
    *used = 0;
    for (const struct ampk_block *b = ctx->blocks; b; b = b->next)
        *used += b->bytes;
    *reserved = ampk_rt_memory(&left, &all) ? all - left : 0;
}

static void mark(struct ampk_context *ctx, enum ampk_mark place)
{
    if (!ctx->marks[place]) ctx->marks[place] = ampk_rt_event_create(true);
    if (ctx->marks[place]) ampk_rt_event_record(ctx->marks[place], ctx->stream);
}

static double marked_seconds(struct ampk_context *ctx, enum ampk_mark begin)
{
    ampk_rt_event from = ctx->marks[begin], to = ctx->marks[begin + 1];
    return from && to ? 1e-3 * (double)ampk_rt_event_ms(from, to) : 0;
}

/* Closes the libraries first: they hold plans on this device. */
static void context_destroy(struct ampk_context *ctx)
{
    if (!ctx) return;
    for (int i = 0; i < AMPK_MARKS; i++)
        if (ctx->marks[i]) ampk_rt_event_destroy(ctx->marks[i]);
    while (ctx->blocks) {
        struct ampk_block *b = ctx->blocks;
        ctx->blocks = b->next;
        free(b);
    }
    ampk_cuda_conv_end(ctx);
    ampk_cuda_context_destroy(ctx);
}

static size_t free_bytes(struct ampk_context *ctx)
{
    size_t left = 0, all;
    (void)ctx;
    return ampk_rt_memory(&left, &all) ? left : 0;
}

/* What a pass reads is small. By page-locked memory it costs one copy of the device's; by any other
 * memory the driver copies in pieces and waits for each. */
static void memory_read(struct ampk_context *ctx, void *host, const void *src, size_t bytes)
{
    bool small = bytes <= AMPK_READ_BACK_BYTES;
    if (bytes) ampk_rt_copy_out(small ? ctx->read_back : host, src, bytes, ctx->stream);
    ampk_cuda_wait(ctx);
    if (bytes && small) memcpy(host, ctx->read_back, bytes);
}

/* Waits, because the caller may change its memory as soon as this returns. */
static void memory_write(struct ampk_context *ctx, void *dst, const void *host, size_t bytes)
{
    if (!bytes) return;
    ampk_rt_copy_in(dst, host, bytes, ctx->stream);
    ampk_cuda_wait(ctx);
}

static void fill_zero(struct ampk_context *ctx, void *dst, size_t bytes)
{
    if (bytes) ampk_rt_zero(dst, bytes, ctx->stream);
}

/* The stream that Darknet's own code uses. */
#define DEFAULT_STREAM NULL

static void acquire(struct ampk_context *ctx)
{
    ampk_rt_order(ctx->turn, DEFAULT_STREAM, ctx->stream);
}

static void release(struct ampk_context *ctx)
{
    ampk_rt_order(ctx->turn, ctx->stream, DEFAULT_STREAM);
}

static void *stream_of(struct ampk_context *ctx)
{
    return ctx->stream;
}

/* Made when it is first wanted: one process needs none. */
static void *beside(struct ampk_context *ctx)
{
    if (!ctx->beside) ctx->beside = ampk_rt_stream_create();
    if (ctx->beside) ampk_rt_order(ctx->turn, ctx->stream, ctx->beside);
    return ctx->beside;
}

static int done(struct ampk_context *ctx, void *stream)
{
    (void)ctx;
    return ampk_rt_stream_done(stream);
}

static void card(struct ampk_context *ctx, char *name, size_t size)
{
    snprintf(name, size, "%s", ctx->device.card);
}

/* So many failures in a row end recording. One failure proves little: another thread of the
 * program that waits for the device spoils a recording. */
enum { MOST_FAILED_RECORDINGS = 3 };

/* Always returns false, for callers to pass on. Says once that recording has ended. */
static bool recording_failed(struct ampk_context *ctx)
{
    if (++ctx->failed_recordings < MOST_FAILED_RECORDINGS) return false;
    fprintf(stderr,
            "darknet-amp: the work of a pass cannot be recorded (%s); every operation is started "
            "by itself, which costs time where they are short\n",
            ampk_rt_error());
    return false;
}

static bool record_begin(struct ampk_context *ctx)
{
    bool given_up = ctx->failed_recordings >= MOST_FAILED_RECORDINGS;
    if (ctx->tensor_core) ampk_tc_say_timed(ctx->tensor_core);
    if (given_up || ampk_cuda_setting(AMPK_CUDA_UNRECORDED) == AMPK_ALWAYS) return false;
    return ampk_rt_record_begin(ctx->stream) || recording_failed(ctx);
}

static struct ampk_recording *record_end(struct ampk_context *ctx)
{
    ampk_rt_recording made = ampk_rt_record_end(ctx->stream);
    if (made) {
        ctx->recordings++;
        ctx->failed_recordings = 0;
    } else {
        recording_failed(ctx);
    }
    return (struct ampk_recording *)made;
}

static void record_play(struct ampk_context *ctx, struct ampk_recording *recording)
{
    if (ampk_rt_replay((ampk_rt_recording)recording, ctx->stream)) return;
    fprintf(stderr, "CUDA backend: a recording cannot be played: %s\n", ampk_rt_error());
    abort();
}

/* Waits first: the recording may still be running. */
static void record_free(struct ampk_context *ctx, struct ampk_recording *recording)
{
    ampk_cuda_wait(ctx);
    ampk_rt_recording_destroy((ampk_rt_recording)recording);
    if (--ctx->recordings == 0) ampk_cuda_work_tidy(ctx);
}

/* Every operation that backend.h lists goes into the table under its own name. */
#define ENTRY(operation) .operation = ampk_cuda_##operation,
const struct ampk_backend ampk_cuda = {.name = "cuda",
                                       .watching_costs = true,
                                       .context_create = ampk_cuda_context_create,
                                       .context_destroy = context_destroy,
                                       .alloc = memory_alloc,
                                       .free = memory_free,
                                       .acquire = acquire,
                                       .release = release,
                                       .stream = stream_of,
                                       .beside = beside,
                                       .done = done,
                                       .card = card,
                                       .record_begin = record_begin,
                                       .record_end = record_end,
                                       .record_play = record_play,
                                       .record_free = record_free,
                                       .read = memory_read,
                                       .write = memory_write,
                                       .free_bytes = free_bytes,
                                       .memory = memory_in_use,
                                       .mark = mark,
                                       .marked_seconds = marked_seconds,
                                       .fill_zero = fill_zero,
                                       AMPK_CUDA_OPERATIONS(ENTRY)};
