/* A user's program against the installed copy: parses a cfg and trains one iteration on noise. */
#include <stdio.h>

#include <amp.h>
#include <darknet.h>

int main(int argc, char **argv)
{
    network *net = parse_network_cfg(argv[argc - 1]);
    for (int i = 0; i < net->inputs * net->batch; i++)
        net->input[i] = (i * 37 % 101) / 101.f;
    for (int i = 0; i < net->truths * net->batch; i++)
        net->truth[i] = 0;
    float loss = train_network_datum(net);
    printf("attached %d, scale %g, loss %s\n", amp_attach_count(), amp_loss_scale(net),
           loss > 0 ? "fine" : "bad");
    return 0;
}
