#include "memory.h"

#include "amp.h"
#include "ending.h"

#include <stdio.h>

static _Thread_local enum amp_memory_use use;

enum amp_memory_use amp_memory_set_use(enum amp_memory_use next)
{
    enum amp_memory_use before = use;
    use = next;
    return before;
}

/* Called by our build of libdarknet.so, by this name. */
AMP_API void amp_darknet_lacks_memory(size_t bytes);
AMP_API void amp_darknet_lacks_memory(size_t bytes)
{
    static const char *const what[] = {
        [AMP_MEMORY_OTHER] = "that Darknet asks for: lower batch",
        [AMP_MEMORY_PARSE] = "of Darknet's own arrays, at the last layer listed above: lower "
                             "batch, raise subdivisions",
        [AMP_MEMORY_LOAD] = "while a batch is loaded: lower batch",
    };
    char why[300];
    double mib = (double)bytes / (1 << 20);
    if (use == AMP_MEMORY_CHECKED) return;
    if (use == AMP_MEMORY_PARSE) fputc('\n', stderr); /* Darknet is in the middle of a line */
    snprintf(why, sizeof why, "no memory for %.*f %s %s, or raise the limit of memory (ulimit -v)",
             mib < .1 ? 0 : 1, mib < .1 ? (double)bytes : mib, mib < .1 ? "bytes" : "MiB",
             what[use]);
    amp_fail(why);
}
