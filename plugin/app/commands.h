/* Our commands. Each returns the exit status: 0, or 1 after saying on stderr why not. */
#ifndef AMP_COMMANDS_H
#define AMP_COMMANDS_H

/* argv[0] is the command's name, "darknet amp plan", and what follows it are its arguments. */

/* What runs in which precision, without training, weights or activations. */
int amp_command_plan(int argc, char **argv);
/* Is this training fit for mixed precision? Writes no file. 2: there is advice. */
int amp_command_check(int argc, char **argv);
/* What every layer costs on this machine. */
int amp_command_profile(int argc, char **argv);
/* Mean average precision of a detector. */
int amp_command_detector_map(int argc, char **argv);

/* argv as main's: looks at everything that the training needs, then hands over to Darknet's own
 * command. With -map and -chart it looks on. */
int amp_command_detector_train(int argc, char **argv);

/* Versions, and what this machine has. */
int amp_print_version(void);

#endif
