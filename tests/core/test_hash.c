/* XXH64 against values that other implementations publish, and against itself in pieces. */
#include "tests/rig/harness.h"

#include "plugin/core/hash.h"
#include "tests/rig/files.h"

static uint64_t hash(const void *p, size_t n)
{
    struct amp_hash h;
    amp_hash_begin(&h);
    amp_hash_add(&h, p, n);
    return amp_hash_value(&h);
}

static void check(const char *text, uint64_t expected)
{
    uint64_t got = hash(text, strlen(text));
    if (got != expected)
        TEST_FAIL("\"%s\": %016llx, expected %016llx", text, (unsigned long long)got,
                  (unsigned long long)expected);
}

AMP_TEST(published_values)
{
    check("", 0xef46db3751d8e999);
    check("a", 0xd24ec4f1a98c6e5b);
    check("abc", 0x44bc2cf5ad770999);
    check("Nobody inspects the spammish repetition", 0xfbcea83c8a378bf1);
}

AMP_TEST(pieces_are_the_whole)
{
    unsigned char data[500];
    for (size_t i = 0; i < sizeof data; ++i)
        data[i] = (unsigned char)test_random();
    for (size_t n = 0; n <= sizeof data; n += 1 + n / 8) {
        uint64_t whole = hash(data, n);
        for (int round = 0; round < 20; ++round) {
            struct amp_hash h;
            amp_hash_begin(&h);
            for (size_t done = 0, some; done < n; done += some) {
                some = 1 + test_random() % (n - done);
                amp_hash_add(&h, data + done, some);
                amp_hash_value(&h); /* changes nothing */
            }
            CHECK(amp_hash_value(&h) == whole);
        }
    }
}

AMP_TEST(every_bit_counts)
{
    unsigned char data[100] = {0};
    uint64_t whole = hash(data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; ++bit) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(hash(data, sizeof data) != whole);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (size_t n = 0; n < sizeof data; ++n)
        CHECK(hash(data, n) != whole);
}

AMP_TEST(files)
{
    static char data[200000];
    char err[400] = "";
    struct amp_file_id id;
    for (size_t i = 0; i < sizeof data; ++i)
        data[i] = (char)test_random();
    scratch_write("file", data, sizeof data);
    CHECK_INT(amp_file_identify(scratch("file"), &id, err, sizeof err), 0);
    CHECK(id.bytes == sizeof data && id.hash == hash(data, sizeof data));
    CHECK_INT(amp_file_identify(scratch("none"), &id, err, sizeof err), -1);
    CHECK(strstr(err, "none: cannot read: No such file") != NULL);
    CHECK_INT(amp_file_identify("/", &id, err, sizeof err), -1);
    CHECK(strstr(err, "/: cannot read: Is a directory") != NULL);
}

AMP_TEST_MAIN
