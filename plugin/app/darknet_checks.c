/* Decides whether what one of Darknet's own commands needs is there: the files of its command line,
 * what the table says it takes from the data file, and its fixed files and folders. Every fault is
 * told before the command is refused. It must not know how a command line is read, nor what a
 * training needs (plugin/input). */

#define _GNU_SOURCE
#include "darknet_commands.h"
#include "map.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "amp.h"
#include "plugin/core/files/file.h"
#include "plugin/core/read/lines.h"
#include "plugin/input/check_train.h"
#include "plugin/input/checker.h"
#include "plugin/input/train_list.h"
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

struct check {
    const struct amp_darknet_line *line;
    struct amp_checker k;
    const struct amp_cfg_section *data; /* NULL: none */
};

#define FAULT(c, ...) amp_checker_fault(&(c)->k, __VA_ARGS__)

static bool takes(const struct check *c, unsigned what)
{
    return c->line->command->takes & what;
}

static const struct amp_layer_desc *last_layer(const struct check *c)
{
    return &c->k.net->layers[c->k.net->n - 1];
}

/* Of the last layer that is no [cost], as Darknet's net->outputs. */
static int outputs_of(const struct check *c)
{
    int i = c->k.net->n - 1;
    while (i > 0 && c->k.net->layers[i].type == AMP_COST)
        i--;
    return c->k.net->layers[i].outputs;
}

/* ---- folders ---- */

static void check_folder(struct check *c, const char *folder, const char *why)
{
    static const uint64_t one_byte = 1;
    char err[2 * PATH_MAX];
    if (amp_folder_check(folder, &one_byte, 1, "a file", err, sizeof err))
        FAULT(c, "%s%s", err, why);
}

static void check_output(struct check *c, const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    check_folder(c, folder, "");
}

/* ---- the words of the command line ---- */

static void check_video(struct check *c, const char *video)
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
        if (why && access(video, R_OK)) FAULT(c, "video %s: %s", video, why);
        return;
    }
    snprintf(device, sizeof device, "/dev/video%d", camera);
    if (camera < 100 && access(device, R_OK)) /* from 100 on OpenCV means other interfaces */
        FAULT(c, "camera %s: %s (-c N chooses another; the name of a video may stand last)", device,
              strerror(errno));
}

/* Numbers that Darknet reads with atoi. least and most are allowed. */
static void check_number(struct check *c, const char *kind, const char *text, int least, int most)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end || errno || n < least || n > most)
        FAULT(c, "%s %s: allowed: a whole number from %d to %d", kind, text, least, most);
}

static void check_word(struct check *c, const char *kind, const char *word)
{
    int layers = c->k.net ? c->k.net->n : INT_MAX;
    bool file = !strcmp(kind, "WEIGHTS") || !strcmp(kind, "IMAGE") || !strcmp(kind, "MOVES") ||
                !strcmp(kind, "CFG");
    /* An empty name of weights is none. */
    const char *why = file && *word ? amp_file_unreadable(word) : NULL;
    if (why && (strcmp(kind, "CFG") || word != amp_darknet_file(c->line, "CFG")))
        FAULT(c, "%s file %s: %s",
              !strcmp(kind, "IMAGE")   ? "image"
              : !strcmp(kind, "MOVES") ? "moves"
              : !strcmp(kind, "CFG")   ? "cfg"
                                       : "weights",
              word, why);
    if (!strcmp(kind, "OUT")) check_output(c, word);
    if (!strcmp(kind, "LAYER")) check_number(c, kind, word, 0, layers - 1);
    if (!strcmp(kind, "LAYERS")) check_number(c, kind, word, 0, layers);
    if (!strcmp(kind, "HEIGHT") || !strcmp(kind, "WIDTH"))
        check_number(c, kind, word, c->k.net ? c->k.net->layers[0].size + 1 : 1, 1 << 15);
    if (!strcmp(kind, "NUMBER") || !strcmp(kind, "TIMES")) check_number(c, kind, word, 0, INT_MAX);
}

static void check_words(struct check *c)
{
    const char *out = amp_darknet_option(c->line, "-out");
    for (int i = 0; i < c->line->n; i++)
        check_word(c, c->line->kind[i], c->line->file[i]);
    if (strstr(c->line->command->files, "VIDEO"))
        check_video(c, amp_darknet_file(c->line, "VIDEO"));
    if (!strcmp(c->line->command->words[0], "art")) check_video(c, NULL);
    /* Of detector valid it is the beginning of a name in results=. */
    if (out && !takes(c, AMP_RESULTS)) check_output(c, out);
}

/* ---- weights ---- */

/* Darknet loads other networks' files without a word. What is no layer of a whole network's file
 * may still be right for a command that takes parts of networks. */
static void check_weights_fit(struct check *c, const char *path, const struct amp_net_desc *net)
{
    char why[2 * PATH_MAX];
    bool faulty = amp_map_check_weights(path, net, stderr, why, sizeof why);
    if (faulty && takes(c, AMP_PARTS))
        fprintf(stderr, "warning: %s\n", why);
    else if (faulty)
        FAULT(c, "%s", why);
}

/* A second cfg: only the first is kept. */
static void check_weights_of(struct check *c, const char *cfg, const char *path)
{
    char err[2 * PATH_MAX];
    struct amp_checker other = {.infers = true, .err = err, .err_size = sizeof err};
    if (amp_file_unreadable(cfg)) return; /* it has been told */
    amp_checker_read(&other, NULL, cfg);
    if (other.failed)
        FAULT(c, "%s", err);
    else
        check_weights_fit(c, path, other.net);
    amp_checker_end(&other);
}

/* Darknet's oneoff takes the last layer but one for 11921 filters of 1x1 while it loads, from the
 * sixth filter on, whatever the cfg says. */
static void check_oneoff(struct check *c, const char *path)
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
static void check_weights(struct check *c)
{
    const char *cfg = NULL, *first = amp_darknet_file(c->line, "CFG");
    for (int i = 0; i < c->line->n; i++) {
        const char *path = c->line->file[i];
        if (!strcmp(c->line->kind[i], "CFG")) cfg = path;
        if (strcmp(c->line->kind[i], "WEIGHTS") || !*path || amp_file_unreadable(path)) continue;
        if (cfg != first)
            check_weights_of(c, cfg, path);
        else if (c->k.net && !strcmp(c->line->command->words[0], "oneoff"))
            check_oneoff(c, path);
        else if (c->k.net)
            check_weights_fit(c, path, c->k.net);
    }
}

/* ---- what the table says it needs ---- */

/* A rule of lists. Darknet reads COCO's number of an image behind the last of these characters,
 * whether there is one or not. marks: ""; any image will do. */
static bool has_mark(void *marks, const char *image, char *why, size_t size)
{
    const char *any = marks;
    snprintf(why, size, "%s: no %s before its number", image, any);
    return !*any || strpbrk(image, any);
}

static void check_list(struct check *c, const char *path, const char *explanation)
{
    bool by_coco = !strcmp(c->line->command->words[0], "coco");
    bool for_coco =
        c->data && takes(c, AMP_RESULTS) && !strcmp(amp_cfg_string(c->data, "eval", "voc"), "coco");
    const char *why;
    int images = amp_checker_count_lines(path, &why), least = c->line->command->least_images;
    /* `classifier test` loads a batch, then looks whether there is another. */
    if (takes(c, AMP_TEST) && !strcmp(c->line->command->words[1], "test") && c->k.net)
        least = c->k.net->batch + 1;
    if (images < 0)
        FAULT(c, "image list %s: %s%s", path, why, explanation);
    else if (images && images < least)
        FAULT(c, "image list %s: names %d images; allowed: at least %d", path, images, least);
    else
        amp_image_list_check(path, "images without a number of COCO in their names", has_mark,
                             by_coco    ? "_"
                             : for_coco ? "/_"
                                        : "",
                             NULL, amp_checker_tell, &c->k);
}

/* Of the fixed files. */
static bool is_image_list(const char *path)
{
    return strstr(path, ".list") || strstr(path, "2007");
}

/* The name is fixed in Darknet. */
static void check_need(struct check *c, const char *path)
{
    const struct amp_darknet_command *d = c->line->command;
    const char *unreadable = amp_file_unreadable(path);
    char why[500];
    bool folder = path[strlen(path) - 1] == '/';
    snprintf(why, sizeof why, " (%s%s%s %s%s%s)", d->words[0], d->words[1] ? " " : "",
             d->words[1] ? d->words[1] : "", folder ? "writes there" : "reads no other file",
             d->hint ? "; " : "", d->hint ? d->hint : "");
    if (folder)
        check_folder(c, path, why);
    else if (unreadable)
        FAULT(c, "%s: %s%s", path, unreadable, why);
    else if (is_image_list(path))
        check_list(c, path, "");
}

static void check_needs(struct check *c)
{
    const struct amp_darknet_command *d = c->line->command;
    char *all = d->needs ? strdup(d->needs) : NULL, *state = NULL;
    for (char *path = all ? strtok_r(all, " ", &state) : NULL; path;
         path = strtok_r(NULL, " ", &state))
        check_need(c, path);
    free(all);
    if (d->data) check_need(c, d->data);
    if (!on_gpu && takes(c, AMP_GPU_ONLY))
        FAULT(c, "%s %s does nothing in a build for CPUs", d->words[0], d->words[1]);
}

/* ---- the network ---- */

static void tell_batch(struct check *c, int allowed)
{
    FAULT(
        c,
        "%s:%d: %d images in a pass (batch / subdivisions * time_steps); this command needs %s%d: "
        "Darknet has no room for it, or reads what is not there",
        c->k.cfg->path, amp_cfg_line(c->k.cfg->sections, "batch"), c->k.net->batch,
        allowed > 1 ? "at least " : "", allowed);
}

/* Darknet makes room for the boxes of the first image, and then averages two. */
static void check_flips(struct check *c)
{
    if (c->k.net->batch < 2) tell_batch(c, 2);
    for (int i = 0; i < c->k.net->n; i++)
        if (c->k.net->layers[i].type == AMP_YOLO) {
            FAULT(c,
                  "%s:%d: detector valid2 has no room for the boxes of a [yolo]; use detector "
                  "valid or map",
                  c->k.cfg->path, c->k.net->layers[i].line);
            return;
        }
}

static void check_text(struct check *c)
{
    const char *seed = amp_darknet_option(c->line, "-seed");
    int inputs = c->k.net->inputs;
    if (takes(c, AMP_READS_TEXT) && inputs < 256)
        FAULT(c, "%s: inputs=%d; allowed: at least 256, one for every byte of a text",
              c->k.cfg->path, inputs);
    for (; seed && *seed; seed++) /* a char, which may have a sign */
        if ((signed char)*seed < 0 || *seed >= inputs) {
            FAULT(c, "-seed: a character that is not ASCII, or beyond inputs=%d of %s", inputs,
                  c->k.cfg->path);
            return;
        }
}

static void check_inputs(struct check *c)
{
    const struct amp_darknet_command *d = c->line->command;
    const struct amp_net_desc *net = c->k.net;
    bool images = strstr(d->files, "IMAGE") || strstr(d->files, "VIDEO") ||
                  strstr(d->files, "LIST") || takes(c, AMP_VALID | AMP_TEST);
    if (images && net->c > 3)
        FAULT(c, "%s:%d: channels=%d; allowed: 3, those of the images that Darknet loads",
              c->k.cfg->path, amp_cfg_line(c->k.cfg->sections, "channels"), net->c);
    if (!strcmp(d->words[0], "classifier") && !strcmp(d->words[1], "try") &&
        (net->w != 224 || net->h != 224))
        FAULT(c, "%s: the network reads %dx%d; classifier try loads 224x224", c->k.cfg->path,
              net->w, net->h);
    if (takes(c, AMP_ONE_IMAGE) && net->batch != 1) tell_batch(c, 1);
    if (takes(c, AMP_FLIPS)) check_flips(c);
    if (!strcmp(d->words[0], "rnn")) check_text(c);
}

static void check_head(struct check *c, int classes)
{
    const struct amp_layer_desc *l = last_layer(c);
    if (classes && (l->type != AMP_DETECTION || l->classes != classes))
        FAULT(c,
              "%s:%d: the last layer is %s with classes=%d; this command is for [detection] with "
              "classes=%d. For [yolo] and [region]: darknet detector",
              c->k.cfg->path, l->line, l->type_name, l->classes, classes);
}

/* ---- the data file ---- */

/* The lines of a file that a key names must be at least so many. */
static void check_lines(struct check *c, const char *key, const char *path, int least,
                        const char *of_what)
{
    const char *why;
    int lines = amp_checker_count_lines(path, &why);
    if (lines < 0)
        FAULT(c, "%s file %s: %s%s", key, path, why, amp_checker_explain(c->k.data, key));
    else if (lines < least)
        FAULT(c, "%s file %s: has %d lines; needed: %d, as many as %s", key, path, lines, least,
              of_what);
}

static void check_detector_names(struct check *c)
{
    const char *type = amp_cfg_string(c->data, "eval", "voc");
    int classes = c->k.net ? last_layer(c)->classes : 0;
    check_lines(c, "names", amp_cfg_string(c->data, "names", "data/names.list"), classes,
                "the last layer has classes");
    if (!c->k.net || !takes(c, AMP_VALID)) return;
    if (!strcmp(type, "imagenet") && classes < 200)
        FAULT(c, "eval=imagenet of %s needs a last layer of at least 200 classes, not %d",
              c->k.data->path, classes);
    if (!strcmp(type, "coco") && classes > 80)
        FAULT(c, "eval=coco of %s needs a last layer of at most 80 classes, not %d",
              c->k.data->path, classes);
}

static void check_output_names(struct check *c)
{
    const char *given = amp_darknet_option(c->line, "-t");
    int outputs = c->k.net ? outputs_of(c) : INT_MAX, top = given ? atoi(given) : 0;
    const char *names = amp_cfg_string(c->data, "names", NULL);
    const char *labels = amp_cfg_string(c->data, "labels", "data/labels.list");
    if (!top) top = amp_cfg_int(c->data, "top", 1);
    if (top < 1 || top > outputs)
        FAULT(c, "top=%d; allowed: 1 to %d, the outputs of %s", top, outputs, c->k.cfg->path);
    if (!names && takes(c, AMP_NO_DEFAULT))
        FAULT(c, "%s: no key \"names\" (file of class names)", c->k.data->path);
    else
        check_lines(c, names ? "names" : "labels", names ? names : labels, c->k.net ? outputs : 0,
                    "the network has outputs");
}

static void check_labels(struct check *c)
{
    int classes = amp_checker_classes(&c->k), outputs = c->k.net ? outputs_of(c) : INT_MAX;
    if (!classes) classes = 2;
    check_lines(c, "labels", amp_cfg_string(c->data, "labels", "data/labels.list"), classes,
                "`classes` of the data file says");
    if (classes > outputs)
        FAULT(c, "%s: classes=%d; allowed: at most %d, the outputs of %s", c->k.data->path, classes,
              outputs, c->k.cfg->path);
    if (amp_cfg_find(c->data, "leaves") && !strcmp(c->line->command->words[1], "valid"))
        check_lines(c, "leaves", amp_cfg_string(c->data, "leaves", ""), 0, "");
}

static void check_results(struct check *c)
{
    const char *folder = amp_cfg_string(c->data, "results", "results");
    check_folder(c, folder,
                 amp_cfg_find(c->data, "results")
                     ? " (results= of the data file)"
                     : " (Darknet writes its results there: make it, or name another as results= "
                       "in the data file)");
}

static void check_data(struct check *c)
{
    const char *default_test = !strcmp(c->line->command->words[0], "classifier") &&
                                       !strcmp(c->line->command->words[1], "label")
                                   ? "data/train.list"
                                   : "data/test.list";
    if (takes(c, AMP_NAMES)) check_detector_names(c);
    if (takes(c, AMP_OUTPUTS)) check_output_names(c);
    if (takes(c, AMP_LABELS)) check_labels(c);
    if (takes(c, AMP_RESULTS)) check_results(c);
    if (takes(c, AMP_VALID))
        check_list(c, amp_cfg_string(c->data, "valid", "data/train.list"),
                   amp_checker_explain(c->k.data, "valid"));
    if (takes(c, AMP_TEST))
        check_list(c, amp_cfg_string(c->data, "test", default_test),
                   amp_checker_explain(c->k.data, "test"));
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

static bool check_others(struct check *c)
{
    const struct amp_darknet_command *d = c->line->command;
    const char *data = d->data ? d->data : amp_darknet_file(c->line, "DATA");
    const char *cfg = amp_darknet_file(c->line, "CFG"), *list = amp_darknet_file(c->line, "LIST");
    const char *tokens = amp_darknet_option(c->line, "-tokens");
    if (d->data && amp_file_unreadable(data)) data = NULL; /* it has been told */
    if (cfg) amp_checker_read(&c->k, data, cfg);
    c->data = c->k.data ? &c->k.data->sections[0] : NULL;
    check_words(c);
    check_weights(c);
    if (c->k.net) check_inputs(c);
    if (c->k.net) check_head(c, d->classes);
    if (c->data) check_data(c);
    if (list) check_list(c, list, "");
    if (tokens && amp_text_unreadable(tokens))
        FAULT(c, "%s: %s (-tokens)", tokens, amp_text_unreadable(tokens));
    return !amp_checker_end(&c->k);
}

bool amp_darknet_check(const struct amp_darknet_line *line)
{
    static char err[1 << 16];
    struct check c = {.line = line, .k = {.infers = true, .err = err, .err_size = sizeof err}};
    bool trains = takes(&c, AMP_TRAINS);
    check_needs(&c);
    bool fine = trains ? !c.k.failed && check_training(line, err, sizeof err) : check_others(&c);
    if (fine) return true;
    amp_print_faults(err, stderr);
    if (trains) fputs("nothing was trained\n", stderr);
    return false;
}
