/* Standard output set aside while Darknet prints what nobody asked for. */
#ifndef AMP_QUIET_H
#define AMP_QUIET_H

/* Returns what amp_quiet_end wants; -1: it stays as it is. */
int amp_quiet_begin(void);
void amp_quiet_end(int kept);

#endif
