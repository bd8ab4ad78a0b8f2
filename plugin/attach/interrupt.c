#define _GNU_SOURCE
#include "interrupt.h"

#include "gpus.h"
#include "iteration.h"
#include "save.h"
#include "symbols.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Programs that stop others send two at once: `timeout` one to the program and one to its process
 * group, systemd SIGHUP right behind SIGTERM, a closed terminal SIGHUP beside its shell's. */
#define SAME_REQUEST_MS 200

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGINT, "SIGINT"},
               {SIGTERM, "SIGTERM"},
               {SIGHUP, "SIGHUP"},
               {SIGPIPE, "SIGPIPE"},
               {SIGXCPU, "SIGXCPU"}};
enum { SIGNALS = sizeof signals / sizeof *signals };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct amp_session *watched;
static int trained; /* networks; of several, no state of one alone is worth saving */
static pid_t process;
static pthread_mutex_t folder_lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX]; /* "": not known */

static _Atomic int64_t first; /* what came first: 256 * milliseconds + signal; 0: nothing yet */

/* ---- in a handler: nothing but what is safe there ---- */

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int asked(void) /* the signal; 0: none */
{
    return (int)(first % 256);
}

/* The system repeats its own: SIGPIPE at every write, SIGXCPU every second. */
static bool is_second(int number)
{
    return number != SIGPIPE && number != SIGXCPU && now() - first / 256 >= SAME_REQUEST_MS;
}

static void say(const char *text)
{
    if (write(2, text, strlen(text)) < 0) return; /* nobody listens */
}

static void on_signal(int number)
{
    int before = errno;
    int64_t none = 0;
    if (getpid() != process) { /* a child that inherited the handler */
        signal(number, SIG_DFL);
        raise(number);
    } else if (atomic_compare_exchange_strong(&first, &none, now() * 256 + number)) {
        say("\ndarknet-amp: told to stop: this iteration is finished and saved; a second signal "
            "ends at once\n");
    } else if (is_second(number)) {
        _exit(128 + number);
    }
    errno = before;
}

/* ---- when the handlers stand ---- */

static bool does(int number, void (*handler)(int))
{
    struct sigaction is;
    return !sigaction(number, NULL, &is) && !(is.sa_flags & SA_SIGINFO) && is.sa_handler == handler;
}

static void stand(void)
{
    struct sigaction ours = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&ours.sa_mask);
    for (int i = 0; i < SIGNALS; i++)
        sigaddset(&ours.sa_mask, signals[i].number);
    process = getpid();
    for (int i = 0; i < SIGNALS; i++)
        if (does(signals[i].number, SIG_DFL)) sigaction(signals[i].number, &ours, NULL);
}

/* A signal that was not obeyed yet takes its usual course. */
static void stand_down(void)
{
    watched = NULL;
    for (int i = 0; i < SIGNALS; i++)
        if (does(signals[i].number, on_signal)) signal(signals[i].number, SIG_DFL);
    if (asked()) raise(asked());
}

/* Another run's: there before this one, which neither loaded nor wrote it. */
static bool is_foreign(const struct amp_session *s, const char *path)
{
    struct stat there, ours;
    if (stat(path, &there)) return false;
    return !*s->backup || stat(s->backup, &ours) || there.st_ino != ours.st_ino ||
           there.st_dev != ours.st_dev;
}

int amp_backup_place(const struct amp_session *s, char path[PATH_MAX])
{
    char in[PATH_MAX], *base = AMP_USE(basecfg)(s->cfg->path);
    pthread_mutex_lock(&folder_lock);
    memcpy(in, folder, sizeof in);
    pthread_mutex_unlock(&folder_lock);
    int n = in[0] ? snprintf(path, PATH_MAX, "%s/%s.backup", in, base)
                  : snprintf(path, PATH_MAX, "%s", s->backup);
    if (in[0] && n < PATH_MAX && is_foreign(s, path))
        n = snprintf(path, PATH_MAX, "%s/%s_stopped.backup", in, base);
    free(base);
    return n > 0 && n < PATH_MAX ? 0 : -1;
}

void amp_interrupt_watch(struct amp_session *s)
{
    char path[PATH_MAX];
    if (amp_gpus_place(s->net)) return; /* the first stands for all */
    pthread_mutex_lock(&lock);
    /* A file that may not grow any more (ulimit -f): the write fails, and the save says so. */
    if (does(SIGXFSZ, SIG_DFL)) signal(SIGXFSZ, SIG_IGN);
    trained += !s->trained;
    s->trained = true;
    if (trained > 1 && watched) {
        stand_down();
    } else if (trained == 1 && !watched && !amp_backup_place(s, path)) {
        watched = s;
        stand();
    }
    pthread_mutex_unlock(&lock);
}

void amp_interrupt_unwatch(struct amp_session *s)
{
    pthread_mutex_lock(&lock);
    if (watched == s) stand_down();
    trained -= s->trained;
    s->trained = false;
    pthread_mutex_unlock(&lock);
}

/* ---- the end ---- */

static const char *name_of(int number)
{
    int i = 0;
    while (i < SIGNALS - 1 && signals[i].number != number)
        i++;
    return signals[i].name;
}

void amp_interrupt_obey(struct amp_session *s)
{
    char path[PATH_MAX];
    if (!asked() || s != watched || s->step.passes || amp_backup_place(s, path)) return;
    size_t iteration = amp_iterations_in(s->net, *s->net->seen);
    if (iteration >= (size_t)s->net->max_batches) return; /* Darknet ends by itself */
    amp_gpus_close_logs(s);
    amp_gpus_average(s->net);
    amp_save_last(s, path);
    fflush(stdout);
    fprintf(stderr,
            "darknet-amp: stopped by %s after iteration %zu. To go on from there, give the same "
            "command with the weights file after the cfg, without -clear: %s %s\n",
            name_of(asked()), iteration, s->cfg->path, path);
    _exit(128 + asked()); /* as amp_fail: loader threads are still at work */
}

/* Darknet's trainers read their backup folder so. */
AMP_INTERPOSE(char *, option_find_str, (list * options, char *key, char *def))
{
    char *value = AMP_REAL(option_find_str)(options, key, def);
    if (!value || strcmp(key, "backup") != 0) return value;
    pthread_mutex_lock(&folder_lock);
    snprintf(folder, sizeof folder, "%s", value);
    pthread_mutex_unlock(&folder_lock);
    return value;
}
