/* The command `darknet detector map DATA CFG WEIGHTS [options]`: mean average precision of a
 * detector. Without arguments it prints its usage.
 *
 * It calls Darknet's functions directly and so belongs to the `darknet` program, not to the plugin
 * library, which a process may load before any Darknet.
 */
#ifndef AMP_DETECTOR_MAP_H
#define AMP_DETECTOR_MAP_H

/* argv is main's. Returns the exit status: 0, or 1 after naming what is wrong on stderr. */
int amp_command_detector_map(int argc, char **argv);

#endif
