/* Decides how the best weights of a training are kept: a weights file, and a record of how good
 * they are, which names it by its hash. It must not know how they were measured. */
#define _GNU_SOURCE
#include "evaluation.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils.h"

#include "plugin/core/files/file.h"
#include "plugin/core/read/lines.h"

void amp_best_name(struct amp_best *b, const struct amp_measure *measure, const char *folder,
                   const char *cfg_path)
{
    char *base = basecfg((char *)cfg_path);
    b->measure = measure;
    snprintf(b->weights, sizeof b->weights, "%s/%s_best.weights", folder, base);
    snprintf(b->record, sizeof b->record, "%s/%s_best.json", folder, base);
    free(base);
}

/* ---- the record ---- */

/* The two files are written one after the other, and a program may be killed in between: so the
 * record has the hash of what is on the disk. Its own layout alone is read. 0 if it is there and
 * belongs to these weights. */
static int read_record(struct amp_best *b, const struct amp_file_id *weights)
{
    struct amp_evaluation e = {0};
    uint64_t hash = 0;
    FILE *f = fopen(b->record, "r");
    if (!f) return -1;
    bool found = fscanf(f, "{\"iteration\": %lu", &e.iteration) == 1;
    for (int i = 0; found && i < AMP_FIGURES && b->measure->figures[i]; i++) {
        char format[60];
        snprintf(format, sizeof format, ", \"%s\": %%lf", b->measure->figures[i]);
        found = fscanf(f, format, &e.values[i]) == 1;
    }
    found = found && fscanf(f, ", \"weights\": \"%" SCNx64, &hash) == 1 && hash == weights->hash;
    fclose(f);
    if (found) b->evaluation = e;
    return found ? 0 : -1;
}

struct record {
    const struct amp_best *best;
    struct amp_file_id weights;
};

static int print_record(FILE *f, const void *user)
{
    const struct record *r = user;
    const struct amp_best *b = r->best;
    fprintf(f, "{\"iteration\": %lu", b->evaluation.iteration);
    for (int i = 0; i < AMP_FIGURES && b->measure->figures[i]; i++)
        fprintf(f, ", \"%s\": %.9g", b->measure->figures[i], b->evaluation.values[i]);
    fprintf(f, ", \"weights\": \"%016" PRIx64 "\"}\n", r->weights.hash);
    return 0;
}

/* After the weights. */
static int write_record(const struct amp_best *b, char *err, size_t err_size)
{
    struct record r = {.best = b};
    return amp_file_identify(b->weights, &r.weights, err, err_size) ||
                   amp_whole_print(b->record, print_record, &r, err, err_size) ||
                   amp_folder_flush(b->record, err, err_size)
               ? -1
               : 0;
}

/* ---- the weights ---- */

int amp_best_find(struct amp_best *b)
{
    char err[3 * PATH_MAX];
    struct amp_file_id id;
    if (amp_file_unreadable(b->weights) || amp_file_identify(b->weights, &id, err, sizeof err))
        return 0;
    if (id.bytes != b->bytes) {
        fprintf(stderr, "darknet-amp: %s is another network's; the best is looked for anew\n",
                b->weights);
        return 0;
    }
    return read_record(b, &id) ? -1 : 1;
}

/* A record that is equalled is not replaced. */
bool amp_best_is_beaten(const struct amp_best *b, const struct amp_evaluation *by)
{
    return isnan(b->evaluation.values[0]) || by->values[0] > b->evaluation.values[0];
}

bool amp_best_keep(struct amp_best *b, network *trained, bool averaged,
                   const struct amp_evaluation *e)
{
    char err[3 * PATH_MAX];
    struct amp_evaluation before = b->evaluation;
    b->evaluation = *e;
    int failed = averaged ? amp_save_averages(trained, b->weights, err, sizeof err)
                          : amp_save_whole(trained, b->weights, b->bytes, err, sizeof err);
    if (!failed && !write_record(b, err, sizeof err)) return true;
    fprintf(stderr, "darknet-amp: the best weights are not kept: %s\n", err);
    b->evaluation = before;
    return false;
}
