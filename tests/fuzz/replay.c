/* Runs a fuzz target on every file of a folder: a corpus as a test, without libFuzzer. */
#include <dirent.h>
#include <limits.h>

#include "fuzz.h"

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    FUZZ_REQUIRE(file && fseek(file, 0, SEEK_END) == 0);
    *size = (size_t)ftell(file);
    uint8_t *data = malloc(*size ? *size : 1);
    rewind(file);
    FUZZ_REQUIRE(data && fread(data, 1, *size, file) == *size);
    fclose(file);
    return data;
}

/* A target may change the working folder. */
static int replay_folder(const char *name)
{
    struct dirent **names;
    char *folder = realpath(name, NULL);
    FUZZ_REQUIRE(folder);
    int n = scandir(folder, &names, NULL, alphasort), files = 0;
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        size_t size;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (names[i]->d_name[0] != '.') {
            fprintf(stderr, "%s\n", path);
            uint8_t *data = read_file(path, &size);
            LLVMFuzzerTestOneInput(data, size);
            free(data);
            files++;
        }
        free(names[i]);
    }
    if (n >= 0) free(names);
    free(folder);
    return files;
}

int main(int argc, char **argv)
{
    int files = argc == 2 ? replay_folder(argv[1]) : 0;
    printf("%d inputs\n", files);
    return files ? 0 : 1;
}
