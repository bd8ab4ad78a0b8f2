/* What `detector map DATA CFG WEIGHTS` reads before Darknet builds the net: the input is all of its
 * files. */
#include "fuzz.h"
#include "plugin/app/map.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"x.data", "x.cfg", "x.weights", "x.names",
                                        "x.list", "a.png", "a.txt",     "b.png",
                                        "b.txt",  "x.map", NULL};
    struct amp_eval_set set;
    fuzz_enter_folder();
    fuzz_write_files(names, data, size);
    if (amp_eval_set_load("x.data", size % 2 ? AMP_DIALECT_FORK : AMP_DIALECT_STOCK, &set,
                          fuzz_nowhere()))
        return 0;
    for (size_t i = 0; i < set.n_truths; i++) {
        FUZZ_REQUIRE(set.truths[i].class_id >= 0 && set.truths[i].class_id < set.n_classes);
        FUZZ_REQUIRE(set.truths[i].image >= 0 && set.truths[i].image < set.images.count);
    }
    for (int i = 0; i < set.n_classes; i++)
        FUZZ_REQUIRE(amp_eval_set_class_name(&set, i));
    amp_map_check_network("x.cfg", size & 2, "x.weights", &set, size & 1, fuzz_nowhere());
    amp_eval_set_free(&set);
    return 0;
}
