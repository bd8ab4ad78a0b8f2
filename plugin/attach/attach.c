/* Decides what happens when Darknet or a program parses, attaches, detaches, resizes, frees, saves,
 * loads or trains on several GPUs. It must not know how a session does it: every function here is a
 * short order of calls. Files below this one know nothing of these entry points; a pass enters
 * through hooks.h, a batch through loader.h, an image through image_file.h.
 *
 * Every program builds its network with parse_network_cfg. A program in which that call cannot be
 * caught calls amp_attach. */
#include "amp.h"
#include "abi.h"
#include "backend.h"
#include "device_arrays.h"
#include "ending.h"
#include "gpus.h"
#include "hooks.h"
#include "iteration.h"
#include "loader.h"
#include "memory.h"
#include "no_gpu.h"
#include "run.h"
#include "save.h"
#include "seed.h"
#include "sessions.h"
#include "symbols.h"
#include "plugin/core/checkpoint.h"

#include "darknet.h"
#include "option_list.h"
#include "parser.h"

#include <stdatomic.h>

static atomic_int attach_count;

int amp_attach_count(void)
{
    return attach_count;
}

/* Counts every network that the plugin has reached, whether or not its cfg asks for anything: tests
 * and users can tell a plugin that is not loaded from a cfg without keys. AMP_TRACE in the
 * environment prints it. */
static void count_attachment(const char *cfg_path)
{
    attach_count++;
    if (getenv("AMP_TRACE")) fprintf(stderr, "darknet-amp: attached to %s\n", cfg_path);
}

/* A process has one Darknet, so one look is enough; looking through all its libraries takes a
 * while. */
static void require_matching_darknet(void)
{
    static atomic_bool matches;
    char err[512];
    if (matches) return;
    if (amp_check_abi(err, sizeof(err))) amp_fail(err);
    matches = true;
}

/* On the host, memory that ends shows only as NULL arrays, since Darknet does not check; on a
 * device Darknet ends the program itself. The check wants to see the deltas, so they are given back
 * for its time. */
static int attach(struct amp_session *s, network *net)
{
    if (!s->options.mixed_precision) {
        amp_session_free(s);
        return 0;
    }
    amp_session_attach(s, net, &amp_hooks);
    if (s->device) return 1;
    amp_session_give_deltas(s);
    amp_check_arrays(s);
    amp_session_take_deltas(s);
    return 1;
}

/* For amp_attach: the network was parsed without us. Attaching twice does nothing. */
static int attach_to(network *net, const char *cfg_path)
{
    require_matching_darknet();
    if (amp_session_of(net->layers)) return 0;
    count_attachment(cfg_path);
    struct amp_session *s = amp_session_read(cfg_path);
    if (s && s->options.seeded && !amp_seed_reaches_darknet())
        amp_fail("seed: the random numbers of this Darknet do not pass through the plugin; start "
                 "the program with LD_PRELOAD=libdarknet_amp.so, or remove the key");
    return s ? attach(s, net) : 0;
}

/* Loader and group hold the network's address also if it has no session (seed alone), so they
 * forget it in any case. */
static int detach_from(network *net)
{
    struct amp_session *s = amp_session_of(net->layers);
    amp_loader_forget(net);
    amp_gpus_forget(net);
    if (!s) return false;
    amp_run_unwatch(s);
    amp_session_detach(s);
    return true;
}

/* The order is forced by Darknet, which makes every array while it parses. Options come first, so
 * that a wrong key ends the program at once; gpu_index next, since the backend depends on it; the
 * seed before Darknet draws weights; deferring before Darknet asks for memory. */
static network *parse(char *filename)
{
    require_matching_darknet();
    struct amp_session *s = amp_session_read(filename);
#ifdef GPU
    if (!amp_has_gpu()) *AMP_USE(gpu_index) = -1;
#endif
    if (s && s->options.mixed_precision) amp_backend_choose(s->cfg, &s->options);
    const uint64_t *seed = s && s->options.seeded ? &s->options.seed : NULL;
    amp_seed_enter_parse(seed);
    if (s) amp_session_defer(s);
    enum amp_memory_use before = amp_memory_set_use(AMP_MEMORY_PARSE);
    network *net = AMP_REAL(parse_network_cfg)(filename);
    amp_memory_set_use(before);
    amp_session_stop_deferring();
    amp_seed_leave_parse();
    /* A thread that has a batch in hand is training. A network that it parses now is a second one,
     * to measure with, and must not take the training's place. */
    if (!amp_loader_is_feeding()) amp_loader_follow(s ? net : NULL, seed);
#ifdef GPU
    /* With -nogpu and no key of ours, Darknet stays as it is. */
    bool mixed = s && s->options.mixed_precision;
    if (!amp_has_gpu() || (mixed && !amp_darknet_on_device())) amp_no_gpu_heads(net);
#endif
    count_attachment(filename);
    if (s) attach(s, net);
    return net;
}

/* resize_network reallocates what it finds: it needs its own deltas, input that is not page-locked,
 * and new device arrays may be deferred again. Everything is taken back afterwards, and `moved`
 * makes the next pass build a new graph. */
static int resize(network *net, int w, int h)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s) {
        amp_gpu_use(s);
        amp_session_unpin(s);
        amp_session_give_deltas(s);
        amp_session_defer(s);
    }
    enum amp_memory_use before = amp_memory_set_use(s ? AMP_MEMORY_CHECKED : AMP_MEMORY_OTHER);
    int result = AMP_REAL(resize_network)(net, w, h);
    amp_memory_set_use(before);
    amp_session_stop_deferring();
    if (s) {
        if (!s->device) amp_check_arrays(s);
        amp_session_take_deltas(s);
        amp_session_commit(
            s); /* Darknet copies the next batch to the device before the first hook runs */
        amp_session_pin(s);
        s->moved = true;
    }
    return result;
}

/* ---- as programs call them; exit waits until each has returned ---- */
int amp_attach(network *net, const char *cfg_path)
{
    amp_ending_enter();
    int attached = attach_to(net, cfg_path);
    amp_ending_leave();
    return attached;
}

int amp_detach(network *net)
{
    amp_ending_enter();
    struct amp_session *s = amp_session_of(net->layers);
    int gpu = s ? amp_gpu_enter(s) : -1;
    int detached = detach_from(net);
    amp_gpu_leave(gpu);
    amp_ending_leave();
    return detached;
}

/* Called for every network; the place where a cfg's keys take effect. */
AMP_INTERPOSE(network *, parse_network_cfg, (char *filename))
{
    amp_ending_enter();
    network *net = parse(filename);
    amp_ending_leave();
    return net;
}

/* detector train resizes several networks at once, in OpenMP threads. */
AMP_INTERPOSE(int, resize_network, (network * net, int w, int h))
{
    amp_gpus_enter(net);
    amp_ending_enter();
    int result = resize(net, w, h);
    amp_ending_leave();
    amp_gpus_leave(net);
    return result;
}

AMP_INTERPOSE(void, free_network, (network * net))
{
    amp_ending_enter();
    struct amp_session *s = amp_session_of(net->layers);
    int gpu = s ? amp_gpu_enter(s) : -1; /* our arrays are on the network's GPU */
    detach_from(net);
    AMP_REAL(free_network)(net);
    amp_gpu_leave(gpu);
    amp_ending_leave();
}

/* Called after every section of a cfg is read: Darknet prints the keys that nobody asked for. Ours
 * are marked as read. */
AMP_INTERPOSE(void, option_unused, (list * options))
{
    for (node *n = options->front; n; n = n->next) {
        kvp *pair = n->val;
        if (amp_option_is_key(pair->key)) pair->used = 1;
    }
    AMP_REAL(option_unused)(options);
}

/* Special files (/dev/null, a pipe) cannot be written beside and renamed: Darknet writes them
 * itself. After a save no step is half done, so a signal can be obeyed; not after the final file,
 * when the program ends anyway. */
void amp_save_weights(network *net, const char *path)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (!s || amp_weights_is_special(path)) {
        AMP_REAL(save_weights)(net, (char *)path);
        return;
    }
    amp_save(s, path);
    if (!amp_weights_is_final(path)) amp_run_obey(s);
}

AMP_INTERPOSE(void, save_weights, (network * net, char *filename))
{
    amp_ending_enter();
    amp_save_weights(net, filename);
    amp_ending_leave();
}

void amp_load_weights(network *net, const char *path)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s)
        amp_load(s, path);
    else
        AMP_REAL(load_weights)(net, (char *)path);
}

AMP_INTERPOSE(void, load_weights, (network * net, char *filename))
{
    amp_ending_enter();
    amp_load_weights(net, filename);
    amp_ending_leave();
}

#ifdef GPU
/* Darknet's trainer calls it once an iteration with all networks. Darknet's threads train on this
 * thread's batch and may have to name its images, so the batch is lent to them. A signal is obeyed
 * when all networks are done. */
AMP_INTERPOSE(float, train_networks, (network * *nets, int n, data d, int interval))
{
    uint64_t seed;
    if (!amp_has_gpu()) {
        fprintf(stderr, "darknet-amp: -gpus asks for %d GPUs, this machine has none\n", n);
        exit(1);
    }
    amp_gpus_begin(nets, n, amp_loader_seed(&seed) ? &seed : NULL);
    amp_loader_lend(true);
    float loss = AMP_REAL(train_networks)(nets, n, d, interval);
    amp_gpus_end();
    amp_loader_lend(false);
    amp_iteration_trained(nets[0], loss);
    struct amp_session *s = amp_session_of(nets[0]->layers);
    if (s) amp_run_obey(s);
    return loss;
}
#endif
