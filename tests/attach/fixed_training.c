/* usage: fixed_training CFG STEPS WEIGHTS [START [clear | EVERY]]
 * Trains a yolo net on made-up images with everything random fixed, and writes the weights: run
 * twice, with the plugin and without it, the two files tell whether it changed anything. No loader
 * threads: they would share rand(). START: weights to go on from; clear: as Darknet's -clear;
 * EVERY: also save whenever so many steps are done. The images depend on the iteration only, so
 * that a run that goes on sees what an unbroken one sees. */

#include "darknet.h"

static unsigned noise_state;

static float noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (float)(noise_state >> 8) / (1 << 24);
}

/* One step's images, each with two boxes (x, y, w, h, class); unused boxes are zero. */
static data make_images(network *net)
{
    int count = net->batch * net->subdivisions;
    data d = {0};
    noise_state = 12345 + 1000 * (unsigned)get_current_batch(net);
    d.X = make_matrix(count, net->inputs);
    d.y = make_matrix(count, net->truths);
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < net->inputs; k++) {
            d.X.vals[i][k] = noise();
        }
        for (int box = 0; box < 2; box++) {
            float *truth = d.y.vals[i] + 5 * box;
            for (int k = 0; k < 4; k++) {
                truth[k] = 0.2f + 0.5f * noise();
            }
            truth[4] = (float)box;
        }
    }
    return d;
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 6) {
        fprintf(stderr, "usage: %s CFG STEPS WEIGHTS [START [clear | EVERY]]\n", argv[0]);
        return 1;
    }
    srand(7);
    int every = argc > 5 ? atoi(argv[5]) : 0, clear = argc > 5 && !every;
    network *net = load_network(argv[1], argc > 4 ? argv[4] : NULL, clear);
    for (int step = 0; step < atoi(argv[2]); step++) {
        if (every && step && step % every == 0) {
            save_weights(net, argv[3]);
        }
        data d = make_images(net);
        printf("%d: %.9g\n", step, train_network(net, d));
        free_data(d);
    }
    save_weights(net, argv[3]);
    free_network(net);
    return 0;
}
