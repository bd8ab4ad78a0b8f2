/* `darknet detector train`: looks at everything that the training needs, then hands over to
 * Darknet's own command. With -map and -chart the plugin calls it back after every iteration. It
 * decides which words of the command line are ours and which are mistakes. It must not know what an
 * input must be (plugin/input) or how mAP is measured (training_map.h). */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "chart.h"
#include "commands.h"
#include "darknet.h"
#include "training_map.h"

#include "plugin/core/file.h"
#include "plugin/core/nearest.h"
#include "plugin/core/options.h"
#include "plugin/core/progress.h"
#include "plugin/core/weights_file.h"
#include "plugin/input/check_train.h"

int darknet_main(int argc, char **argv);

#ifdef GPU
static const bool on_gpu = true;
#else
static const bool on_gpu = false;
#endif
#define CHART_SECONDS 10

/* ==== beside the training: -map and -chart ==== */

/* Work that was asked for beside training. */
struct watch_request {
    const char *data, *cfg, *weights; /* weights NULL: none */
    bool clear, map;
    int map_every;     /* iterations; 0: -map chooses */
    const char *chart; /* NULL: none */
};

static struct {
    /* One training per process, so this is static: the callback comes from inside Darknet's
     * loop. */
    struct amp_training_map *map; /* NULL: no -map */
    struct amp_chart *chart;      /* NULL: no -chart */
    bool chart_failed;            /* the last write did, and it was told */
    bool began;
    size_t first, total;
    double started, drawn, average;
} watch;

/* ---- after every iteration ---- */

/* From the iterations of this run only; -1 after the first, which tells nothing. */
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

/* A failed measurement has told why and is no reason to stop. */
static bool measure_map(network *net, size_t iteration)
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
        /* So that the first iteration draws a chart. */
        watch.drawn = watch.started - CHART_SECONDS;
        watch.average = (double)loss;
    }
    watch.began = true;
    watch.average =
        .9 * watch.average + .1 * (double)loss; /* as Darknet averages, to show the same number */
    if (watch.chart)
        amp_chart_add_loss(watch.chart, iteration, (double)loss, watch.average,
                           amp_loss_scale(net));
    measure_map(net, iteration);
    double now = amp_clock_seconds();
    if (watch.chart && (now - watch.drawn >= CHART_SECONDS || iteration >= watch.total))
        draw(net, iteration, (double)loss, now);
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

static int open_chart(const struct watch_request *w, const struct amp_cfg_file *cfg, bool goes_on)
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
    return watch.chart ? 0 : -1; /* the title is not freed: the chart points to it */
}

/* True if training goes on from these weights: they have seen images, and -clear does not reset the
 * count. */
static bool continues(const struct watch_request *w, const struct amp_cfg_file *cfg)
{
    char err[9000];
    struct amp_weights_info info = {0};
    struct amp_net_desc *net = amp_net_describe(cfg, 0, 0, false, err, sizeof err);
    bool known = net && w->weights && !w->clear &&
                 !amp_weights_check(w->weights, net, &info, err, sizeof err);
    amp_net_desc_free(net);
    return known && info.seen > 0;
}

static int start_watching(const struct watch_request *w, const struct amp_cfg_file *cfg)
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

/* Checks and builds all that -map and -chart need. 0, or -1 after naming the fault on stderr. The
 * inputs have been checked before. */
static int watch_training(const struct watch_request *w)
{
    char err[9000];
    if (!w->map && !w->chart) return 0;
    struct amp_cfg_file *cfg = amp_cfg_read(w->cfg, err, sizeof err);
    if (!cfg) fprintf(stderr, "error: %s\n", err);
    int result = cfg ? start_watching(w, cfg) : -1;
    amp_cfg_free(cfg);
    return result;
}

/* ==== the command ==== */

/* Our own options. They are taken out of argv as Darknet takes out its own, so Darknet never sees
 * them: later words move up. */
struct own {
    int map;
    char *map_every, *chart;
};

static struct own take_own(int argc, char **argv)
{
    struct own own = {.map_every = find_char_arg(argc, argv, "-map_every", NULL),
                      .chart = find_char_arg(argc, argv, "-chart", NULL)};
    own.map = find_arg(argc, argv, "-map");
    return own;
}

/* Returns -1 after telling a fault. find_char_arg takes a word only with a value behind it, so a
 * word of ours that is still in argv has none. */
static int check_own(const struct own *own, int argc, char **argv, int *map_every)
{
    char *end = "";
    long every = own->map_every ? strtol(own->map_every, &end, 10) : 0;
    for (int i = 3; i < argc && argv[i]; i++)
        if (!strcmp(argv[i], "-map_every") || !strcmp(argv[i], "-chart")) {
            fprintf(stderr, "error: no value after %s\n", argv[i]);
            return -1;
        }
    if (own->chart && own->chart[0] == '-') { /* the next option; "./-x.svg" is a file */
        fprintf(stderr, "error: -chart %s: no file name after -chart\n", own->chart);
        return -1;
    }
    *map_every = (int)every;
    if (own->map_every && (*end || every < 1 || every > 1000000000)) {
        fprintf(stderr, "error: -map_every %s: allowed: iterations, 1 to 1000000000\n",
                own->map_every);
        return -1;
    }
    if (!own->map_every || own->map) return 0;
    fputs("error: -map_every has no effect without -map\n", stderr);
    return -1;
}

/* -map and -chart are for one GPU. argv is only looked at here, and find_char_arg takes words out:
 * so it gets a copy. */
static int check_gpus(int argc, char **argv, const struct own *own)
{
    char **words = calloc((size_t)argc + 3, sizeof *words);
    if (!words) return -1;
    memcpy(words, argv, (size_t)argc * sizeof *words);
    const char *gpus = find_char_arg(argc, words, "-gpus", 0);
    free(words);
    if (!gpus || !strchr(gpus, ',') || (!own->map && !own->chart)) return 0;
    fputs("error: -map and -chart are for one GPU; leave out either them or -gpus\n", stderr);
    return -1;
}

/* Words that Darknet takes out of a command line wherever they stand, in its order: main first,
 * then run_detector. Words of the first list are followed by a value. The order matters: taking one
 * word out changes what stands behind another. */
static char *const with_value[] = {"-i",   "-prefix", "-thresh", "-hier", "-c", "-s",
                                   "-avg", "-gpus",   "-out",    "-w",    "-h", "-fps"};
static char *const alone[] = {"-nogpu", "-clear", "-fullscreen"};
static char *const own_words[] = {"-map", "-map_every", "-chart"};

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Takes Darknet's words out of argv. Returns whether -clear was there. */
static int take_options(int argc, char **argv)
{
    find_char_arg(argc, argv, "-i", 0);
    find_arg(argc, argv, "-nogpu");
    for (size_t i = 1; i < COUNT(with_value); i++)
        find_char_arg(argc, argv, with_value[i], 0);
    find_arg(argc, argv, "-fullscreen");
    return find_arg(argc, argv, "-clear");
}

/* ---- words that nobody knows ---- */

static bool is_one_of(const char *word, char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(word, list[i])) return true;
    return false;
}

static bool takes_value(const char *word)
{
    return is_one_of(word, with_value, COUNT(with_value)) || !strcmp(word, "-map_every") ||
           !strcmp(word, "-chart");
}

static const char *nearest_word(const char *word)
{
    const char *known[COUNT(with_value) + COUNT(alone) + COUNT(own_words)];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(own_words); i++)
        known[n++] = own_words[i];
    for (size_t i = 0; i < COUNT(alone); i++)
        known[n++] = alone[i];
    for (size_t i = 0; i < COUNT(with_value); i++)
        known[n++] = with_value[i];
    return amp_nearest_word(word, known, n);
}

/* True if the cfg has mixed_precision=1. A cfg that cannot be read is refused later, with its
 * reason. */
static bool is_mixed(const char *cfg_path)
{
    char err[9000];
    struct amp_options options = {0};
    struct amp_cfg_file *cfg = amp_cfg_read(cfg_path, err, sizeof err);
    bool mixed = cfg && !amp_options_read(cfg, &options, NULL, 0, err, sizeof err) &&
                 options.mixed_precision;
    amp_cfg_free(cfg);
    return mixed;
}

static void name_unknown(const char *word, const char *nearest, bool refused)
{
    const char *kind = refused ? "error" : "warning";
    const char *end = refused ? "" : " (ignored, as Darknet ignores it)";
    if (is_one_of(word, with_value, COUNT(with_value)))
        fprintf(stderr, "%s: no value after %s%s\n", kind, word, end);
    else if (is_one_of(word, alone, COUNT(alone)) || is_one_of(word, own_words, COUNT(own_words)))
        fprintf(stderr, "%s: %s is given twice%s\n", kind, word, end);
    else if (nearest)
        fprintf(stderr, "%s: unknown word \"%s\"; the nearest known one is %s%s\n", kind, word,
                nearest, end);
    else
        fprintf(stderr,
                "%s: unknown word \"%s\"; allowed: DATA CFG [WEIGHTS], -clear, -gpus, -map, "
                "-map_every, -chart%s\n",
                kind, word, end);
}

/* Names words that nobody knows. words: the command line without the known ones. Darknet ignores
 * what follows the weights, so such a word is refused only if the command is ours: with
 * mixed_precision=1, or if one of our words was meant. Before that place an unknown option stands
 * where a file should be, so it is always refused. */
static int check_unknown(int argc, char **words)
{
    int files = 0, refused = 0;
    const char *cfg = NULL;
    for (int i = 3; i < argc && words[i]; i++) {
        bool option = words[i][0] == '-' && amp_file_unreadable(words[i]);
        if (!option && ++files == 2) cfg = words[i];
        if (!option && files <= 3) continue;
        const char *nearest = nearest_word(words[i]);
        bool ours = nearest && is_one_of(nearest, own_words, COUNT(own_words));
        bool refuse = i <= 5 || ours || (cfg && is_mixed(cfg));
        name_unknown(words[i], nearest, refuse);
        refused |= refuse;
        bool value = option && nearest && takes_value(nearest);
        if (value && words[i + 1] && words[i + 1][0] != '-') i++;
    }
    return refused ? -1 : 0;
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
    "  -chart FILE.svg       Draw loss, mAP and loss scale\n"
    "  -gpus 0,1             GPUs to train on, in a build for GPUs\n"
    "  -i N                  Use GPU number N (default: 0)\n"
    "  -nogpu                Use the CPU\n"
    "      --help            Give this help list\n"
    "Darknet's other options are accepted too: those of its `detector test` and `demo`.\n";

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-help")) return true;
    return false;
}

int amp_command_detector_train(int argc, char **argv)
{
    static char err[1 << 16];
    if (asks_for_help(argc, argv)) {
        fputs(help, stdout);
        return fflush(stdout) ? 1 : 0;
    }
    struct own own = take_own(argc, argv);
    int map_every;
    if (check_own(&own, argc, argv, &map_every) || check_gpus(argc, argv, &own)) return 1;
    char **words = calloc((size_t)argc + 6, sizeof *words);
    if (!words) return 1;
    memcpy(words, argv, (size_t)argc * sizeof *words);
    int clear = take_options(argc, words), unknown = check_unknown(argc, words);
    char *data = words[3], *cfg = data ? words[4] : NULL, *weights = cfg ? words[5] : NULL;
    free(words);
    if (unknown) {
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    if (!cfg) {
        fputs(help, stderr);
        return 1;
    }
    if (amp_check_train_inputs(data, cfg, weights, clear, on_gpu, stderr, stderr, err,
                               sizeof err)) {
        amp_print_faults(err, stderr);
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    struct watch_request request = {.data = data,
                                    .cfg = cfg,
                                    .weights = weights,
                                    .clear = clear,
                                    .map = own.map,
                                    .map_every = map_every,
                                    .chart = own.chart};
    if (own.map) choose_gpu(argc, argv);
    amp_refuse_bad_images(0); /* check_images names all of them instead */
    if (watch_training(&request)) {
        fputs("nothing was trained\n", stderr);
        return 1;
    }
    amp_refuse_bad_images(1);
    return darknet_main(argc, argv);
}
