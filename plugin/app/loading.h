/* How fast the images of a detector's training set load, and whether that keeps up with training:
 * `darknet amp profile CFG DATA`. */
#ifndef AMP_LOADING_H
#define AMP_LOADING_H

#include <stdbool.h>
#include <stdio.h>

#include "plugin/core/read/json.h"
#include "plugin/include/amp_observe.h"
#include "measuring.h"

struct load_args; /* Darknet's */
struct network;

/* Of an image that is left to Darknet, what its first bytes say. */
enum amp_load_kind { AMP_KIND_JPEG, AMP_KIND_PNG, AMP_KIND_BMP, AMP_KIND_OTHER, AMP_LOAD_KINDS };

struct amp_loading {
    const char *data;
    int width, height;             /* of the network's input */
    bool random_size;              /* training changes it: it is the cfg's */
    bool by_fork;                  /* AlexeyAB's rules: Darknet has no way to load them */
    const char *mixing;            /* key that makes half of the images of several; NULL: none */
    int cache;                     /* MiB of amp_image_cache, where it is used; 0: none */
    int listed, images;            /* images of the training list; that were loaded */
    double darknet;                /* seconds that an image takes one core, mean of the images;
                                      NaN: by_fork */
    double stages[AMP_LOAD_PARTS]; /* the same, ours; their sum is the whole */
    int left[AMP_LOAD_KINDS];      /* images that are left to Darknet */
    double batch;           /* seconds in which `threads` load step_images by the cfg's way */
    enum amp_loader loader; /* the cfg's */
    int cores, threads;     /* that this process may use; that load a batch */
    bool threads_given;     /* by amp_loader_threads */
    const struct amp_machine *machine; /* that trains */
    const char *precision;             /* word for amp_dtype */
    int step_images;                   /* of an iteration */
    double step;                       /* seconds of an iteration's passes */
    int passes;                        /* that were timed */
};

/* ==== loading.c: measures ==== */

enum { AMP_LOAD_ROUNDS = 3 };

/* Loads images of the list in a (a->paths, a->m), chosen evenly, as training of this network does,
 * by both ways in turns unless by_fork, then a batch of step_images, and fills in listed, images,
 * darknet, stages, left and batch. An image that cannot be decoded is named and left out. An
 * image's time is the median of AMP_LOAD_ROUNDS, of this thread's time on a core; a batch's is the
 * clock's. The calling thread must train the network. 0, or -1 with text in err. */
int amp_loading_measure(struct amp_loading *, const struct network *, const struct load_args *a,
                        FILE *progress, char *err, size_t err_size);

/* ==== loading_report.c: says what it means. Pure C ==== */

/* Seconds that an image takes one core by our own way. */
double amp_loading_ours(const struct amp_loading *);
/* Cores that load as many images as training takes, if one image takes them `seconds`. */
double amp_loading_cores(const struct amp_loading *, double seconds);
/* Whether the threads that load keep up, by the cfg's way. */
bool amp_loading_keeps_up(const struct amp_loading *);

void amp_loading_print(const struct amp_loading *, FILE *);
/* A JSON object under this key. */
void amp_loading_write_json(const struct amp_loading *, struct amp_json *, const char *key);

#endif
