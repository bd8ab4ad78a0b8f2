/* Public C interface of the plugin (libdarknet_amp.so). */
#ifndef AMP_H
#define AMP_H

#ifdef __cplusplus
extern "C" {
#endif

#define AMP_API __attribute__((visibility("default")))

struct network;

/* Threads. Each network belongs to one thread at a time: all calls for it, Darknet's own too, come
 * from the thread that parsed it, or the program orders them. Different threads may parse, attach,
 * train, evaluate, resize, save, detach and free different networks at the same time. Each network
 * then gives the same results as alone, byte for byte, unless it draws from libc's rand, which all
 * threads share. With seed=N nothing draws from it, as long as one thread parses, trains and frees
 * the network; other networks may come and go on that thread while a batch is in hand. exit and
 * quick_exit wait for the calls below and for layers at work; a call that begins later never
 * returns. */

/* Attaches to a network that was parsed from the cfg while the plugin could not intercept the call
 * (parse_network_cfg in a program that binds to Darknet itself). Returns 1 if it attached; 0 if the
 * cfg does not ask for mixed precision or the network is attached already. Ends the program with a
 * message if a key of ours is wrong. */
AMP_API int amp_attach(struct network *net, const char *cfg_path);

/* Puts Darknet's own function pointers back and frees everything that belongs to the network.
 * Darknet gets the gradients of an unfinished step and finishes it. 1, or 0 if the network was not
 * attached. free_network does this by itself. */
AMP_API int amp_detach(struct network *net);

/* The plugin's save_weights and load_weights, for a program whose own calls do not pass through the
 * plugin (a function looked up with dlsym or ctypes). For a network with mixed_precision=1, files
 * are written whole or not at all, and training goes on from the sidecar beside them (amp_sidecar).
 * While the thread holds a batch of load_data, as Darknet's trainers do, backups and numbered files
 * may be in place only some time after the call: loading, the next save, exit and quick_exit wait
 * for them. For any other network they are Darknet's own. */
AMP_API void amp_save_weights(struct network *net, const char *path);
AMP_API void amp_load_weights(struct network *net, const char *path);

/* Promises that from now on this program writes to weights only through load_weights and training,
 * or calls amp_weights_written after it. Then each inference uses the rounded weights of the one
 * before, instead of making them from the FP32 weights anew. Holds for networks on the CPU; on a
 * GPU the plugin sees what Darknet writes. */
AMP_API void amp_promise_to_tell(void);
AMP_API void amp_weights_written(struct network *net);

/* What happens to an image that cannot be decoded. 1: the program ends with status 1 and names the
 * image. 0: as in Darknet, the image is noted and replaced by a black one of 10x10. Without a call:
 * 1 while a network with a key of ours is trained, else 0. Holds for all threads. With 1, a missing
 * file at which Darknet ends the program ends it with status 1 and the reason, in place of 0. */
AMP_API void amp_refuse_bad_images(int on);

/* From now on Darknet reads texts with the line ends of Windows as if they had those of Unix: cfgs,
 * data files, lists, names. A network with mixed_precision=1 asks for it when it is parsed; a
 * program that reads its data file before that calls it first. */
AMP_API void amp_cut_line_ends(void);

/* Whether windows can be shown: the environment names a display. */
AMP_API int amp_has_display(void);

/* Some of Darknet's trainers save to a folder of its author, /home/pjreddie/backup/. What they save
 * there is saved in this folder instead, and signals save there too. */
AMP_API void amp_save_to(const char *folder);

/* From now on a network without mixed_precision=1 obeys signals as one with it does: the iteration
 * is finished, the weights are saved, and the program ends. For programs that train one network at
 * a time, on one thread. Call it before the network is parsed. */
AMP_API void amp_obey_signals(void);

/* Calls back after every iteration of a training loop that trains with train_network and frees its
 * batches with free_data, as Darknet's do. The call comes on the thread that trains, after Darknet
 * has printed and saved. loss: as Darknet prints it, or NaN: it is lost (a value in
 * it was not finite), and Darknet was given its average. NULL ends the calls. A process has one
 * such callback. With train_networks, the call comes on the thread that calls train_networks, with
 * the first network; its weights are the average only after every fourth iteration. */
typedef void amp_iteration_function(struct network *, float loss, void *user);
AMP_API void amp_on_iteration(amp_iteration_function *, void *user);

/* The loss scale of a network with mixed_precision=1; 0 for any other network. */
AMP_API double amp_loss_scale(const struct network *);

/* A number of a measurement, as "map50", 0..1; NaN: it is not defined. */
struct amp_figure {
    const char *name;
    double value;
};
struct amp_class_figure {
    const char *class_name;
    struct amp_figure figure;
};
/* Adds a measurement of the network in training to its amp_log, if it has one. seconds: that it
 * took; they are not counted as training time. */
AMP_API void amp_log_evaluation(const struct network *, unsigned long iteration, double seconds,
                                const struct amp_figure *, int n, const struct amp_class_figure *,
                                int n_classes);

/* Saves the weights to a file that is written whole or not at all; with mixed_precision=1 also its
 * sidecar (amp_sidecar). bytes: size that Darknet writes for this network. 0, or -1 with text in
 * err: an older file is then unchanged. */
AMP_API int amp_save_whole(struct network *, const char *path, unsigned long long bytes, char *err,
                           unsigned long err_size);

/* The same for the moving average of a network with ema_alpha, without a sidecar. */
AMP_API int amp_save_averages(struct network *, const char *path, char *err,
                              unsigned long err_size);
/* Copies the moving average of weights and running statistics into another network of the same
 * layers, attached too. 1; 0 if the network has none, and nothing is copied. */
AMP_API int amp_copy_averages(struct network *to, const struct network *from);

/* How many networks the plugin has been attached to in this process, detached ones included. */
AMP_API int amp_attach_count(void);

#ifdef __cplusplus
}
#endif
#endif
