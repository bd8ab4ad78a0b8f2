/* For the files of this folder that check the inputs of a training: what one check collects, and
 * the parts that all trainers have.
 *
 * check_train_inputs.c (the detector) and check_trainers.c (all others) over checker.c,
 * check_saves.c and check_texts.c. */
#ifndef AMP_CHECKER_H
#define AMP_CHECKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "plugin/core/net/net.h"
#include "plugin/core/read/cfg.h"
#include "plugin/core/read/options.h"

struct amp_checker {
    struct amp_cfg_file *data, *cfg; /* NULL: cannot be read, or none is looked at */
    struct amp_net_desc *net;        /* NULL without a valid cfg */
    struct amp_options options;      /* the cfg's */
    FILE *progress, *warn;           /* NULL: silence */
    char *err;
    size_t err_size, err_used;
    bool infers; /* nothing is trained: no log is written */
    bool half;   /* as the word -half has it */
    bool failed;
};

/* ---- checker.c ---- */

/* Adds a fault. The first is an amp_tell, whose context is a checker. */
void amp_checker_tell(void *checker, const char *message);
void amp_checker_fault(struct amp_checker *, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Reads both files and tells the faults of both. NULL for none. */
void amp_checker_read(struct amp_checker *, const char *data, const char *cfg);
/* Keys of the data file that nobody knows, that are given twice, and values with blanks inside. */
void amp_checker_data_keys(struct amp_checker *);
/* Words for the end of a message if the entry's value holds a remark, else "". */
const char *amp_checker_remark(const struct amp_cfg_entry *);
/* Words for the end of a message about the value of a key of the data file: that it is Darknet's
 * default, holds a remark, or why such a name is not found; else "". The text holds until the next
 * call. */
const char *amp_checker_explain(const struct amp_cfg_file *data, const char *key);
/* The data file's classes; 0: it has none, or a bad value, which is told. */
int amp_checker_classes(struct amp_checker *);
/* Words for the end of a message about a text of which this line ends in a carriage return. */
#define AMP_LINE_RETURNS                                                                           \
    "ends in a carriage return (Windows line end), which Darknet takes for a part of the name: "   \
    "sed -i 's/\\r$//' %s"
/* Looks for line ends of Windows in a text. With mixed_precision=1 Darknet reads it without them
 * (amp_cut_line_ends), which is noted; else they are a fault, or where they do little a warning. */
void amp_checker_line_ends(struct amp_checker *, const char *path, bool harmless);
/* Number of lines up to the last that is not empty: an empty line in between is a class without a
 * name. -1 with the reason in why: the file cannot be read. */
int amp_checker_count_lines(const char *path, const char **why);

/* Frees what was read. 0, or -1 if there was a fault. */
int amp_checker_end(struct amp_checker *);

/* ---- check_trainers.c ---- */

/* Whether a command of a trainer's group, as `go test`, can run the network: it must take as many
 * inputs, and have as many outputs, as those that the trainer trains. */
void amp_checker_fits_trainer(struct amp_checker *, const char *trainer, const char *command);

/* ---- check_texts.c ---- */

/* The text that rnn trains on, of bytes or of whole numbers. */
void amp_checker_text(struct amp_checker *, const char *path, bool tokenized);
/* The moves of go. */
void amp_checker_moves(struct amp_checker *, const char *path);

/* ---- check_saves.c ---- */

/* The weights file that training starts from. */
void amp_checker_weights(struct amp_checker *, const char *path, bool clear);
/* Whether a save fits into the folder. explanation: words for the end of a message about it. */
void amp_checker_folder(struct amp_checker *, const char *folder, const char *explanation);

#endif
