/* What users of AlexeyAB's and hank-ai's Darknet type behind `detector`. Pure C. */
#ifndef AMP_FORK_WORDS_H
#define AMP_FORK_WORDS_H

/* Looks at main's words, if they are a `detector` command. Words that mean something to this
 * command here get the spelling that is read later: dashes, underscores and capitals do not matter
 * (--map-epochs is -mAP_epochs), and those before the command's name (`detector -map train`) go to
 * the end. Words of these Darknets that mean nothing here are taken out with their values, since
 * stock Darknet would take them for files; one line on stderr names them. All else stays. Returns
 * the new argc. */
int amp_fork_words_settle(int argc, char **argv);

#endif
