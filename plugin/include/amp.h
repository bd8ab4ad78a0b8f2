/* Public C interface of the plugin (libdarknet_amp.so). */
#ifndef AMP_H
#define AMP_H

#ifdef __cplusplus
extern "C" {
#endif

#define AMP_API __attribute__((visibility("default")))

struct network;

/* Threads. Each network belongs to one thread at a time: all calls for it, Darknet's own too, come
 * from the thread that parsed it or are ordered by the program. Different networks may be parsed,
 * attached, trained, evaluated, resized, saved, detached and freed in different threads at the same
 * time; each gives what it gives alone, byte for byte where nothing is drawn from libc's rand,
 * which all threads share. With seed=N nothing is, as long as a network is parsed, trained and
 * freed by one thread; other networks may come and go on it while a batch is in hand. exit and
 * quick_exit wait for the calls below and for layers at work, and what begins later stays there for
 * good. */

/* Attaches to a network that was parsed from the cfg while the plugin could not intercept the call
 * (parse_network_cfg in a program that binds to Darknet itself). Returns 1 where it is attached, 0
 * where the cfg does not ask for mixed precision or the network is attached already. Ends the
 * program with a message where a key of ours is wrong. */
AMP_API int amp_attach(struct network *net, const char *cfg_path);

/* Puts Darknet's own function pointers back and frees what belongs to the network. Gradients of a
 * step that is not finished go to Darknet, which finishes it. 1, or 0 where it was not attached.
 * free_network does this by itself. */
AMP_API int amp_detach(struct network *net);

/* Darknet's save_weights and load_weights as the plugin replaces them, for a program whose own
 * calls of these do not pass through it (a function looked up with dlsym or ctypes). For a network
 * with mixed_precision=1: files that are written whole or not at all, and training that goes on
 * from the sidecar beside them (amp_sidecar). For any other network: Darknet's own. */
AMP_API void amp_save_weights(struct network *net, const char *path);
AMP_API void amp_load_weights(struct network *net, const char *path);

/* Whether an image that cannot be decoded ends the program with status 1 and its name (1), or is
 * noted and replaced by a black image of 10x10, as Darknet does it (0). Never called: 1 while a
 * network with a key of ours is trained, else 0. For all threads. */
AMP_API void amp_refuse_bad_images(int on);

/* Calls back after every iteration of a training loop that trains with train_network and frees its
 * batches with free_data, as Darknet's do: on the thread that trains, when Darknet has printed and
 * saved what it wants to. loss: as Darknet prints it. NULL: no longer. For one caller in a process.
 * With train_networks: on the thread that calls it, with the first network, whose weights are the
 * average only after every fourth iteration. */
typedef void amp_iteration_function(struct network *, float loss, void *user);
AMP_API void amp_on_iteration(amp_iteration_function *, void *user);

/* The loss scale of a network with mixed_precision=1, 0 of any other. */
AMP_API double amp_loss_scale(const struct network *);

/* Average precision of a network in training, 0..1, NaN where it is not defined. */
struct amp_evaluation {
    unsigned long iteration;
    double map50, map75, map; /* VOC rule at IoU 0.5, at 0.75; COCO's mAP@[.5:.95] */
    double seconds;           /* that it took; not counted as training time */
};
/* Adds it to the network's amp_log, if it has one. */
AMP_API void amp_log_evaluation(const struct network *, const struct amp_evaluation *);

/* Saves the weights to a file that is written whole or not at all, with mixed_precision=1 its
 * sidecar too (amp_sidecar). bytes: what Darknet writes for this network. 0, or -1 with text in
 * err: an older file is then as it was. */
AMP_API int amp_save_whole(struct network *, const char *path, unsigned long long bytes, char *err,
                           unsigned long err_size);

/* How many networks the plugin has been attached to in this process, detached ones included. */
AMP_API int amp_attach_count(void);

#ifdef __cplusplus
}
#endif
#endif
