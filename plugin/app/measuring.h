/* What the commands that measure share: the CPU or GPU, versions of the libraries that compute on
 * it, and networks made from a changed copy of the user's cfg. */
#ifndef AMP_MEASURING_H
#define AMP_MEASURING_H

#include <stdbool.h>

#include "plugin/core/net/net.h"
#include "plugin/core/read/options.h"

struct network; /* Darknet's */

/* ---- the machine ---- */

struct amp_machine {
    const char *backend; /* "cpu" or "cuda" */
    char device[256];    /* the GPU's name; "": the CPU */
    int threads;         /* of OpenMP, for work on the CPU */
    struct {
        const char *name; /* "oneDNN", "CUDA runtime" ... */
        char number[32];
    } versions[4];
    int n_versions;
};

/* gpu: the number after -i, or -1. Sets Darknet's gpu_index as its main does. If there is no such
 * GPU, gpu_index may be -1 afterwards. */
void amp_machine_choose(int gpu);

/* 0 in a build for CPUs. */
int amp_gpus_there(void);

/* gpu: the device's number, below 0 for the CPU. */
void amp_machine_look(struct amp_machine *, int gpu);

/* amp_options_settle_dtype for this machine: for its GPUs, unless gpu is below 0 or there is
 * none. */
void amp_machine_settle_dtype(struct amp_options *, int gpu);
/* The backend of a training there; for what amp_backend_on is for. */
const struct ampk_backend *amp_machine_backend(const struct amp_options *, int gpu);

/* ---- what the user gave, and what is said of it: errors go to stderr ---- */

/* Prints "error: WHAT" and returns -1. */
int amp_complain(const char *what);
/* Whether a file that an option names (NULL: not given) can be written, and is not there without
 * this mark (amp_whole_try_marked): 0, or -1 after saying why not. */
int amp_output_try(const char *option, const char *path, const char *mark);
/* Whether two options (NULL: not given) name two files. The same. */
int amp_outputs_differ(const char *option, const char *path, const char *other, const char *its);
/* Whether all of the result reached standard output: 0, or -1 after saying why not. */
int amp_result_flush(void);

/* Whether detector train, or of a network without a head classifier train, would begin with these
 * (weights may be NULL), with measures also whether it could be measured on the valid= list, if
 * there is one and images have one class each: 0, or -1 after naming all faults. The count of
 * images seen is no reason to refuse. cfg NULL: the data file alone is looked at. Choose the
 * machine before. */
int amp_inputs_check(const char *data, const char *cfg, const char *weights, bool measures);
/* Which of the two. Without a cfg labels= of the data file tells, which detectors do not have. */
bool amp_is_classifier(const char *data, const char *cfg);

/* A net as training would have it, but with mixed_precision=1 whatever the cfg says;
 * options.mixed_precision is the cfg's. */
struct amp_measured {
    struct amp_cfg_file *cfg;
    struct amp_options options; /* with a settled dtype */
    struct amp_net_desc *net;   /* with settled subdivisions */
};

/* 0, or -1 after saying why not; free it in both cases. */
int amp_measured_read(struct amp_measured *, const char *path, int gpu);
void amp_measured_free(struct amp_measured *);

/* True if the cfg has mixed_precision=1. NULL, or one that cannot be read, which is refused later
 * with its reason: false. */
bool amp_trains_mixed(const char *cfg);
/* Reads the options as if the cfg had mixed_precision=1, and prints their notes on stderr, which
 * training would print, too. options->mixed_precision says what the cfg has. The cfg is left as it
 * was. 0, or -1 with text in err. */
int amp_mixed_options_read(struct amp_cfg_file *, struct amp_options *, char *err, size_t err_size);

/* Says on stderr that the cfg does not have mixed_precision=1, and then what this means. */
void amp_mixed_tell_off(const struct amp_cfg_file *, const char *meaning);

/* For subdivisions=auto: sets the net's batch and subdivisions as training would, and says so. The
 * options' dtype is settled. 0, or -1 with text in err. */
int amp_machine_settle_pass(struct amp_net_desc *, const struct amp_cfg_file *,
                            const struct amp_options *, int gpu, char *err, size_t err_size);

/* Says so on stderr where a limit of address space (ulimit -v) is below what a training of this cfg
 * is predicted to take in each of so many processes. */
void amp_machine_report_limit(const char *cfg, int gpu, int processes);

/* ---- a network for measuring: the user's cfg with some keys changed ---- */

/* Darknet builds it and lists its layers on stderr below the line "what". weights NULL: random
 * ones. NULL after a message on stderr. */
struct network *amp_variant_load(const char *what, const struct amp_cfg_file *,
                                 const struct amp_cfg_key *, int n, const char *weights);

struct load_args;

/* How detector train, or of a network without a head classifier train, loads images of the data
 * file's training list for a pass of this network. The paths are read now. Set d and threads, or
 * more images, before loading. */
void amp_training_args(const struct network *, const char *data, struct load_args *);

/* Between these two calls nothing reaches standard output: Darknet's heads print a line in every
 * pass, and the command's result must stand alone. begin returns the argument of end; -1: stdout
 * stays open. */
int amp_quiet_begin(void);
void amp_quiet_end(int kept);

#endif
