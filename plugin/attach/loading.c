#include "loading.h"

#include "symbols.h"

#include "darknet.h"
#include "utils.h"

#include <errno.h>
#include <stdarg.h>

static _Thread_local struct amp_loading *now;
static _Thread_local jmp_buf *out;

void amp_loading_note(struct amp_loading *l, const char *why, ...)
{
    va_list values;
    if (atomic_exchange(&l->failed, true)) return;
    va_start(values, why);
    vsnprintf(l->why, sizeof l->why, why, values);
    va_end(values);
}

void amp_loading_begin(struct amp_loading *l, jmp_buf *way_out)
{
    now = l;
    out = way_out;
}

void amp_loading_end(void)
{
    now = NULL;
    out = NULL;
}

struct amp_loading *amp_loading_now(void)
{
    return now;
}

_Noreturn void amp_loading_leave(void)
{
    longjmp(*out, 1);
}

// Darknet's ends the program, with status 0.
AMP_INTERPOSE(void, file_error, (char *name))
{
    if (!now) AMP_REAL(file_error)(name);
    amp_loading_note(now,
                     "%s: cannot be opened: %s; labels must stay where they are while it trains",
                     name, strerror(errno));
    amp_loading_leave();
}
