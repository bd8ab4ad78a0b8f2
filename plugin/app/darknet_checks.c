/* Decides whether what one of Darknet's own commands needs is there: the files of its command line,
 * its weights and GPUs, and its fixed files and folders; the data file is darknet_data.c's, the
 * network darknet_net.c's. Every fault is told before the command is refused. It must not know how
 * a command line is read, nor what a training needs (plugin/input). */

#define _GNU_SOURCE
#include "darknet_checks.h"
#include "map.h"
#include "measuring.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "amp.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/core/read/label_path.h"
#include "plugin/core/read/lines.h"
#include "plugin/input/check_train.h"
#include "plugin/input/image_files.h"
#include "plugin/spread/launcher.h"

#ifdef GPU
static const bool on_gpu = true;
#else
static const bool on_gpu = false;
#endif
#ifdef AMP_OPENCV
static const bool has_video = true;
#else
static const bool has_video = false;
#endif

#define OF_THE_AUTHOR "/home/pjreddie/backup/"

#define FAULT(c, ...) amp_checker_fault(&(c)->k, __VA_ARGS__)

/* ---- the words of the command line ---- */

static void check_output(struct amp_darknet_checks *c, const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    amp_darknet_check_folder(c, folder, "");
}

/* Forgotten, it is the first file of weights that stands there. */
static void check_new(struct amp_darknet_checks *c, const char *path)
{
    struct stat info;
    if (!stat(path, &info))
        FAULT(c, "OUT file %s: is there already and would be written over; name a new one (%s %s)",
              path, c->line->command->words[0], c->line->command->files);
}

static void check_video(struct amp_darknet_checks *c, const char *video)
{
    char device[40];
    const char *number = amp_darknet_option(c->line, "-c");
    int camera = number ? atoi(number) : 0;
    if (!has_video) {
        FAULT(c, "this command needs a build with OpenCV (AMP_OPENCV=ON)");
        return;
    }
    if (video) { /* also an address, as rtsp:// */
        const char *why = strstr(video, "://") ? NULL : amp_file_unreadable(video);
        struct stat info;
        if (why && access(video, R_OK))
            FAULT(c, "video %s: %s", video, why);
        else if (why && !stat(video, &info) && !S_ISCHR(info.st_mode)) /* a pipe would wait */
            FAULT(c, "video %s: %s; allowed: a file, a camera's device, an address (rtsp://...)",
                  video, why);
        return;
    }
    snprintf(device, sizeof device, "/dev/video%d", camera);
    if (camera < 100 && access(device, R_OK)) /* from 100 on OpenCV means other interfaces */
        FAULT(c, "camera %s: %s (-c N chooses another; the name of a video may stand last)", device,
              strerror(errno));
}

/* Darknet ends by an assertion where a GPU is not there. In a build for CPUs it makes a network for
 * each, trains the first, and multiplies its learning rate. */
static void check_gpus(struct amp_darknet_checks *c)
{
    const char *list = amp_darknet_option(c->line, "-gpus"),
               *one = amp_darknet_option(c->line, "-i");
    int there = amp_gpus_there(), needed = one && !list ? atoi(one) + 1 : 0;
    if (list && strchr(list, ',') && !on_gpu) {
        FAULT(c, "-gpus %s: this build is for CPUs and trains one network: leave -gpus out", list);
        return;
    }
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (atoi(p) >= needed) needed = atoi(p) + 1;
    if (on_gpu && !amp_darknet_option(c->line, "-nogpu") && needed > there)
        FAULT(c, "%s %s: GPUs found: %d, numbered from 0 (darknet amp --version lists them)",
              list ? "-gpus" : "-i", list ? list : one, there);
}

/* Of nightmare, which works on layers around LAYER, or reconstructs the one before it. */
static void check_layers_around(struct amp_darknet_checks *c, const char *word)
{
    const char *given = amp_darknet_option(c->line, "-range");
    int range = given ? atoi(given) : 1, layer = atoi(word);
    int first = layer - range / 2, last = first + range - 1;
    if (amp_darknet_option(c->line, "-reconstruct")) {
        if (layer < 1) FAULT(c, "LAYER %s: with -reconstruct allowed: at least 1", word);
    } else if (first < 0 || (c->k.net && last >= c->k.net->n)) {
        FAULT(c, "-range %d: layers %d to %d around LAYER %s; the network has 0 to %d", range,
              first, last, word, c->k.net ? c->k.net->n - 1 : INT_MAX);
    }
}

/* Numbers that Darknet reads with atoi. least and most are allowed. */
static void check_number(struct amp_darknet_checks *c, const char *kind, const char *text,
                         int least, int most)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end || errno || n < least || n > most)
        FAULT(c, "%s %s: allowed: a whole number from %d to %d", kind, text, least, most);
}

static void check_word(struct amp_darknet_checks *c, const char *kind, const char *word)
{
    int layers = c->k.net ? c->k.net->n : INT_MAX;
    bool file = !strcmp(kind, "WEIGHTS") || !strcmp(kind, "IMAGE") || !strcmp(kind, "CFG");
    /* An empty name of weights is none. */
    const char *why = !file || !*word          ? NULL
                      : !strcmp(kind, "IMAGE") ? amp_image_file_fault(word)
                                               : amp_file_unreadable(word);
    if (why && (strcmp(kind, "CFG") || word != amp_darknet_file(c->line, "CFG")))
        FAULT(c, "%s file %s: %s",
              !strcmp(kind, "IMAGE") ? "image"
              : !strcmp(kind, "CFG") ? "cfg"
                                     : "weights",
              word, why);
    if (!strcmp(kind, "MOVES")) amp_checker_moves(&c->k, word);
    if (!strcmp(kind, "OUT")) check_output(c, word);
    if (!strcmp(kind, "LAYER") && !strcmp(c->line->command->words[0], "nightmare"))
        check_layers_around(c, word);
    if (!strcmp(kind, "OUT")) check_new(c, word);
    if (!strcmp(kind, "PREFIX")) amp_darknet_check_folder(c, word, " (PREFIX is a folder)");
    if (!strcmp(kind, "LAYER")) check_number(c, kind, word, 0, layers - 1);
    if (!strcmp(kind, "LAYERS")) check_number(c, kind, word, 0, layers);
    if (!strcmp(kind, "HEIGHT") || !strcmp(kind, "WIDTH"))
        check_number(c, kind, word, c->k.net ? c->k.net->layers[0].size + 1 : 1, 1 << 15);
    if (!strcmp(kind, "NUMBER") || !strcmp(kind, "TIMES")) check_number(c, kind, word, 0, INT_MAX);
}

/* Where a command that reads a picture writes one; NULL: nowhere. */
static const char *picture_of(const struct amp_darknet_line *l)
{
    static const char *const names[][2] = {
        {"detector", "predictions"}, {"detect", "predictions"}, {"yolo", "predictions"},
        {"coco", "prediction"},      {"super", "out"},          {"lsd", "out"}};
    const char *out = amp_darknet_option(l, "-out");
    for (size_t i = 0; i < sizeof names / sizeof *names && strstr(l->command->files, "IMAGE"); i++)
        if (!strcmp(names[i][0], l->command->words[0])) return out ? out : names[i][1];
    return NULL;
}

/* What one such command wrote the next may write over, but not a picture of the user's. */
static void check_picture(struct amp_darknet_checks *c)
{
    char path[PATH_MAX], labels[AMP_LABEL_PATH_MAX], err[PATH_MAX];
    struct stat there, read;
    const char *name = picture_of(c->line), *image = amp_darknet_file(c->line, "IMAGE");
    if (!name) return;
    const char *dot = strrchr(name, '.');
    if (dot && !strcasecmp(dot, ".json")) /* as AlexeyAB's users type */
        FAULT(c,
              "-out %s: names the picture, which would be %s.jpg; no JSON is written. `detector "
              "valid` writes the boxes of the images of valid=: texts, or with eval=coco in the "
              "data file JSON",
              name, name);
    snprintf(path, sizeof path, "%s.jpg", name);
    if (stat(path, &there)) return;
    if (image && !stat(image, &read) && there.st_ino == read.st_ino && there.st_dev == read.st_dev)
        FAULT(c, "%s: the image itself would be written over; -out names another", path);
    else if (!amp_label_path(path, labels, sizeof labels, err, sizeof err) && !stat(labels, &read))
        FAULT(c, "%s: is there, with labels (%s), and would be written over; -out names another",
              path, labels);
}

/* They go on until a key is pressed in a window. */
static void check_display(struct amp_darknet_checks *c)
{
    const char *const *words = c->line->command->words;
    bool waits =
        !strcmp(words[0], "imtest") || (!strcmp(words[0], "lsd") && !strcmp(words[1], "gan"));
    if (waits && !(has_video && amp_has_display()))
        FAULT(c,
              "%s goes on until it is stopped in its window: it needs a build with OpenCV and a "
              "display (DISPLAY, WAYLAND_DISPLAY or QT_QPA_PLATFORM)",
              words[0]);
}

static void check_words(struct amp_darknet_checks *c)
{
    const char *out = amp_darknet_option(c->line, "-out");
    for (int i = 0; i < c->line->n; i++)
        check_word(c, c->line->kind[i], c->line->file[i]);
    if (strstr(c->line->command->files, "VIDEO"))
        check_video(c, amp_darknet_file(c->line, "VIDEO"));
    if (!strcmp(c->line->command->words[0], "art")) check_video(c, NULL);
    check_display(c);
    check_picture(c);
    /* Of detector valid it is the beginning of a name in results=, which is looked at itself. */
    if (out && amp_darknet_takes(c, AMP_RESULTS) && strchr(out, '/'))
        FAULT(c,
              "-out %s: allowed: a name without a folder; results= of the data file is where it "
              "is written",
              out);
    if (out && !amp_darknet_takes(c, AMP_RESULTS)) check_output(c, out);
}

/* ---- weights ---- */

/* Darknet loads other networks' files without a word. What is no layer of a whole network's file
 * may still be right for a command that takes parts of networks. */
static void check_weights_fit(struct amp_darknet_checks *c, const char *path,
                              const struct amp_net_desc *net)
{
    char why[2 * PATH_MAX];
    const char *word = c->line->command->words[0];
    bool shows = !strcmp(word, "statistics") || !strcmp(word, "print");
    bool misfit = amp_map_check_weights(path, net, stderr, why, sizeof why);
    bool faulty = misfit || amp_weights_check_numbers(path, why, sizeof why);
    if (faulty && (misfit ? amp_darknet_takes(c, AMP_PARTS) : shows))
        fprintf(stderr, "warning: %s\n", why);
    else if (faulty)
        FAULT(c, "%s", why);
}

/* A second cfg: only the first is kept. weights: NULL for none. */
static void check_second_cfg(struct amp_darknet_checks *c, const char *cfg, const char *weights)
{
    char err[2 * PATH_MAX];
    const struct amp_darknet_command *d = c->line->command;
    struct amp_checker other = {.infers = true, .err = err, .err_size = sizeof err};
    if (amp_file_unreadable(cfg)) return; /* it has been told */
    amp_checker_read(&other, NULL, cfg);
    if (other.net && !strcmp(d->words[0], "go"))
        amp_checker_fits_trainer(&other, d->words[0], d->words[1]);
    if (other.failed)
        FAULT(c, "%s", err);
    else if (weights && *weights && !amp_file_unreadable(weights))
        check_weights_fit(c, weights, other.net);
    amp_checker_end(&other);
}

/* Darknet's oneoff takes the last layer but one for 11921 filters of 1x1 while it loads, from the
 * sixth filter on, whatever the cfg says. */
static void check_oneoff(struct amp_darknet_checks *c, const char *path)
{
    enum { LOADED = 11921, SKIPPED = 5 };
    struct amp_net_desc *net = c->k.net;
    struct amp_layer_desc *l = net->n > 1 ? &net->layers[net->n - 2] : net->layers;
    int filters = l->filters;
    if (net->n < 2 || l->type != AMP_CONVOLUTIONAL || l->size != 1 || l->groups != 1 ||
        filters < LOADED + SKIPPED) {
        FAULT(c,
              "%s:%d: oneoff needs a [convolutional] of size=1 with at least %d filters as the "
              "last layer but one: Darknet loads %d there, beyond the end of a smaller one",
              c->k.cfg->path, l->line, LOADED + SKIPPED, LOADED);
        return;
    }
    l->filters = LOADED;
    check_weights_fit(c, path, net);
    l->filters = filters;
}

/* Each file is of the cfg before it; an empty name is none. */
static void check_weights(struct amp_darknet_checks *c)
{
    const struct amp_darknet_line *line = c->line;
    const char *cfg = NULL, *first = amp_darknet_file(line, "CFG");
    for (int i = 0; i < line->n; i++) {
        const char *path = line->file[i];
        bool of_first = cfg == first;
        if (!strcmp(line->kind[i], "CFG")) cfg = path;
        if (cfg != first && !strcmp(line->kind[i], "CFG"))
            check_second_cfg(c, path, i + 1 < line->n ? line->file[i + 1] : NULL);
        if (strcmp(line->kind[i], "WEIGHTS") || !of_first || !*path || amp_file_unreadable(path))
            continue;
        if (c->k.net && !strcmp(line->command->words[0], "oneoff"))
            check_oneoff(c, path);
        else if (c->k.net)
            check_weights_fit(c, path, c->k.net);
    }
}

/* ---- what the table says it needs ---- */

/* Of the fixed files. */
static bool is_image_list(const char *path)
{
    return strstr(path, ".list") || strstr(path, "2007");
}

/* The name is fixed in Darknet. */
static void check_need(struct amp_darknet_checks *c, const char *path)
{
    const struct amp_darknet_command *d = c->line->command;
    const char *unreadable = amp_file_unreadable(path);
    char why[500];
    bool folder = path[strlen(path) - 1] == '/';
    snprintf(why, sizeof why, " (%s%s%s %s%s%s)", d->words[0], d->words[1] ? " " : "",
             d->words[1] ? d->words[1] : "", folder ? "writes there" : "reads no other file",
             d->hint ? "; " : "", d->hint ? d->hint : "");
    if (folder)
        amp_darknet_check_folder(c, path, why);
    else if (unreadable)
        FAULT(c, "%s: %s%s", path, unreadable, why);
    else if (is_image_list(path))
        amp_darknet_check_list(c, path, "");
}

static void check_needs(struct amp_darknet_checks *c)
{
    const struct amp_darknet_command *d = c->line->command;
    char *all = d->needs ? strdup(d->needs) : NULL, *state = NULL;
    for (char *path = all ? strtok_r(all, " ", &state) : NULL; path;
         path = strtok_r(NULL, " ", &state))
        check_need(c, path);
    free(all);
    if (d->data) check_need(c, d->data);
    if (!on_gpu && amp_darknet_takes(c, AMP_GPU_ONLY))
        FAULT(c, "%s %s does nothing in a build for CPUs", d->words[0], d->words[1]);
}

/* ---- texts ---- */

/* A text with a line for each output, by which Darknet finds it. */
static void check_one_a_output(struct amp_darknet_checks *c, const char *path, const char *what)
{
    const char *why;
    int lines = amp_checker_count_lines(path, &why);
    if (lines < 0)
        FAULT(c, "%s: %s (%s)", path, why, what);
    else if (c->k.net && lines < amp_net_outputs(c->k.net))
        FAULT(c, "%s: has %d lines (%s); needed: %d, as many as the network has outputs", path,
              lines, what, amp_net_outputs(c->k.net));
}

/* ---- a training ---- */

static bool check_training(const struct amp_darknet_line *line, char *err, size_t err_size)
{
    const char *name = line->command->words[0], *folder = amp_darknet_option(line, "-backup");
    const char *text = amp_darknet_option(line, "-file");
    bool data = strstr(line->command->files, "DATA");
    struct amp_trainer_inputs in = {.data = amp_darknet_file(line, "DATA"),
                                    .cfg = amp_darknet_file(line, "CFG"),
                                    .weights = amp_darknet_file(line, "WEIGHTS"),
                                    .text = !strcmp(name, "rnn")
                                                ? text ? text : "data/shakespeare.txt"
                                                : amp_darknet_file(line, "MOVES"),
                                    .folder = folder ? folder : OF_THE_AUTHOR,
                                    .clear = amp_darknet_option(line, "-clear"),
                                    .measures = amp_darknet_option(line, "-topk"),
                                    .tokenized = amp_darknet_option(line, "-tokenized"),
                                    .on_gpu = on_gpu && !amp_darknet_option(line, "-nogpu")};
    /* Of several processes the others wait for the first when they make their network. */
    if (!amp_launch_read(getenv).rank &&
        amp_check_trainer_inputs(name, &in, stderr, stderr, err, err_size))
        return false;
    if (!data) amp_save_to(in.folder);
    return true;
}

/* ---- all ---- */

static void read_files(struct amp_darknet_checks *c)
{
    const struct amp_darknet_command *d = c->line->command;
    const char *data = d->data ? d->data : amp_darknet_file(c->line, "DATA");
    const char *cfg = amp_darknet_file(c->line, "CFG");
    if (d->data && amp_file_unreadable(data)) data = NULL; /* check_needs tells */
    if (cfg) amp_checker_read(&c->k, data, cfg);
    c->data = c->k.data ? &c->k.data->sections[0] : NULL;
}

static bool check_others(struct amp_darknet_checks *c)
{
    const struct amp_darknet_command *d = c->line->command;
    const char *list = amp_darknet_file(c->line, "LIST");
    const char *tokens = amp_darknet_option(c->line, "-tokens");
    check_words(c);
    check_weights(c);
    if (c->k.net) amp_darknet_check_net(c);
    if (c->data) amp_darknet_check_data(c);
    if (list) amp_darknet_check_list(c, list, "");
    if (tokens) check_one_a_output(c, tokens, "-tokens");
    if (!strcmp(d->words[0], "tag") && !amp_file_unreadable(d->needs))
        check_one_a_output(c, d->needs, "the names of tags");
    amp_class_labels_free(&c->labels);
    return !amp_checker_end(&c->k);
}

bool amp_darknet_check(const struct amp_darknet_line *line)
{
    static char err[1 << 16];
    struct amp_darknet_checks c = {.line = line,
                                   .k = {.infers = true,
                                         .half = amp_darknet_option(line, "-half"),
                                         .warn = stderr,
                                         .err = err,
                                         .err_size = sizeof err}};
    bool trains = amp_darknet_takes(&c, AMP_TRAINS);
    check_gpus(&c);
    if (!trains) read_files(&c);
    check_needs(&c);
    bool fine = trains ? !c.k.failed && check_training(line, err, sizeof err) : check_others(&c);
    if (fine) return true;
    amp_print_faults(err, stderr);
    if (trains) fputs("nothing was trained\n", stderr);
    return false;
}
