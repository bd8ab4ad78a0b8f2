/* A program linked to the plugin and to libdarknet.so, in that order: Darknet's own call of
 * parse_network_cfg, inside load_network, arrives in the plugin and then in Darknet. */

#include "tests/rig/harness.h"

#include "amp.h"
#include "darknet.h"

#include <unistd.h>

static const char cfg[] = "[net]\nbatch=1\nheight=4\nwidth=6\nchannels=3\n"
                          "[convolutional]\nfilters=2\nsize=1\nstride=1\nactivation=linear\n";

AMP_TEST(load_network_is_interposed)
{
    char path[] = "/tmp/amp-linked-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    REQUIRE(write(fd, cfg, strlen(cfg)) == (ssize_t)strlen(cfg));
    close(fd);
    CHECK_INT(amp_attach_count(), 0);
    network *net = load_network(path, NULL, 0);
    unlink(path);
    CHECK_INT(amp_attach_count(), 1);
    CHECK_INT(net->n, 1);
    CHECK_INT(net->layers[0].out_w, 6);
    free_network(net);
}

AMP_TEST_MAIN
