/* Who of the processes is alive, who ends the run, and who saves then: decided from beats, short
 * messages that all send once a second. Pure: no clock, no MPI, no thread (heartbeat.c has these).
 *
 * Every process beats to process 0, which beats to all. A process that is silent for `timeout`
 * seconds is lost; one that cannot go on says so in its beat. The first who knows passes it on, and
 * all end. Before that one saves: process 0, or the lowest that can. If process 0 cannot, the
 * others beat to each other, and wait AMP_BEATS_SETTLE seconds to know who is there. */
#ifndef AMP_BEATS_H
#define AMP_BEATS_H

#include <stdbool.h>

enum { AMP_BEATS_SETTLE = 1, AMP_BEAT_WHY = 700 };

struct amp_beat {
    int iteration; /* it trains, or trained last; 0: none yet */
    bool in_step;  /* else between two: loading, saving, measuring */
    bool waits;    /* in an exchange: for the others */
    bool able;     /* could save; a process that cannot go on could not */
    bool saved;    /* it has saved for all, or found nothing to save */
    int lost;      /* the process that ends the run; -1: none */
    char why[AMP_BEAT_WHY];
};

struct amp_beats {
    int rank, size;
    double timeout;
    struct amp_beat own, *last; /* of every process, the own one unused */
    double *silent;             /* seconds since its last beat */
    double ended;               /* seconds since own.lost was set */
    bool saving;                /* this process has begun to save for all */
};

/* -1: no memory. */
int amp_beats_start(struct amp_beats *, int rank, int size, double timeout);

void amp_beats_hear(struct amp_beats *, int from, const struct amp_beat *);
/* Time passes. host names a process's host in messages. */
void amp_beats_pass(struct amp_beats *, double seconds, const char *(*host)(int rank));
/* This process ends the run. able: it has begun to save. */
void amp_beats_end(struct amp_beats *, bool able, const char *why, const char *(*host)(int rank));

/* Changes when a beat is due at once. */
int amp_beats_news(const struct amp_beats *);
/* Whether this process sends its beats to that one. */
bool amp_beats_goes_to(const struct amp_beats *, int rank);

enum amp_beats_verdict {
    AMP_BEATS_GO_ON,
    AMP_BEATS_WAIT, /* the run ends; another process saves, or it is not known yet who does */
    AMP_BEATS_SAVE, /* the run ends, and this process saves: set own.saved then */
    AMP_BEATS_LEAVE /* end now */
};
enum amp_beats_verdict amp_beats_judge(const struct amp_beats *);

/* Why process 0 waits for this one, in words: "rank 2 on b is alive, and computes in iteration 7";
 * false: it does not. */
bool amp_beats_late(const struct amp_beats *, int rank, const char *(*host)(int rank), char *text,
                    int size);

#endif
