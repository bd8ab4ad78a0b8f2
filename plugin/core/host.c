/* Asks the system. It must not know what the answers are for. */
#define _GNU_SOURCE
#include "host.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

double amp_clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int amp_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
}

/* ---- memory ---- */

/* The first number behind `key` in the file, which may be "". False: there is none. */
static bool read_number(const char *path, const char *key, size_t *number)
{
    char line[256], format[64];
    bool found = false;
    unsigned long long value;
    FILE *f = fopen(path, "r");
    snprintf(format, sizeof format, "%s%%llu", key);
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, format, &value) == 1;
    if (f) fclose(f);
    if (found) *number = (size_t)value;
    return found;
}

/* The second number of the file, in pages. */
size_t amp_resident_memory(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*u %llu", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static size_t at_most(size_t bytes, size_t limit, size_t used)
{
    size_t left = limit > used ? limit - used : 0;
    return left < bytes ? left : bytes;
}

/* What a control group uses beside the file cache that the system would drop for it, as its own
 * tools count ("working set"). */
static bool read_used(const char *usage, const char *stat, const char *cache, size_t *used)
{
    size_t dropped;
    if (!read_number(usage, "", used)) return false;
    if (read_number(stat, cache, &dropped)) *used -= dropped < *used ? dropped : *used;
    return true;
}

/* Of the control group of this process and of those above it the one that is mounted counts, as in
 * a container: version 2, or 1. "max" is no number. */
size_t amp_free_memory(void)
{
    static const struct {
        const char *limit, *usage, *stat, *cache;
    } groups[] = {{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                   "/sys/fs/cgroup/memory.stat", "inactive_file "},
                  {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
                   "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                   "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file "}};
    size_t bytes, limit, used;
    if (!read_number("/proc/meminfo", "MemAvailable: ", &bytes)) return 0;
    bytes *= 1024;
    for (int i = 0; i < 2; i++)
        if (read_number(groups[i].limit, "", &limit) &&
            read_used(groups[i].usage, groups[i].stat, groups[i].cache, &used))
            bytes = at_most(bytes, limit, used);
    return bytes;
}
