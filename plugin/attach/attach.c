// Where the plugin gets into Darknet: every program builds its network with parse_network_cfg.

#include "amp.h"
#include "attach/symbols.h"

#include "darknet.h"
#include "parser.h"

static int attach_count;

int amp_attach_count(void)
{
    return attach_count;
}

AMP_INTERPOSE(network *, parse_network_cfg, (char *filename))
{
    network *net = AMP_REAL(parse_network_cfg)(filename);
    ++attach_count;
    return net;
}
