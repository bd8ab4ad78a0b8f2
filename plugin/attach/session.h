/* One network with the plugin attached: options, plan, graph, scaler, and Darknet's pointers as
 * they were. Sessions are found by the network's layer array, which lives as long as the network.
 */
#ifndef AMP_SESSION_H
#define AMP_SESSION_H

#include "ending.h"
#include "native.h"
#include "darknet.h"
#include "plugin/core/options.h"
#include "plugin/core/sidecar.h"
#include "plugin/core/step.h"

#include <limits.h>
#include <stdatomic.h>

/* What takes the place of Darknet's functions in every layer (hooks.h). */
struct amp_hooks {
    void (*forward)(layer, network);
    void (*backward)(layer, network);
    void (*update)(layer, update_args);
    /* For amp_step.take_losses: into Darknet's l.cost and *net.cost, 0 where not finite. user: a
     * session. */
    double (*take_losses)(void *user);
};

struct amp_session {
    struct amp_session *next;
    network *net;
    struct amp_cfg_file *cfg;
    struct amp_options options;
    struct amp_net_desc *desc;
    struct amp_plan *plan;
    struct amp_graph *graph;
    const struct ampk_backend *backend;
    struct ampk_context *context;
    bool device; /* Darknet computes on a GPU: side.h */
    struct amp_step step;
    struct amp_log log;
    enum amp_format *demoted;           /* per layer; AMP_FORMATS = not */
    enum amp_format *inference_demoted; /* the same for inference, beyond what training demoted */
    bool inference_demotes;             /* there are such: inference has a plan of its own */
    bool replan;                        /* a layer was demoted */
    bool moved;                         /* Darknet may have moved its arrays */
    bool sees_writes;            /* what Darknet writes to a device passes through the plugin */
    atomic_bool written;         /* some of it to master weights, since the last pass began */
    uint64_t mask_seed;          /* of dropout's masks on a device */
    bool trained;                /* counted by run.c */
    size_t pass_images;          /* counted by `seen` for a pass that has not begun yet */
    struct amp_sidecar *sidecar; /* of the weights that were loaded last; NULL: none, or taken up */
    char without_sidecar[PATH_MAX]; /* loaded weights whose .amp is missing: said by the first step
                                     */
    size_t without_sidecar_seen;    /* images, as they were loaded */
    char backup[PATH_MAX];     /* the last NAME.backup that this run loaded or saved; "": none */
    char last_saved[PATH_MAX]; /* the last weights file that this run saved; "": none */
    struct amp_saved *saved;   /* per layer */
    network view;              /* as the last hook got it */
    bool observed;             /* a pass of observe.c runs: nobody is training */
    bool told_notes;           /* what the backend has to say of convolutions has been said */
    amp_see_function *see;     /* who looks into the passes (observe.c), NULL: nobody */
    void *see_user;
    amp_layer_function *trace; /* who is called around every layer (observe.c), NULL: nobody */
    void *trace_user;
};

/* Reads the cfg and its keys. NULL where it asks for nothing of ours; ends the program with a
 * message where a key is wrong. */
struct amp_session *amp_session_read(const char *cfg_path);
/* Attaches to the network that was parsed from that cfg: plan, report, hooks. */
void amp_session_attach(struct amp_session *, network *, const struct amp_hooks *);
/* Frees a session that is attached to nothing. */
void amp_session_free(struct amp_session *);
/* Puts every pointer back and frees the session. */
void amp_session_detach(struct amp_session *);

/* Before the first layer's forward: makes or remakes plan and graph where size, batch or use
 * changed. */
void amp_session_begin(struct amp_session *, const network *view);

/* Around resize_network: Darknet must find its own delta pointers to grow them. */
void amp_session_give_deltas(struct amp_session *);
void amp_session_take_deltas(struct amp_session *);

#endif
