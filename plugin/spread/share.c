/* Decides how the passes of a step are shared out, and of which nets they can be. */
#include "share.h"

#include <stdio.h>
#include <string.h>

struct amp_share amp_share_of(int passes, int rank, int size)
{
    int first = (int)((long long)passes * rank / size);
    int end = (int)((long long)passes * (rank + 1) / size);
    return (struct amp_share){first, end - first};
}

int amp_share_subdivisions(int batch, int subdivisions, int size)
{
    if (size <= subdivisions) return subdivisions;
    for (int n = size; n <= batch; n += size)
        if (batch % n == 0) return n;
    return 0;
}

void amp_share_possible(int batch, int subdivisions, char *text, size_t size)
{
    snprintf(text, size,
             subdivisions > 2   ? "1 to %d"
             : subdivisions > 1 ? "1, %d"
                                : "%d",
             subdivisions);
    for (int n = subdivisions + 1; n <= batch; n++) {
        size_t used = strlen(text);
        if (batch % n == 0) snprintf(text + used, size - used, ", %d", n);
    }
}

int amp_share_check_even(int batch, int subdivisions, int size, char *err, size_t err_size)
{
    if (subdivisions % size == 0) return 0;
    int start = snprintf(err, err_size,
                         "with amp_sync_bn=1 each of %d processes needs as many passes as the "
                         "others; allowed: ",
                         size);
    size_t used = (size_t)start;
    for (int n = size; n <= batch; n += size) {
        if (batch % n) continue;
        snprintf(err + used, err_size - used, used == (size_t)start ? "%d" : ", %d", n);
        used = strlen(err);
    }
    if (used == (size_t)start)
        snprintf(err + used, err_size - used, "none with batch=%d; change that to a multiple of %d",
                 batch, size);
    return -1;
}

int amp_share_check_net(const struct amp_net_desc *net, char *err, size_t err_size)
{
    for (int i = 0; i < net->n; i++) {
        if (!amp_layer_is_recurrent(&net->layers[i])) continue;
        snprintf(err, err_size,
                 "%s: layer %d (%s) hands its state from one pass to the next; several processes "
                 "cannot train that: start it without mpirun or srun",
                 net->cfg_path, i, amp_layer_type_name(net->layers[i].type));
        return -1;
    }
    return 0;
}
