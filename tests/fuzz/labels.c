/* A label file; the same bytes as an image's name. The first byte chooses the count of classes. */
#include "fuzz.h"
#include "plugin/input/labels.h"

static void note(void *context, const char *message)
{
    FUZZ_REQUIRE(*message && !strchr(message, '\n'));
    ++*(int *)context;
}

static void check_rows(const struct amp_labels *labels, int classes)
{
    for (size_t i = 0; i < labels->count; i++) {
        const struct amp_label *l = &labels->rows[i];
        FUZZ_REQUIRE(l->class_id >= 0 && l->class_id < classes);
        FUZZ_REQUIRE(l->x >= -AMP_LABEL_BOX_MAX && l->x <= AMP_LABEL_BOX_MAX);
        FUZZ_REQUIRE(l->y >= -AMP_LABEL_BOX_MAX && l->y <= AMP_LABEL_BOX_MAX);
        FUZZ_REQUIRE(l->width >= 0 && l->width <= AMP_LABEL_BOX_MAX);
        FUZZ_REQUIRE(l->height >= 0 && l->height <= AMP_LABEL_BOX_MAX);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    int classes = 1 + data[0] % 80, told = 0;
    struct amp_labels labels = {0};
    int failed = amp_labels_read(fuzz_file(data + 1, size - 1), classes, &labels, note, &told);
    FUZZ_REQUIRE(failed == (told ? -1 : 0));
    check_rows(&labels, classes);
    amp_labels_free(&labels);

    char path[200], err[400] = "", *name = strndup((const char *)data, size);
    if (amp_label_path(name, path, sizeof path, err, sizeof err))
        fuzz_require_reason(err, NULL);
    else
        FUZZ_REQUIRE(strcmp(path, name) && strlen(path) < sizeof path);
    free(name);
    return 0;
}
