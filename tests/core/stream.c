/* Random streams: the generator against the published vectors, fixed values of our own keys, and
 * that streams are uniform, normal and unrelated. */

#include "tests/rig/harness.h"

#include "kernels/philox.h"
#include "plugin/core/stream.h"

/* The known answers of the authors' library Random123 for philox4x32 with 10 rounds. */
AMP_TEST(philox_gives_the_published_vectors)
{
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++) {
        uint32_t out[4];
        ampk_philox(vectors[v].counter, vectors[v].key, out);
        for (int i = 0; i < 4; i++)
            CHECK_INT(out[i], vectors[v].expected[i]);
    }
}

/* Every part of the key reaches the counter's word that the header names. */
AMP_TEST(key_fills_the_counter_as_documented)
{
    struct amp_stream s;
    amp_stream_open(&s, 0x1122334455667788u, AMP_STREAM_IMAGE, 0x00aabbccddeeff01u, 0x99);
    for (uint32_t block = 0; block < 3; block++) {
        const uint32_t key[2] = {0x55667788u, 0x11223344u};
        const uint32_t counter[4] = {block, 0x99, 0xddeeff01u, 0xaabbcc00u | AMP_STREAM_IMAGE};
        uint32_t out[4];
        ampk_philox(counter, key, out);
        for (int i = 0; i < 4; i++)
            CHECK_INT(amp_stream_bits(&s), out[i]);
    }
}

static uint32_t first_bits(uint64_t seed, enum amp_stream_purpose purpose, uint64_t i, uint32_t k)
{
    struct amp_stream s;
    amp_stream_open(&s, seed, purpose, i, k);
    return amp_stream_bits(&s);
}

/* A change here changes what every seeded training run draws. */
AMP_TEST(values_are_fixed)
{
    CHECK_INT(first_bits(7, AMP_STREAM_WEIGHTS, 0, 0), 0xd6a62573u);
    CHECK_INT(first_bits(7, AMP_STREAM_IMAGE, 100, 3), 0xbd1763d1u);
    CHECK_INT(first_bits(7, AMP_STREAM_BETWEEN, 6400, 0), 0x83fd994du);
    CHECK_INT(first_bits(7, AMP_STREAM_PASS, 6464, 0), 0x02bf3cc8u);
    struct amp_stream s;
    amp_stream_open(&s, 7, AMP_STREAM_WEIGHTS, 0, 0);
    CHECK_NEAR(amp_stream_normal(&s), -0.558482838841525, 1e-12);
    CHECK_NEAR(amp_stream_normal(&s), 0.201105574498429, 1e-12);
}

AMP_TEST(opening_again_repeats)
{
    struct amp_stream a, b;
    amp_stream_open(&a, 3, AMP_STREAM_IMAGE, 5, 7);
    for (int i = 0; i < 5; i++)
        amp_stream_normal(&a); /* an odd number: a spare value is left */
    amp_stream_open(&a, 3, AMP_STREAM_IMAGE, 5, 7);
    amp_stream_open(&b, 3, AMP_STREAM_IMAGE, 5, 7);
    for (int i = 0; i < 100; i++)
        CHECK(amp_stream_normal(&a) == amp_stream_normal(&b));
}

static double expected_chi2_limit(int cells)
{
    return cells + 6 * sqrt(2. * cells); /* six standard deviations */
}

static double chi2_of_bytes(struct amp_stream *s, int shift, int n)
{
    static int count[256];
    memset(count, 0, sizeof count);
    for (int i = 0; i < n; i++)
        ++count[amp_stream_bits(s) >> shift & 255];
    double sum = 0, expected = n / 256.;
    for (int i = 0; i < 256; i++)
        sum += (count[i] - expected) * (count[i] - expected) / expected;
    return sum;
}

AMP_TEST(every_byte_is_uniform)
{
    for (int shift = 0; shift < 32; shift += 8) {
        struct amp_stream s;
        amp_stream_open(&s, test_random(), AMP_STREAM_IMAGE, test_random() >> 8, 0);
        CHECK(chi2_of_bytes(&s, shift, 256 * 1000) < expected_chi2_limit(255));
    }
}

/* The first numbers of neighbouring streams: what image k of batch i gets must not depend on k or i
 * in any simple way. */
AMP_TEST(first_numbers_of_neighbours_are_uniform)
{
    static int count[256];
    memset(count, 0, sizeof count);
    for (uint32_t i = 0; i < 500; i++)
        for (uint32_t k = 0; k < 512; k++)
            ++count[first_bits(1, AMP_STREAM_IMAGE, i, k) >> 24];
    double sum = 0, expected = 500 * 512 / 256.;
    for (int i = 0; i < 256; i++)
        sum += (count[i] - expected) * (count[i] - expected) / expected;
    CHECK(sum < expected_chi2_limit(255));
}

static double correlation(struct amp_stream *a, struct amp_stream *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (amp_stream_bits(a) * 0x1p-32 - .5) * (amp_stream_bits(b) * 0x1p-32 - .5);
    return sum / n * 12;
}

AMP_TEST(streams_that_differ_in_one_part_are_unrelated)
{
    static const struct {
        uint64_t seed;
        enum amp_stream_purpose purpose;
        uint64_t i;
        uint32_t k;
    } other[] = {
        {8, AMP_STREAM_IMAGE, 5, 2},
        {7 + (1ull << 32), AMP_STREAM_IMAGE, 5, 2},
        {7, AMP_STREAM_PASS, 5, 2},
        {7, AMP_STREAM_IMAGE, 6, 2},
        {7, AMP_STREAM_IMAGE, 5 + (1ull << 32), 2},
        {7, AMP_STREAM_IMAGE, 5, 3},
    };
    for (size_t o = 0; o < sizeof other / sizeof *other; o++) {
        struct amp_stream a, b;
        const int n = 100000;
        amp_stream_open(&a, 7, AMP_STREAM_IMAGE, 5, 2);
        amp_stream_open(&b, other[o].seed, other[o].purpose, other[o].i, other[o].k);
        CHECK_NEAR(correlation(&a, &b, n), 0, 6 / sqrt(n));
    }
}

AMP_TEST(normal_has_its_moments)
{
    struct amp_stream s;
    const int n = 200000;
    double sum[5] = {0};
    amp_stream_open(&s, test_random(), AMP_STREAM_WEIGHTS, 0, 0);
    for (int i = 0; i < n; i++) {
        double x = amp_stream_normal(&s), power = 1;
        for (int m = 1; m <= 4; m++)
            sum[m] += power *= x;
    }
    CHECK_NEAR(sum[1] / n, 0, 6 * sqrt(1. / n));
    CHECK_NEAR(sum[2] / n, 1, 6 * sqrt(2. / n));
    CHECK_NEAR(sum[3] / n, 0, 6 * sqrt(15. / n));
    CHECK_NEAR(sum[4] / n, 3, 6 * sqrt(96. / n));
}

AMP_TEST_MAIN
