/* Our commands. Each returns the exit status: 0, or 1 after saying on stderr why not. */
#ifndef AMP_COMMANDS_H
#define AMP_COMMANDS_H

/* argv[0] is the command's name, "darknet amp plan", and what follows it are its arguments. */

/* Prints what runs in which precision, without training, weights or activations. */
int amp_command_plan(int argc, char **argv);
/* Checks whether a training is fit for mixed precision. Writes no file. Status 2: there is
 * advice. */
int amp_command_check(int argc, char **argv);
/* Times every layer on this machine. */
int amp_command_profile(int argc, char **argv);
/* Measures the mean average precision of a detector. */
int amp_command_detector_map(int argc, char **argv);

/* argv as main's. Checks everything that the training needs, then hands over to Darknet's own
 * command. With -map and -chart it is called after iterations. */
int amp_command_detector_train(int argc, char **argv);

/* Prints versions, and the CPU and GPUs of this machine. */
int amp_print_version(void);

#endif
