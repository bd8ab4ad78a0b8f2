/* A head's tree= or map= file, as the first byte says. */
#include "fuzz.h"
#include "plugin/core/read/named_files.h"

static void read_tree(const char *path)
{
    char err[1024] = "";
    struct amp_class_tree t;
    if (amp_class_tree_read("x.cfg", path, &t, err, sizeof err)) {
        fuzz_require_reason(err, path);
        return;
    }
    int classes = 0;
    for (int i = 0; i < t.classes; i++)
        FUZZ_REQUIRE(t.parent[i] >= -1 && t.parent[i] < i && t.group[i] < t.groups);
    for (int i = 0; i < t.groups; i++) {
        FUZZ_REQUIRE(t.group_offset[i] == classes && t.group_size[i] >= 0);
        classes += t.group_size[i];
    }
    FUZZ_REQUIRE(classes == t.classes);
    amp_class_tree_free(&t);
}

static void read_map(const char *path)
{
    char err[1024] = "";
    int *map, n;
    if (amp_class_map_read("x.cfg", path, &map, &n, err, sizeof err)) {
        fuzz_require_reason(err, path);
        return;
    }
    FUZZ_REQUIRE(n >= 0);
    free(map);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    (data[0] == 't' ? read_tree : read_map)(fuzz_file(data + 1, size - 1));
    return 0;
}
