/* Builds networks from a changed copy of the user's cfg. It decides nothing about the keys; each
 * command passes its own. The copy is needed because Darknet reads a network's keys from a file
 * only. */

#define _GNU_SOURCE
#include "variant.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

network *amp_variant_load(const char *what, const struct amp_cfg_file *cfg,
                          const struct amp_cfg_key *keys, int n, const char *weights)
{
    char err[2 * PATH_MAX];
    struct amp_cfg_variant variant;
    fprintf(stderr, "%s\n", what);
    if (amp_cfg_variant_open(&variant, cfg, keys, n, err, sizeof err)) {
        fprintf(stderr, "error: %s\n", err);
        return NULL;
    }
    /* clear = 1: `seen` starts at 0, whatever the weights have. */
    network *net = load_network(variant.path, (char *)weights, 1);
    amp_cfg_variant_close(&variant);
    return net;
}

/* Darknet prints with printf, so the descriptor itself is redirected. fflush first: what is in the
 * buffer belongs before. */
int amp_quiet_begin(void)
{
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (kept >= 0 && nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
    if (nowhere >= 0) close(nowhere);
    return kept;
}

void amp_quiet_end(int kept)
{
    fflush(stdout);
    if (kept < 0) return;
    dup2(kept, STDOUT_FILENO);
    close(kept);
}
