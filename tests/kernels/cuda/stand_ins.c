/* In place of the context and the plans that contests about sums and first layers stand on: work
 * memory and a device of one block. */
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/libs/plans.h"

bool ampk_cuda_work_reserve(struct ampk_context *ctx, size_t bytes)
{
    if (bytes <= ctx->work_bytes) return true;
    ampk_rt_free(ctx->work);
    ctx->work = ampk_rt_alloc(bytes);
    ctx->work_bytes = bytes;
    return ctx->work != NULL;
}

void *ampk_cuda_work(struct ampk_context *ctx, size_t bytes)
{
    ampk_cuda_work_reserve(ctx, bytes);
    return ctx->work;
}

unsigned ampk_cuda_blocks(const struct ampk_context *ctx, size_t items, int per_block, int threads)
{
    (void)ctx, (void)items, (void)per_block, (void)threads;
    return 1;
}

size_t ampk_tc_workspace_limit(const struct ampk_tc *tc, const struct ampk_tc_problem *p)
{
    (void)p;
    return tc->settings.workspace_limit;
}
