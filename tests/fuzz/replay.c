/* Runs a fuzz target on every file of the folders named: a corpus as a test, without libFuzzer. */
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

static int replay_folder(const char *folder)
{
    struct dirent **names;
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
    return files;
}

int main(int argc, char **argv)
{
    int files = 0;
    for (int i = 1; i < argc; i++)
        files += replay_folder(argv[i]);
    printf("%d inputs\n", files);
    return files ? 0 : 1;
}
