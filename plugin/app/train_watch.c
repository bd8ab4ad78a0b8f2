#include "train_watch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "darknet.h"
#include "plugin/core/progress.h"
#include "plugin/core/weights_file.h"
#include "chart.h"
#include "training_map.h"

#define CHART_SECONDS 10

static struct {
    struct amp_training_map *map; // NULL: no -map
    struct amp_chart *chart;      // NULL: no -chart
    bool chart_failed;            // and that was told
    bool began;
    size_t first, total;
    double started, drawn, average;
} watch;

// ---- after every iteration ----

static double seconds_left(size_t iteration, double now)
{
    if (iteration == watch.first) return -1;
    double per_iteration = (now - watch.started) / (double)(iteration - watch.first);
    return per_iteration * (double)(watch.total > iteration ? watch.total - iteration : 0);
}

static void draw(network *net, size_t iteration, double loss, double now)
{
    char err[9000];
    struct amp_chart_state s = {.iteration = iteration,
                                .loss = loss,
                                .average = watch.average,
                                .rate = get_current_rate(net),
                                .map50 = NAN,
                                .best50 = NAN,
                                .seconds_left = seconds_left(iteration, now)};
    if (watch.map) {
        s.map50 = amp_training_map_last(watch.map)->map50;
        s.best50 = amp_training_map_best(watch.map)->map50;
        s.best_iteration = amp_training_map_best(watch.map)->iteration;
    }
    bool failed = amp_chart_write(watch.chart, &s, err, sizeof err);
    if (failed && !watch.chart_failed)
        fprintf(stderr, "darknet-amp: the chart is not written: %s; training goes on\n", err);
    watch.chart_failed = failed;
    watch.drawn = now;
}

static bool measure(network *net, size_t iteration)
{
    if (!watch.map || !amp_training_map_due(watch.map, iteration)) return false;
    if (amp_training_map_measure(watch.map, net, iteration)) return false;
    const struct amp_evaluation *e = amp_training_map_last(watch.map);
    if (watch.chart) amp_chart_add_map(watch.chart, iteration, e->map50, e->map);
    return true;
}

static void after_iteration(network *net, float loss, void *user)
{
    size_t iteration = get_current_batch(net);
    (void)user;
    if (!watch.began) {
        watch.first = iteration;
        watch.started = amp_clock_seconds();
        watch.drawn = watch.started - CHART_SECONDS;
        watch.average = (double)loss;
    }
    watch.began = true;
    watch.average = .9 * watch.average + .1 * (double)loss; // as Darknet's
    if (watch.chart)
        amp_chart_add_loss(watch.chart, iteration, (double)loss, watch.average,
                           amp_loss_scale(net));
    measure(net, iteration);
    double now = amp_clock_seconds();
    if (watch.chart && (now - watch.drawn >= CHART_SECONDS || iteration >= watch.total))
        draw(net, iteration, (double)loss, now);
}

// ---- before the first ----

// The numbers of a list "400000,450000".
static int read_list(const char *text, double *numbers, int most)
{
    int n = 0;
    for (; text && n < most; ++n) {
        numbers[n] = atof(text);
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
    return n;
}

static void mark_rates(struct amp_chart_setup *s, const struct amp_cfg_section *net)
{
    double steps[AMP_CHART_MARKS], scales[AMP_CHART_MARKS];
    const char *policy = amp_cfg_string(net, "policy", "constant");
    int step = amp_cfg_int(net, "step", 1), n = 0;
    if (!strcmp(policy, "steps")) {
        n = read_list(amp_cfg_string(net, "steps", NULL), steps, AMP_CHART_MARKS);
        int m = read_list(amp_cfg_string(net, "scales", NULL), scales, AMP_CHART_MARKS);
        n = n < m ? n : m;
    }
    if (!strcmp(policy, "step") && step > 0 && s->total / (size_t)step <= AMP_CHART_MARKS)
        for (; n < AMP_CHART_MARKS && (size_t)(n + 1) * (size_t)step < s->total; ++n) {
            steps[n] = (n + 1.) * step;
            scales[n] = amp_cfg_float(net, "scale", 1);
        }
    for (int i = 0; i < n; ++i) {
        if (!(steps[i] > 0) || steps[i] >= (double)s->total) continue;
        s->mark[s->n_marks] = (size_t)steps[i];
        s->factor[s->n_marks++] = scales[i];
    }
}

static int open_chart(const struct amp_train_watch *w, const struct amp_cfg_file *cfg, bool goes_on)
{
    char err[9000];
    char *title = basecfg((char *)w->cfg);
    struct amp_chart_setup setup = {
        .title = title,
        .total = watch.total,
        .burn_in = (size_t)amp_cfg_int(cfg->sections, "burn_in", 0),
    };
    mark_rates(&setup, cfg->sections);
    watch.chart = amp_chart_open(w->chart, &setup, goes_on, err, sizeof err);
    if (!watch.chart) fprintf(stderr, "error: -chart: %s\n", err);
    return watch.chart ? 0 : -1; // the title stays
}

// Whether these weights were trained on: images were seen, and their count is taken over.
static bool continues(const struct amp_train_watch *w, const struct amp_cfg_file *cfg)
{
    char err[9000];
    struct amp_weights_info info = {0};
    struct amp_net_desc *net = amp_net_describe(cfg, 0, 0, false, err, sizeof err);
    bool known = net && w->weights && !w->clear &&
                 !amp_weights_check(w->weights, net, &info, err, sizeof err);
    amp_net_desc_free(net);
    return known && info.seen > 0;
}

static int start(const struct amp_train_watch *w, const struct amp_cfg_file *cfg)
{
    bool goes_on = continues(w, cfg);
    watch.total = (size_t)amp_cfg_int(cfg->sections, "max_batches", 0);
    if (w->chart && open_chart(w, cfg, goes_on)) return -1;
    if (w->map) {
        watch.map = amp_training_map_open(w->data, w->cfg, goes_on, w->map_every);
        if (!watch.map) return -1;
    }
    amp_on_iteration(after_iteration, NULL);
    return 0;
}

int amp_train_watch_start(const struct amp_train_watch *w)
{
    char err[9000];
    if (!w->map && !w->chart) return 0;
    struct amp_cfg_file *cfg = amp_cfg_read(w->cfg, err, sizeof err);
    if (!cfg) fprintf(stderr, "error: %s\n", err);
    int result = cfg ? start(w, cfg) : -1;
    amp_cfg_free(cfg);
    return result;
}
