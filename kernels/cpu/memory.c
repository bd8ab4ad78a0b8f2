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

/* A request for 0 bytes is valid. What follows the last whole huge page stays in small ones: the
 * first byte of a huge one would take all of it. */
void *ampk_aligned_memory(size_t bytes)
{
    void *memory = NULL;
    if (bytes > SIZE_MAX - ALIGNMENT) return NULL;
    size_t lines = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    if (posix_memalign(&memory, bytes > HUGE_PAGE ? HUGE_PAGE : ALIGNMENT, lines)) return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes > HUGE_PAGE) madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
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
