/* `darknet detector train`: looks at everything that the training needs, then hands over to
 * Darknet's own command. With -map and -chart the plugin calls it back after every iteration. It
 * must not know which words of the command line are mistakes (train_words.c), what an input must be
 * (plugin/input) or how mAP is measured (training_map.c). */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "amp_observe.h"
#include "chart.h"
#include "commands.h"
#include "darknet.h"
#include "measuring.h"
#include "processes.h"
#include "train.h"

#include "plugin/core/host.h"
#include "plugin/core/net/net.h"
#include "plugin/core/read/text.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/input/check_train.h"
#include "plugin/spread/launcher.h"

int darknet_main(int argc, char **argv);

#ifdef GPU
static const bool on_gpu = true;
#else
static const bool on_gpu = false;
#endif
#define CHART_SECONDS 10

/* ==== beside the training: -map and -chart ==== */

static struct {
    /* One training per process, so this is static: the callback comes from inside Darknet's
     * loop. */
    struct amp_training_map *map; /* NULL: no -map */
    struct amp_chart *chart;      /* NULL: no -chart */
    bool chart_failed;            /* the last write did, and it was told */
    bool began;
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
    if (!watch.map) return;
    s->map50 = amp_training_map_last(watch.map)->map50;
    s->best50 = amp_training_map_best(watch.map)->map50;
    s->best_iteration = amp_training_map_best(watch.map)->iteration;
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
 * of mAP, which are kept. */
static void be_quiet(bool quiet)
{
    static FILE *nowhere;
    if (!nowhere && !(nowhere = fopen("/dev/null", "w"))) return;
    if (!watch.aloud) watch.aloud = stdout;
    fflush(stdout);
    stdout = quiet ? nowhere : watch.aloud;
}

/* Darknet's trainer ends at max_batches, and saves then. */
static void end_training(network *net, size_t iteration)
{
    net->max_batches = (int)iteration;
}

/* A failed measurement has told why and is no reason to stop. */
static int measure_aloud(network *net, size_t iteration)
{
    bool quiet = watch.aloud != NULL;
    if (quiet) be_quiet(false);
    int failed = amp_training_map_measure(watch.map, net, iteration);
    if (quiet) be_quiet(true);
    return failed;
}

static bool measure_map(network *net, size_t iteration)
{
    if (!watch.map || !amp_training_map_due(watch.map, iteration)) return false;
    int failed = measure_aloud(net, iteration);
    if (amp_training_map_ends(watch.map)) end_training(net, iteration); /* all processes ask */
    if (failed) return false;
    const struct amp_evaluation *e = amp_training_map_last(watch.map);
    if (watch.chart) amp_chart_add_map(watch.chart, iteration, e->map50, e->map);
    return true;
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
    measure_map(net, iteration);
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

static int open_chart(const struct amp_train_words *w, const struct amp_cfg_file *cfg, bool goes_on)
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

static int start_watching(const struct amp_train_words *w, const struct amp_cfg_file *cfg)
{
    bool goes_on = continues(w, cfg);
    int rank = amp_launch_read(getenv).rank;
    watch.total = (size_t)amp_cfg_int(cfg->sections, "max_batches", 0);
    if (w->chart && !rank && open_chart(w, cfg, goes_on)) return -1;
    if (w->map) {
        watch.map = amp_training_map_open(w, rank, goes_on);
        if (!watch.map) return -1;
    }
    amp_on_iteration(after_iteration, NULL);
    return 0;
}

/* Checks and builds all that -map and -chart need. 0, or -1 after naming the fault on stderr. The
 * inputs have been checked before. */
static int watch_training(const struct amp_train_words *w)
{
    char err[9000];
    if (!w->map && (!w->chart || amp_launch_read(getenv).rank)) return 0;
    struct amp_cfg_file *cfg = amp_cfg_read(w->cfg, err, sizeof err);
    if (!cfg) fprintf(stderr, "error: %s\n", err);
    int result = cfg ? start_watching(w, cfg) : -1;
    amp_cfg_free(cfg);
    return result;
}

/* ==== the command ==== */

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

static const char help[] =
    "Usage: darknet detector train DATA CFG [WEIGHTS] [OPTION...]\n"
    "Trains a detector on the images that the data file's train= lists. Looks at all inputs "
    "first:\n"
    "with a fault in one of them nothing is trained. The line mixed_precision=1 under [net] of "
    "the\n"
    "cfg turns mixed precision on.\n"
    "\n"
    "  -clear                Begin at iteration 0 with these weights\n"
    "  -map                  Measure mAP on the images of valid= after every epoch (at least 100\n"
    "                        iterations), and keep the best weights as NAME_best.weights\n"
    "  -map_every N          Measure it every N iterations instead\n"
    "  -mAP_epochs N         Measure it every N epochs (at least 100 iterations) instead\n"
    "  -patience N           End after N measurements without a better mAP, as a finished run "
    "does\n"
    "  -iou_thresh X         With a cfg of AlexeyAB's rules: IoU of -map's first number (default: "
    "0.5)\n"
    "  -points N             The same: 0 (area under the curve, the default), 11 or 101 recalls\n"
    "  -chart FILE.svg       Draw loss, mAP and loss scale\n"
    "  -quiet                Leave out Darknet's lines: a progress line about every ten seconds "
    "stays\n"
    "  -gpus 0,1             GPUs to train on: with mixed_precision=1 a process for each, which\n"
    "                        mpirun starts\n"
    "  -i N                  Use GPU number N (default: 0)\n"
    "  -nogpu                Use the CPU\n"
    "      --help            Give this help list\n"
    "Darknet's other options are accepted too: those of its `detector test` and `demo`. Of\n"
    "AlexeyAB's, those without a meaning here are left out and named (-dont_show, ...).\n";

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-help")) return true;
    return false;
}

static char **copy_words(int argc, char **argv)
{
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    if (copy) memcpy(copy, argv, (size_t)argc * sizeof *copy);
    return copy;
}

/* Gives this process of several its GPU by -i, in place of -gpus. Without -gpus, a user's own -i or
 * -nogpu stays. */
static int take_gpu(int *argc, char ***argv, const char *gpus, int local)
{
    static char number[20];
    char err[200], who[120];
    char **words = calloc((size_t)*argc + 3, sizeof *words);
    if (!words) return -1;
    memcpy(words, *argv, (size_t)*argc * sizeof *words);
    if (gpus) {
        find_char_arg(*argc, words, "-gpus", NULL);
        *argc -= 2;
    }
    int gpu = amp_gpu_of_process(gpus, local, err, sizeof err);
    if (gpu < 0) {
        amp_launch_who(who, sizeof who);
        fprintf(stderr, "error: %s%s\n", who, err);
        return -1;
    }
    bool chosen = false;
    for (int i = 1; i < *argc; i++)
        chosen = chosen || !strcmp(words[i], "-i") || !strcmp(words[i], "-nogpu");
    if (on_gpu && !chosen) {
        snprintf(number, sizeof number, "%d", gpu);
        words[(*argc)++] = "-i";
        words[(*argc)++] = number;
    }
    *argv = words;
    return 0;
}

int amp_command_detector_train(int argc, char **argv)
{
    static char err[1 << 16];
    if (asks_for_help(argc, argv)) {
        fputs(help, stdout);
        return fflush(stdout) ? 1 : 0;
    }
    struct amp_train_words words;
    int given = argc;
    char **all = copy_words(argc, argv); /* ours are taken out */
    if (!all || amp_train_words_read(&argc, argv, &words)) {
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    if (!words.cfg) {
        fputs(help, stderr);
        return 1;
    }
    struct amp_launch launch = amp_launch_read(getenv);
    if (words.gpus && words.mixed && launch.size == 1) {
        amp_start_processes(given, all, words.gpus);
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    const char *idle = words.mixed ? words.one_gpu : words.gpus ? words.gpus : words.one_gpu;
    if (!on_gpu && idle && !launch.rank)
        fprintf(stderr, "darknet-amp: -gpus %s: this build has no CUDA; it trains on the CPU\n",
                idle);
    if (words.mixed && launch.size > 1 && take_gpu(&argc, &argv, words.gpus, launch.local))
        return 1;
    /* Of several processes, rank 0 looks at the inputs and draws; the others wait for it when they
     * make their network. */
    if (!launch.rank && amp_check_train_inputs(words.data, words.cfg, words.weights, words.clear,
                                               on_gpu, stderr, stderr, err, sizeof err)) {
        amp_print_faults(err, stderr);
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    if (words.mixed && !launch.rank)
        amp_machine_report_limit(words.cfg, on_gpu ? 0 : -1, launch.size);
    if (words.map) choose_gpu(argc, argv);
    amp_refuse_bad_images(0); /* check_images names all of them instead */
    if (watch_training(&words)) {
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    amp_refuse_bad_images(1);
    if (words.quiet) be_quiet(true);
    return darknet_main(argc, argv);
}
