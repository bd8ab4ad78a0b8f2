/* The CUDA backend's context and memory. In the emulation everything must work; in the preset cuda
 * without a GPU, the error must say so. */
#include "kernels/cuda/runtime/context.h"
#include "kernels/kernels.h"
#include "tests/rig/harness.h"
#ifdef CUDA_EMULATED
#include "tests/emulation/emulation.h"
#include "tests/rig/files.h"
#endif

/* NULL where there is no GPU, which the emulation never says. */
static struct ampk_context *open_context(void)
{
    char err[300] = "";
    struct ampk_context *context = ampk_cuda.context_create(0, err, sizeof err);
#ifdef CUDA_EMULATED
    if (!context) fprintf(stderr, "no context: %s\n", err);
    REQUIRE(context != NULL);
#endif
    if (!context && strncmp(err, "no CUDA device: ", 16)) TEST_FAIL("no context: %s", err);
    if (!context) printf("SKIPPED: %s\n", err);
    return context;
}

AMP_TEST(memory_keeps_what_is_written)
{
    enum { N = 100000 };
    static int out[N], back[N];
    struct ampk_context *context = open_context();
    if (!context) return;
    int *memory = ampk_cuda.alloc(context, sizeof out);
    REQUIRE(memory != NULL);
    for (int i = 0; i < N; i++)
        out[i] = i;
    ampk_cuda.write(context, memory, out, sizeof out);
    memset(out, 0, sizeof out); /* write has taken it */
    ampk_cuda.fill_zero(context, memory + 10, 20 * sizeof *memory);
    ampk_cuda.read(context, back, memory, sizeof back);
    for (int i = 0; i < N; i++)
        CHECK_INT(back[i], i >= 10 && i < 30 ? 0 : i);
    ampk_cuda.write(context, memory, out, 0);
    ampk_cuda.read(context, back, memory, 0);
    ampk_cuda.free(context, memory);
    ampk_cuda.free(context, NULL);
    ampk_cuda.context_destroy(context);
}

#ifdef CUDA_EMULATED
/* What a pass reads goes through memory that was page-locked once. */
AMP_TEST(small_reads_are_page_locked)
{
    enum { N = AMPK_READ_BACK_BYTES / sizeof(int) };
    static int out[N + 1], back[N + 1];
    struct ampk_context *context = open_context();
    int *memory = ampk_cuda.alloc(context, sizeof out);
    REQUIRE(memory != NULL);
    for (int i = 0; i <= N; i++)
        out[i] = i;
    ampk_cuda.write(context, memory, out, sizeof out);
    size_t before = emulation_pageable_bytes();
    ampk_cuda.read(context, back, memory, N * sizeof *back);
    CHECK_INT(emulation_pageable_bytes(), before);
    CHECK(!memcmp(back, out, N * sizeof *back) && back[N] == 0);
    ampk_cuda.read(context, back, memory, sizeof back);
    CHECK_INT(emulation_pageable_bytes(), before + sizeof back);
    CHECK(!memcmp(back, out, sizeof back));
    ampk_cuda.free(context, memory);
    ampk_cuda.context_destroy(context);
}
#endif

AMP_TEST(work_memory_grows)
{
    struct ampk_context *context = open_context();
    if (!context) return;
    void *small = ampk_cuda_work(context, 100);
    CHECK(small != NULL && ampk_cuda_work(context, 200) == small);
    CHECK(ampk_cuda_work_reserve(context, 64 << 20));
    CHECK(ampk_cuda_work(context, 64 << 20) == ampk_cuda_work(context, 100));
    CHECK_INT((uintptr_t)ampk_cuda_work(context, 100) % 256, 0);
    ampk_cuda.context_destroy(context);
}

AMP_TEST(recordings_keep_their_work_memory)
{
    char byte = 1;
    struct ampk_context *context = open_context();
    if (!context) return;
    void *recorded = ampk_cuda_work(context, 100);
    context->recordings = 1;
    CHECK(ampk_cuda_work(context, 64 << 20) != recorded);
    ampk_cuda.fill_zero(context, recorded, 100); /* as a recording would */
    ampk_cuda.read(context, &byte, recorded, 1);
    CHECK_INT(byte, 0);
    ampk_cuda.context_destroy(context);
}

#ifdef CUDA_EMULATED
AMP_TEST(what_cannot_be_recorded_is_given_up)
{
    struct ampk_context *context = open_context();
    char said[2000] = "";
    struct capture c = capture_begin(2);
    for (int waits = 0; waits < 2; waits++) {
        context->failed_recordings = 0;
        for (int attempt = 0; attempt < 3; attempt++) {
            REQUIRE(ampk_cuda.record_begin(context));
            if (waits)
                ampk_cuda_wait(context);
            else
                CHECK(ampk_cuda_work(context, 64 << 20) != NULL);
            CHECK(ampk_cuda.record_end(context) == NULL);
        }
        CHECK(!ampk_cuda.record_begin(context));
    }
    capture_end(c, said, sizeof said);
    const char *first =
        strstr(said, "the work of a pass cannot be recorded (work memory is short)");
    const char *second = strstr(said, "cannot be recorded (the host waits for the device)");
    CHECK(first && second && first < second);
    CHECK(ampk_cuda_work(context, 64 << 20) != NULL);
    ampk_cuda.context_destroy(context);
}

AMP_TEST(a_recording_that_succeeds_forgives_those_that_failed_before)
{
    struct ampk_context *context = open_context();
    for (int attempt = 0; attempt < 6; attempt++) {
        REQUIRE(ampk_cuda.record_begin(context));
        if (attempt % 3 < 2) ampk_cuda_wait(context);
        struct ampk_recording *made = ampk_cuda.record_end(context);
        CHECK((made != NULL) == (attempt % 3 == 2));
        if (made) ampk_cuda.record_free(context, made);
    }
    ampk_cuda.context_destroy(context);
}
#endif

AMP_TEST(blocks_fill_the_device_and_no_more)
{
    struct ampk_context ctx = {
        .device = {.multiprocessors = 10, .threads_per_multiprocessor = 2048}};
    CHECK_INT(ampk_cuda_blocks(&ctx, 0, 256, 256), 1);
    CHECK_INT(ampk_cuda_blocks(&ctx, 257, 256, 256), 2);
    CHECK_INT(ampk_cuda_blocks(&ctx, (size_t)1 << 40, 256, 256), 80);
}

#ifdef CUDA_EMULATED
AMP_TEST(nothing_is_left_and_the_end_of_memory_is_an_error)
{
    struct emulation_memory before = emulation_memory();
    ampk_cuda.context_destroy(open_context());
    CHECK_INT(emulation_memory().allocations, before.allocations);
    CHECK_INT(emulation_memory().bytes, before.bytes);
    char err[300] = "";
    emulation_memory_limit(1000);
    CHECK(ampk_cuda.context_create(0, err, sizeof err) == NULL);
    CHECK(strstr(err, "out of memory") != NULL);
    emulation_memory_limit(SIZE_MAX);
    CHECK_INT(emulation_memory().bytes, before.bytes);
}
#endif

AMP_TEST_MAIN
