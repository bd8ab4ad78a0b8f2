/* Decides who may still work while the program ends. It must not know what the work is; and since
 * every file of attach may call it, it needs none of them.
 *
 * A counter and a flag do, without a mutex: enter is called for every layer of every pass. */

#include "ending.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
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
