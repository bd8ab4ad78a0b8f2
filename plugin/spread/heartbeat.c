/* Decides when a beat is sent. It must not know who is lost or who saves (beats.c), nor what MPI
 * is (engine.h). */
#include "heartbeat.h"

#include "beats.h"
#include "plugin/core/host.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAP = 10000 /* us */, LAST_BEATS = 20 /* naps */ };

static struct amp_heartbeat heart;
static struct amp_beats beats;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards beats */
static pthread_t thread;
static bool runs;
static atomic_bool stops, must_save;

static void beat(void)
{
    for (int r = 0; r < heart.size; r++)
        if (amp_beats_goes_to(&beats, r)) heart.engine->beat(&beats.own, sizeof beats.own, r);
}

static void hear(void)
{
    struct amp_beat heard;
    for (int from; (from = heart.engine->hear(&heard, sizeof heard)) >= 0;)
        amp_beats_hear(&beats, from, &heard);
}

/* Who cannot go on has said so, and who has saved has told why. _exit: the training thread is at
 * work. */
static _Noreturn void leave(void)
{
    if (beats.own.able && !beats.own.saved) heart.tell(beats.own.why);
    beat();
    for (int i = 0; i < LAST_BEATS; i++) { /* the engine sends while it is called */
        hear();
        usleep(NAP);
    }
    _exit(1);
}

static void *live(void *unused)
{
    double last = amp_clock_seconds(), due = 0;
    int told = 0;
    while (!stops) {
        double now = amp_clock_seconds();
        pthread_mutex_lock(&lock);
        hear();
        amp_beats_pass(&beats, now - last, heart.host);
        enum amp_beats_verdict verdict = amp_beats_judge(&beats);
        if (verdict == AMP_BEATS_LEAVE) leave();
        must_save = verdict == AMP_BEATS_SAVE;
        int news = amp_beats_news(&beats);
        if (now >= due || news != told) {
            beat();
            due = now + 1;
            told = news;
        }
        pthread_mutex_unlock(&lock);
        last = now;
        usleep(NAP);
    }
    return unused;
}

int amp_heartbeat_start(const struct amp_heartbeat *h)
{
    sigset_t every, before;
    heart = *h;
    if (amp_beats_start(&beats, h->rank, h->size, h->timeout)) return -1;
    sigfillset(&every); /* signals are for the threads that were there before */
    pthread_sigmask(SIG_BLOCK, &every, &before);
    runs = !pthread_create(&thread, NULL, live, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return runs ? 0 : -1;
}

void amp_heartbeat_stop(void)
{
    if (!runs) return;
    stops = true;
    pthread_join(thread, NULL);
    runs = false;
}

void amp_heartbeat_note(int iteration, bool in_step)
{
    pthread_mutex_lock(&lock);
    if (iteration) beats.own.iteration = iteration;
    beats.own.in_step = in_step;
    pthread_mutex_unlock(&lock);
}

void amp_heartbeat_note_waiting(bool waits)
{
    pthread_mutex_lock(&lock);
    beats.own.waits = waits;
    pthread_mutex_unlock(&lock);
}

bool amp_heartbeat_must_save(char *why, size_t size)
{
    if (!must_save) return false;
    pthread_mutex_lock(&lock);
    bool first = !beats.saving;
    beats.saving = true;
    snprintf(why, size, "%s", beats.own.why);
    pthread_mutex_unlock(&lock);
    return first;
}

void amp_heartbeat_saved(void)
{
    if (!runs) return;
    pthread_mutex_lock(&lock);
    beats.own.saved = true;
    pthread_mutex_unlock(&lock);
    for (;;) /* the thread ends the process */
        pause();
}

void amp_heartbeat_end(bool able, const char *why)
{
    if (!runs) return;
    pthread_mutex_lock(&lock);
    amp_beats_end(&beats, able, why, heart.host);
    pthread_mutex_unlock(&lock);
    while (!able)
        pause();
}

void amp_heartbeat_report_late(double seconds)
{
    char who[200], message[300];
    bool any = false;
    for (int r = 0; runs && r < heart.size; r++) {
        pthread_mutex_lock(&lock);
        bool late = amp_beats_late(&beats, r, heart.host, who, sizeof who);
        pthread_mutex_unlock(&lock);
        snprintf(message, sizeof message, "waiting for %.0f s: %s", seconds, who);
        if (late) heart.tell(message);
        any |= late;
    }
    if (runs && !any) {
        snprintf(message, sizeof message, "an exchange of all processes takes %.0f s so far",
                 seconds);
        heart.tell(message);
    }
}
