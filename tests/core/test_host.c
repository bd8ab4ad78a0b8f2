/* How much memory is free (host.c), by the system's files: here texts. */
#include "plugin/core/host.h"
#include "tests/rig/harness.h"

/* What the files hold; NULL: there is none. */
static struct {
    const char *path, *text;
} files[] = {{"/proc/meminfo", NULL},
             {"/sys/fs/cgroup/memory.max", NULL},
             {"/sys/fs/cgroup/memory.current", NULL},
             {"/sys/fs/cgroup/memory/memory.limit_in_bytes", NULL},
             {"/sys/fs/cgroup/memory/memory.usage_in_bytes", NULL},
             {"/sys/fs/cgroup/memory.stat", NULL},
             {"/sys/fs/cgroup/memory/memory.stat", NULL}};

FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(path, files[i].path))
            return files[i].text ? fmemopen((void *)files[i].text, strlen(files[i].text), mode)
                                 : NULL;
    TEST_FAIL("%s is read", path);
    return NULL;
}

static size_t free_with(const char *meminfo, const char *most, const char *used, const char *limit,
                        const char *usage)
{
    const char *const texts[] = {meminfo, most, used, limit, usage};
    for (int i = 0; i < 5; i++)
        files[i].text = texts[i];
    return amp_free_memory();
}

static const char meminfo[] = "MemTotal:        9000 kB\nMemFree:          100 kB\n"
                              "MemAvailable:     4000 kB\nBuffers:           10 kB\n";

AMP_TEST(what_is_available_is_free)
{
    CHECK_INT(free_with(meminfo, NULL, NULL, NULL, NULL), 4000 * 1024);
    CHECK_INT(free_with(meminfo, "max\n", "123\n", NULL, NULL), 4000 * 1024);
    CHECK_INT(free_with("MemTotal: 9000 kB\n", NULL, NULL, NULL, NULL), 0);
    CHECK_INT(free_with(NULL, "1000\n", "1\n", NULL, NULL), 0);
}

AMP_TEST(a_control_group_leaves_less)
{
    CHECK_INT(free_with(meminfo, "1000000\n", "400000\n", NULL, NULL), 600000);
    CHECK_INT(free_with(meminfo, NULL, NULL, "2000000\n", "500000\n"), 1500000);
    CHECK_INT(free_with(meminfo, "1000000\n", "400000\n", "2000000\n", "1900000\n"), 100000);
    CHECK_INT(free_with(meminfo, "1000\n", "1001\n", NULL, NULL), 0);
    CHECK_INT(free_with(meminfo, "9000000\n", "400000\n", NULL, NULL), 4000 * 1024);
    CHECK_INT(free_with(meminfo, "1000\n", NULL, NULL, NULL), 4000 * 1024);
}

/* The other numbers of the files are like those of a real one: sums over the groups below it. */
AMP_TEST(cached_files_of_a_control_group_are_free)
{
    files[5].text = "anon 300000\nfile 90000\ninactive_anon 5\ninactive_file 70000\n";
    files[6].text = "cache 9\ninactive_file 8\ntotal_cache 90000\ntotal_inactive_file 60000\n";
    CHECK_INT(free_with(meminfo, "1000000\n", "400000\n", NULL, NULL), 670000);
    CHECK_INT(free_with(meminfo, NULL, NULL, "2000000\n", "500000\n"), 1560000);
    files[5].text = "inactive_file 500000\n";
    CHECK_INT(free_with(meminfo, "1000000\n", "400000\n", NULL, NULL), 1000000);
    files[5].text = files[6].text = NULL;
}

AMP_TEST_MAIN
