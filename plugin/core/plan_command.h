/* `darknet amp plan CFG [--json]`: what runs where, without training, weights or activations. */
#ifndef AMP_PLAN_COMMAND_H
#define AMP_PLAN_COMMAND_H

/* argv as main's. Returns the exit status: 0, or 1 with a message on stderr. */
int amp_command_plan(int argc, char **argv);

#endif
