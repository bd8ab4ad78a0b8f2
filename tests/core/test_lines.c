/* Text files before they are read, their encodings, and their lines. */
#define _GNU_SOURCE
#include "tests/rig/harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/core/read/lines.h"

AMP_TEST(files)
{
    char path[] = "/tmp/amp-file-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    CHECK(amp_file_unreadable(path) == NULL);
    CHECK(amp_text_unreadable(path) == NULL);
    CHECK_INT(ftruncate(fd, (1 << 30) + 1), 0);
    CHECK(amp_file_unreadable(path) == NULL);
    CHECK_STR(amp_text_unreadable(path), "larger than 1 GiB");
    close(fd);
    unlink(path);
    CHECK_STR(amp_file_unreadable(path), "No such file or directory");
    CHECK_STR(amp_text_unreadable(path), "No such file or directory");
    CHECK_STR(amp_file_unreadable("/tmp"), "a folder, not a file");
    REQUIRE(mkfifo(path, 0600) == 0); /* opening it would wait */
    CHECK_STR(amp_text_unreadable(path), "not a regular file");
    unlink(path);
}

AMP_TEST(encodings)
{
    static const struct {
        const char *begin;
        size_t size;
        const char *what; /* NULL: nothing is wrong */
    } cases[] = {
        {"", 0, NULL},
        {"a", 1, NULL},
        {"a.jp", 4, NULL},
        {"\xC3\xA4/b", 4, NULL}, /* UTF-8 without a mark */
        {"a\0b.", 4, NULL},      /* a NUL by itself: whoever reads the line tells */
        {"\xEF\xBB\xBF", 3, "UTF-8 byte-order mark"},
        {"\xEF\xBB", 2, NULL},
        {"\xFF\xFE", 2, "UTF-16"},
        {"\xFE\xFF\0a", 4, "UTF-16"},
        {"a\0b\0", 4, "UTF-16"},
        {"\0a\0b", 4, "UTF-16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *said = amp_text_encoding(cases[i].begin, cases[i].size);
        if (cases[i].what ? !said || !strstr(said, cases[i].what) : said != NULL)
            TEST_FAIL("case %zu: %s", i, said ? said : "nothing");
    }
}

static void check_lines(const char *text, bool keep_blank, int n, const char *last, int number)
{
    char path[] = "/tmp/amp-lines-XXXXXX";
    int fd = mkstemp(path);
    const char *why;
    struct amp_lines lines = {0};
    REQUIRE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    CHECK_INT(amp_lines_read(path, keep_blank, &lines, &why), 0);
    unlink(path);
    REQUIRE(lines.count == n);
    if (n) CHECK_STR(lines.line[n - 1], last);
    if (n) CHECK_INT(lines.number[n - 1], number);
    amp_lines_free(&lines);
}

AMP_TEST(lines)
{
    check_lines("", true, 0, "", 0);
    check_lines("\n \n", true, 0, "", 0);
    check_lines("a\n\n b \r\n\n", false, 2, " b", 3);
    check_lines("a\n\n b \r\n\n", true, 3, " b", 3);
    check_lines("a\nb\nc\nd\ne", true, 5, "e", 5);
}

AMP_TEST_MAIN
