/* The rig's stand-in for Darknet's code of recurrent layers. */
#include "recurrent.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct recurrent {
    struct amp_matrix matrices[AMP_MOST_MATRICES];
    int n;
    int inner; /* matrices that make the state; rnn's and crnn's last one makes the output of it */
    int images, steps;                  /* images of a step */
    size_t x, s, y;                     /* values of a step: input, state, output */
    size_t area;                        /* of a channel */
    enum ampk_activation activation;    /* of every product; linear where gates come after it */
    float *products[AMP_MOST_MATRICES]; /* outputs of the inner matrices, all steps */
    float *d_product;                   /* of one step */
    float *sums, *states;               /* of all steps; of states one more */
    float *d_sums, *d_states;
};

static float *zeros(size_t n)
{
    float *p = calloc(n, sizeof *p);
    if (!p) abort();
    return p;
}

struct recurrent *recurrent_create(const struct amp_net_desc *net, int i)
{
    const struct amp_layer_desc *l = &net->layers[i];
    struct recurrent *r = calloc(1, sizeof *r);
    if (!r) abort();
    r->n = amp_layer_matrices(l, r->matrices);
    bool gates = l->type == AMP_GRU || l->type == AMP_LSTM;
    r->inner = gates ? r->n : r->n - 1;
    r->activation = gates ? AMPK_LINEAR : l->activation;
    r->images = amp_plan_step_images(net);
    r->steps = net->batch / r->images;
    r->area = l->type == AMP_CRNN ? (size_t)l->out_w * (size_t)l->out_h : 1;
    size_t images = (size_t)r->images;
    r->x = images * (size_t)l->inputs;
    r->s = images * r->area * (size_t)r->matrices[0].outputs;
    r->y = images * (size_t)l->outputs;
    size_t all = (size_t)r->steps * r->s;
    for (int k = 0; k < r->inner; k++)
        r->products[k] = zeros(all);
    r->d_product = zeros(r->s > r->y ? r->s : r->y);
    r->sums = zeros(all);
    r->d_sums = zeros(all);
    r->states = zeros(all + r->s);
    r->d_states = zeros(all + r->s);
    return r;
}

void recurrent_free(struct recurrent *r)
{
    if (!r) return;
    for (int k = 0; k < r->inner; k++)
        free(r->products[k]);
    free(r->d_product);
    free(r->sums);
    free(r->d_sums);
    free(r->states);
    free(r->d_states);
    free(r);
}

static const struct amp_param *biases(const struct amp_graph *g, int i, int k)
{
    return &g->params[g->nodes[i].bind.first_param + 2 * k + 1];
}

/* The channel of value v of a step. */
static size_t channel(const struct recurrent *r, int k, size_t v)
{
    return v / r->area % (size_t)r->matrices[k].outputs;
}

static void make_state(struct recurrent *r, struct amp_graph *g, int i, int t, float *x)
{
    size_t at = (size_t)t * r->s;
    float *sum = r->sums + at, *state = r->states + at;
    memset(sum, 0, r->s * sizeof *sum);
    for (int k = 0; k < r->inner; k++) {
        float *of = r->matrices[k].reads_input ? x + (size_t)t * r->x : state;
        amp_graph_product_forward(g, i, k, t, of, r->products[k] + at);
        for (size_t v = 0; v < r->s; v++)
            sum[v] += r->products[k][at + v];
    }
    for (size_t v = 0; v < r->s; v++)
        state[r->s + v] = (float)(sum[v] + sin(sum[v]) / 2);
}

void recurrent_forward(struct recurrent *r, struct amp_graph *g, int i, float *x)
{
    for (int t = 0; t < r->steps; t++) {
        float *y = g->nodes[i].bind.output + (size_t)t * r->y;
        float *state = r->states + (size_t)(t + 1) * r->s;
        make_state(r, g, i, t, x);
        if (r->inner == r->n)
            memcpy(y, state, r->y * sizeof *y);
        else
            amp_graph_product_forward(g, i, r->inner, t, state, y);
    }
}

/* From the gradient of an output y of n values to those of its matrix's biases, weights and input.
 */
static void backward_product(struct recurrent *r, struct amp_graph *g, int i, int k, int t,
                             float *from, const float *y, const float *dy, size_t n, float *to)
{
    float *bias = biases(g, i, k)->grad;
    memcpy(r->d_product, dy, n * sizeof *dy);
    amp_graph_activation_gradient(g, y, (int)n, r->activation, r->d_product);
    for (size_t v = 0; v < n; v++)
        bias[channel(r, k, v)] += r->d_product[v];
    amp_graph_product_backward(g, i, k, t, from, r->d_product, to);
}

/* From the gradient of state t + 1 to those of what it was made of. */
static void backward_state(struct recurrent *r, struct amp_graph *g, int i, int t, float *x,
                           float *dx)
{
    size_t at = (size_t)t * r->s;
    float *d_sum = r->d_sums + at, *d_state = r->d_states + at + r->s;
    for (size_t v = 0; v < r->s; v++)
        d_sum[v] = (float)(d_state[v] * (1 + cos(r->sums[at + v]) / 2));
    for (int k = 0; k < r->inner; k++) {
        float *from = x + (size_t)t * r->x;
        float *to = dx ? dx + (size_t)t * r->x : NULL;
        if (!r->matrices[k].reads_input) {
            from = r->states + at;
            to = t ? r->d_states + at : NULL;
        }
        backward_product(r, g, i, k, t, from, r->products[k] + at, d_sum, r->s, to);
    }
}

void recurrent_backward(struct recurrent *r, struct amp_graph *g, int i, float *x, float *dx)
{
    memset(r->d_states, 0, (size_t)(r->steps + 1) * r->s * sizeof *r->d_states);
    for (int t = r->steps - 1; t >= 0; t--) {
        size_t at = (size_t)(t + 1) * r->s;
        float *dy = g->nodes[i].bind.delta + (size_t)t * r->y;
        if (r->inner < r->n) {
            const float *y = g->nodes[i].bind.output + (size_t)t * r->y;
            backward_product(r, g, i, r->inner, t, r->states + at, y, dy, r->y, r->d_states + at);
        } else {
            for (size_t v = 0; v < r->y; v++)
                r->d_states[at + v] += dy[v];
        }
        backward_state(r, g, i, t, x, dx);
    }
}
