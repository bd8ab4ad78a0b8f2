/* The cfg reader against what Darknet's read_cfg does. Its errors: ../input/verdicts/cfg.txt. */
#define _GNU_SOURCE
#include "plugin/core/read/cfg.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/rig/harness.h"
#include "tests/rig/files.h"

static char err[1024];

static struct amp_cfg_file *parse(const char *text)
{
    err[0] = '\0';
    return amp_cfg_parse("net.cfg", text, strlen(text), err, sizeof err);
}

AMP_TEST(sections_keys_values_and_lines)
{
    struct amp_cfg_file *f = parse("# comment\n"
                                   "[net]\n"
                                   "batch = 64\n"
                                   "\n"
                                   "; another\n"
                                   " \t learning_rate\t=\t0.001  \n"
                                   "[ convolutional ]\n"
                                   "a = b = c d\n"
                                   "[yolo]");
    CHECK(f != NULL);
    if (!f) return;
    CHECK_STR(f->path, "net.cfg");
    CHECK_INT(f->n_sections, 3);
    CHECK_STR(f->sections[0].name, "[net]");
    CHECK_INT(f->sections[0].line, 2);
    CHECK_INT(f->sections[0].n_entries, 2);
    CHECK_STR(f->sections[0].entries[0].key, "batch");
    CHECK_STR(f->sections[0].entries[0].value, "64");
    CHECK_INT(f->sections[0].entries[0].line, 3);
    CHECK_STR(f->sections[0].entries[1].key, "learning_rate");
    CHECK_STR(f->sections[0].entries[1].value, "0.001");
    CHECK_STR(f->sections[0].entries[1].written, "0.001");
    CHECK_INT(f->sections[0].entries[1].line, 6);
    CHECK_STR(f->sections[1].name, "[convolutional]");
    CHECK_STR(f->sections[1].entries[0].key, "a");
    CHECK_STR(f->sections[1].entries[0].value, "b=cd");
    CHECK_STR(f->sections[2].name, "[yolo]");
    CHECK_INT(f->sections[2].line, 9);
    CHECK_INT(f->sections[2].n_entries, 0);
    amp_cfg_free(f);
}

AMP_TEST(values_convert_as_atoi_and_atof)
{
    struct amp_cfg_file *f = parse("[net]\nn=12abc\nx=1e-3#note\nbad=abc\nn=7\nneg=-3\n");
    CHECK(f != NULL);
    if (!f) return;
    const struct amp_cfg_section *s = &f->sections[0];
    CHECK_INT(amp_cfg_int(s, "n", 5), 12); /* the first of two */
    CHECK_INT(amp_cfg_find(s, "n")->line, 2);
    CHECK_INT(amp_cfg_int(s, "bad", 5), 0);
    CHECK_INT(amp_cfg_int(s, "neg", 5), -3);
    CHECK_INT(amp_cfg_int(s, "absent", 5), 5);
    CHECK_NEAR(amp_cfg_float(s, "x", 5), 1e-3, 0);
    CHECK_NEAR(amp_cfg_float(s, "absent", 2.5), 2.5, 0);
    CHECK_STR(amp_cfg_string(s, "x", "d"), "1e-3#note");
    CHECK_STR(amp_cfg_string(s, "absent", "d"), "d");
    CHECK(amp_cfg_find(s, "absent") == NULL);
    amp_cfg_free(f);
}

AMP_TEST(long_lines_and_many_entries)
{
    size_t size = 0, capacity = 1 << 20;
    char *text = malloc(capacity);
    size += (size_t)sprintf(text, "[net]\nanchors=");
    for (int i = 0; i < 20000; i++)
        size += (size_t)sprintf(text + size, "%d, ", i);
    for (int i = 0; i < 1000; i++)
        size += (size_t)sprintf(text + size, "\nkey%d=%d\n[s%d]\n", i, i, i);
    struct amp_cfg_file *f = amp_cfg_parse("long.cfg", text, size, err, sizeof err);
    free(text);
    CHECK(f != NULL);
    if (!f) return;
    CHECK_INT(f->n_sections, 1001);
    CHECK_INT(strlen(amp_cfg_string(&f->sections[0], "anchors", "")), 88890 + 20000);
    CHECK_INT(amp_cfg_int(&f->sections[999], "key999", -1), 999);
    amp_cfg_free(f);
}

AMP_TEST(size_limit)
{
    CHECK(amp_cfg_parse("n.cfg", "", (size_t)AMP_CFG_MAX_BYTES + 1, err, sizeof err) == NULL);
    CHECK_STR(err, "n.cfg: larger than 16 MiB, which no cfg is");
}

AMP_TEST(files)
{
    char dir[] = "/tmp/amp-cfg-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/a.cfg", dir);

    CHECK(amp_cfg_read(path, err, sizeof err) == NULL);
    CHECK(strstr(err, path) && strstr(err, "No such file or directory"));
    CHECK(amp_cfg_read(dir, err, sizeof err) == NULL);
    CHECK(strstr(err, dir) && strstr(err, "a folder, not a file"));
    CHECK(amp_cfg_read("", err, sizeof err) == NULL);
    CHECK_STR(err, "cannot read \"\": the name is empty");

    FILE *fp = fopen(path, "w");
    CHECK(fp != NULL);
    if (!fp) return;
    fputs("classes= 80\n# comment\n[train = a b.txt", fp);
    fclose(fp);
    struct amp_cfg_file *f = amp_cfg_read_data(path, err, sizeof err);
    CHECK(f != NULL);
    if (f) {
        CHECK_INT(f->n_sections, 1);
        CHECK_STR(f->sections[0].name, "");
        CHECK_INT(amp_cfg_int(&f->sections[0], "classes", 0), 80);
        CHECK_STR(amp_cfg_string(&f->sections[0], "[train", ""), "ab.txt");
    }
    amp_cfg_free(f);
    CHECK(amp_cfg_read(path, err, sizeof err) == NULL); /* as a cfg: before the first section */

    CHECK_INT(truncate(path, (off_t)AMP_CFG_MAX_BYTES + 1), 0);
    CHECK(amp_cfg_read(path, err, sizeof err) == NULL);
    CHECK(strstr(err, "larger than 16 MiB"));
    unlink(path);
    rmdir(dir);
}

AMP_TEST(a_variant_that_memory_has_no_room_for)
{
    struct amp_cfg_variant variant;
    struct amp_cfg_file *file = parse("[net]\nbatch=8\n");
    REQUIRE(file);
    limit_files(10);
    CHECK_INT(amp_cfg_variant_open(&variant, file, NULL, 0, err, sizeof err), -1);
    limit_files(RLIM_INFINITY);
    CHECK_STR(err, "net.cfg: no copy of it in memory: File too large");
    CHECK_INT(variant.fd, -1);
    amp_cfg_free(file);
}

AMP_TEST(a_variant_is_told_from_the_users_files)
{
    static const char text[] = "[net]\nbatch=4 # images\nwidth=8\n[conv]\nsize = 3\n";
    const struct amp_cfg_key keys[] = {{"batch", "1", 0}, {"width", NULL, 0}, {"size", "5", 0}};
    struct amp_cfg_variant variant;
    struct amp_cfg_file *file = amp_cfg_parse("a.cfg", text, sizeof text - 1, err, sizeof err);
    REQUIRE(file != NULL);
    REQUIRE(!amp_cfg_variant_open(&variant, file, keys, 3, err, sizeof err));
    amp_cfg_free(file);
    CHECK(amp_cfg_is_variant(variant.path));
    file = amp_cfg_read(variant.path, err, sizeof err);
    REQUIRE(file != NULL);
    CHECK_INT(file->n_sections, 2);
    CHECK_INT(file->sections[0].n_entries, 2);
    CHECK_STR(amp_cfg_string(file->sections, "batch", ""), "1");
    CHECK_STR(amp_cfg_string(file->sections, "size", ""), "5");
    CHECK_INT(file->sections[1].n_entries, 1); /* a key of another section is another key */
    CHECK_STR(amp_cfg_string(&file->sections[1], "size", ""), "3");
    amp_cfg_free(file);
    amp_cfg_variant_close(&variant);
    CHECK(!amp_cfg_is_variant(variant.path));
    CHECK(!amp_cfg_is_variant("/proc/self/exe"));
    CHECK(!amp_cfg_is_variant("a.cfg"));
    int fd = memfd_create("another", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    snprintf(variant.path, sizeof variant.path, "/proc/self/fd/%d", fd);
    CHECK(!amp_cfg_is_variant(variant.path));
    close(fd);
}

AMP_TEST_MAIN
