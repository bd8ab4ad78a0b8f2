/* A network from parsing it to freeing it. */
#ifndef AMP_ATTACH_H
#define AMP_ATTACH_H

#include "session.h"

/* In the places of parse_network_cfg and resize_network. A cfg's keys take effect in parse. */
network *amp_network_parse(char *cfg_path);
int amp_network_resize(network *, int w, int h);

/* What follows from amp_cut_line_ends for a line that Darknet has read, without its newline; NULL:
 * there was none. */
char *amp_line_end(char *line);

/* Before it is freed; true if it was attached. */
int amp_network_detach(network *);

/* Puts every pointer back and frees the session. */
void amp_session_detach(struct amp_session *);

#endif
