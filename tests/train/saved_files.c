/* usage: saved_files FOLDER BYTES
 * Every file in a folder of saved weights of one network, whose weights files have so many bytes:
 * weights must be whole and finite, sidecars undamaged. Prints a line for each:
 *
 *   weights NAME SEEN
 *   pair NAME SEEN       weights and their sidecar, of the same moment
 *   part NAME            left by a program that was killed
 *
 * Anything else is an error, as are weights or a sidecar without a pair, unless NAME.prev has one.
 */

#include "plugin/core/files/checkpoint.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD 20 /* three version numbers, images seen */

static _Noreturn void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

static uint64_t check_weights(const char *name, size_t bytes)
{
    uint64_t seen;
    char *file = malloc(bytes + 1);
    FILE *f = fopen(name, "rb");
    if (!file || !f || fread(file, 1, bytes + 1, f) != bytes) fail("%s: wrong size", name);
    if (!amp_all_finite((float *)(void *)(file + HEAD), (bytes - HEAD) / sizeof(float)))
        fail("%s: not finite", name);
    memcpy(&seen, file + HEAD - sizeof seen, sizeof seen);
    fclose(f);
    free(file);
    return seen;
}

/* Whether weights and sidecar are of the same moment. */
static bool is_pair(const char *name)
{
    char err[2 * PATH_MAX], path[PATH_MAX];
    struct amp_file_id id;
    snprintf(path, sizeof path, "%s" AMP_SIDECAR_SUFFIX, name);
    if (access(path, F_OK) || access(name, F_OK)) return false;
    struct amp_sidecar *s = amp_sidecar_open(path, err, sizeof err);
    if (!s || amp_file_identify(name, &id, err, sizeof err)) fail("%s", err);
    bool same = !amp_sidecar_check_weights(s, &id, name, err, sizeof err);
    amp_sidecar_close(s);
    return same;
}

static void check_sidecar(const char *name)
{
    char err[2 * PATH_MAX];
    struct amp_sidecar *s = amp_sidecar_open(name, err, sizeof err);
    if (!s) fail("%s", err);
    amp_sidecar_close(s);
}

static void check(const char *name, size_t bytes)
{
    char other[PATH_MAX];
    if (strstr(name, ".part-")) {
        printf("part %s\n", name);
        return;
    }
    if (ends_with(name, AMP_SIDECAR_SUFFIX)) {
        check_sidecar(name);
        return;
    }
    uint64_t seen = check_weights(name, bytes);
    bool pair = is_pair(name);
    printf("%s %s %llu\n", pair ? "pair" : "weights", name, (unsigned long long)seen);
    snprintf(other, sizeof other, "%s.prev", name);
    if (ends_with(name, ".backup") && !pair && !is_pair(other)) fail("%s: no pair", name);
}

int main(int argc, char **argv)
{
    DIR *dir = argc == 3 ? opendir(argv[1]) : NULL;
    if (!dir || chdir(argv[1])) fail("usage: saved_files FOLDER BYTES");
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') check(e->d_name, strtoull(argv[2], NULL, 10));
    closedir(dir);
    return 0;
}
