/* `darknet amp profile CFG [--all] [--json]`: what every layer costs on this machine's CPU, with
 * random weights and images. On a GPU each layer would have to be waited for, which is not done
 * here. Belongs to the `darknet` program. */
#ifndef AMP_PROFILE_COMMAND_H
#define AMP_PROFILE_COMMAND_H

/* argv as main's. Returns the exit status: 0, or 1 with a message on stderr. */
int amp_command_profile(int argc, char **argv);

#endif
