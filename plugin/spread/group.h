/* The processes that train one network together, and what they exchange. Every function that takes
 * part in an exchange is called by all of them, in the same order, on the thread that trains; it
 * waits without taking the core from others. A failed exchange ends the program through `fail`. */
#ifndef AMP_GROUP_H
#define AMP_GROUP_H

#include "launcher.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the program does for its group. */
struct amp_group_calls {
    void (*tell)(const char *message); /* prints it */
    void (*fail)(const char *why);     /* ends this process; does not return */
    /* On the thread that trains: the run ends, and this process saves its last finished step for
     * all. Ends the process by amp_group_saved. */
    void (*save)(const char *why);
};

/* Loads the engine and waits until all processes of the launch are there. -1 with text in err: the
 * engine is missing, or knows another number of processes than the launcher. timeout: a process
 * that is silent for so many seconds is lost. seed: a number of this process's own. */
int amp_group_start(const struct amp_launch *, uint64_t seed, double timeout,
                    const struct amp_group_calls *, char *err, size_t err_size);
/* False before amp_group_start: this is the only process, 0 of 1. */
bool amp_group_is_on(void);
int amp_group_rank(void);
int amp_group_size(void);
/* Where a process runs. */
const char *amp_group_host(int rank);
/* The same on all: process 0's seed. */
uint64_t amp_group_seed(void);
/* How many threads may compute in this process so that all those on its host have a core for each:
 * those that it may use, divided among the processes that may use the same ones. */
int amp_group_cores(void);

/* all: room for size times bytes. */
void amp_group_gather(const void *mine, void *all, size_t bytes);
void amp_group_add_floats(float *x, size_t n);
void amp_group_add_doubles(double *x, size_t n);
void amp_group_add_bf16(uint16_t *x, size_t n);
void amp_group_broadcast(void *x, size_t bytes, int from);
void amp_group_send(const void *x, size_t bytes, int to);
void amp_group_receive(void *x, size_t bytes, int from);

/* Bytes of this process's arrays in exchanges so far. Those in another library are told by
 * amp_group_count. */
uint64_t amp_group_exchanged(void);
void amp_group_count(size_t bytes);

/* Waits for the others in another library: polls it until it says that it is done (1) or failed
 * (-1), and returns 0 or -1. */
int amp_group_wait(int (*poll)(void));
/* That library: abort makes it stop waiting. Called before this process saves for all. */
void amp_group_abort_by(void (*abort)(void));
/* Ends this process. */
_Noreturn void amp_group_fail(const char *why);

/* ---- a run that ends early: a process is lost, or cannot go on (beats.h) ---- */

/* Where this process is, for the others' messages. iteration 0: as before. */
void amp_group_note(int iteration, bool in_step);
/* On the thread that trains, where its state is whole: if this process has to save for all, does so
 * and ends. Exchanges do that too. */
void amp_group_check(void);
/* Ends this process with status 1. */
_Noreturn void amp_group_saved(void);
/* This process cannot go on. able: it saves now, and then calls amp_group_saved; else this ends it
 * with status 1, when another one has saved. Returns at once without a group. Any thread. */
void amp_group_end(bool able, const char *why);

/* Waits until all have come here, and ends the engine: this process may then exit with any status.
 * Later calls do nothing. */
void amp_group_leave(void);

#endif
