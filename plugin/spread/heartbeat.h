/* The thread of a process that tells the others that it lives, and ends it when the run ends early
 * (beats.h decides when). It needs an engine whose beats may be sent on another thread. */
#ifndef AMP_HEARTBEAT_H
#define AMP_HEARTBEAT_H

#include "engine.h"

#include <stdbool.h>

struct amp_heartbeat {
    const struct amp_engine *engine;
    int rank, size;
    double timeout; /* seconds of silence after which a process is lost */
    const char *(*host)(int rank);
    void (*tell)(const char *message); /* prints it with this process's name */
};

/* -1: no thread, or no memory. */
int amp_heartbeat_start(const struct amp_heartbeat *);
/* Returns when the thread has ended. Without one nothing happens, here and below. */
void amp_heartbeat_stop(void);

/* What this process does, for messages. iteration 0: as before. */
void amp_heartbeat_note(int iteration, bool in_step);
void amp_heartbeat_note_waiting(bool);

/* Whether the run ends and this process has to save for all. The first call that says so gives the
 * reason. */
bool amp_heartbeat_must_save(char *why, size_t size);
/* It has; ends this process with status 1. */
void amp_heartbeat_saved(void);
/* This process ends the run. able: it saves now, and calls amp_heartbeat_saved; else it ends here
 * with status 1, when another one has saved. Returns at once without a thread. */
void amp_heartbeat_end(bool able, const char *why);

/* Tells which processes are late: everybody waits for them. */
void amp_heartbeat_report_late(double seconds);

#endif
