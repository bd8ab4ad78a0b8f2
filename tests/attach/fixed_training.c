// usage: fixed_training CFG STEPS WEIGHTS
// Trains a yolo net on made-up images with everything random fixed, and writes the weights: run
// twice, with the plugin and without it, the two files tell whether it changed anything. No loader
// threads: they would share rand().

#include "darknet.h"

static unsigned noise_state = 12345;

static float noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (float)(noise_state >> 8) / (1 << 24);
}

// One step's images, each with two boxes (x, y, w, h, class); unused boxes are zero.
static data make_images(const network *net)
{
    int count = net->batch * net->subdivisions;
    data d = {0};
    d.X = make_matrix(count, net->inputs);
    d.y = make_matrix(count, net->truths);
    for (int i = 0; i < count; ++i) {
        for (int k = 0; k < net->inputs; ++k) {
            d.X.vals[i][k] = noise();
        }
        for (int box = 0; box < 2; ++box) {
            float *truth = d.y.vals[i] + 5 * box;
            for (int k = 0; k < 4; ++k) {
                truth[k] = 0.2f + 0.5f * noise();
            }
            truth[4] = (float)box;
        }
    }
    return d;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s CFG STEPS WEIGHTS\n", argv[0]);
        return 1;
    }
    srand(7);
    network *net = load_network(argv[1], NULL, 0);
    for (int step = 0; step < atoi(argv[2]); ++step) {
        data d = make_images(net);
        printf("%d: %.9g\n", step, train_network(net, d));
        free_data(d);
    }
    save_weights(net, argv[3]);
    free_network(net);
    return 0;
}
