/* For programs that look into a pass of an attached network, as `darknet amp check` does. */
#ifndef AMP_OBSERVE_H
#define AMP_OBSERVE_H

#include <stddef.h>

#include "amp.h"

enum amp_seen_what {
    AMP_SEEN_OUT,      /* a layer's output, when it has run */
    AMP_SEEN_DELTA,    /* the gradient of its output, times the loss scale, before it is used */
    AMP_SEEN_GRADIENT, /* the gradient of its weights in this pass, times the loss scale */
    AMP_SEEN
};

struct amp_plan;

struct amp_seen {
    int layer;
    enum amp_seen_what what;
    const char *format;  /* its storage: "fp32", "fp16" or "bf16" */
    const float *values; /* in Darknet's order (NCHW; weights as in l.weights), on the host */
    size_t n;
};
typedef void amp_see_function(const struct amp_seen *, void *user);

struct amp_pass {
    int clean;    /* 0: something was not finite; do not use the gradients */
    double scale; /* loss scale of the gradients */
    int redone;   /* backward passes repeated with a smaller scale */
    /* If not clean: */
    int layer, left_fp16; /* left_fp16: the layer uses FP32 from now on, so try again */
    int gradient;         /* a gradient overflows at every allowed loss scale */
    const char *tensor;
    double magnitude;
};

/* Runs one forward and backward pass on net->input and net->truth, without an update and without a
 * trace in the weights and running statistics. see (may be NULL) is called for every layer, and
 * again if a backward pass is redone. The pass prints nothing of what training prints, except
 * Darknet's statistics, and takes up no sidecar. With a seed, passes of networks of the same cfg
 * draw the same numbers if *net->seen is the same. The network must be attached and have
 * subdivisions=1. If FP32 arithmetic itself, weights or running statistics are not finite, the pass
 * is not clean, neither left_fp16 nor gradient is set, and nothing helps. */
AMP_API void amp_pass(struct network *, amp_see_function *see, void *user, struct amp_pass *);

/* Whether what a network has just made of its input is finite: its heads and its last layer, and
 * every layer where Darknet computes on the CPU. 0, or -1 with text in err that names the first
 * layer that is not. */
AMP_API int amp_outputs_check(const struct network *, char *err, size_t err_size);
/* From now on network_predict, and a backward pass that does not train, end the program with status
 * 1 and that text. */
AMP_API void amp_refuse_bad_outputs(void);

/* From now on what is trained is for measuring only: signals end the program as without the plugin,
 * no run is named diverged, and nothing is printed of what training prints, except Darknet's
 * statistics. The network must be attached. */
AMP_API void amp_train_unkept(struct network *);
/* Loss of the last iteration, per image as Darknet prints it; NaN if a value in it was not finite,
 * and the step skipped for that. The network must be attached. */
AMP_API double amp_last_loss(const struct network *);

/* A layer is about to run (done 0) or has run (1), its forward or its backward part. On a device,
 * run means: queued, with everything before it. */
typedef void amp_layer_function(int layer, int backward, int done, void *user);

/* From now on call is called before and after every layer of every pass of an attached network;
 * again if a backward pass is redone. Layers that would run in one go (on a device, recorded) then
 * run one by one. Training prints nothing meanwhile. NULL ends the calls. */
AMP_API void amp_watch_layers(struct network *, amp_layer_function *call, void *user);

/* act is called once if the plugin ends the program at once: after a signal, at a fault, where a
 * run has diverged. It comes on any thread, and what atexit has is not called then. */
AMP_API void amp_on_end(void (*act)(void));

/* The plan of an attached network (plugin/core/plan/plan.h): what runs where. Valid until its next
 * pass. */
AMP_API const struct amp_plan *amp_plan_in_use(const struct network *);

/* Whether the layer has left FP16 since the network was attached. */
AMP_API int amp_left_fp16(const struct network *, int layer);

/* From its next pass on a network computes in the dtype of another of the same cfg: amp_dtype=auto
 * may have chosen differently, since a resumed run keeps what it began with. */
AMP_API void amp_follow_dtype(struct network *, const struct network *other);

/* Of several processes that train one network: which one this is, and how many there are; 0 of 1
 * before they have found each other, which they do when a network is made. */
AMP_API int amp_process(int *processes);
/* Brings arrays of all processes together: process 0 gets them, in the order of the processes, in
 * place of its own; the others keep theirs. All call it at the same place. rows: of malloc, or NULL
 * with bytes 0. Returns 1 on all if one of them has failed, or process 0 has no memory; rows are
 * then as they were. */
AMP_API int amp_processes_collect(void **rows, size_t *bytes, int failed);
/* Ends the training that is at this iteration, as max_batches would. Of several processes all call
 * it. */
AMP_API void amp_end_training(struct network *, size_t iteration);

struct load_args;

/* True if an attached network wants pictures stretched to its size, where Darknet keeps their
 * aspect. */
AMP_API int amp_stretches(const struct network *);

/* True if mAP of an attached network is measured as AlexeyAB's Darknet does: boxes are suppressed
 * as fractions of the picture, where `detector valid` has pixels, so that their distance differs;
 * and resize_image is followed in the last row too. */
AMP_API int amp_maps_as_fork(const struct network *);

/* The parts of loading an image. */
enum amp_load_part {
    AMP_LOAD_READ,    /* the file */
    AMP_LOAD_DECODE,  /* its pixels */
    AMP_LOAD_PLACE,   /* into the network's input, distorted and mirrored */
    AMP_LOAD_LABELS,  /* read, and moved with it */
    AMP_LOAD_DARKNET, /* all of it by Darknet's code; by AlexeyAB's rules: the pixels of a file that
                         is decoded by it */
    AMP_LOAD_PARTS
};
typedef void amp_load_function(enum amp_load_part done, void *user);

/* Loads one row of a batch, drawn from a list of images of DETECTION_DATA or CLASSIFICATION_DATA,
 * as training of this network does with amp_loader=fast, or if `fast` is 0 with
 * amp_loader=darknet; of AlexeyAB's rules there is one way. Without amp_image_cache. Calls done
 * after each part, of each image of a mosaic or mixup. Returns 0 if an image cannot be decoded:
 * then it has been named and counted as in training, and nothing is loaded. The network must be
 * attached. */
AMP_API int amp_load_image(const struct network *, int fast, const struct load_args *,
                           amp_load_function *done, void *user);

/* The file of image k of the batch that this thread has loaded and not yet freed, as it is in the
 * list; of a mosaic or mixup the first. NULL: there is none. */
AMP_API const char *amp_loaded_image(int k);

/* Names a JPEG that is cut off, or of which libjpeg said something ("": nothing), once in a run.
 * Whoever loads images through Darknet need not ask: the plugin does, where bad images are refused.
 */
AMP_API void amp_image_tell_damage(const char *path, const char *said);

struct ampk_backend;

/* The backend (kernels/kernels.h) of a device, or of the host. It is for asking what it has code
 * for and what things take, not for computing. */
AMP_API const struct ampk_backend *amp_backend_on(int device);

/* Whether this CPU multiplies BF16, so that amp_dtype=auto chooses it there. */
AMP_API int amp_multiplies_bf16(void);

#endif
