/* The CPU backend's memory: for tensors, and the work memory of a context. Knows nothing of what
 * is stored there. */
#include "cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    ALIGNMENT = 64,      /* a cache line */
    HUGE_PAGE = 2 << 20, /* larger blocks ask for such pages: fewer misses of the TLB */
};

/* aligned_alloc wants a multiple of the alignment. One unit more also makes 0 bytes a valid
 * request. */
void *ampk_aligned_memory(size_t bytes)
{
    size_t unit = bytes > HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    if (bytes > SIZE_MAX - unit) return NULL;
    void *memory = aligned_alloc(unit, (bytes / unit + 1) * unit);
#ifdef MADV_HUGEPAGE
    if (memory && unit == HUGE_PAGE) madvise(memory, (bytes / unit + 1) * unit, MADV_HUGEPAGE);
#endif
    return memory;
}

bool ampk_memory_reserve(struct ampk_context *ctx, size_t bytes)
{
    if (bytes <= ctx->memory_bytes) return true;
    free(ctx->memory);
    ctx->memory = ampk_aligned_memory(bytes);
    ctx->memory_bytes = ctx->memory ? bytes : 0;
    return ctx->memory != NULL;
}

/* Creation has reserved the large pieces, so this fails for small ones only; there is no way to
 * report it from an operation. */
void *ampk_memory(struct ampk_context *ctx, size_t bytes)
{
    if (ampk_memory_reserve(ctx, bytes)) return ctx->memory;
    fprintf(stderr, "CPU backend: out of memory: %zu bytes of work memory\n", bytes);
    abort();
}
