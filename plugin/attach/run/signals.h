/* Signals that ask a run to stop: SIGINT, SIGTERM, SIGHUP, SIGPIPE (nobody reads the output any
 * more) and SIGXCPU (a batch system's limit). A handler only notes the first one; a second ends the
 * program at once. Signals within 200 ms of the first, and those that the system repeats, are not a
 * second one. Call one function at a time (run.c has the lock). */
#ifndef AMP_SIGNALS_H
#define AMP_SIGNALS_H

/* Sets the handlers where the signal would have ended the program: its own handlers and ignored
 * signals stay. */
void amp_signals_take(void);
/* Signals act as they did before. One that came and was not obeyed is raised again. */
void amp_signals_release(void);
/* A write of more than is allowed (ulimit -f) fails, and the save says so, where SIGXFSZ would have
 * ended the program. */
void amp_signals_let_writes_fail(void);

/* From any thread: the signal that asks this process to stop, 0 for none; and a signal's name. */
int amp_signals_asked(void);
const char *amp_signals_name(int number);

#endif
