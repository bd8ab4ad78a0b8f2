/* Decides what happens beside a training, after every iteration: it is measured where that is due,
 * and drawn. The plugin calls it back from inside Darknet's own loop. It must not know what is
 * measured (evaluation.h) or what a chart looks like (chart.c). */
#include "watch.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "amp_observe.h"
#include "chart.h"
#include "darknet.h"

#include "plugin/core/host.h"
#include "plugin/core/net/net.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/core/read/cfg.h"
#include "plugin/spread/launcher.h"

#define CHART_SECONDS 10

static struct {
    /* One training per process, so this is static: the callback comes from inside Darknet's
     * loop. */
    struct amp_evaluator *evaluator; /* NULL: nothing is measured */
    struct amp_chart *chart;         /* NULL: no -chart */
    bool chart_failed;               /* the last write did, and it was told */
    bool began;
    int thin; /* which value the chart's thin curve has */
    size_t total;
    double started, drawn;
    struct amp_chart_state state; /* after the last iteration */
    bool undrawn;                 /* it is not in the chart yet */
    FILE *aloud;                  /* -quiet: stdout, which Darknet does not have then */
    pthread_mutex_t lock;         /* another thread may end the program */
} watch = {.state = {.average = NAN}, .lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- after every iteration ---- */

static void draw(void)
{
    char err[9000];
    bool failed = amp_chart_write(watch.chart, &watch.state, err, sizeof err);
    if (failed && !watch.chart_failed)
        fprintf(stderr, "darknet-amp: the chart is not written: %s; training goes on\n", err);
    watch.chart_failed = failed;
    watch.undrawn = false;
}

/* However the run ends: a signal, divergence, a fault. */
static void draw_the_end(void)
{
    if (pthread_mutex_trylock(&watch.lock)) return; /* an iteration is being drawn */
    if (watch.undrawn) draw();
    pthread_mutex_unlock(&watch.lock);
}

static void update_state(network *net, size_t iteration, double loss, double now)
{
    struct amp_chart_state *s = &watch.state;
    s->iteration = iteration;
    s->loss = loss;
    s->rate = get_current_rate(net);
    s->map50 = s->best50 = NAN;
    s->seconds_left = amp_chart_seconds_left(watch.chart, iteration, now - watch.started);
    if (!watch.evaluator) return;
    s->map50 = amp_evaluator_last(watch.evaluator)->values[0];
    s->best50 = amp_evaluator_best(watch.evaluator)->values[0];
    s->best_iteration = amp_evaluator_best(watch.evaluator)->iteration;
}

static void draw_iteration(network *net, size_t iteration, double loss)
{
    double now = amp_clock_seconds();
    pthread_mutex_lock(&watch.lock);
    update_state(net, iteration, loss, now);
    watch.undrawn = true;
    if (now - watch.drawn >= CHART_SECONDS || iteration >= watch.total) {
        draw();
        watch.drawn = now;
    }
    pthread_mutex_unlock(&watch.lock);
}

/* Darknet's trainer prints to stdout, as it does with every layer's line of loss; so do our lines
 * of what is measured, which are kept. */
static void be_quiet(bool quiet)
{
    static FILE *nowhere; /* "r+": no result, which results.c would close at the end */
    if (!nowhere && !(nowhere = fopen("/dev/null", "r+"))) return;
    if (!watch.aloud) watch.aloud = stdout;
    fflush(stdout);
    stdout = quiet ? nowhere : watch.aloud;
}

void amp_watch_quietly(void)
{
    be_quiet(true);
}

/* A failed measurement has told why and is no reason to stop. */
static int measure_aloud(network *net, size_t iteration)
{
    bool quiet = watch.aloud != NULL;
    if (quiet) be_quiet(false);
    int failed = amp_evaluator_measure(watch.evaluator, net, iteration);
    if (quiet) be_quiet(true);
    return failed;
}

static void evaluate(network *net, size_t iteration)
{
    struct amp_evaluator *e = watch.evaluator;
    if (!e || !amp_evaluator_is_due(e, iteration)) return;
    int failed = measure_aloud(net, iteration);
    if (amp_evaluator_gives_up(e)) amp_end_training(net, iteration);
    if (failed) return;
    const double *values = amp_evaluator_last(e)->values;
    if (watch.chart) amp_chart_add_map(watch.chart, iteration, values[0], values[watch.thin]);
}

/* As Darknet averages, to show the same number. A loss that is lost is no part of it. */
static void average_loss(double loss)
{
    double *average = &watch.state.average;
    if (!isfinite(loss)) return;
    if (isnan(*average)) *average = loss;
    *average = .9 * *average + .1 * loss;
}

static void after_iteration(network *net, float loss, void *user)
{
    size_t iteration = get_current_batch(net);
    (void)user;
    if (!watch.began) {
        watch.started = amp_clock_seconds();
        /* So that the first iteration draws a chart. */
        watch.drawn = watch.started - CHART_SECONDS;
    }
    watch.began = true;
    average_loss((double)loss);
    if (watch.chart)
        amp_chart_add_loss(watch.chart, iteration, (double)loss, watch.state.average,
                           amp_loss_scale(net));
    evaluate(net, iteration);
    if (watch.chart) draw_iteration(net, iteration, (double)loss);
}

/* ---- before the first ---- */

/* Reads the numbers of a list like "400000,450000" with atof, as Darknet does; returns how many. */
static int read_list(const char *text, double *numbers, int most)
{
    int n = 0;
    for (; text && n < most; n++) {
        numbers[n] = atof(text);
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
    return n;
}

/* Marks where the policies "steps" and "step" change the learning rate; other policies have no such
 * places. */
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
        for (; n < AMP_CHART_MARKS && (size_t)(n + 1) * (size_t)step < s->total; n++) {
            steps[n] = (n + 1.) * step;
            scales[n] = amp_cfg_float(net, "scale", 1);
        }
    for (int i = 0; i < n; i++) {
        if (!(steps[i] > 0) || steps[i] >= (double)s->total) continue;
        s->mark[s->n_marks] = (size_t)steps[i];
        s->factor[s->n_marks++] = scales[i];
    }
}

/* Of the measure: the place of its last value. */
static int last_figure(const struct amp_measure *measure)
{
    int i = 0;
    while (i + 1 < AMP_FIGURES && measure->figures[i + 1])
        i++;
    return i;
}

static int open_chart(const struct amp_train_words *w, const struct amp_measure *measure,
                      const struct amp_cfg_file *cfg, bool resumed)
{
    char err[9000];
    char *title = basecfg((char *)w->cfg);
    struct amp_chart_setup setup = {
        .title = title,
        .figures = {measure->charted[0], measure->charted[1]},
        .total = watch.total,
        .burn_in = (size_t)amp_cfg_int(cfg->sections, "burn_in", 0),
    };
    mark_rates(&setup, cfg->sections);
    watch.thin = last_figure(measure);
    watch.chart = amp_chart_open(w->chart, &setup, resumed, err, sizeof err);
    if (!watch.chart) fprintf(stderr, "error: -chart: %s\n", err);
    amp_on_end(draw_the_end);
    atexit(draw_the_end); /* Darknet's own ends */
    at_quick_exit(draw_the_end);
    return watch.chart ? 0 : -1; /* the title is not freed: the chart points to it */
}

/* True if training goes on from these weights: they have seen images, and -clear does not reset the
 * count. */
static bool continues(const struct amp_train_words *w, const struct amp_cfg_file *cfg)
{
    char err[9000];
    struct amp_weights_info info = {0};
    struct amp_net_desc *net = amp_net_describe(cfg, 0, 0, false, err, sizeof err);
    bool known = net && w->weights && !w->clear &&
                 !amp_weights_check(w->weights, net, &info, err, sizeof err);
    amp_net_desc_free(net);
    return known && info.seen > 0;
}

static int start_watching(const struct amp_train_words *w, const struct amp_measure *measure,
                          const struct amp_cfg_file *cfg)
{
    bool resumed = continues(w, cfg);
    int rank = amp_launch_read(getenv).rank;
    watch.total = (size_t)amp_cfg_int(cfg->sections, "max_batches", 0);
    if (w->chart && !rank && open_chart(w, measure, cfg, resumed)) return -1;
    if (w->map) {
        watch.evaluator = amp_evaluator_open(measure, w, rank, resumed);
        if (!watch.evaluator) return -1;
    }
    amp_on_iteration(after_iteration, NULL);
    return 0;
}

/* Sets gpu_index as Darknet's main will do it later: the twin of -map is built before. */
static void choose_gpu(int argc, char **argv)
{
    char **words = calloc((size_t)argc + 3, sizeof *words);
    if (!words) return;
    memcpy(words, argv, (size_t)argc * sizeof *words);
    gpu_index = find_int_arg(argc, words, "-i", 0);
    if (find_arg(argc, words, "-nogpu")) gpu_index = -1;
#ifdef GPU
    const char *gpus = find_char_arg(argc, words, "-gpus", NULL);
    if (gpus) gpu_index = atoi(gpus);
    if (gpu_index >= 0) cuda_set_device(gpu_index);
#else
    gpu_index = -1;
#endif
    free(words);
}

int amp_watch_training(const struct amp_train_words *w, const struct amp_measure *measure, int argc,
                       char **argv)
{
    char err[9000];
    if (!w->map && (!w->chart || amp_launch_read(getenv).rank)) return 0;
    if (w->map) choose_gpu(argc, argv);
    struct amp_cfg_file *cfg = amp_cfg_read(w->cfg, err, sizeof err);
    if (!cfg) fprintf(stderr, "error: %s\n", err);
    amp_refuse_bad_images(0); /* amp_images_check names all of them instead */
    int result = cfg ? start_watching(w, measure, cfg) : -1;
    amp_cfg_free(cfg);
    return result;
}
