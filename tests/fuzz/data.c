/* A .data file, read from disk. */
#include "fuzz.h"
#include "plugin/core/read/cfg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char err[1024] = "";
    const char *path = fuzz_file(data, size);
    struct amp_cfg_file *file = amp_cfg_read_data(path, err, sizeof err);
    if (!file) {
        fuzz_require_reason(err, path);
        return 0;
    }
    FUZZ_REQUIRE(file->n_sections == 1);
    for (int i = 0; i < file->sections[0].n_entries; i++) {
        const struct amp_cfg_entry *e = &file->sections[0].entries[i];
        FUZZ_REQUIRE(e->line > 0 && *e->key && *e->value && !strpbrk(e->value, " \t\r\n"));
        FUZZ_REQUIRE(amp_cfg_find(&file->sections[0], e->key)->line <= e->line);
    }
    amp_cfg_free(file);
    return 0;
}
