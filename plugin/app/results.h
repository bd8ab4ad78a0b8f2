/* Files that the program's own code opens to write its results, Darknet's commands included. */
#ifndef AMP_RESULTS_H
#define AMP_RESULTS_H

/* Closes those that are still open. 0, or -1 after naming the first file that was not written in
 * full, and how many others there are. */
int amp_results_end(void);

#endif
