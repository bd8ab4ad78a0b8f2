/* What the name of a weights file says. */
#include "plugin/core/checkpoint.h"

#include "tests/rig/harness.h"
#include "tests/rig/files.h"

#include <sys/stat.h>

AMP_TEST(one_of_a_runs_files)
{
    static const struct {
        const char *name;
        bool backup, final, numbered;
    } files[] = {
        {"yolo.backup", true, false, false},
        {".backup", true, false, false},
        {"yolo.backup.amp", false, false, false},
        {"backup", false, false, false},
        {"yolo_final.weights", false, true, false},
        {"out_1/yolo.weights", false, true, false},
        {"yolo_.weights", false, true, false},
        {"yolo1000.weights", false, true, false},
        {"yolo_x1000.weights", false, true, false},
        {"yolo_1000x.weights", false, true, false},
        {"1000.weights", false, true, false},
        {"backup_1/1000.weights", false, true, false},
        {".weights", false, true, false},
        {"yolo_1000.weights", false, false, true},
        {"a/yolo_1.weights", false, false, true},
        {"_1000.weights", false, false, true},
        {"yolo_1000.weights.amp", false, false, false},
        {"yolo_1000", false, false, false},
        {"weights", false, false, false},
        {"", false, false, false},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        const char *name = files[i].name;
        if (amp_weights_is_backup(name) != files[i].backup ||
            amp_weights_is_final(name) != files[i].final ||
            amp_weights_is_numbered(name) != files[i].numbered)
            TEST_FAIL("%s: backup %d, final %d, numbered %d", name, amp_weights_is_backup(name),
                      amp_weights_is_final(name), amp_weights_is_numbered(name));
    }
}

AMP_TEST(a_link_stands_for_its_file)
{
    char path[PATH_MAX];
    const char *file = scratch("a.weights"), *link = scratch("b.weights");
    const char *nowhere = scratch("c.weights");
    scratch_write("a.weights", "", 0);
    REQUIRE(!symlink(file, link) && !symlink(scratch("gone"), nowhere));
    CHECK(amp_weights_behind(file, path) == file);
    CHECK_STR(amp_weights_behind(link, path), file);
    CHECK(amp_weights_behind(nowhere, path) == nowhere);
    CHECK(amp_weights_behind(scratch_path, path) == scratch_path);
}

AMP_TEST(devices_and_pipes_are_special)
{
    scratch_write("a.weights", "", 0);
    REQUIRE(!mkfifo(scratch("pipe"), 0600));
    CHECK(amp_weights_is_special("/dev/null"));
    CHECK(amp_weights_is_special(scratch("pipe")));
    CHECK(!amp_weights_is_special(scratch("a.weights")));
    CHECK(!amp_weights_is_special(scratch("gone")));
    CHECK(!amp_weights_is_special(scratch_path));
}

AMP_TEST_MAIN
