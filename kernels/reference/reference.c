/* The table of the reference backend, and its context and memory: no context worth the name, and
 * the C library's memory. The backend is slow, obvious and single-threaded, computes in double
 * precision, and serves tests only.
 *
 * Each result is rounded as kernels.h says, once, so a test may compare a real backend with it to
 * within that backend's own FP32 roundings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operations.h"

/* The reference keeps no state; C wants a member. */
struct ampk_context {
    int unused;
};

static struct ampk_context *context_create(int threads, char *err, size_t err_size)
{
    (void)threads;
    struct ampk_context *context = calloc(1, sizeof *context);
    if (!context) snprintf(err, err_size, "reference backend: no memory for a context");
    return context;
}

static void context_destroy(struct ampk_context *context)
{
    free(context);
}

/* 64 bytes, as the contract demands; at least one unit, so that 0 bytes are no failure. */
static void *alloc_aligned(struct ampk_context *context, size_t bytes)
{
    (void)context;
    size_t rounded = (bytes + 63) / 64 * 64;
    return rounded < bytes ? NULL : aligned_alloc(64, rounded ? rounded : 64);
}

static void free_aligned(struct ampk_context *context, void *memory)
{
    (void)context;
    free(memory);
}

/* Everything is done when it returns, so there is nothing to order. */
static void no_order(struct ampk_context *ctx)
{
    (void)ctx;
}

static void copy_memory(struct ampk_context *context, void *dst, const void *src, size_t bytes)
{
    (void)context;
    memcpy(dst, src, bytes);
}

static void fill_zero(struct ampk_context *context, void *dst, size_t bytes)
{
    (void)context;
    memset(dst, 0, bytes);
}

#define ENTRY(operation) .operation = ampk_ref_##operation,
const struct ampk_backend ampk_reference = {.name = "reference",
                                            .context_create = context_create,
                                            .context_destroy = context_destroy,
                                            .alloc = alloc_aligned,
                                            .free = free_aligned,
                                            .acquire = no_order,
                                            .release = no_order,
                                            .read = copy_memory,
                                            .write = copy_memory,
                                            .fill_zero = fill_zero,
                                            AMPK_REF_OPERATIONS(ENTRY)};
