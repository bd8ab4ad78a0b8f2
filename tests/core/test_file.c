/* Files and folders before they are used; files that appear whole or not at all; and hashes,
 * against values that other implementations of XXH64 publish and against themselves in pieces. */
#define _GNU_SOURCE
#include "tests/rig/harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/core/files/file.h"
#include "tests/rig/files.h"

/* ---- checks ---- */

AMP_TEST(folders)
{
    char folder[] = "/tmp/amp-folder-XXXXXX", err[8192], expected[128];
    REQUIRE(mkdtemp(folder) != NULL);
    uint64_t few[] = {1 << 20, 1, 1 << 10}, many[] = {1, UINT64_MAX, 1};
    CHECK_INT(amp_folder_check(folder, few, 3, "something", err, sizeof err), 0);
    CHECK_INT(amp_folder_check(folder, many, 3, "something", err, sizeof err), -1);
    snprintf(expected, sizeof expected,
             "folder %s: 18446744073709551615 bytes of something cannot be written: File too large",
             folder);
    CHECK_STR(err, expected);
    CHECK_INT(rmdir(folder), 0); /* still empty */
    CHECK_INT(amp_folder_check(folder, few, 3, "something", err, sizeof err), -1);
    CHECK(strstr(err, "No such file or directory"));
}

/* ---- whole files ---- */

static char err[2 * PATH_MAX], text[100];

static void check_text(const char *name, const char *expected)
{
    if (scratch_read(name, text, sizeof text) < 0) TEST_FAIL("%s is not there", name);
    CHECK_STR(text, expected);
}

static void begin(struct amp_whole_file *f, const char *name, const char *content)
{
    REQUIRE(amp_whole_begin(f, scratch(name), err, sizeof err) == 0);
    REQUIRE(write(f->fd, content, strlen(content)) == (ssize_t)strlen(content));
}

AMP_TEST(old_file_stays_until_placed)
{
    struct amp_whole_file f;
    scratch_write("a", "old", 3);
    begin(&f, "a", "new");
    check_text("a", "old");
    CHECK_INT(amp_whole_flush(&f, err, sizeof err), 0);
    check_text("a", "old");
    CHECK_INT(amp_whole_place(&f, err, sizeof err), 0);
    check_text("a", "new");
    amp_whole_drop(&f);
    amp_whole_drop(&f);
    check_text("a", "new");
    CHECK_INT(scratch_count(), 1);
    CHECK_INT(amp_folder_flush(scratch("a"), err, sizeof err), 0);
    scratch_empty();
}

AMP_TEST(drop_leaves_nothing)
{
    struct amp_whole_file f;
    scratch_write("a", "old", 3);
    begin(&f, "a", "new");
    CHECK_INT(scratch_count(), 2);
    amp_whole_drop(&f);
    check_text("a", "old");
    CHECK_INT(scratch_count(), 1);
    scratch_empty();
}

AMP_TEST(access_rights)
{
    struct amp_whole_file f;
    struct stat info;
    mode_t mask = umask(027);
    begin(&f, "a", "new");
    umask(mask);
    CHECK(!fstat(f.fd, &info) && (info.st_mode & 0777) == 0640);
    amp_whole_drop(&f);
    scratch_write("a", "old", 3);
    chmod(scratch("a"), 0604);
    begin(&f, "a", "new");
    CHECK(!fstat(f.fd, &info) && (info.st_mode & 0777) == 0604);
    amp_whole_drop(&f);
    scratch_empty();
}

/* Root may write anything: the check is made as another user. */
static void begin_as_a_user(const char *name, const char *expected)
{
    struct amp_whole_file f;
    int root = geteuid() == 0;
    REQUIRE(!root || (!chown(scratch_path, 65534, 65534) && !seteuid(65534)));
    int failed = amp_whole_begin(&f, scratch(name), err, sizeof err);
    amp_whole_drop(&f);
    REQUIRE(!root || (!seteuid(0) && !chown(scratch_path, 0, 0)));
    CHECK_INT(failed, -1);
    if (!strstr(err, expected)) TEST_FAIL("\"%s\" does not say \"%s\"", err, expected);
}

AMP_TEST(what_may_not_be_written)
{
    scratch_write("a", "old", 3);
    chmod(scratch("a"), 0444);
    begin_as_a_user("a", "/a: cannot write: Permission denied");
    chmod(scratch_path, 0555);
    begin_as_a_user("b", "/b: cannot write a file beside it: Permission denied");
    chmod(scratch_path, 0777);
    check_text("a", "old");
    CHECK_INT(scratch_count(), 1);
    scratch_empty();
}

AMP_TEST(names_cannot_be_guessed)
{
    struct amp_whole_file f, g;
    begin(&f, "a", "1");
    begin(&g, "a", "2");
    CHECK(strcmp(f.temp, g.temp) != 0);
    CHECK_INT(strlen(f.temp), strlen(scratch("a")) + strlen(".part-0123456789abcdef"));
    amp_whole_drop(&f);
    amp_whole_drop(&g);
    scratch_empty();
}

/* What a killed program left goes; what is being written, or is no such file, stays. */
AMP_TEST(abandoned_files_are_removed)
{
    struct amp_whole_file busy, f;
    scratch_write("a.part-0123456789abcdef", "left", 4);
    scratch_write("a.part-0123456789abcde", "short", 5);
    scratch_write("a.part-0123456789abcdefg", "long", 4);
    scratch_write("a.part-0123456789ABCDEF", "capitals", 8);
    scratch_write("b_100.weights.part-0123456789abcdef", "left", 4);
    scratch_write(".part-0123456789abcdef", "no name", 7);
    begin(&busy, "a", "busy");
    CHECK_INT(scratch_count(), 4);
    CHECK(access(scratch("a.part-0123456789abcdef"), F_OK) != 0);
    CHECK(access(scratch("b_100.weights.part-0123456789abcdef"), F_OK) != 0);
    CHECK(access(scratch(".part-0123456789abcdef"), F_OK) == 0);
    begin(&f, "b", "new");
    CHECK_INT(scratch_count(), 5);
    CHECK(!access(busy.temp, F_OK));
    amp_whole_drop(&f);
    amp_whole_drop(&busy);
    CHECK_INT(scratch_count(), 3);
    unlink(scratch(".part-0123456789abcdef"));
    scratch_empty();
}

/* The same digits, but not what we would have left. */
AMP_TEST(files_of_others_stay)
{
    static const char *const names[] = {"notes.part-0123456789abcdef", "ba.part-0123456789abcdef",
                                        "weights.part-0123456789abcdef"};
    struct amp_whole_file f;
    for (int i = 0; i < 3; i++)
        scratch_write(names[i], "theirs", 6);
    REQUIRE(!mkfifo(scratch("a.part-0123456789abcdef"), 0600));
    REQUIRE(!symlink(names[0], scratch("a.amp.part-0123456789abcdef")));
    REQUIRE(!mkdir(scratch("a.prev.part-0123456789abcdef"), 0700));
    begin(&f, "a", "new");
    CHECK_INT(scratch_count(), 7);
    amp_whole_drop(&f);
    REQUIRE(!rmdir(scratch("a.prev.part-0123456789abcdef")));
    scratch_empty();
}

AMP_TEST(keep)
{
    struct amp_whole_file f;
    scratch_write("a", "first", 5);
    scratch_write("b", "older", 5);
    CHECK_INT(amp_whole_keep(scratch("a"), scratch("b"), err, sizeof err), 0);
    check_text("b", "first");
    begin(&f, "a", "second");
    CHECK_INT(amp_whole_place(&f, err, sizeof err), 0);
    amp_whole_drop(&f);
    check_text("a", "second");
    check_text("b", "first");
    CHECK_INT(amp_whole_keep(scratch("none"), scratch("b"), err, sizeof err), -1);
    CHECK(strstr(err, "No such file") != NULL);
    scratch_empty();
}

static int print_text(FILE *f, const void *text)
{
    fputs(text, f);
    return *(const char *)text == '-' ? -1 : 0;
}

AMP_TEST(printed_whole_or_not_at_all)
{
    CHECK_INT(amp_whole_print(scratch("a"), print_text, "first", err, sizeof err), 0);
    check_text("a", "first");
    CHECK_INT(amp_whole_print(scratch("a"), print_text, "-", err, sizeof err), -1);
    CHECK(strstr(err, "/a: not written: out of memory"));
    check_text("a", "first");
    CHECK_INT(scratch_count(), 1);
    CHECK_INT(amp_whole_print(scratch("none/a"), print_text, "x", err, sizeof err), -1);
    scratch_empty();
}

AMP_TEST(files_of_another_kind_stay)
{
    char late[AMP_MARK_WITHIN + 10];
    memset(late, 'x', sizeof late);
    memcpy(late + AMP_MARK_WITHIN - 3, "mark", 4);
    scratch_write("other", "{1}", 3);
    scratch_write("marked", "xx mark", 7);
    scratch_write("late", late, sizeof late);
    scratch_write("empty", "", 0);
    static const struct {
        const char *name;
        int marked;
    } expected[] = {{"other", -1}, {"marked", 0}, {"late", -1}, {"empty", 0}, {"none", 0}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const char *path = scratch(expected[i].name);
        CHECK_INT(amp_whole_try_marked(path, "mark", err, sizeof err), expected[i].marked);
    }
    CHECK_INT(amp_whole_try_marked(scratch("."), "mark", err, sizeof err), -1);
    CHECK_INT(scratch_count(), 4);
    scratch_empty();
}

AMP_TEST(folder_that_is_not_there)
{
    struct amp_whole_file f = {.fd = -1};
    CHECK_INT(amp_whole_begin(&f, scratch("none/a"), err, sizeof err), -1);
    CHECK(strstr(err, "none/a: cannot write a file beside it: No such file") != NULL);
    amp_whole_drop(&f);
    CHECK_INT(amp_folder_flush(scratch("none/a"), err, sizeof err), -1);
    CHECK(strstr(err, "none: cannot flush the folder") != NULL);
}

AMP_TEST(name_that_is_too_long)
{
    struct amp_whole_file f = {.fd = -1};
    char name[300];
    memset(name, 'n', 240);
    name[240] = 0;
    CHECK_INT(amp_whole_begin(&f, scratch(name), err, sizeof err), -1);
    CHECK(strstr(err, "File name too long") != NULL);
    amp_whole_drop(&f);
    CHECK_INT(scratch_count(), 0);
}

/* ---- hashes ---- */

static uint64_t hash(const void *p, size_t n)
{
    struct amp_hash h;
    amp_hash_begin(&h);
    amp_hash_add(&h, p, n);
    return amp_hash_value(&h);
}

static void check_hash(const char *text, uint64_t expected)
{
    uint64_t got = hash(text, strlen(text));
    if (got != expected)
        TEST_FAIL("\"%s\": %016llx, expected %016llx", text, (unsigned long long)got,
                  (unsigned long long)expected);
}

AMP_TEST(published_hashes)
{
    check_hash("", 0xef46db3751d8e999);
    check_hash("a", 0xd24ec4f1a98c6e5b);
    check_hash("abc", 0x44bc2cf5ad770999);
    check_hash("Nobody inspects the spammish repetition", 0xfbcea83c8a378bf1);
}

AMP_TEST(hash_of_pieces_is_that_of_the_whole)
{
    unsigned char data[500];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)test_random();
    for (size_t n = 0; n <= sizeof data; n += 1 + n / 8) {
        uint64_t whole = hash(data, n);
        for (int round = 0; round < 20; round++) {
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

AMP_TEST(every_bit_counts_in_a_hash)
{
    unsigned char data[100] = {0};
    uint64_t whole = hash(data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(hash(data, sizeof data) != whole);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (size_t n = 0; n < sizeof data; n++)
        CHECK(hash(data, n) != whole);
}

AMP_TEST(a_pipe_is_not_replaced)
{
    struct stat info;
    REQUIRE(!mkfifo(scratch("pipe"), 0600));
    REQUIRE(!symlink("pipe", scratch("link")));
    for (const char *name[] = {"pipe", "link", NULL}, **n = name; *n; n++) {
        CHECK_INT(amp_whole_try(scratch(*n), err, sizeof err), -1);
        CHECK(strstr(err, "a device or pipe") != NULL);
        CHECK(!stat(scratch(*n), &info) && S_ISFIFO(info.st_mode));
    }
}

AMP_TEST(identity_of_a_file)
{
    static char data[200000];
    struct amp_file_id id;
    for (size_t i = 0; i < sizeof data; i++)
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
