#define _GNU_SOURCE
#include "weights_name.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

bool amp_weights_is_backup(const char *name)
{
    return ends_with(name, ".backup");
}

bool amp_weights_is_final(const char *name)
{
    size_t stem = strlen(name) - strlen(".weights"), digits = 0;
    if (!ends_with(name, ".weights")) return false;
    while (digits < stem && isdigit((unsigned char)name[stem - 1 - digits]))
        ++digits;
    return digits == 0 || digits == stem || name[stem - 1 - digits] != '_';
}

bool amp_weights_is_numbered(const char *name)
{
    return ends_with(name, ".weights") && !amp_weights_is_final(name);
}

const char *amp_weights_behind(const char *name, char path[PATH_MAX])
{
    struct stat info;
    bool is_link = !lstat(name, &info) && S_ISLNK(info.st_mode);
    return is_link && realpath(name, path) ? path : name;
}

bool amp_weights_is_special(const char *name)
{
    struct stat info;
    return !stat(name, &info) && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}
