/* What Darknet prints and nobody asked for. */
#ifndef AMP_QUIET_H
#define AMP_QUIET_H

/* Standard output set aside. Returns what amp_quiet_end wants; -1: it stays as it is. */
int amp_quiet_begin(void);
void amp_quiet_end(int kept);

/* While networks are built: of stderr only the lines that are for the user, each once in the whole
 * program: the plugin's messages, and Darknet's about keys that it does not know. */
void amp_hush_begin(void);
void amp_hush_end(void);

#endif
