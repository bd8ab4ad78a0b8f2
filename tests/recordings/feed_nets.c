/* Trains a network of a cfg on given pictures, for recorded_nets.py:
 *
 *   record_nets CFG WEIGHTS PASSES TRUTHS STEPS FOLDER
 *
 * PASSES: a file of FP32, for every pass the pictures of its batch, then TRUTHS floats of labels
 * for each. Into FOLDER go step_1.bin, what the first pass computed, and 1w and 3w, the weights
 * after so many steps. Prints
 *
 *   array LAYER output|delta|mean|variance OFFSET COUNT       of step_1.bin, in floats
 *   head LAYER COST                                          of the pass that follows
 *   pass COST RATE */
#include <darknet.h>

#include "plugin/attach/session.h"
#include "plugin/core/engine/tensors.h"
#include "plugin/include/amp_observe.h"

static FILE *arrays;
static long written; /* floats */

static void fail(const char *what)
{
    fprintf(stderr, "record_nets: %s\n", what);
    exit(1);
}

static void write_array(int layer, const char *what, const float *x, size_t n)
{
    printf("array %d %s %ld %zu\n", layer, what, written, n);
    if (fwrite(x, sizeof *x, n, arrays) != n) fail("cannot write");
    written += (long)n;
}

static void see(const struct amp_seen *seen, void *user)
{
    static const char *const words[AMP_SEEN] = {"output", "delta", NULL};
    (void)user;
    if (words[seen->what]) write_array(seen->layer, words[seen->what], seen->values, seen->n);
}

/* What stays of the pass: each batch's statistics, and the heads' deltas. */
static void write_rest(const struct amp_graph *g)
{
    for (int i = 0; i < g->n; i++) {
        const struct amp_layer_desc *l = &g->net->layers[i];
        const struct amp_node *node = &g->nodes[i];
        if (node->loss)
            write_array(i, "delta", node->loss, (size_t)l->outputs * (size_t)g->net->batch);
        if (!node->mean) continue;
        write_array(i, "mean", node->mean, (size_t)l->out_c);
        write_array(i, "variance", node->variance, (size_t)l->out_c);
    }
}

static void read_pass(network *net, FILE *passes)
{
    size_t pictures = (size_t)net->inputs * (size_t)net->batch;
    size_t truths = (size_t)net->truths * (size_t)net->batch;
    if (fread(net->input, sizeof(float), pictures, passes) != pictures)
        fail("a picture is missing");
    if (fread(net->truth, sizeof(float), truths, passes) != truths) fail("a label is missing");
}

static void pass(network *net, FILE *passes)
{
    read_pass(net, passes);
    float cost = train_network_datum(net);
    for (int i = 0; i < net->n; i++)
        if (net->layers[i].cost) printf("head %d %.9g\n", i, (double)net->layers[i].cost[0]);
    printf("pass %.9g %.9g\n", (double)cost, (double)get_current_rate(net));
}

static char *in_folder(const char *folder, const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void step(network *net, FILE *passes, int number, const char *folder)
{
    char name[20];
    struct amp_session *s = amp_session_of(net->layers);
    snprintf(name, sizeof name, "%dw", number);
    for (int i = 0; i < net->subdivisions; i++) {
        bool first = number == 1 && i == 0;
        s->see = first ? see : NULL;
        if (s->graph) amp_graph_observe(s->graph, s->see, NULL);
        pass(net, passes);
        if (first) write_rest(s->graph);
    }
    if (number == 1 || number == 3) save_weights(net, in_folder(folder, name));
}

int main(int argc, char **argv)
{
    if (argc != 7) fail("CFG WEIGHTS PASSES TRUTHS STEPS FOLDER");
    network *net = parse_network_cfg(argv[1]);
    FILE *passes = fopen(argv[3], "rb");
    load_weights(net, argv[2]);
    if (!amp_session_of(net->layers)) fail("the plugin does not train this cfg");
    if (net->truths != atoi(argv[4])) fail("the network has room for another number of labels");
    arrays = fopen(in_folder(argv[6], "step_1.bin"), "wb");
    if (!passes || !arrays) fail("cannot open a file");
    for (int i = 1; i <= atoi(argv[5]); i++)
        step(net, passes, i, argv[6]);
    fclose(passes);
    if (fclose(arrays)) fail("cannot write");
    free_network(net);
    return 0;
}
