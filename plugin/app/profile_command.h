/* `darknet amp profile CFG [--all] [--json]`: what every layer costs on this machine, with random
 * weights and images: on the GPU that -i names, in a build for one, else on the CPU. Belongs to the
 * `darknet` program. */
#ifndef AMP_PROFILE_COMMAND_H
#define AMP_PROFILE_COMMAND_H

/* argv as main's. Returns the exit status: 0, or 1 with a message on stderr. */
int amp_command_profile(int argc, char **argv);

#endif
