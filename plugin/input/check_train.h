/* Finds everything that can be wrong with a training before it starts: nothing is trained, created
 * or overwritten.
 *
 * check_train_inputs.c looks, for `detector train`, at the cfg, options and shapes; at what Darknet
 * would crash on in the network (check_train_net.c); at the heads' classes against the data file
 * and its names; at the weights file's size and its `seen` against max_batches; at the backup
 * folder (a save must fit); and at every image and label file of the training list. Keys that the
 * data file leaves out have Darknet's defaults (data/train.list, /backup/), and all paths count
 * from the working folder, as in Darknet. */
#ifndef AMP_CHECK_TRAIN_H
#define AMP_CHECK_TRAIN_H

#include "labels.h"
#include "plugin/core/net/net.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct amp_trainer_inputs {
    const char *data;    /* of detector, classifier, regressor, segmenter, isegmenter; else NULL */
    const char *cfg;     /* NULL: only the data file and what it names are looked at */
    const char *weights; /* NULL or "": none */
    const char *text;    /* what rnn and go train on; else NULL */
    const char *folder;  /* where trainers without a data file save */
    bool clear, tokenized;
    bool on_gpu;   /* Darknet's code for GPUs will run */
    bool measures; /* a detector or classifier is measured on valid= */
};

/* 0, or -1 with every fault on a line of its own in err; 64 KiB hold all but reports of very long
 * paths. progress (may be NULL): progress lines, and which layers a weights file that ends between
 * layers fills. warn (may be NULL): what is odd but allowed. */
int amp_check_train_inputs(const struct amp_trainer_inputs *, FILE *progress, FILE *warn, char *err,
                           size_t err_size);

/* ---- Darknet's other trainers ----
 *
 * check_trainers.c looks, for the trainer of `darknet NAME train`, at the same as above, and at
 * what that trainer loads: numbers of an image and of its truths against the network's, labels in
 * the images' paths, files of tags, values or masks, texts. */

/* trainer: classifier, regressor, segmenter, isegmenter, yolo, coco, tag, super, cifar, go or rnn.
 * The rest is as above. */
int amp_check_trainer_inputs(const char *trainer, const struct amp_trainer_inputs *, FILE *progress,
                             FILE *warn, char *err, size_t err_size);

/* Prints the faults in err, "error: " before each. err is used up by it. */
void amp_print_faults(char *err, FILE *);

/* ---- faults in a network that can be built ----
 * Darknet's `detector train` would crash on them, read or write out of bounds, or end with
 * status 0. */

/* Tells every fault with file and line: heads and their max, coords, classes, jitter, tree and map
 * files; losses that want other truths than the last layer's; truth=; channels; max_batches;
 * colours that divide by zero; random=1 with a layer that cannot take the sizes that are drawn
 * then; without mixed precision, a layer that writes its input's gradient where there is none and,
 * unless on a GPU, one that Darknet's CPU code crashes on. */
void amp_train_net_check(const struct amp_cfg_file *, const struct amp_net_desc *, bool mixed,
                         bool on_gpu, amp_tell *, void *context);
/* Tells the faults that any trainer has: tree and map files, and without mixed precision what
 * crashes Darknet's own training. */
void amp_train_any_check(const struct amp_cfg_file *, const struct amp_net_desc *, bool mixed,
                         bool on_gpu, amp_tell *, void *context);
/* For a classifier with random=1 under [net], of which squares of least, least + 32 .. most are
 * drawn: a layer that cannot be resized, and sizes at which the network is not possible. */
void amp_train_resizing_check(const struct amp_cfg_file *, const struct amp_net_desc *, int least,
                              int most, amp_tell *, void *context);
/* Tells only those faults that crash Darknet's own training of any network. */
void amp_train_stock_check(const struct amp_cfg_file *, const struct amp_net_desc *, bool on_gpu,
                           amp_tell *, void *context);

/* ---- what trains otherwise than the cfg lets one expect (check_train_odd.c) ---- */

/* A warning for each: random=1, which trains at other sizes than the cfg's; batch-norm over single
 * images or single values; anchors of [region] in pixels,
 * anchors that are missing, that two heads have, or none. */
void amp_train_odd_tell(const struct amp_cfg_file *, const struct amp_net_desc *, FILE *warn);

#endif
