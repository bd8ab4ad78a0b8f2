/* What Darknet with the plugin makes of a cfg, weights and an image, for opencv_dnn.py:
 *
 *   our_forward CFG WEIGHTS IMAGE OUTPUT LAYER...
 *
 * as dnn_forward. The layers must be convolutions before a head, whose outputs are Darknet's own.
 */
#include <darknet.h>

static void fail(const char *what)
{
    fprintf(stderr, "our_forward: %s\n", what);
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc < 6) fail("CFG WEIGHTS IMAGE OUTPUT LAYER...");
    network *net = load_network(argv[1], argv[2], 0);
    set_batch_network(net, 1);
    float *image = calloc((size_t)net->inputs, sizeof *image);
    FILE *in = fopen(argv[3], "rb"), *out = fopen(argv[4], "wb");
    if (!image || !in || !out) fail("cannot open a file");
    if (fread(image, sizeof *image, (size_t)net->inputs, in) != (size_t)net->inputs)
        fail("the image is too short");
    network_predict(net, image);
    for (int i = 5; i < argc; i++) {
        const layer *l = &net->layers[atoi(argv[i])];
        fwrite(l->output, sizeof *l->output, (size_t)l->outputs, out);
    }
    fclose(in);
    if (fclose(out)) fail("cannot write");
    free(image);
    free_network(net);
    return 0;
}
