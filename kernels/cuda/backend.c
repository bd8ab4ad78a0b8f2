/* The CUDA backend's table. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/context.h"

static void *memory_alloc(struct ampk_context *ctx, size_t bytes)
{
    (void)ctx;
    return ampk_rt_alloc(bytes ? bytes : 1);
}

static void memory_free(struct ampk_context *ctx, void *memory)
{
    if (memory) ampk_cuda_wait(ctx);
    ampk_rt_free(memory);
}

static void memory_read(struct ampk_context *ctx, void *host, const void *src, size_t bytes)
{
    if (bytes) ampk_rt_copy_out(host, src, bytes, ctx->stream);
    ampk_cuda_wait(ctx);
}

static void memory_write(struct ampk_context *ctx, void *dst, const void *host, size_t bytes)
{
    if (!bytes) return;
    ampk_rt_copy_in(dst, host, bytes, ctx->stream);
    if (ampk_rt_is_pinned(host)) ampk_cuda_wait(ctx);
}

static void fill_zero(struct ampk_context *ctx, void *dst, size_t bytes)
{
    if (bytes) ampk_rt_zero(dst, bytes, ctx->stream);
}

#define ENTRY(operation) .operation = ampk_cuda_##operation,
const struct ampk_backend ampk_cuda = {.name = "cuda",
                                       .context_create = ampk_cuda_context_create,
                                       .context_destroy = ampk_cuda_context_destroy,
                                       .alloc = memory_alloc,
                                       .free = memory_free,
                                       .read = memory_read,
                                       .write = memory_write,
                                       .fill_zero = fill_zero,
                                       AMPK_CUDA_OPERATIONS(ENTRY)};
