// What `detector train` does beside training: measures mAP (-map) and draws a chart (-chart), after
// iterations, by the plugin's call (amp_on_iteration).
#ifndef AMP_TRAIN_WATCH_H
#define AMP_TRAIN_WATCH_H

#include <stdbool.h>

struct amp_train_watch {
    const char *data, *cfg, *weights; // weights NULL: none
    bool clear, map;
    int map_every;     // 0: what -map chooses
    const char *chart; // NULL: none
};

// Checks and builds what that takes. 0, or -1 after naming what is wrong on stderr. The inputs have
// been checked (amp_check_train_inputs).
int amp_train_watch_start(const struct amp_train_watch *);

#endif
