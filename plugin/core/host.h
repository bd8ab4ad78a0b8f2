/* The machine that this runs on: its clock and its cores. */
#ifndef AMP_HOST_H
#define AMP_HOST_H

#include <stddef.h>

/* Seconds on a clock that only goes forward. */
double amp_clock_seconds(void);
/* The cores that this process may use. */
int amp_cores(void);
/* Bytes of this process's memory that are in the machine's. 0: unknown. */
size_t amp_resident_memory(void);
/* Bytes of memory that this process can still take: what the system has and its control group
 * allows, cached files included. ulimit -v is not looked at, since it counts addresses, used or
 * not. 0: unknown. */
size_t amp_free_memory(void);

#endif
