/* Conformance: convert, and the number formats themselves. */
#include "conformance.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- random tensors ---- */

static void compare_convert(struct rig *r, struct pair *x, struct pair *y, bool accumulate)
{
    struct amax amax = make_amax(r);
    struct ampk_tensor size = absolute(r, &x->exact);
    struct ampk_tensor magnitude = magnitude_of_old(r, y, accumulate);
    ampk_reference.convert(NULL, &size, &magnitude, true, NULL);
    r->backend->convert(r->context, &x->tested, &y->tested, accumulate, tested_amax(&amax));
    ampk_reference.convert(NULL, &x->exact, &y->exact, accumulate, &amax.exact);
    struct tolerance one_addition = {1, &magnitude, 0, 0};
    double slack = check_output(r, "convert", y, accumulate ? one_addition : exactly);
    check_amax(r, "convert", &amax, slack);
}

/* NHWC, perhaps some channels of a wider tensor, or NCHW. */
static struct ampk_tensor describe_any(enum ampk_dtype dtype, int n, int c, int h, int w)
{
    return random_int(0, 2) ? describe_channels(dtype, n, c, h, w)
                            : describe_slice(dtype, AMPK_NCHW, n, c, h, w);
}

static void convert_case(struct rig *r)
{
    bool accumulate = random_bool();
    struct ampk_tensor shape = random_shape(AMPK_FP32, AMPK_NHWC);
    struct ampk_tensor from = describe_any(random_dtype(), shape.n, shape.c, shape.h, shape.w);
    struct ampk_tensor to = describe_any(random_dtype(), from.n, from.c, from.h, from.w);
    struct pair x = input_tensor(r, from), y = output_tensor(r, to, accumulate);
    compare_convert(r, &x, &y, accumulate);
}

AMP_TEST(convert)
{
    run_cases(convert_case, 160);
}

/* Different shapes of the same size: flat, in NCHW order. */
static void regroup_case(struct rig *r)
{
    bool accumulate = random_bool();
    int c = random_int(1, 20), h = random_int(1, 6), w = random_int(1, 6), n = random_int(1, 3);
    struct ampk_tensor from = describe_any(random_dtype(), n, 4 * c, h, w);
    struct ampk_tensor to = random_bool() ? describe_any(random_dtype(), n, 4 * c * h * w, 1, 1)
                                          : describe_any(random_dtype(), n, c, 2 * h, 2 * w);
    if (random_bool()) {
        struct ampk_tensor other = from;
        from = to, to = other;
    }
    struct pair x = input_tensor(r, from), y = output_tensor(r, to, accumulate);
    compare_convert(r, &x, &y, accumulate);
}

AMP_TEST(convert_between_shapes)
{
    run_cases(regroup_case, 200);
}

/* ---- number formats: expected values by construction, for the reference too ---- */

/* Converts n numbers on one backend. */
static void convert_numbers(const struct ampk_backend *backend, struct ampk_context *context,
                            const void *from, enum ampk_dtype from_type, void *to,
                            enum ampk_dtype to_type, size_t n, uint32_t *amax)
{
    struct ampk_tensor src = describe(from_type, AMPK_NCHW, 1, (int)n, 1, 1);
    struct ampk_tensor dst = describe(to_type, AMPK_NCHW, 1, (int)n, 1, 1);
    size_t from_bytes = n * ampk_dtype_bytes(from_type), to_bytes = n * ampk_dtype_bytes(to_type);
    uint32_t *word = backend->alloc(context, sizeof *word);
    src.data = backend->alloc(context, from_bytes);
    dst.data = backend->alloc(context, to_bytes);
    backend->write(context, src.data, from, from_bytes);
    backend->fill_zero(context, word, sizeof *word);
    backend->convert(context, &src, &dst, false, word);
    backend->read(context, to, dst.data, to_bytes);
    if (amax) backend->read(context, amax, word, sizeof *amax);
    backend->free(context, src.data);
    backend->free(context, dst.data);
    backend->free(context, word);
}

/* Runs the check with the reference and with every instruction set of the tested backend. */
static void on_every_backend(void (*check)(const struct ampk_backend *, struct ampk_context *))
{
    check(&ampk_reference, NULL);
    for (int isa = 0; isa < ISAS; isa++) {
        struct ampk_context *context = open_context(all_isas[isa], 1);
        if (!context) continue;
        int failures = test_failures;
        check(&CONFORMANCE_BACKEND, context);
        if (test_failures > failures) fprintf(stderr, "instruction set %s\n", all_isas[isa]);
        CONFORMANCE_BACKEND.context_destroy(context);
    }
}

/* A 16-bit format: fraction bits, and the bits of its inf. */
struct format {
    enum ampk_dtype dtype;
    int fraction, inf;
};

static const struct format half = {AMPK_FP16, 10, 0x7c00}, bfloat = {AMPK_BF16, 7, 0x7f80};

/* The value of a positive finite pattern, from the definition of the format. At `inf` it is what
 * the next larger finite number would be. */
static double value_of(struct format f, int bits)
{
    int exponent = bits >> f.fraction, one = 1 << f.fraction;
    int bias = (f.inf >> f.fraction) / 2;
    if (exponent == 0) return ldexp(bits, 1 - bias - f.fraction);
    return ldexp(one + bits % one, exponent - bias - f.fraction);
}

/* All 65536 patterns to FP32 and back. */
static void check_all_patterns(const struct ampk_backend *backend, struct ampk_context *context,
                               struct format f)
{
    static uint16_t pattern[65536], back[65536];
    static float value[65536];
    for (int i = 0; i < 65536; i++)
        pattern[i] = (uint16_t)i;
    convert_numbers(backend, context, pattern, f.dtype, value, AMPK_FP32, 65536, NULL);
    convert_numbers(backend, context, value, AMPK_FP32, back, f.dtype, 65536, NULL);
    for (int i = 0; i < 65536; i++) {
        int size = i & 0x7fff;
        double expected = size < f.inf ? value_of(f, size) : INFINITY;
        bool right = size > f.inf ? isnan(value[i]) && (back[i] & 0x7fff) > f.inf
                                  : fabs(value[i]) == expected && back[i] == i &&
                                        !signbit(value[i]) == !(i >> 15);
        if (!right)
            TEST_FAIL("%s: pattern 0x%04x becomes %.9g and then 0x%04x", backend->name, i, value[i],
                      back[i]);
    }
}

/* Between every two neighbours: the middle goes to the even one, its FP32 neighbours to the nearer
 * one. Past the largest finite value, the next power of two stands for inf. */
static void check_boundaries(const struct ampk_backend *backend, struct ampk_context *context,
                             struct format f, int sign)
{
    enum { MOST = 3 * 0x7f80 };
    static float value[MOST];
    static uint16_t expected[MOST], stored[MOST];
    size_t n = 0;
    for (int i = 0; i < f.inf; i++) {
        float middle = (float)((value_of(f, i) + value_of(f, i + 1)) / 2);
        value[n] = nextafterf(middle, 0), expected[n++] = (uint16_t)i;
        value[n] = middle, expected[n++] = (uint16_t)(i % 2 ? i + 1 : i);
        value[n] = nextafterf(middle, INFINITY), expected[n++] = (uint16_t)(i + 1);
    }
    for (size_t i = 0; i < n; i++)
        if (sign) value[i] = -value[i], expected[i] |= 0x8000;
    convert_numbers(backend, context, value, AMPK_FP32, stored, f.dtype, n, NULL);
    for (size_t i = 0; i < n; i++)
        if (stored[i] != expected[i])
            TEST_FAIL("%s: %.9g (%a) becomes 0x%04x, expected 0x%04x", backend->name, value[i],
                      value[i], stored[i], expected[i]);
}

static void check_formats(const struct ampk_backend *backend, struct ampk_context *context)
{
    for (int i = 0; i < 2; i++) {
        struct format f = i ? bfloat : half;
        check_all_patterns(backend, context, f);
        check_boundaries(backend, context, f, 0);
        check_boundaries(backend, context, f, 1);
    }
}

AMP_TEST(every_16_bit_number_and_every_rounding_boundary)
{
    on_every_backend(check_formats);
}

#if defined(__x86_64__)
/* Libraries built with -ffast-math set this for the whole process. */
AMP_TEST(denormals_survive_where_the_processor_flushes_them)
{
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040); /* flush results, treat operands as zero */
    static uint16_t pattern[2048], back[2048];
    static float value[2048];
    for (int i = 0; i < ISAS; i++) {
        struct ampk_context *context = open_context(all_isas[i], 1);
        if (!context) continue;
        for (int j = 0; j < 2048; j++)
            pattern[j] = (uint16_t)j;
        convert_numbers(&CONFORMANCE_BACKEND, context, pattern, AMPK_FP16, value, AMPK_FP32, 2048,
                        NULL);
        convert_numbers(&CONFORMANCE_BACKEND, context, value, AMPK_FP32, back, AMPK_FP16, 2048,
                        NULL);
        CHECK(memcmp(pattern, back, sizeof back) == 0);
        CHECK(value[1] == 0x1p-24f);
        CONFORMANCE_BACKEND.context_destroy(context);
    }
    _mm_setcsr(mode);
}
#endif

static void check_overflow(const struct ampk_backend *backend, struct ampk_context *context)
{
    static const struct {
        float value;
        uint16_t stored;
        bool finite;
    } cases[] = {
        {65504, 0x7bff, true},      {65519.99f, 0x7bff, true},   {65520, 0x7c00, true},
        {-65520, 0xfc00, true},     {1e30f, 0x7c00, true},       {-3e38f, 0xfc00, true},
        {INFINITY, 0x7c00, false},  {-INFINITY, 0xfc00, false},  {0x1p-25f, 0, true},
        {0x1.000002p-25f, 1, true}, {-0x1.8p-24f, 0x8002, true}, {0, 0, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint16_t stored;
        uint32_t amax;
        convert_numbers(backend, context, &cases[i].value, AMPK_FP32, &stored, AMPK_FP16, 1, &amax);
        CHECK_INT(stored, cases[i].stored);
        CHECK_INT(amax, ampk_ref_float_bits(cases[i].value) & 0x7fffffff);
        CHECK_INT(ampk_amax_is_finite(amax), cases[i].finite);
    }
    float nan = -NAN;
    uint16_t stored;
    uint32_t amax;
    convert_numbers(backend, context, &nan, AMPK_FP32, &stored, AMPK_FP16, 1, &amax);
    CHECK((stored & 0x7fff) > 0x7c00);
    CHECK(amax > 0x7f800000 && amax < 0x80000000);
}

AMP_TEST(overflow_of_fp16_and_its_amax)
{
    on_every_backend(check_overflow);
}

/* ---- memory ---- */

/* A block beyond the size of a huge page, and none at all: of 0 bytes each has an address. What
 * nobody has is refused. */
static void check_memory(const struct ampk_backend *backend, struct ampk_context *context)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000, (2 << 20) + 1};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    unsigned char *blocks[SIZES], last = 7, zero = 1;
    for (int i = 0; i < SIZES; i++) {
        blocks[i] = backend->alloc(context, sizes[i]);
        REQUIRE(blocks[i] != NULL);
        CHECK_INT((uintptr_t)blocks[i] % 64, 0);
        for (int k = 0; k < i; k++)
            CHECK(blocks[i] >= blocks[k] + sizes[k] || blocks[k] >= blocks[i] + sizes[i]);
        if (!sizes[i]) continue;
        backend->write(context, blocks[i] + sizes[i] - 1, &last, 1);
        backend->fill_zero(context, blocks[i], sizes[i] - 1);
        backend->read(context, &last, blocks[i] + sizes[i] - 1, 1);
        CHECK_INT(last, 7);
        backend->read(context, &zero, blocks[i], 1);
        CHECK_INT(zero, sizes[i] == 1 ? 7 : 0);
    }
    for (int i = 0; i < SIZES; i++)
        backend->free(context, blocks[i]);
    CHECK(!backend->alloc(context, SIZE_MAX - 64));
    CHECK(!backend->alloc(context, SIZE_MAX / 2));
}

AMP_TEST(memory_is_aligned_and_ends)
{
    on_every_backend(check_memory);
}

AMP_TEST_MAIN
