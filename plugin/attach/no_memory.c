/* Decides what is said when Darknet gets no memory. It must not know what it was for: whoever lets
 * Darknet work says that beforehand. */
#include "no_memory.h"

#include "amp_observe.h"
#include "fail.h"

#include <limits.h>
#include <stdio.h>

static _Thread_local enum amp_memory_use use;
static _Thread_local const struct amp_cfg_file *parsed;
static _Thread_local int layers; /* that Darknet has made of it */

enum amp_memory_use amp_memory_set_use(enum amp_memory_use next)
{
    enum amp_memory_use before = use;
    use = next;
    return before;
}

void amp_memory_parse(const struct amp_cfg_file *cfg)
{
    parsed = cfg;
    layers = 0;
}

void amp_memory_count_layer(void)
{
    layers++;
}

/* Behind the last layer Darknet asks for the network's input and its work memory. */
static void name_layer(char *text, size_t size)
{
    const struct amp_cfg_section *s;
    if (!parsed)
        snprintf(text, size, " at layer %d", layers);
    else if (layers + 1 < parsed->n_sections && (s = amp_cfg_layer(parsed, layers)))
        snprintf(text, size, " at layer %d, %.60s (%s:%d)", layers, s->name, parsed->path, s->line);
    else
        snprintf(text, size, " behind the last layer");
}

/* Called by our build of libdarknet.so, by this name. */
AMP_API void amp_darknet_lacks_memory(size_t bytes);
AMP_API void amp_darknet_lacks_memory(size_t bytes)
{
    static const char *const what[][2] = {
        [AMP_MEMORY_OTHER] = {"that Darknet asks for", "lower batch"},
        [AMP_MEMORY_PARSE] = {"of Darknet's own arrays", "lower batch, raise subdivisions"},
        [AMP_MEMORY_LOAD] = {"while a batch is loaded", "lower batch"},
    };
    char where[PATH_MAX + 100] = "", why[PATH_MAX + 400];
    double mib = (double)bytes / (1 << 20);
    if (use == AMP_MEMORY_CHECKED) return;
    if (use == AMP_MEMORY_PARSE) {
        fputc('\n', stderr); /* Darknet is in the middle of a line */
        name_layer(where, sizeof where);
    }
    snprintf(why, sizeof why,
             "no memory for %.*f %s %s%s: %s, or raise the limit of memory (ulimit -v)",
             mib < .1 ? 0 : 1, mib < .1 ? (double)bytes : mib, mib < .1 ? "bytes" : "MiB",
             what[use][0], where, what[use][1]);
    amp_fail(why);
}
