/* Decides which session a call of Darknet's means. Darknet passes layers and networks by value, and
 * an update call gets no network at all, so sessions are found by addresses inside them. It must
 * not know what a session does. One lock guards the list and is never held while something
 * computes. */
#include "session.h"

#include "ending.h"
#include "plugin/core/engine/tensors.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER;
static struct amp_session *sessions;

void amp_session_enlist(struct amp_session *s)
{
    pthread_mutex_lock(&sessions_lock);
    s->next = sessions;
    sessions = s;
    pthread_mutex_unlock(&sessions_lock);
}

void amp_session_delist(struct amp_session *s)
{
    pthread_mutex_lock(&sessions_lock);
    struct amp_session **p = &sessions;
    while (*p && *p != s)
        p = &(*p)->next;
    if (*p) *p = s->next;
    pthread_mutex_unlock(&sessions_lock);
}

/* The session outlives the lock: a network belongs to one thread at a time (amp.h), so nobody else
 * can detach it now. */
struct amp_session *amp_session_of(const layer *layers)
{
    pthread_mutex_lock(&sessions_lock);
    struct amp_session *s = sessions;
    while (s && s->net->layers != layers)
        s = s->next;
    pthread_mutex_unlock(&sessions_lock);
    return s;
}

/* Recurrent layers have no weights of their own; their first nested layer is an address as good.
 * Outputs and deltas would not do: resize_network reallocates them. */
const void *amp_session_identity(const layer *l)
{
    const void *parts[] = {l->weights, l->input_layer, l->uf, l->uz};
    for (int i = 0; i < 4; i++)
        if (parts[i]) return parts[i];
    return NULL;
}

struct amp_session *amp_session_of_update(const layer *l, int *index)
{
    struct amp_session *found = NULL;
    const void *identity = amp_session_identity(l);
    pthread_mutex_lock(&sessions_lock);
    for (struct amp_session *s = sessions; s && !found; s = s->next)
        for (int i = 0; i < s->net->n && !found; i++) {
            if (!identity || s->saved[i].identity != identity) continue;
            found = s;
            *index = i;
        }
    pthread_mutex_unlock(&sessions_lock);
    return found;
}

void amp_session_set_desc(struct amp_session *s, struct amp_net_desc *desc)
{
    pthread_mutex_lock(&sessions_lock);
    struct amp_net_desc *before = s->desc;
    s->desc = desc;
    pthread_mutex_unlock(&sessions_lock);
    amp_net_desc_free(before);
}

const struct amp_yolo_desc *amp_session_yolo(const float *output, bool *letterbox)
{
    const struct amp_yolo_desc *found = NULL;
    pthread_mutex_lock(&sessions_lock);
    for (const struct amp_session *s = sessions; s; s = s->next)
        for (int i = 0; i < s->net->n; i++) {
            const struct amp_layer_desc *l = &s->desc->layers[i];
            if (s->net->layers[i].output != output || !l->loss.yolo.own_rules) continue;
            found = &l->loss.yolo;
            *letterbox = s->desc->letter_box;
        }
    pthread_mutex_unlock(&sessions_lock);
    return found;
}

bool amp_session_stretches(int w, int h)
{
    bool stretches = false;
    pthread_mutex_lock(&sessions_lock);
    for (const struct amp_session *s = sessions; s; s = s->next)
        if (s->net->w == w && s->net->h == h) stretches = stretches || amp_net_stretches(s->desc);
    pthread_mutex_unlock(&sessions_lock);
    return stretches;
}

void amp_sessions_close_logs(void)
{
    /* A layer at work may still write to a log. */
    amp_ending_wait();
    pthread_mutex_lock(&sessions_lock);
    for (struct amp_session *s = sessions; s; s = s->next)
        amp_log_close(&s->log, &s->step.scaler);
    pthread_mutex_unlock(&sessions_lock);
}

/* ---- who writes to the masters ---- */
/* The convolutions keep packed copies of the masters. Packing all of them before each pass costs
 * time, so they are packed again only after a write, if writers tell. Our update needs no notice.
 * On a device only Darknet writes else, with cuda_push_array. If this Darknet's calls do not pass
 * through the plugin, images come without a push being seen, and the graph must take the weights
 * anew each time. On the host anybody may write without a call, unless the program promised not
 * to. */
static __thread bool write_seen; /* this thread has seen cuda_push_array arrive */
static atomic_bool program_tells;

void amp_promise_to_tell(void)
{
    atomic_store(&program_tells, true);
}

void amp_weights_written(network *net)
{
    struct amp_session *s = amp_session_of(net->layers);
    if (s) atomic_store(&s->written, true);
}

/* x may point into the array, not only at its start. */
static bool has_master(const struct amp_session *s, const float *x)
{
    for (int i = 0; i < s->net->n; i++) {
        uintptr_t first = (uintptr_t)s->saved[i].weights, at = (uintptr_t)x;
        if (first && at >= first && at < first + s->saved[i].n_weights * sizeof *x) return true;
    }
    return false;
}

void amp_session_see_write(const float *x)
{
    write_seen = true;
    pthread_mutex_lock(&sessions_lock);
    for (struct amp_session *s = sessions; s; s = s->next)
        if (has_master(s, x)) s->written = true;
    pthread_mutex_unlock(&sessions_lock);
}

void amp_session_judge_weights(struct amp_session *s)
{
    s->sees_writes |= s->device ? write_seen : atomic_load(&program_tells);
    s->graph->writers_tell = s->sees_writes;
    if (atomic_exchange(&s->written, false)) amp_graph_weights_changed(s->graph);
}
