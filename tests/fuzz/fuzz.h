/* What the fuzz targets share. A target defines LLVMFuzzerTestOneInput; libFuzzer calls it, or
 * replay.c with the inputs of its corpus. It must not crash, leak, or break a FUZZ_REQUIRE. */
#ifndef AMP_FUZZ_H
#define AMP_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_REQUIRE(condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* The bytes as a file in memory; its path, good until the next call. */
const char *fuzz_file(const void *data, size_t size);

/* Makes a folder of its own the working folder, at the first call; removed when the program ends.
 */
void fuzz_enter_folder(void);
/* A file in it, which replaces one of that name. */
void fuzz_write(const char *name, const void *data, size_t size);

/* Several files in one input: "@NAME\n" at the start of a line begins the one of that name, for
 * NAMES that end with NULL. Files that the input has not are empty. */
void fuzz_write_files(const char *const *names, const uint8_t *data, size_t size);

/* Where output goes that nobody reads. */
FILE *fuzz_nowhere(void);

/* A refusal says why and, if name is not NULL, names the file. */
void fuzz_require_reason(const char *err, const char *name);

#endif
