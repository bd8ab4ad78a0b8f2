// `darknet detector train DATA CFG [WEIGHTS] [-clear]`: looks at everything it needs, then hands
// over to Darknet's own command. With -map and -chart it looks on (train_watch.h).
#ifndef AMP_DETECTOR_TRAIN_H
#define AMP_DETECTOR_TRAIN_H

// The exit status: 1 if anything is wrong with the inputs, which are then named on stderr.
int amp_command_detector_train(int argc, char **argv);

#endif
