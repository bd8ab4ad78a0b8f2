/* Decides what counts as a training's memory, and which batch and subdivisions fit into some. It
 * must not allocate what it counts, nor know how much memory there is (host.c, the backend). */
#include "need.h"

#include <stdio.h>

#include "plugin/core/host.h"
#include "kernels/kernels.h"

/* Measured, see docs/training-features.md: the program and its libraries, before any network. */
static const size_t program_bytes = (size_t)112 << 20;
/* A device's libraries and the work memory of its convolutions; a plan may take 1/16 of the
 * device's memory (conv_choice.c). Unverified on hardware. */
static const size_t device_libraries = (size_t)256 << 20;
enum { DEVICE_WORK_SHARE = 16 };
/* Smaller arrays of Darknet's on a device get memory also if nobody uses them (device_memory.c). */
static const size_t large_bytes = (size_t)1 << 20;

static size_t all_parameters(const struct amp_net_desc *net)
{
    size_t floats = 0;
    for (int i = 0; i < net->n; i++)
        floats += amp_layer_parameters(&net->layers[i]);
    return floats;
}

static int processes_of(const struct amp_fitter *f)
{
    return f->processes > 1 ? f->processes : 1;
}

/* ---- the parts ---- */

/* Darknet's small arrays that the plan does not need. */
static size_t idle_arrays(const struct amp_net_desc *net, const struct amp_plan *plan)
{
    size_t bytes = 0;
    for (int i = 0; i < net->n; i++) {
        size_t one = (size_t)net->batch * (size_t)net->layers[i].outputs * sizeof(float);
        if (plan->layers[i].ours && one < large_bytes)
            bytes += one * (net->layers[i].batch_normalize ? 4 : 2);
    }
    return bytes;
}

/* As gradients.c places them. */
static size_t gradients(const struct amp_net_desc *net, const struct amp_plan *plan,
                        const struct ampk_backend *backend)
{
    size_t all = 0, kept = 0, convolutions = 0, shared = 0; /* work memory */
    bool sums = net->subdivisions > 1;
    bool own = !sums && backend->conv_update && !amp_rules_use_trust(&plan->rules);
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        const struct amp_plan_layer *p = &plan->layers[i];
        bool matrix = p->ours && amp_layer_is_matrix(l);
        struct ampk_conv_shape shape =
            matrix ? amp_plan_conv_shape(plan, net, i) : (struct ampk_conv_shape){0};
        if (matrix && backend->conv_bytes) convolutions += backend->conv_bytes(&shape);
        if (matrix && backend->conv_work_bytes) {
            size_t work = backend->conv_work_bytes(&shape);
            if (work > shared) shared = work;
        }
        if (p->products && backend->conv_bytes)
            convolutions += amp_plan_product_bytes(plan, net, i, backend->conv_bytes);
        if (p->frozen) continue;
        all += amp_layer_parameters(l);
        if (matrix) kept += l->n_weights;
    }
    bool elsewhere = sums || own || backend->conv_keep_gradient;
    size_t of_pass = elsewhere ? all - kept : all; /* conv_bytes has the others */
    return ((sums ? all : 0) + of_pass) * sizeof(float) + convolutions + shared;
}

/* Parameters whose gradients are exchanged. */
static size_t learning(const struct amp_net_desc *net, const struct amp_plan *plan)
{
    size_t n = 0;
    for (int i = 0; i < net->n; i++)
        if (!plan->layers[i].frozen) n += amp_layer_parameters(&net->layers[i]);
    return n;
}

/* What several processes take beside: on a device the buckets of NCCL, which they are taken to have
 * (buckets.c); of sums in 16 bits what is rounded at a time, on the host also what comes of it
 * (devices.c, mpi.c); on the host a copy of the sums, which MPI adds up there. */
static size_t exchanges(const struct amp_fitter *f, const struct amp_net_desc *net,
                        const struct amp_plan *plan)
{
    enum { ROUNDED_AT_ONCE = 1 << 24, ADDED_AT_ONCE = 1 << 28 };
    const struct amp_options *o = f->options;
    size_t n = learning(net, plan);
    bool bf16 = processes_of(f) > 1 && o->wire == AMP_WIRE_BF16;
    if (processes_of(f) == 1 || o->reduce == AMP_REDUCE_ORDERED) return 0;
    if (f->device_bytes && o->bucket_mb > 0 && !o->sync_bn) return n * (bf16 ? 6 : 4);
    if (bf16) return (n < ROUNDED_AT_ONCE ? n : ROUNDED_AT_ONCE) * (f->device_bytes ? 2 : 4);
    if (f->device_bytes) return 0;
    return (n < ADDED_AT_ONCE ? n : ADDED_AT_ONCE) * sizeof(float);
}

struct amp_need amp_need_of(const struct amp_fitter *f, const struct amp_net_desc *net,
                            const struct amp_plan *plan)
{
    int processes = processes_of(f), passes = (net->subdivisions + processes - 1) / processes;
    size_t pass = (size_t)net->batch * (size_t)net->inputs * sizeof(float);
    size_t step = pass * (size_t)passes; /* of the process with the most */
    struct amp_need need = {.activations = plan->mixed_bytes + pass,
                            .parameters = 2 * all_parameters(net) * sizeof(float) +
                                          amp_plan_kept_bytes(plan, net),
                            .gradients = gradients(net, plan, f->backend),
                            .images = 2 * step,
                            .exchanges = exchanges(f, net, plan),
                            .program = program_bytes};
    if (net->adam) need.parameters += 2 * all_parameters(net) * sizeof(float);
    if (!f->device_bytes) return need;
    need.activations += idle_arrays(net, plan);
    need.images = 0;
    need.program = device_libraries + f->device_bytes / DEVICE_WORK_SHARE;
    return need;
}

size_t amp_need_total(const struct amp_need *n)
{
    return n->activations + n->parameters + n->gradients + n->images + n->exchanges + n->program;
}

/* ---- what fits ---- */

/* At the largest size that training takes: with random= in the last layer Darknet goes up to it, at
 * the end for sure. */
static struct amp_net_desc *describe(const struct amp_fitter *f, char *err, size_t err_size)
{
    struct amp_net_desc *net = amp_net_describe(f->cfg, 0, 0, true, err, err_size);
    if (!net || (net->w >= net->drawn_most[0] && net->h >= net->drawn_most[1])) return net;
    int w = net->drawn_most[0], h = net->drawn_most[1];
    amp_net_desc_free(net);
    return amp_net_describe(f->cfg, w, h, true, err, err_size);
}

int amp_fit_predict(const struct amp_fitter *f, int batch, int subdivisions, struct amp_fit *fit,
                    char *err, size_t err_size)
{
    struct amp_net_desc *net = describe(f, err, err_size);
    struct amp_plan *plan = NULL;
    if (net) {
        int steps = net->time_steps > 1 ? net->time_steps : 1;
        net->batch = batch / subdivisions * steps;
        net->subdivisions = subdivisions;
        plan = amp_plan_make(net, f->options, f->ours, NULL, true, err, err_size);
    }
    if (plan) {
        struct amp_need need = amp_need_of(f, net, plan);
        *fit = (struct amp_fit){batch, subdivisions, net->batch, amp_need_total(&need)};
    }
    int failed = plan ? 0 : -1;
    amp_plan_free(plan);
    amp_net_desc_free(net);
    return failed;
}

size_t amp_device_bytes(const struct ampk_backend *backend, size_t bytes)
{
    return backend->free_bytes ? bytes : 0;
}

int amp_fit_subdivisions(const struct amp_fitter *f, int batch, size_t bytes, struct amp_fit *fit,
                         char *err, size_t err_size)
{
    bool any = false;
    int processes = processes_of(f);
    for (int n = processes; n <= batch; n++) {
        if (batch % n || (f->options->sync_bn && n % processes)) continue;
        if (amp_fit_predict(f, batch, n, fit, err, err_size)) return -1;
        if (fit->bytes <= bytes) return 0;
        any = true;
    }
    if (any) return 1;
    snprintf(err, err_size,
             "%s: %d processes cannot share batch=%d%s; change it to a multiple of %d",
             f->cfg->path, processes, batch,
             f->options->sync_bn ? " evenly, for amp_sync_bn=1" : "", processes);
    return -1;
}

/* Halves until it fits, doubles while it does: the images of a pass. */
int amp_fit_batch(const struct amp_fitter *f, size_t bytes, struct amp_fit *fit, char *err,
                  size_t err_size)
{
    const int most = 1 << 16, n = processes_of(f);
    struct amp_fit next;
    int images = (amp_cfg_int(f->cfg->sections, "batch", 1) + n - 1) / n;
    do {
        if (amp_fit_predict(f, n * images, n, fit, err, err_size)) return -1;
        if (fit->bytes <= bytes) break;
        images /= 2;
    } while (images);
    if (!images) return 1;
    while (fit->batch < most) {
        if (amp_fit_predict(f, 2 * fit->batch, n, &next, err, err_size)) return -1;
        if (next.bytes > bytes) break;
        *fit = next;
    }
    return 0;
}

/* ---- subdivisions=auto ---- */

size_t amp_need_free(const struct ampk_backend *backend, char *err, size_t err_size)
{
    if (!backend->free_bytes) return amp_free_memory();
    struct ampk_context *context = backend->context_create(0, err, err_size);
    size_t bytes = context ? backend->free_bytes(context) : 0;
    if (context) backend->context_destroy(context);
    return bytes;
}

int amp_need_settle(struct amp_net_desc *net, const struct amp_cfg_file *cfg,
                    const struct amp_options *options, const struct ampk_backend *backend,
                    unsigned ours, char *err, size_t err_size)
{
    const double gib = 1 << 30;
    struct amp_fit fit = {0};
    if (!net->auto_subdivisions) return 0;
    snprintf(err, err_size, "how much memory is free is not known");
    size_t left = amp_need_free(backend, err, err_size);
    if (!left) return -1;
    const struct amp_fitter f = {cfg, options, backend, ours, amp_device_bytes(backend, left), 1};
    int batch = amp_cfg_int(cfg->sections, "batch", 1);
    int failed = amp_fit_subdivisions(&f, batch, left / 10 * 9, &fit, err, err_size);
    if (failed < 0) return -1;
    net->batch = fit.images;
    net->subdivisions = fit.subdivisions;
    fprintf(
        stderr,
        "darknet-amp: subdivisions=auto: %d, so that a pass has %d image%s; predicted: %.2f GiB "
        "of %.2f that are free%s\n",
        fit.subdivisions, fit.images, fit.images == 1 ? "" : "s", (double)fit.bytes / gib,
        (double)left / gib, failed ? ", which is too little; trying all the same" : "");
    return 0;
}
