/* Decides whether one of Darknet's own commands can run a network: whether what it feeds fits, and
 * whether it can read what comes out. It must not know the files of the command line. */

#include "darknet_checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULT(c, ...) amp_checker_fault(&(c)->k, __VA_ARGS__)

/* ---- how many images, and of which size ---- */

static void tell_batch(struct amp_darknet_checks *c, int allowed)
{
    FAULT(
        c,
        "%s:%d: %d images in a pass (batch / subdivisions * time_steps); this command needs %s%d: "
        "Darknet has no room for it, or reads what is not there",
        c->k.cfg->path, amp_cfg_line(c->k.cfg->sections, "batch"), c->k.net->batch,
        allowed > 1 ? "at least " : "", allowed);
}

/* Darknet makes room for the boxes of the first image, and then averages two. */
static void check_flips(struct amp_darknet_checks *c)
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

static void check_text(struct amp_darknet_checks *c)
{
    const char *seed = amp_darknet_option(c->line, "-seed");
    int inputs = c->k.net->inputs;
    if (amp_darknet_takes(c, AMP_READS_TEXT) && inputs < 256)
        FAULT(c, "%s: inputs=%d; allowed: at least 256, one for every byte of a text",
              c->k.cfg->path, inputs);
    for (; seed && *seed; seed++) /* a char, which may have a sign */
        if ((signed char)*seed < 0 || *seed >= inputs) {
            FAULT(c, "-seed: a character that is not ASCII, or beyond inputs=%d of %s", inputs,
                  c->k.cfg->path);
            return;
        }
}

static void check_inputs(struct amp_darknet_checks *c)
{
    const struct amp_darknet_command *d = c->line->command;
    const struct amp_net_desc *net = c->k.net;
    bool images = strstr(d->files, "IMAGE") || strstr(d->files, "VIDEO") ||
                  strstr(d->files, "LIST") || amp_darknet_takes(c, AMP_VALID | AMP_TEST);
    if (images && net->c > 3)
        FAULT(c, "%s:%d: channels=%d; allowed: 3, those of the images that Darknet loads",
              c->k.cfg->path, amp_cfg_line(c->k.cfg->sections, "channels"), net->c);
    if (!strcmp(d->words[0], "classifier") && !strcmp(d->words[1], "try") &&
        (net->w != 224 || net->h != 224))
        FAULT(c, "%s: the network reads %dx%d; classifier try loads 224x224", c->k.cfg->path,
              net->w, net->h);
    if (amp_darknet_takes(c, AMP_ONE_IMAGE) && net->batch != 1) tell_batch(c, 1);
    if (amp_darknet_takes(c, AMP_FLIPS)) check_flips(c);
    if (!strcmp(d->words[0], "rnn")) check_text(c);
    if (amp_darknet_takes(c, AMP_STOCK) && amp_cfg_int(c->k.cfg->sections, "mixed_precision", 0))
        FAULT(c,
              "%s:%d: mixed_precision=1: %s replaces or leaves out layers, which a plan does not "
              "follow; leave the key out for it",
              c->k.cfg->path, amp_cfg_line(c->k.cfg->sections, "mixed_precision"), d->words[0]);
}

/* ---- which layers belong to a command ---- */

/* The last layers that commands read, by their first word; behind a !, those that they do not.
 * NULL: they take the networks that the trainer of that name takes. */
static const struct reader {
    const char *group, *last;
} readers[] = {
    {"detector", "[yolo] [region] [detection]"},
    {"detect", "[yolo] [region] [detection]"},
    {"classifier", "! [yolo] [region] [detection] [iseg]"},
    {"classify", "! [yolo] [region] [detection] [iseg]"},
    {"art", "! [yolo] [region] [detection] [iseg]"},
    {"tag", "! [yolo] [region] [detection] [iseg]"},
    {"regressor", "! [yolo] [region] [detection] [iseg] [softmax]"},
    {"segmenter", NULL},
    {"isegmenter", NULL},
    {"super", NULL},
    {"cifar", NULL},
    {"go", NULL},
    {"rnn", NULL},
};

static void check_last(struct amp_darknet_checks *c, const char *allowed)
{
    const struct amp_darknet_command *d = c->line->command;
    const struct amp_layer_desc *l = &c->k.net->layers[c->k.net->n - 1];
    char name[40];
    snprintf(name, sizeof name, "[%s]", amp_layer_type_name(l->type));
    bool all_but = *allowed == '!';
    if (!strstr(allowed, name) == all_but) return;
    FAULT(c, "%s:%d: the last layer is %s; %s%s%s reads %s%s there", c->k.cfg->path, l->line, name,
          d->words[0], d->words[1] ? " " : "", d->words[1] ? d->words[1] : "",
          all_but ? "any but" : "one of ", allowed + all_but);
}

/* The generators of lsd show the first layer of three channels. */
static void check_picture(struct amp_darknet_checks *c)
{
    for (int i = 0; i < c->k.net->n; i++)
        if (c->k.net->layers[i].out_c == 3) return;
    FAULT(c, "%s: no layer makes an image of 3 channels, which is what lsd shows", c->k.cfg->path);
}

/* The filters of the first layer are what mkimg draws. */
static void check_filters(struct amp_darknet_checks *c)
{
    const struct amp_layer_desc *l = c->k.net->layers;
    if (l->type != AMP_CONVOLUTIONAL || l->c != 3)
        FAULT(c,
              "%s:%d: the first layer is %s of %d channels; mkimg draws the filters of a "
              "[convolutional] of 3",
              c->k.cfg->path, l->line, l->type_name, l->c);
}

static void check_head(struct amp_darknet_checks *c)
{
    const struct amp_darknet_command *d = c->line->command;
    const struct amp_layer_desc *l = &c->k.net->layers[c->k.net->n - 1];
    if (d->classes && (l->type != AMP_DETECTION || l->classes != d->classes))
        FAULT(c,
              "%s:%d: the last layer is %s with classes=%d; this command is for [detection] with "
              "classes=%d. For [yolo] and [region]: darknet detector",
              c->k.cfg->path, l->line, l->type_name, l->classes, d->classes);
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (strcmp(readers[i].group, d->words[0])) continue;
        if (readers[i].last)
            check_last(c, readers[i].last);
        else
            amp_checker_fits_trainer(&c->k, d->words[0], d->words[1]);
    }
    if (d->outputs > amp_net_outputs(c->k.net))
        FAULT(c, "%s: the network has %d outputs; needed: %d, of which this command reads some",
              c->k.cfg->path, amp_net_outputs(c->k.net), d->outputs);
    if (!strcmp(d->words[0], "lsd")) check_picture(c);
    if (!strcmp(d->words[0], "mkimg")) check_filters(c);
}

/* ---- all ---- */

void amp_darknet_check_net(struct amp_darknet_checks *c)
{
    check_inputs(c);
    check_head(c);
}
