#include "resume.h"

#include "gpus.h"
#include "iteration.h"
#include "run_state.h"
#include "plugin/core/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>

static void tell_resumed(const struct amp_session *s, const struct amp_run *r)
{
    char scale[32];
    int demoted = 0;
    for (int i = 0; i < r->n_layers; i++)
        demoted += r->demoted[i] != AMP_FORMATS;
    fprintf(stderr,
            "mixed precision: resumed from %s: iteration %" PRIu64 ", momentum%s, loss scale %s",
            amp_sidecar_path(s->sidecar), amp_iterations_in(s->net, r->seen),
            s->net->adam ? " and Adam moments" : "", amp_scale_text(r->scaler.scale, scale));
    if (demoted) fprintf(stderr, ", layers that left FP16: %d", demoted);
    fputc('\n', stderr);
}

/* between: Darknet draws sizes every ten iterations, counted from where a run starts. */
static const char *why_not_exact(const struct amp_layer_desc *l, bool between)
{
    if (l->dontsave || l->dontload || l->dontloadscales || l->numload)
        return "the cfg keeps parameters of it out of the weights file";
    if (l->random && between) return "random=1 draws its sizes at other iterations";
    return amp_layer_is_recurrent(l) ? "its recurrent state starts from zero" : NULL;
}

static void tell_not_exact(const struct amp_net_desc *net, uint64_t iteration)
{
    for (int i = 0; i < net->n; i++) {
        const char *why = why_not_exact(&net->layers[i], iteration % 10 != 0);
        if (!why) continue;
        fprintf(stderr,
                "mixed precision: not exactly the run that stopped, because of layer %d (%s): %s\n",
                i, amp_layer_type_name(net->layers[i].type), why);
        return;
    }
}

/* Without them, the others would begin with none. */
static void tell_gpus(const struct amp_session *s)
{
    int gpus = amp_gpus_count(s->net);
    if (gpus > 1)
        fprintf(stderr,
                "mixed precision: not exactly the run that stopped, because of %d GPUs: momentum, "
                "loss scale and running statistics in the file are the first one's, and all go on "
                "with them\n",
                gpus);
}

static void restore(struct amp_session *s)
{
    char err[3 * PATH_MAX];
    struct amp_run_state state = amp_run_state_of(s);
    if (amp_sidecar_restore(s->sidecar, &state.run, err, sizeof err)) amp_fail(err);
    amp_run_state_put_back(s, &state);
    if (!amp_gpus_place(s->net)) {
        tell_resumed(s, &state.run);
        tell_not_exact(s->desc, amp_iterations_in(s->net, state.run.seen));
        tell_gpus(s);
    }
    amp_run_state_free(s, &state);
}

/* With another count of images (-clear) nothing was to be kept. */
static void tell_without_sidecar(struct amp_session *s, size_t seen)
{
    if (*s->without_sidecar && s->trained && s->without_sidecar_seen == seen && seen > 0)
        fprintf(stderr,
                "mixed precision: %s" AMP_SIDECAR_SUFFIX
                " is not there: momentum%s, loss scale and the list of layers that left FP16 start "
                "anew, and it is not exactly the run that stopped. If the weights were copied "
                "without it, copy it too and start again\n",
                s->without_sidecar, s->net->adam ? ", Adam moments" : "");
    *s->without_sidecar = 0;
}

void amp_session_resume(struct amp_session *s, size_t seen)
{
    tell_without_sidecar(s, seen);
    if (!s->sidecar) return;
    if (seen == amp_sidecar_seen(s->sidecar)) {
        restore(s);
    } else {
        *s->backup = 0; /* it is another run's */
        if (!amp_gpus_place(s->net))
            fprintf(
                stderr,
                "mixed precision: %s is not used, because the count of images seen was set to %zu "
                "after loading (-clear does that): momentum and loss scale start anew\n",
                amp_sidecar_path(s->sidecar), seen);
    }
    amp_sidecar_close(s->sidecar);
    s->sidecar = NULL;
}
