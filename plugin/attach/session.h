/* One network with the plugin attached: options, plan, graph, scaler, and Darknet's pointers as
 * they were. A session is found by the network's layer array, which lives as long as the network
 * does. */
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

/* The functions that every layer gets instead of Darknet's (hooks.h). Passed in, because hooks.c
 * needs sessions and a session must not need hooks.c. */
struct amp_hooks {
    void (*forward)(layer, network);
    void (*backward)(layer, network);
    void (*update)(layer, update_args);
    /* For amp_step.take_losses: writes to Darknet's l.cost and *net.cost, 0 if not finite. user: a
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
    enum amp_format *demoted;           /* per layer; AMP_FORMATS: it was not demoted */
    enum amp_format *inference_demoted; /* the same for inference, beyond what training demoted */
    bool inference_demotes; /* inference_demoted names a layer: inference has a plan of its own */
    bool replan;            /* a layer was demoted */
    bool moved;             /* Darknet may have moved its arrays */
    bool sees_writes;       /* cuda_push_array arrives here (sessions.c) */
    atomic_bool written;    /* Darknet wrote to master weights since the last pass began */
    uint64_t mask_seed;     /* of dropout's masks on a device */
    bool trained;           /* counted by run.c */
    size_t pass_images;     /* already in `seen`, for a pass that has not begun yet */
    struct amp_sidecar *sidecar;    /* of the last loaded weights; NULL: none, or in use already */
    char without_sidecar[PATH_MAX]; /* loaded weights that lack their .amp; "": none */
    size_t without_sidecar_seen;    /* their count of images when they were loaded */
    char backup[PATH_MAX];     /* the last NAME.backup that this run loaded or saved; "": none */
    char last_saved[PATH_MAX]; /* the last weights file that this run saved; "": none */
    struct amp_saved *saved;   /* per layer */
    network view;              /* the network as the last hook got it */
    bool observed;             /* a pass of amp_pass runs: nobody is training */
    bool told_notes;           /* the notes on convolutions have been printed */
    amp_see_function *see;     /* called with what a pass computes (iteration.c); NULL: nobody */
    void *see_user;
    amp_layer_function *trace; /* called around every layer (iteration.c); NULL: nobody */
    void *trace_user;
};

/* Reads the cfg and its keys. NULL if the cfg asks for nothing of ours. A wrong key ends the
 * program with a message. */
struct amp_session *amp_session_read(const char *cfg_path);
/* Attaches to the network that was parsed from that cfg: plan, report, hooks. */
void amp_session_attach(struct amp_session *, network *, const struct amp_hooks *);
/* Before the first pass: goes on in the dtype in which the run began. */
void amp_session_keep_dtype(struct amp_session *, enum amp_dtype_choice);
/* Frees a session that is attached to nothing. */
void amp_session_free(struct amp_session *);
/* Puts every pointer back and frees the session. */
void amp_session_detach(struct amp_session *);

/* Call before the first layer's forward. Makes plan and graph if there are none yet, or again if
 * size, batch or use changed. */
void amp_session_begin(struct amp_session *, const network *view);

/* Call around resize_network, which grows l.delta with realloc: it must find its own pointers
 * there. */
void amp_session_give_deltas(struct amp_session *);
void amp_session_take_deltas(struct amp_session *);

#endif
