/* One network with the plugin attached: options, plan, graph, scaler, and Darknet's pointers as
 * they were. attach.c makes and frees it, session.c makes its plan and graph and begins its passes,
 * sessions.c keeps the list of all. */
#ifndef AMP_SESSION_H
#define AMP_SESSION_H

#include "fail.h"
#include "native.h"
#include "darknet.h"
#include "plugin/core/engine/kept.h"
#include "plugin/core/read/options.h"
#include "plugin/core/files/sidecar.h"
#include "plugin/core/engine/step.h"
#include "plugin/spread/spread.h"

#include <limits.h>
#include <stdatomic.h>

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
    bool device; /* Darknet computes on a GPU: device.h */
    struct amp_step step;
    struct amp_spread spread; /* with other processes (ranks.h) */
    struct amp_log log;
    enum amp_format *demoted;           /* per layer; AMP_FORMATS: it was not demoted */
    enum amp_format *inference_demoted; /* the same for inference, beyond what training demoted */
    bool inference_demotes; /* inference_demoted names a layer: inference has a plan of its own */
    bool replan;            /* a layer was demoted */
    bool moved;             /* Darknet may have moved its arrays */
    bool sees_writes;       /* who writes to weights is seen, or tells (sessions.c) */
    atomic_bool written;    /* Darknet wrote to master weights since the last pass began */
    uint64_t mask_seed;     /* of dropout's masks on a device */
    struct {                /* the network's own, while it has those of a policy of ours (rate.c) */
        bool kept;
        float learning_rate, momentum, b1;
        int burn_in;
    } own_rate;
    struct {
        int w, h;
    } drawn; /* the size that was drawn last, by rules that are not stock's (sizes.c); 0: none */
    struct { /* the network's own, while it has the cfg's for an optimizer of ours (attach.c) */
        bool kept;
        float b1, b2, eps;
    } own_betas;
    struct amp_kept *kept; /* NULL: the rules need nothing, or no training has begun (resume.c) */
    bool trained;          /* counted by run.c */
    size_t pass_images;    /* already in `seen`, for a pass that has not begun yet */
    struct amp_sidecar *sidecar;    /* of the last loaded weights; NULL: none, or in use already */
    char without_sidecar[PATH_MAX]; /* loaded weights that lack their .amp; "": none */
    size_t without_sidecar_seen;    /* their count of images when they were loaded */
    char backup[PATH_MAX]; /* the last NAME.backup that this run loaded or saved; "": none */
    struct {               /* when the next one is due, by the one or the other (save.c) */
        int64_t iteration; /* of this run */
        double time;       /* by amp_clock_seconds */
    } backup_due;
    char last_good[PATH_MAX]; /* the last weights that this run saved, or the backup that it loaded;
                                 "": none */
    struct amp_saved *saved;  /* per layer */
    network view;             /* the network as the last hook got it */
    bool observed;            /* a pass of amp_pass runs: nobody is training */
    bool measures;            /* parsed from a cfg in memory: a command's own network, beside or in
                                 place of a trained one */
    bool unkept;              /* what is trained is for measuring (amp_train_unkept) */
    bool told_notes;          /* the notes on convolutions have been printed */
    bool told_products;       /* so has that those of recurrent layers are not ours */
    amp_see_function *see;    /* called with what a pass computes (observe.c); NULL: nobody */
    void *see_user;
    amp_layer_function *trace; /* called around every layer (observe.c); NULL: nobody */
    void *trace_user;
};

/* Number of iterations of the network that so many images are. */
static inline size_t amp_iterations_in(const network *net, size_t images)
{
    return images / ((size_t)net->batch * (size_t)net->subdivisions);
}

/* ---- plan and graph, and where a pass begins (session.c) ---- */

/* Describes the network at the size and batch that it has now. -1 with text in err: no memory, or
 * not the shapes that Darknet built; the description before is kept. */
int amp_session_describe(struct amp_session *, const network *view, char *err, size_t err_size);
/* -1 with text in err: there is no plan. */
int amp_session_make_plan(struct amp_session *, bool train, char *err, size_t err_size);

/* Call before the first layer's forward. Makes plan and graph if there are none yet, or again if
 * size, batch or use changed. -1 with text in err: the run cannot go on; as a rule memory ended. */
int amp_session_begin(struct amp_session *, const network *view, char *err, size_t err_size);

/* For n layers; free with free. */
enum amp_format *amp_session_no_demotions(int n);
/* For amp_step.demote: a layer leaves FP16 in the next plan. user: a session. */
void amp_session_demote(void *user, const struct amp_fault *);
/* The same for inference only: its rolling statistics may be young, and training need not pay for
 * that. */
void amp_session_demote_inference(struct amp_session *, const struct amp_fault *);

/* Darknet's loop fills l.delta with zeros before every forward if it is not NULL, so deltas are
 * hidden while attached. give: call before Darknet's own code needs them (resize_network grows them
 * with realloc); take: afterwards. */
void amp_session_give_deltas(struct amp_session *);
void amp_session_take_deltas(struct amp_session *);

/* ---- the list of sessions (sessions.c) ----
 * It answers which session a network or a layer belongs to, and notes whose weights somebody wrote
 * to. A session is found by the network's layer array, which lives as long as the network does. */

void amp_session_enlist(struct amp_session *);
void amp_session_delist(struct amp_session *);

struct amp_session *amp_session_of(const layer *layers);
/* The session and index of the layer that an update call got by value; NULL if the layer is none of
 * ours. */
struct amp_session *amp_session_of_update(const layer *l, int *index);
/* An address that only this layer has and that never moves; NULL: none. Layers are compared by it,
 * because another thread may be resizing its network while the list is searched. */
const void *amp_session_identity(const layer *l);
/* A resize makes a new description; others may be looking at the one before, which is freed here.
 */
void amp_session_set_desc(struct amp_session *, struct amp_net_desc *);
/* For a head's output: how its boxes lie and are suppressed, by rules that are not stock's; NULL:
 * by stock's. letterbox: whether pictures keep their aspect. */
const struct amp_yolo_desc *amp_session_yolo(const float *output, bool *letterbox);
/* Whether a network of this size wants pictures stretched to it. */
bool amp_session_stretches(int w, int h);
/* At the end of the program: closes the logs of all sessions. */
void amp_sessions_close_logs(void);

/* Darknet has written to x on the device. Any thread may call it. */
void amp_session_see_write(const float *x);
/* Call before a pass: tells the graph if the convolutions must read their weights again. */
void amp_session_judge_weights(struct amp_session *);

#endif
