// Where the plugin gets into Darknet: every program builds its network with parse_network_cfg.

#include "amp.h"
#include "attach/no_gpu.h"
#include "attach/symbols.h"

#include "darknet.h"

static int attach_count;

int amp_attach_count(void)
{
    return attach_count;
}

AMP_INTERPOSE(network *, parse_network_cfg, (char *filename))
{
#ifdef GPU
    if (!amp_has_gpu()) *AMP_USE(gpu_index) = -1;
#endif
    network *net = AMP_REAL(parse_network_cfg)(filename);
    ++attach_count;
    return net;
}
