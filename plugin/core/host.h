/* The machine that this runs on: its clock and its cores. */
#ifndef AMP_HOST_H
#define AMP_HOST_H

/* Seconds on a clock that only goes forward. */
double amp_clock_seconds(void);
/* The cores that this process may use. */
int amp_cores(void);

#endif
