#include "fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Not exit(): loader threads are still at work in libraries that it would take apart. */
_Noreturn void amp_fail(const char *message)
{
    fflush(stdout);
    fprintf(stderr, "darknet-amp: %s\n", message);
    _exit(1);
}

_Noreturn void amp_fail_key(const struct amp_cfg_file *cfg, const char *key, const char *why)
{
    char message[2048];
    const struct amp_cfg_entry *e = amp_cfg_find(cfg->sections, key);
    snprintf(message, sizeof message, "%s:%d: %s=%.80s: %s", cfg->path, e ? e->line : 0, key,
             e ? e->value : "", why);
    amp_fail(message);
}

void *amp_allocate(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) amp_fail("out of memory");
    return p;
}
