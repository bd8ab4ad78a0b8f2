/* Decides how the program ends when it cannot go on. It must not know why it cannot. */
#include "fail.h"

#include "amp.h"
#include "amp_observe.h"
#include "plugin/spread/group.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

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

void amp_act_on_end(void)
{
    void (*act)(void) = atomic_exchange(&last_act, NULL);
    if (act) act();
}

/* Not exit(): loader threads are still at work in libraries that it would take apart. */
_Noreturn void amp_fail(const char *message)
{
    amp_tell(message);
    amp_act_on_end();
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
