/* Decides what work waits for what. It must not know what the work is. */
#include "background.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* Darknet's trainers save two files at once now and then: the backup and a numbered one. */
enum { MOST = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct {
    void (*work)(void *);
    void *what;
} pieces[MOST];               /* piece k is in place k % MOST */
static unsigned begun, ended; /* pieces so far */
static bool runs;             /* the thread, while there is work */

static void *do_all(void *unused)
{
    pthread_mutex_lock(&lock);
    while (ended != begun) {
        void (*work)(void *) = pieces[ended % MOST].work;
        void *what = pieces[ended % MOST].what;
        pthread_mutex_unlock(&lock);
        work(what);
        pthread_mutex_lock(&lock);
        ended++;
        pthread_cond_broadcast(&changed);
    }
    runs = false;
    pthread_mutex_unlock(&lock);
    return unused;
}

/* Signals are for the threads that were there before. */
static bool start_thread(void)
{
    sigset_t every, before;
    pthread_t thread;
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    bool started = !pthread_create(&thread, NULL, do_all, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_detach(thread);
    return started;
}

/* A forked child has no such thread, and its work is the parent's. */
static void forget_all(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    ended = begun;
    runs = false;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_all);
}

static void wait_for_room(void)
{
    while (begun - ended == MOST)
        pthread_cond_wait(&changed, &lock);
}

void amp_background_make_room(void)
{
    pthread_mutex_lock(&lock);
    wait_for_room();
    pthread_mutex_unlock(&lock);
}

bool amp_background_start(void (*work)(void *), void *what)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    wait_for_room();
    pieces[begun % MOST].work = work;
    pieces[begun % MOST].what = what;
    runs = runs || start_thread();
    begun += runs;
    bool started = runs;
    pthread_mutex_unlock(&lock);
    return started;
}

void amp_background_wait(void)
{
    pthread_mutex_lock(&lock);
    for (unsigned all = begun; (int)(all - ended) > 0;)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
