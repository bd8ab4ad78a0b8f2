/* `darknet amp check DATA CFG [WEIGHTS] [--json]`: is this training fit for mixed precision? A
 * few batches of its own images through two networks of the same weights, one in FP32. Nothing is
 * trained and nothing is written. Belongs to the `darknet` program. */
#ifndef AMP_CHECK_COMMAND_H
#define AMP_CHECK_COMMAND_H

/* argv as main's. Returns the exit status: 0 fine, 2 with advice, 1 it cannot run, with the reason
 * on stderr. */
int amp_command_check(int argc, char **argv);

#endif
