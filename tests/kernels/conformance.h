/* What the conformance tests share: a backend under test beside the reference, tensors that exist
 * in both, and the comparison.
 *
 * A case is a function of a rig. It makes tensors (input_tensor, output_tensor, ...), calls the
 * operation once on rig->backend with their `tested` side and once on ampk_reference with their
 * `exact` side, and checks the outputs. run_cases() runs it on every instruction set and with 1, 2
 * and 3 threads from the same seed; the bits of the outputs must not depend on the threads. The
 * CUDA backend has neither: it runs twice, in the emulation with blocks and threads in another
 * order and the second time on a larger device.
 *
 * Tested tensors lie between guard bytes, often at odd addresses and with gaps between images, and
 * between pixels where the operation takes slices. When the case ends, guards, gaps and inputs must
 * be as they were.
 *
 * Outputs of the reference are FP32 whatever the tested dtype, so a tested value is right if it is
 * the rounding to its dtype of some number within `slack` of the reference's. Slack is what FP32
 * arithmetic may add: so many roundings (terms * 2^-24) of the sum of the magnitudes involved.
 * That sum is found by running the reference on absolute values. */
#ifndef CONFORMANCE_RIG_H
#define CONFORMANCE_RIG_H

#include "kernels/kernels.h"
#include "kernels/reference/tensor.h"
#include "tests/rig/harness.h"
#ifdef CUDA_EMULATED
#include "tests/emulation/emulation.h"
#endif

/* The backend under test: the CPU's, or with CONFORMANCE_CUDA defined CUDA's. */
#ifdef CONFORMANCE_CUDA
#define CONFORMANCE_BACKEND ampk_cuda
static const char *const all_isas[] = {"cuda"};
enum { ISAS = 1, MOST_THREADS = 2 };
#else
#define CONFORMANCE_BACKEND ampk_cpu
static const char *const all_isas[] = {"avx512_bf16", "avx512", "avx2", "base"};
enum { ISAS = 4, MOST_THREADS = 3 };
#endif

#define UNUSED __attribute__((unused))

enum { GUARD_BYTES = 64, GUARD = 0xa5, MOST_BLOCKS = 1000 };

/* One allocation of the backend, with what it must contain around the elements: `images` times
 * `rows` of row_bytes, the first at byte `start`. */
struct block {
    void *memory;
    unsigned char *before; /* contents when the operation was called */
    size_t bytes, start, images, image_stride, rows, row_stride, row_bytes;
    bool constant;
};

struct rig {
    const struct ampk_backend *backend;
    struct ampk_context *context;
    struct block blocks[MOST_BLOCKS];
    int count;
    void *owned[4 * MOST_BLOCKS]; /* host memory that ends with the case */
    int owned_count;
    uint64_t digest; /* of all outputs checked */
    bool aligned;    /* set by a case whose tensors are to begin where vectors can */
    char note[200];  /* what the case is about, printed if it fails */
};

/* The same tensor for the backend and for the reference. `exact` has the tested dtype if it is an
 * input, else FP32. */
struct pair {
    struct ampk_tensor tested, exact;
};

/* ---- random choices ---- */

UNUSED static int random_int(int low, int high)
{
    return low + (int)(test_random() % (uint64_t)(high - low + 1));
}

UNUSED static bool random_bool(void)
{
    return test_random() & 1;
}

#define RANDOM_OF(...)                                                                             \
    ((const int[]){__VA_ARGS__}[test_random() % (sizeof((const int[]){__VA_ARGS__}) / sizeof(int))])

UNUSED static enum ampk_dtype random_dtype(void)
{
    return (enum ampk_dtype)random_int(AMPK_FP32, AMPK_BF16);
}

/* Channels around the widths of vectors, and what detectors have. */
UNUSED static int random_channels(void)
{
    return RANDOM_OF(1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65);
}

UNUSED static int random_side(void)
{
    return RANDOM_OF(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16);
}

/* In (-8, 8), over several powers of two, zero now and then. */
static double random_value(void)
{
    if (test_random() % 16 == 0) return 0;
    return ldexp(test_uniform(-1, 1), random_int(-4, 3));
}

/* ---- memory ---- */

static void *own(struct rig *r, size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    REQUIRE(memory && r->owned_count < 4 * MOST_BLOCKS);
    return r->owned[r->owned_count++] = memory;
}

static size_t span_of(const struct ampk_tensor *t)
{
    size_t area = (size_t)t->h * t->w, c = t->c;
    return (t->n - 1) * t->image_stride + (t->pitch ? (area - 1) * t->pitch + c : area * c);
}

/* Fills t's elements in NCHW order. */
static void fill(const struct ampk_tensor *t, double (*value)(void))
{
    size_t image = (size_t)t->c * t->h * t->w;
    for (int n = 0; n < t->n; n++)
        for (size_t j = 0; j < image; j++)
            ampk_ref_set_flat(t, n, j, value(), false, NULL);
}

/* Gives the backend a copy of `data` between guards, `shift` bytes off the alignment. */
static int add_block(struct rig *r, const void *data, size_t bytes, size_t shift, bool constant)
{
    REQUIRE(r->count < MOST_BLOCKS);
    struct block *b = &r->blocks[r->count];
    *b = (struct block){.start = GUARD_BYTES + shift,
                        .bytes = GUARD_BYTES + shift + bytes + GUARD_BYTES,
                        .row_bytes = bytes,
                        .images = 1,
                        .rows = 1,
                        .constant = constant};
    b->before = own(r, b->bytes);
    b->memory = r->backend->alloc(r->context, b->bytes);
    REQUIRE(b->memory != NULL);
    memset(b->before, GUARD, b->bytes);
    if (bytes) memcpy(b->before + b->start, data, bytes);
    r->backend->write(r->context, b->memory, b->before, b->bytes);
    return r->count++;
}

static void *block_data(struct rig *r, int block)
{
    return (char *)r->blocks[block].memory + r->blocks[block].start;
}

/* Bytes that the operation reads. */
UNUSED static void *input_bytes(struct rig *r, const void *data, size_t bytes)
{
    return block_data(r, add_block(r, data, bytes, 0, true));
}

/* Bytes in the backend's own format, that one operation writes and another reads. */
UNUSED static void *scratch_bytes(struct rig *r, size_t bytes)
{
    void *data = own(r, bytes);
    memset(data, GUARD, bytes);
    return block_data(r, add_block(r, data, bytes, 0, false));
}

/* A dense or strided description without data. */
UNUSED static struct ampk_tensor describe(enum ampk_dtype dtype, enum ampk_layout layout, int n,
                                          int c, int h, int w)
{
    size_t size = (size_t)c * h * w;
    return (struct ampk_tensor){NULL, dtype, layout, n, c, h, w, size, 0};
}

/* The same with room between images now and then. */
UNUSED static struct ampk_tensor describe_slice(enum ampk_dtype dtype, enum ampk_layout layout,
                                                int n, int c, int h, int w)
{
    struct ampk_tensor t = describe(dtype, layout, n, c, h, w);
    if (test_random() % 4 == 0) t.image_stride += random_int(1, 40);
    return t;
}

/* Every other time some channels of a wider tensor, so that pixels start at odd places or, as most
 * do in nets, at multiples of 8. */
UNUSED static struct ampk_tensor describe_channels(enum ampk_dtype dtype, int n, int c, int h,
                                                   int w)
{
    struct ampk_tensor t = describe_slice(dtype, AMPK_NHWC, n, c, h, w);
    if (random_bool()) return t;
    t.pitch = c + RANDOM_OF(1, 3, 8, 16, 64);
    t.image_stride += (size_t)(t.pitch - c) * h * w;
    return t;
}

UNUSED static struct ampk_tensor describe_nhwc(enum ampk_dtype dtype, int n, int c, int h, int w)
{
    return describe_slice(dtype, AMPK_NHWC, n, c, h, w);
}

/* Small shapes mostly, so that the reference keeps up; some of several pieces of work. */
UNUSED static struct ampk_tensor random_shape(enum ampk_dtype dtype, enum ampk_layout layout)
{
    if (test_random() % 8 == 0)
        return describe_slice(dtype, layout, random_int(1, 2), RANDOM_OF(3, 33, 64), 29,
                              RANDOM_OF(16, 31));
    return describe_slice(dtype, layout, random_int(1, 3), random_channels(), random_side(),
                          random_side());
}

/* Host memory for t, guard bytes in the gaps. */
static void give_data(struct rig *r, struct ampk_tensor *t)
{
    size_t bytes = span_of(t) * ampk_dtype_bytes(t->dtype);
    t->data = own(r, bytes);
    memset(t->data, GUARD, bytes);
}

static struct pair make_pair(struct rig *r, struct ampk_tensor host, bool constant)
{
    size_t size = ampk_dtype_bytes(host.dtype);
    size_t shift = !r->aligned && test_random() % 4 == 0 ? random_int(1, 15) * size : 0;
    int i = add_block(r, host.data, span_of(&host) * size, shift, constant);
    struct block *b = &r->blocks[i];
    b->images = host.n;
    b->image_stride = host.image_stride * size;
    b->rows = (size_t)host.h * host.w;
    b->row_bytes = (size_t)host.c * size;
    b->row_stride = ampk_pitch(&host) * size;
    struct pair p = {host, host};
    p.tested.data = block_data(r, i);
    return p;
}

/* A tensor that the operation reads. */
UNUSED static struct pair input_tensor_of(struct rig *r, struct ampk_tensor shape,
                                          double (*value)(void))
{
    give_data(r, &shape);
    fill(&shape, value);
    return make_pair(r, shape, true);
}

UNUSED static struct pair input_tensor(struct rig *r, struct ampk_tensor shape)
{
    return input_tensor_of(r, shape, random_value);
}

static double not_a_number(void)
{
    return NAN;
}

/* A tensor that the operation writes; value: its old contents. */
UNUSED static struct pair output_tensor_of(struct rig *r, struct ampk_tensor shape,
                                           double (*value)(void))
{
    give_data(r, &shape);
    fill(&shape, value);
    struct pair p = make_pair(r, shape, false);
    p.exact.dtype = AMPK_FP32;
    p.exact.image_stride = (size_t)shape.c * shape.h * shape.w;
    p.exact.pitch = 0;
    give_data(r, &p.exact);
    double *old = ampk_ref_load(&shape);
    ampk_ref_store(&p.exact, old, false, NULL);
    free(old);
    return p;
}

/* Old contents: random if the operation accumulates or updates, else NaN, which must not matter. */
UNUSED static struct pair output_tensor(struct rig *r, struct ampk_tensor shape, bool accumulate)
{
    return output_tensor_of(r, shape, accumulate ? random_value : not_a_number);
}

/* Dense, at a multiple of 16 bytes, as some operations want it. */
UNUSED static struct pair input_operand(struct rig *r, struct ampk_tensor shape)
{
    struct pair p = input_tensor(r, shape);
    while ((uintptr_t)p.tested.data % 16)
        p = input_tensor(r, shape);
    return p;
}

UNUSED static struct pair output_operand(struct rig *r, struct ampk_tensor shape)
{
    struct pair p = output_tensor(r, shape, false);
    while ((uintptr_t)p.tested.data % 16)
        p = output_tensor(r, shape, false);
    return p;
}

/* Arrays of n floats. */
UNUSED static struct ampk_tensor describe_array(size_t n)
{
    return describe(AMPK_FP32, AMPK_NCHW, 1, (int)n, 1, 1);
}

UNUSED static struct pair input_array(struct rig *r, size_t n)
{
    return input_tensor(r, describe_array(n));
}

UNUSED static struct pair output_array(struct rig *r, size_t n, bool update)
{
    return output_tensor(r, describe_array(n), update);
}

/* ---- magnitudes ---- */

/* |t| as a dense FP32 tensor of the host. */
UNUSED static struct ampk_tensor absolute(struct rig *r, const struct ampk_tensor *t)
{
    struct ampk_tensor a = describe(AMPK_FP32, t->layout, t->n, t->c, t->h, t->w);
    give_data(r, &a);
    double *values = ampk_ref_load(t);
    for (size_t i = 0; i < ampk_ref_count(t); i++)
        values[i] = fabs(values[i]);
    ampk_ref_store(&a, values, false, NULL);
    free(values);
    return a;
}

UNUSED static struct ampk_tensor blank(struct rig *r, const struct ampk_tensor *t)
{
    struct ampk_tensor a = describe(AMPK_FP32, t->layout, t->n, t->c, t->h, t->w);
    give_data(r, &a);
    memset(a.data, 0, span_of(&a) * sizeof(float));
    return a;
}

/* What an output's old contents contribute to the magnitude. */
UNUSED static struct ampk_tensor magnitude_of_old(struct rig *r, const struct pair *p,
                                                  bool accumulate)
{
    return accumulate ? absolute(r, &p->exact) : blank(r, &p->exact);
}

/* Roundings in an FP32 sum of so many terms: at worst one each; many of them do not all err the
 * same way, and stay far within 8 times the root of their number. */
UNUSED static double roundings(double terms)
{
    return terms <= 64 ? terms + 2 : 8 * sqrt(terms) + 2;
}

/* ---- comparison ---- */

/* How far the tested value, before its rounding to storage, may be from the reference: terms
 * roundings of the magnitude (a tensor of the output's shape), plus two numbers. */
struct tolerance {
    double terms;
    const struct ampk_tensor *magnitude;
    double relative, absolute;
};

UNUSED static const struct tolerance exactly = {0, NULL, 0, 0};

static double round_to_dtype(double v, enum ampk_dtype dtype)
{
    static const enum ampk_compute same[] = {
        [AMPK_FP32] = AMPK_COMPUTE_FP32,
        [AMPK_FP16] = AMPK_COMPUTE_FP16,
        [AMPK_BF16] = AMPK_COMPUTE_BF16,
    };
    return ampk_ref_round(v, ampk_ref_compute_format(same[dtype]));
}

static bool is_right(double tested, double exact, double slack, enum ampk_dtype dtype)
{
    if (isnan(exact)) return isnan(tested);
    if (isinf(exact)) return tested == exact;
    return tested >= round_to_dtype(exact - slack, dtype) &&
           tested <= round_to_dtype(exact + slack, dtype);
}

static double slack_at(const struct tolerance *t, double exact, int n, size_t j)
{
    double magnitude = t->magnitude ? ampk_ref_get_flat(t->magnitude, n, j) : 0;
    return t->terms * 0x1p-24 * magnitude + t->relative * fabs(exact) + t->absolute;
}

/* The backend's elements, as a host tensor. */
UNUSED static struct ampk_tensor download(struct rig *r, const struct pair *p)
{
    struct ampk_tensor t = p->tested;
    size_t bytes = span_of(&t) * ampk_dtype_bytes(t.dtype);
    t.data = own(r, bytes);
    r->backend->read(r->context, t.data, p->tested.data, bytes);
    return t;
}

static void digest_bytes(struct rig *r, const void *data, size_t bytes)
{
    const unsigned char *c = data;
    for (size_t i = 0; i < bytes; i++)
        r->digest = (r->digest ^ c[i]) * 0x100000001b3u;
}

/* Checks every element; returns the largest slack given. */
UNUSED static double check_output(struct rig *r, const char *what, const struct pair *p,
                                  struct tolerance tolerance)
{
    struct ampk_tensor t = download(r, p);
    size_t image = (size_t)t.c * t.h * t.w, wrong = 0;
    double most = 0;
    for (int n = 0; n < t.n; n++)
        for (size_t j = 0; j < image; j++) {
            double tested = ampk_ref_get_flat(&t, n, j), exact = ampk_ref_get_flat(&p->exact, n, j);
            double slack = slack_at(&tolerance, exact, n, j);
            if (slack > most) most = slack;
            if (is_right(tested, exact, slack, t.dtype)) continue;
            if (wrong++ == 0)
                TEST_FAIL("%s: dtype %d, %dx%dx%dx%d layout %d: image %d, element %zu is %.9g, "
                          "expected %.9g within %.3g",
                          what, t.dtype, t.n, t.c, t.h, t.w, t.layout, n, j, tested, exact, slack);
        }
    if (wrong) fprintf(stderr, "%s: %zu elements of %zu are wrong\n", what, wrong, image * t.n);
    digest_bytes(r, t.data, span_of(&t) * ampk_dtype_bytes(t.dtype));
    return most;
}

/* ---- amax words ---- */

/* A word for each side; what it holds before varies, it may only be raised. */
struct amax {
    struct pair word;
    uint32_t exact;
};

UNUSED static struct amax make_amax(struct rig *r)
{
    struct ampk_tensor t = describe_array(1);
    give_data(r, &t);
    uint32_t start = (uint32_t[]){0, 0, 0x3f800000, 0x7e000000}[test_random() % 4];
    memcpy(t.data, &start, sizeof start);
    return (struct amax){make_pair(r, t, false), start};
}

UNUSED static uint32_t *tested_amax(const struct amax *a)
{
    return a->word.tested.data;
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Finite words agree within the slack of the values; inf and NaN agree in kind. */
UNUSED static void check_amax(struct rig *r, const char *what, const struct amax *a, double slack)
{
    uint32_t bits;
    r->backend->read(r->context, &bits, a->word.tested.data, sizeof bits);
    float tested = float_of(bits), exact = float_of(a->exact);
    if (bits >> 31 || !is_right(tested, exact, slack, AMPK_FP32))
        TEST_FAIL("%s: amax is %.9g (0x%08x), expected %.9g within %.3g", what, tested, bits, exact,
                  slack);
    digest_bytes(r, &bits, sizeof bits);
}

/* The same where a library stores the tensor: the word may be of the rounded values, and of what
 * FP16 cannot hold be 65520 (kernels.h). */
UNUSED static void check_stored_amax(struct rig *r, const char *what, const struct amax *a,
                                     double slack, enum ampk_dtype dtype)
{
    uint32_t bits;
    r->backend->read(r->context, &bits, a->word.tested.data, sizeof bits);
    float tested = float_of(bits), exact = float_of(a->exact);
    bool overflowed = dtype == AMPK_FP16 && tested == 65520 && exact + slack >= 65520;
    if (overflowed || (!(bits >> 31) && is_right(tested, exact, slack, dtype)))
        digest_bytes(r, &bits, sizeof bits);
    else
        check_amax(r, what, a, slack);
}

/* ---- running ---- */

static void check_block(struct rig *r, int i)
{
    const struct block *b = &r->blocks[i];
    unsigned char *after = own(r, b->bytes);
    r->backend->read(r->context, after, b->memory, b->bytes);
    if (b->constant) {
        if (memcmp(after, b->before, b->bytes))
            TEST_FAIL("tensor %d of the case: input changed", i);
        return;
    }
    for (size_t n = 0; n < b->images; n++)
        for (size_t row = 0; row < b->rows; row++)
            memset(after + b->start + n * b->image_stride + row * b->row_stride, GUARD,
                   b->row_bytes);
    for (size_t k = 0; k < b->bytes; k++)
        if (after[k] != GUARD) {
            TEST_FAIL("tensor %d of the case: byte %zd outside its elements was written", i,
                      (ssize_t)k - (ssize_t)b->start);
            return;
        }
}

static void end_case(struct rig *r)
{
    for (int i = 0; i < r->count; i++)
        check_block(r, i);
    for (int i = 0; i < r->count; i++)
        r->backend->free(r->context, r->blocks[i].memory);
    for (int i = 0; i < r->owned_count; i++)
        free(r->owned[i]);
    r->count = r->owned_count = 0;
}

/* A context of the CPU backend with one instruction set (NULL: its own choice); NULL where the
 * processor lacks it, which no processor does the last one. */
UNUSED static struct ampk_context *open_context(const char *isa, int threads)
{
    char err[200] = "";
    if (isa)
        setenv("AMPK_CPU_ISA", isa, 1);
    else
        unsetenv("AMPK_CPU_ISA");
#ifdef CUDA_EMULATED
    emulation_large_devices(threads > 1);
#endif
    struct ampk_context *context = CONFORMANCE_BACKEND.context_create(threads, err, sizeof err);
    if (!context && (!isa || isa == all_isas[ISAS - 1])) TEST_FAIL("no context: %s", err);
    return context;
}

static char last_note[sizeof((struct rig *)NULL)->note]; /* of the latest case */

/* Runs the case from one seed on one context; returns the digest of its outputs. */
static uint64_t run_case(void (*run)(struct rig *), struct ampk_context *context, uint64_t seed)
{
    struct rig r = {
        .backend = &CONFORMANCE_BACKEND, .context = context, .digest = 0xcbf29ce484222325u};
    test_random_state = seed;
    int failures = test_failures;
    run(&r);
    end_case(&r);
    memcpy(last_note, r.note, sizeof last_note);
    if (test_failures > failures) fprintf(stderr, "case: %s\n", r.note);
    return r.digest;
}

/* `count` random cases on every instruction set, with 1, 2 and 3 threads. In the emulation nothing
 * may be left of what they took. */
UNUSED static void run_cases(void (*run)(struct rig *), int count)
{
    uint64_t first = test_random();
#ifdef CUDA_EMULATED
    size_t before = emulation_memory().bytes;
#endif
    for (int isa = 0; isa < ISAS; isa++) {
        struct ampk_context *contexts[MOST_THREADS];
        for (int t = 0; t < MOST_THREADS; t++)
            contexts[t] = open_context(all_isas[isa], t + 1);
        if (!contexts[0]) {
            printf("SKIPPED the instruction set %s: not on this processor\n", all_isas[isa]);
            continue;
        }
        for (int i = 0; i < count && !test_failures; i++) {
            uint64_t expected = run_case(run, contexts[0], first + i);
            for (int t = 1; t < MOST_THREADS; t++)
                if (run_case(run, contexts[t], first + i) != expected)
                    TEST_FAIL("run %d, with as many threads, gives other bits than the first: %s",
                              t + 1, last_note);
            if (test_failures) fprintf(stderr, "instruction set %s, case %d\n", all_isas[isa], i);
        }
        for (int t = 0; t < MOST_THREADS; t++)
            CONFORMANCE_BACKEND.context_destroy(contexts[t]);
    }
    unsetenv("AMPK_CPU_ISA");
#ifdef CUDA_EMULATED
    CHECK_INT(emulation_memory().bytes, before);
#endif
}

#endif
