/* The whole check of `detector train DATA CFG WEIGHTS`, and of another trainer on the same files:
 * the input is all of them. */
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>

#include "fuzz.h"
#include "plugin/input/check_train.h"

/* The folder for backups is the working folder; a cfg may ask for terabytes there. */
static void limit_files(void)
{
    struct rlimit limit = {1 << 20, 1 << 20};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* Its size chooses which. */
static void check_another(size_t size, char *err, size_t err_size)
{
    static const char *const trainers[] = {"classifier", "regressor", "segmenter", "isegmenter",
                                           "rnn",        "yolo",      "tag",       "super"};
    const struct amp_trainer_inputs in = {.data = "x.data",
                                          .cfg = "x.cfg",
                                          .weights = size & 2 ? NULL : "x.weights",
                                          .text = size % 8 == 4 ? "x.list" : NULL,
                                          .folder = ".",
                                          .tokenized = size & 8};
    int failed = amp_check_trainer_inputs(trainers[size % 8], &in, fuzz_nowhere(), fuzz_nowhere(),
                                          err, err_size);
    FUZZ_REQUIRE(failed == (*err ? -1 : 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"x.data", "x.cfg", "x.weights", "x.names",
                                        "x.list", "a.png", "a.txt",     "b.png",
                                        "b.txt",  "x.map", "x.tree",    NULL};
    static char err[1 << 16];
    fuzz_enter_folder();
    fuzz_write_files(names, data, size);
    limit_files();
    const struct amp_trainer_inputs in = {.data = "x.data",
                                          .cfg = size & 16 ? NULL : "x.cfg",
                                          .weights = size & 2 ? NULL : "x.weights",
                                          .clear = size & 1,
                                          .on_gpu = size & 4,
                                          .measures = size & 8};
    int failed = amp_check_train_inputs(&in, fuzz_nowhere(), fuzz_nowhere(), err, sizeof err);
    FUZZ_REQUIRE(failed == (*err ? -1 : 0));
    check_another(size, err, sizeof err);
    return 0;
}
