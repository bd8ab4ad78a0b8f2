/* Staged batches by themselves (attach/feed/staging.c): which are found, and what happens where no
 * page-locked memory can be had. Page-locked memory is the host's here, as much as there is room.
 * Beside a network that trains: ../train/staging.c. */
#include "darknet.h"
#ifndef GPU /* whose Darknet has nothing that staging needs more */
#define GPU
#endif
#include "plugin/attach/feed/staging.c"

#include "tests/rig/harness.h"

#include "tests/rig/files.h"

/* ---- in place of CUDA ---- */

static size_t room = SIZE_MAX, locked; /* bytes that may be page-locked at once, and that are */
static int asked;                      /* how often somebody wanted some */
static bool pending;                   /* an error that nobody has fetched */

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    CHECK_INT(flags, cudaHostAllocPortable);
    asked++;
    pending = bytes > room - locked;
    if (pending) return cudaErrorMemoryAllocation;
    size_t *p = malloc(64 + bytes);
    REQUIRE(p);
    *p = bytes;
    locked += bytes;
    *memory = (char *)p + 64;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    size_t *p = (size_t *)((char *)memory - 64);
    locked -= *p;
    free(p);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    pending = false;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t status)
{
    return status == cudaErrorMemoryAllocation ? "out of memory" : "another error";
}

/* ---- in place of fail.c ---- */

void amp_fail(const char *message)
{
    fprintf(stderr, "%s\n", message);
    abort();
}

/* ---- tests ---- */

enum { IMAGES = 4, INPUTS = 42 };

static const struct amp_image_shape shape = {.c = 3, .h = 2, .w = 7};

static float *rows[IMAGES];

static void make_rows(void)
{
    for (int k = 0; k < IMAGES; k++) {
        rows[k] = malloc(INPUTS * sizeof *rows[k]);
        for (int i = 0; i < INPUTS; i++)
            rows[k][i] = (float)test_uniform(-1, 1);
    }
}

static void free_rows(void)
{
    for (int k = 0; k < IMAGES; k++)
        free(rows[k]);
}

/* The first so many of the rows, as images of so many numbers. Whether they are staged. */
static bool is_staged(int images, size_t inputs, enum ampk_dtype dtype, struct amp_staged *d)
{
    struct amp_staging *s = amp_staging_open(IMAGES, shape, dtype);
    REQUIRE(s != NULL);
    for (int k = images; k-- > 0;)
        amp_staging_fill(s, k, rows[k], inputs);
    amp_staging_close(s, rows);
    return amp_staging_find(rows, IMAGES, d);
}

AMP_TEST(a_batch_is_staged_whole_or_not_at_all)
{
    struct amp_staged d;
    make_rows();
    amp_staging_start();
    CHECK(!is_staged(IMAGES - 1, INPUTS, AMPK_FP16, &d));
    CHECK(!is_staged(IMAGES, INPUTS - 1, AMPK_FP16, &d));
    rows[1][5] = 65520; /* the smallest that FP16 rounds to inf */
    CHECK(!is_staged(IMAGES, INPUTS, AMPK_FP16, &d));
    CHECK(is_staged(IMAGES, INPUTS, AMPK_BF16, &d));
    amp_staging_drop(rows);
    rows[1][5] = 65519;
    CHECK(is_staged(IMAGES, INPUTS, AMPK_FP16, &d));
    amp_staging_drop(rows);
    rows[1][5] = INFINITY;
    CHECK(!is_staged(IMAGES, INPUTS, AMPK_FP32, &d));
    CHECK(!amp_staging_find(rows, IMAGES, &d));
    free_rows();
    amp_staging_tidy();
}

AMP_TEST(parts_of_a_batch_are_found_by_their_rows)
{
    struct amp_staged d, next;
    make_rows();
    amp_staging_start();
    REQUIRE(is_staged(IMAGES, INPUTS, AMPK_FP32, &d));
    CHECK_INT(d.bytes, IMAGES * INPUTS * 4);
    CHECK(amp_staging_find(rows + 1, 2, &d));
    CHECK_INT(d.first, 1);
    CHECK(d.rows == rows + 1);
    for (int k = 0; k < 2; k++) /* NHWC */
        for (int i = 0; i < INPUTS; i++) {
            int pixel = i % (shape.h * shape.w), c = i / (shape.h * shape.w);
            CHECK(((const float *)d.memory)[k * INPUTS + pixel * shape.c + c] == rows[1 + k][i]);
        }
    CHECK(!amp_staging_find(rows + 3, 2, &d));
    CHECK(!amp_staging_foresee(d.batch, d.first, 2, &next));
    CHECK(amp_staging_foresee(d.batch - 1, d.first, 2, &next));
    CHECK(next.memory == d.memory);
    CHECK(!amp_staging_foresee(d.batch - 1, d.first + 2, 2, &next));
    rows[2][INPUTS - 1] += 1;
    CHECK(!amp_staging_find(rows + 1, 2, &d));
    amp_staging_drop(rows + IMAGES); /* not of this batch */
    CHECK(amp_staging_find(rows, 2, &d));
    amp_staging_drop(rows + IMAGES - 1);
    CHECK(!amp_staging_find(rows, 2, &d));
    free_rows();
    amp_staging_tidy();
    CHECK_INT(locked, 0);
}

/* Between them only some are. */
AMP_TEST(the_first_and_the_last_number_of_a_large_image_are_compared)
{
    enum { NUMBERS = 3 * 40 * 50 };
    static const struct amp_image_shape large = {.c = 3, .h = 40, .w = 50};
    float *row = calloc(NUMBERS, sizeof *row);
    struct amp_staged d;
    REQUIRE(row != NULL);
    amp_staging_start();
    struct amp_staging *s = amp_staging_open(1, large, AMPK_FP32);
    REQUIRE(s != NULL);
    amp_staging_fill(s, 0, row, NUMBERS);
    amp_staging_close(s, &row);
    for (int i = 0; i < NUMBERS; i += NUMBERS - 1) {
        CHECK(amp_staging_find(&row, 1, &d));
        row[i] = 1;
        CHECK(!amp_staging_find(&row, 1, &d));
        row[i] = 0;
    }
    amp_staging_drop(&row);
    amp_staging_tidy();
    free(row);
}

AMP_TEST(memory_of_a_batch_that_outlives_its_network_goes_with_it)
{
    struct amp_staged d;
    make_rows();
    amp_staging_start();
    REQUIRE(is_staged(IMAGES, INPUTS, AMPK_FP16, &d));
    amp_staging_tidy();
    CHECK(locked > 0);
    amp_staging_drop(rows);
    CHECK_INT(locked, 0);
    free_rows();
}

static void load_in_vain(int batches)
{
    for (int k = 0; k < batches; k++) {
        struct amp_staging *s = amp_staging_open(IMAGES, shape, AMPK_FP32);
        REQUIRE(s != NULL);
        for (int i = 0; i < IMAGES; i++)
            amp_staging_fill(s, i, rows[i], INPUTS);
        amp_staging_close(s, rows);
        amp_staging_drop(rows);
    }
}

AMP_TEST(batches_in_a_row_that_nobody_trains_on_end_it)
{
    struct amp_staged d;
    char said[1000] = "";
    make_rows();
    amp_staging_start();
    load_in_vain(MOST_UNUSED - 1);
    CHECK(is_staged(IMAGES, INPUTS, AMPK_FP32, &d));
    amp_staging_drop(rows);
    load_in_vain(MOST_UNUSED);
    struct capture c = capture_begin(2);
    for (int k = 0; k < 2; k++)
        CHECK(!amp_staging_open(IMAGES, shape, AMPK_FP32));
    capture_end(c, said, sizeof said);
    CHECK_STR(said, "darknet-amp: this program does not train on its batches as they were loaded: "
                    "images go to the GPU when their pass begins\n");
    amp_staging_start(); /* another network */
    CHECK(is_staged(IMAGES, INPUTS, AMPK_FP32, &d));
    amp_staging_drop(rows);
    amp_staging_tidy();
    free_rows();
}

/* Memory is used again, the largest that is free for what fits in it. */
AMP_TEST(memory_is_asked_for_once)
{
    struct amp_staged d;
    make_rows();
    amp_staging_start();
    asked = 0;
    for (int k = 0; k < 3; k++) {
        CHECK(is_staged(IMAGES, INPUTS, k == 1 ? AMPK_FP16 : AMPK_FP32, &d));
        amp_staging_drop(rows);
    }
    CHECK_INT(asked, 1);
    CHECK_INT(locked, IMAGES * INPUTS * sizeof(float));
    amp_staging_tidy();
    free_rows();
}

/* Two in hand at once, then the larger one again. */
AMP_TEST(the_one_with_room_is_used_again)
{
    static const enum ampk_dtype types[] = {AMPK_FP16, AMPK_FP32};
    struct amp_staged d;
    make_rows();
    for (int first = 0; first < 2; first++) {
        float *others[IMAGES];
        memcpy(others, rows, sizeof others);
        amp_staging_start();
        CHECK(is_staged(IMAGES, INPUTS, types[first], &d));
        struct amp_staging *s = amp_staging_open(IMAGES, shape, types[!first]);
        REQUIRE(s);
        for (int k = 0; k < IMAGES; k++)
            amp_staging_fill(s, k, others[k], INPUTS);
        amp_staging_close(s, others);
        amp_staging_drop(rows);
        amp_staging_drop(others);
        asked = 0;
        CHECK(is_staged(IMAGES, INPUTS, AMPK_FP32, &d));
        CHECK_INT(asked, 0);
        amp_staging_drop(rows);
        amp_staging_tidy();
    }
    CHECK_INT(locked, 0);
    free_rows();
}

static struct amp_staging *begin_batch(float **of)
{
    struct amp_staging *s = amp_staging_open(IMAGES, shape, AMPK_FP32);
    REQUIRE(s);
    memcpy(of, rows, sizeof rows);
    for (int k = 0; k < IMAGES; k++)
        amp_staging_fill(s, k, of[k], INPUTS);
    return s;
}

/* Wherever its memory is, and never one that is still loading. */
AMP_TEST(the_next_batch_is_the_next_in_number)
{
    float *of[3][IMAGES];
    struct amp_staged d[3], next;
    make_rows();
    amp_staging_start();
    for (int i = 0; i < 3; i++) {
        amp_staging_close(begin_batch(of[i]), of[i]);
        REQUIRE(amp_staging_find(of[i], IMAGES, &d[i]));
        CHECK_INT(d[i].batch, d[0].batch + (uint64_t)i);
    }
    for (int i = 0; i < 3; i++) { /* the memory of each is used again in turn */
        uint64_t last = d[0].batch + 2 + (uint64_t)i;
        amp_staging_drop(of[i]);
        struct amp_staging *s = begin_batch(of[i]);
        CHECK(!amp_staging_find(of[i], IMAGES, &next));
        CHECK(!amp_staging_foresee(last, 0, IMAGES, &next));
        amp_staging_close(s, of[i]);
        for (uint64_t after = last - 2; after <= last; after++) {
            CHECK(amp_staging_foresee(after, 0, IMAGES, &next));
            CHECK_INT(next.batch, after + 1);
        }
        CHECK(!amp_staging_foresee(last + 1, 0, IMAGES, &next));
    }
    for (int i = 0; i < 3; i++)
        amp_staging_drop(of[i]);
    amp_staging_tidy();
    CHECK_INT(locked, 0);
    free_rows();
}

/* The last test: what was refused once is not asked for again in the whole program. */
AMP_TEST(memory_that_is_refused_is_said_once_and_less_is_asked_for)
{
    static const struct amp_image_shape large = {.c = 3, .h = 512, .w = 512};
    struct amp_staged d;
    char text[1000] = "";
    make_rows();
    amp_staging_start();
    CHECK(is_staged(IMAGES, INPUTS, AMPK_FP32, &d));
    amp_staging_drop(rows);
    room = 1 << 20;
    asked = 0;
    struct capture c = capture_begin(2);
    for (int k = 0; k < 3; k++)
        CHECK(!amp_staging_open(IMAGES, large, AMPK_FP32));
    capture_end(c, text, sizeof text);
    CHECK(strstr(text, "darknet-amp: no 12.0 MiB of page-locked memory for a batch (out of "
                       "memory): ") == text);
    CHECK(strchr(text, '\n') == text + strlen(text) - 1);
    CHECK(asked == 1 && !pending);
    CHECK_INT(locked, 0);
    CHECK(is_staged(IMAGES, INPUTS, AMPK_FP32, &d)); /* there is room for less */
    CHECK_INT(asked, 2);
    amp_staging_drop(rows);
    room = SIZE_MAX;
    CHECK(!amp_staging_open(IMAGES, large, AMPK_FP32));
    CHECK_INT(asked, 2);
    amp_staging_tidy();
    CHECK_INT(locked, 0);
    free_rows();
}

AMP_TEST_MAIN
