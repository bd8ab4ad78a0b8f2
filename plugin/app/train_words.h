/* The command line of `detector train`: Darknet's words, ours, and those that nobody knows. */
#ifndef AMP_TRAIN_WORDS_H
#define AMP_TRAIN_WORDS_H

#include <stdbool.h>

struct amp_train_words {
    const char *data, *cfg, *weights; /* NULL: not given */
    bool clear, map;
    int map_every;     /* iterations; 0: -map chooses */
    const char *chart; /* NULL: none */
};

/* Takes our words out of argv, so that Darknet never sees them: later words move up, and *argc
 * falls. 0, or -1 after naming on stderr every word that is wrong. */
int amp_train_words_read(int *argc, char **argv, struct amp_train_words *);

#endif
