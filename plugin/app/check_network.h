/* Can this cfg with these weights be measured on this set? Looked at before Darknet builds
 * anything, since it reads or writes out of bounds for most of what is refused here. Pure C. */
#ifndef AMP_CHECK_NETWORK_H
#define AMP_CHECK_NETWORK_H

#include <stdbool.h>
#include <stdio.h>

#include "eval_set.h"

/* 0, or -1 after naming in log, one line each: a cfg or options with a fault; a last layer that is
 * no [yolo], [region] or [detection] head; a head whose classes differ from the set's, with a map=
 * or tree= that does not fit or cannot be read; other than 3 channels; weights of another network
 * or cut off. Weights that end exactly between layers are accepted with a warning: the layers after
 * that keep random weights; weights_path NULL: not looked at. on_gpu: Darknet will use a GPU; only
 * there it computes trees right. */
int amp_map_check_network(const char *cfg_path, const char *weights_path,
                          const struct amp_eval_set *set, bool on_gpu, FILE *log);

#endif
