/* Files and folders before they are used, and the progress line. */
#define _GNU_SOURCE
#include "plugin/core/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/core/progress.h"
#include "tests/rig/harness.h"

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
    CHECK_STR(amp_file_unreadable("/tmp"), "not a regular file");
    REQUIRE(mkfifo(path, 0600) == 0); /* opening it would wait */
    CHECK_STR(amp_text_unreadable(path), "not a regular file");
    unlink(path);
}

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

AMP_TEST(progress_line)
{
    char text[512] = "";
    struct amp_progress progress;
    FILE *out = fmemopen(text, sizeof text, "w");
    REQUIRE(out != NULL);
    amp_progress_start(&progress, out, "checking", 400);
    amp_progress_update(&progress, 50); /* too early */
    fflush(out);
    CHECK_STR(text, "");
    progress.start -= 10;
    progress.last -= 10;
    amp_progress_update(&progress, 100);
    amp_progress_update(&progress, 101);
    fclose(out);
    CHECK_STR(text, "checking: 100/400 images (25 %), 10 images/s, 30 s left\n");
    amp_progress_start(&progress, NULL, "checking", 400);
    progress.last -= 10;
    amp_progress_update(&progress, 100); /* silent */
}

AMP_TEST_MAIN
