/* Decides who may still work while the program ends. It must not know what the work is; and since
 * every file of attach may call it, it needs none of them.
 *
 * A counter and a flag do, without a mutex: enter is called for every layer of every pass. */

#include "ending.h"

#include "amp_observe.h"

#include "amp.h"
#include "plugin/spread/group.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int inside;
static atomic_bool ending;
static _Thread_local int depth; /* how often this thread is inside */

/* Only the outermost enter of a thread counts. */
static bool get_in(void)
{
    if (!depth) {
        inside++; /* before the look at ending: either we see it, or exit sees us */
        if (ending) {
            inside--;
            return false;
        }
    }
    depth++;
    return true;
}

void amp_ending_enter(void)
{
    /* The program is ending: sleep until it has. pause returns after a signal handler. */
    while (!get_in())
        pause();
}

void amp_ending_leave(void)
{
    if (!--depth) --inside;
}

void amp_ending_wait(void)
{
    ending = true;
    /* Polled: a condition variable would cost every leave a lock. The thread that calls exit may be
     * inside itself. */
    while (inside > (depth ? 1 : 0))
        usleep(1000);
}

/* Both, since programs end either way; the darknet program calls quick_exit. */
static void watch(void)
{
    atexit(amp_ending_wait);
    at_quick_exit(amp_ending_wait);
}

void amp_ending_watch(enum amp_ending_after what)
{
    static pthread_once_t once[AMP_ENDING_KINDS] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT,
                                                    PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};
    pthread_once(&once[what], watch);
}

/* ---- at once ---- */

static int failing_on = STDERR_FILENO;

void amp_fail_on(int descriptor)
{
    failing_on = descriptor;
}

void amp_tell(const char *message)
{
    char who[120];
    amp_launch_who(who, sizeof who);
    fflush(stdout);
    fflush(stderr);
    dprintf(failing_on, "darknet-amp: %s%s\n", who, message);
}

static void (*_Atomic last_act)(void);

void amp_on_end(void (*act)(void))
{
    last_act = act;
}

void amp_ending_act(void)
{
    void (*act)(void) = atomic_exchange(&last_act, NULL);
    if (act) act();
}

/* Not exit(): loader threads are still at work in libraries that it would take apart. */
_Noreturn void amp_fail(const char *message)
{
    amp_tell(message);
    amp_ending_act();
    amp_group_end(false, message);
    _exit(1);
}

_Noreturn void amp_fail_key(const struct amp_cfg_file *cfg, const char *key, const char *why)
{
    char message[2048];
    const struct amp_cfg_entry *e = amp_cfg_find(cfg->sections, key);
    snprintf(message, sizeof message, "%s:%d: %s=%.80s: %s", cfg->path, e ? e->line : 0, key,
             e ? e->written : "", why);
    amp_fail(message);
}

FILE *amp_nowhere(void)
{
    static FILE *f;
    if (!f) f = fopen("/dev/null", "w");
    if (!f) amp_fail("/dev/null cannot be opened");
    return f;
}

void *amp_allocate(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) amp_fail("out of memory");
    return p;
}

/* ---- memory that Darknet does not get ---- */

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
