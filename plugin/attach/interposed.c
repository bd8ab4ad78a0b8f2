/* Every function of Darknet and of the C library that the plugin replaces. All of Darknet's entries
 * into the plugin are here, except the layers' hooks (hooks.c). Each says why it is replaced, finds
 * the session or thread that a call means, and calls what decides. Only what is too small for a
 * file is decided here: keys that Darknet does not know, lists, and networks trained by several
 * threads.
 *
 * Where a session is concerned, exit waits until the call has returned (ending.h). */

#include "interposed.h"

#include <math.h>

#include "amp.h"
#include "attach.h"
#include "boxes.h"
#include "plugin/attach/feed/batches.h"
#include "device.h"
#include "device_memory.h"
#include "ending.h"
#include "fail.h"
#include "no_memory.h"
#include "hooks.h"
#include "plugin/attach/feed/images.h"
#include "plugin/attach/feed/iterations.h"
#include "letters.h"
#include "native.h"
#include "outputs.h"
#include "products.h"
#include "plugin/attach/run/ranks.h"
#include "rate.h"
#include "plugin/attach/run/run.h"
#include "plugin/attach/run/save.h"
#include "plugin/attach/run/stock.h"
#include "plugin/attach/feed/seed.h"
#include "session.h"
#include "windows.h"
#include "plugin/attach/feed/staging.h"

#include "activations.h"
#include "connected_layer.h"
#include "convolutional_layer.h"
#include "darknet.h"
#include "option_list.h"
#include "parser.h"
#include "utils.h"
#include "yolo_layer.h"
#ifdef GPU
#include "blas.h"
#include "cuda.h"
#endif

/* ---- networks ---- */

/* Called for every network; the place where a cfg's keys take effect. */
AMP_INTERPOSE(network *, parse_network_cfg, (char *filename))
{
    amp_ending_enter();
    network *net = amp_network_parse(filename);
    amp_stock_parsed(net, filename);
    amp_ending_leave();
    return net;
}

/* detector train resizes several networks at once, in OpenMP threads. */
AMP_INTERPOSE(int, resize_network, (network * net, int w, int h))
{
    amp_ending_enter();
    int result = amp_network_resize(net, w, h);
    amp_ending_leave();
    return result;
}

AMP_INTERPOSE(void, free_network, (network * net))
{
    amp_ending_enter();
    struct amp_session *s = amp_session_of(net->layers);
    int gpu = s ? amp_gpu_enter(s) : -1; /* our arrays are on the network's GPU */
    amp_network_detach(net);
    amp_stock_freed(net);
    AMP_REAL(free_network)(net);
    amp_gpu_leave(gpu);
    amp_ending_leave();
}

AMP_INTERPOSE(void, save_weights, (network * net, char *filename))
{
    char path[PATH_MAX];
    amp_ending_enter();
    const char *place = amp_run_place_of_save(filename, path);
    amp_save_weights(net, place);
    amp_stock_file(net, place);
    amp_ending_leave();
}

/* Darknet's own save_weights calls it, and some of Darknet's commands do so by themselves. */
AMP_INTERPOSE(void, save_weights_upto, (network * net, char *filename, int cutoff))
{
    amp_stock_save(net, filename, cutoff);
}

AMP_INTERPOSE(void, load_weights, (network * net, char *filename))
{
    amp_ending_enter();
    amp_load_weights(net, filename);
    amp_stock_file(net, filename);
    amp_ending_leave();
}

/* ---- options ---- */

/* Called after every layer of a cfg is made: Darknet prints the keys that nobody asked for. Ours
 * are marked as read. */
AMP_INTERPOSE(void, option_unused, (list * options))
{
    for (node *n = options->front; n; n = n->next) {
        kvp *pair = n->val;
        if (amp_option_is_key(pair->key)) pair->used = 1;
    }
    AMP_REAL(option_unused)(options);
    amp_memory_count_layer();
}

/* Darknet's trainers read their files with it, so its answers for some keys are noted. Its parser
 * reads the policy with it, and would complain about one of ours. */
AMP_INTERPOSE(char *, option_find_str, (list * options, char *key, char *def))
{
    char *value = AMP_REAL(option_find_str)(options, key, def);
    if (value && strcmp(key, "backup") == 0) amp_run_note_folder(value);
    if (value && strcmp(key, "train") == 0) amp_ranks_note_list(value);
    if (value && strcmp(key, "policy") == 0) return amp_rate_policy(options, value);
    return value;
}

/* ---- training ---- */

/* What the first layer's hook does otherwise (hooks.c): with several processes `seen` no longer
 * tells there how many images came before. */
static void take_up(struct amp_session *s)
{
    amp_run_watch(s);
    amp_session_resume(s, *s->net->seen);
}

/* One call is one iteration: all its subdivisions and the update. */
AMP_INTERPOSE(float, train_network, (network * net, data d))
{
    struct amp_session *s = amp_session_of(net->layers);
    amp_iteration_begins(net, d);
    amp_stock_begin(net);
    if (s && s->step.peers) take_up(s);
    amp_ranks_begin_step(s, net, d.X.rows);
    float loss = AMP_REAL(train_network)(net, d);
    loss = amp_ranks_end_step(s, net, loss);
    amp_iteration_trained(net, s && !isfinite(s->log.loss) ? NAN : loss);
    amp_stock_obey(net);
    return s ? amp_log_tell(&s->log, loss) : loss;
}

/* One pass. train_network calls it, and the trainers of texts and of CIFAR do so by themselves. */
AMP_INTERPOSE(float, train_network_datum, (network * net))
{
    bool alone = !amp_iteration_trains();
    if (alone) amp_stock_begin(net);
    float loss = AMP_REAL(train_network_datum)(net);
    if (alone) amp_stock_obey(net);
    return loss;
}

/* Trainers ask for the next batch between two steps, so a run can end here. Without this a signal
 * that comes after the last update would wait for a whole iteration. */
static void obey_a_signal(void)
{
    struct amp_session *s = amp_batches_session();
    if (s) amp_run_obey(s);
}

/* Called by Darknet's trainers for every batch. Replaced so that image k gets its own random
 * numbers and its name is known. */
AMP_INTERPOSE(pthread_t, load_data, (load_args args))
{
    obey_a_signal();
    return amp_batches_load(args);
}

AMP_INTERPOSE(pthread_t, load_data_in_thread, (load_args args))
{
    obey_a_signal();
    return amp_batches_load_in_thread(args);
}

/* train_network copies the images of each pass into net->input with it. Staged images do not pass
 * through there, so no columns of X are copied; the labels still are. */
AMP_INTERPOSE(void, get_next_batch, (data d, int n, int offset, float *X, float *y))
{
    const network *net = amp_iteration_trains();
    bool fits = net && X == net->input && d.X.cols == net->inputs;
    if (fits && amp_upload_take(X, d, n, offset)) d.X.cols = 0;
    AMP_REAL(get_next_batch)(d, n, offset, X, y);
}

/* A trainer frees a batch when it has trained on it, so this call also ends an iteration as seen
 * from outside. */
AMP_INTERPOSE(void, free_data, (data d))
{
    amp_batches_drop(d);
    AMP_REAL(free_data)(d);
    if (amp_iteration_ended()) amp_batches_await();
}

/* Darknet's commands print whatever comes out. */
AMP_INTERPOSE(float *, network_predict, (network * net, float *input))
{
    float *out = AMP_REAL(network_predict)(net, input);
    amp_outputs_require(net);
    return out;
}

/* For nightmare: a maxpool finds no maximum among NaN, and its backward writes in front of an
 * array.
 */
AMP_INTERPOSE(void, backward_network, (network * net))
{
    if (!net->train) amp_outputs_require(net);
    AMP_REAL(backward_network)(net);
}

/* ---- inside recurrent layers ----
 * Darknet's rnn, gru, lstm and crnn call these by name, so no pointer can be hooked. Layers by
 * themselves run through their hooks and come here only where nothing is attached. */

AMP_INTERPOSE(void, forward_connected_layer, (layer l, network net))
{
    if (!amp_products_forward(l, net)) AMP_REAL(forward_connected_layer)(l, net);
}

AMP_INTERPOSE(void, backward_connected_layer, (layer l, network net))
{
    if (!amp_products_backward(l, net)) AMP_REAL(backward_connected_layer)(l, net);
}

AMP_INTERPOSE(void, forward_convolutional_layer, (const convolutional_layer l, network net))
{
    if (!amp_products_forward(l, net)) AMP_REAL(forward_convolutional_layer)(l, net);
}

AMP_INTERPOSE(void, backward_convolutional_layer, (convolutional_layer l, network net))
{
    if (!amp_products_backward(l, net)) AMP_REAL(backward_convolutional_layer)(l, net);
}

AMP_INTERPOSE(void, activate_array, (float *x, const int n, const ACTIVATION a))
{
    if (!amp_products_activate(x, n, a)) AMP_REAL(activate_array)(x, n, a);
}

AMP_INTERPOSE(void, gradient_array, (const float *x, const int n, const ACTIVATION a, float *delta))
{
    if (!amp_products_gradient(x, n, a, delta)) AMP_REAL(gradient_array)(x, n, a, delta);
}

/* ---- image files ---- */

/* Both entries of the decoder are replaced, so that the name is known when system or load_image_cv
 * is reached. */
AMP_INTERPOSE(image, load_image, (char *filename, int w, int h, int c))
{
    return amp_image_load(filename, w, h, c);
}

AMP_INTERPOSE(image, load_image_color, (char *filename, int w, int h))
{
    return amp_image_load_color(filename, w, h);
}

/* OpenCV throws if a file's header asks for too much or memory ends. */
image load_image_cv(char *filename, int channels); /* declared for OPENCV only */
AMP_INTERPOSE(image, load_image_cv, (char *filename, int channels))
{
    return amp_image_decode(filename, channels);
}

/* While it decodes an image, Darknet runs one shell command. */
AMP_INTERPOSE(int, system, (const char *command))
{
    int status;
    if (amp_images_take_command(&status)) return status;
    return AMP_REAL(system)(command);
}

/* Called for a label file that has gone, and for any other that cannot be opened. */
AMP_INTERPOSE(void, file_error, (char *name))
{
    amp_images_miss(name);
    amp_ranks_miss(name);
    AMP_REAL(file_error)(name);
}

/* Darknet's own does not look at what calloc returns, and crashes later. */
AMP_INTERPOSE(image, make_image, (int w, int h, int c))
{
    return amp_image_make(w, h, c);
}

/* Darknet looks for its letters in one fixed place. */
AMP_INTERPOSE(image **, load_alphabet, ())
{
    return amp_letters_load();
}

/* ---- lists ---- */

/* Data files, lists, names and cfgs are read with it, a line at a time. */
AMP_INTERPOSE(char *, fgetl, (FILE * file))
{
    return amp_line_end(AMP_REAL(fgetl)(file));
}

/* The last element stands behind the end as well: Darknet's validators load the first four or eight
 * images of a list whether it has so many or not. They use none of those that it lacks. */
AMP_INTERPOSE(void **, list_to_array, (list * l))
{
    enum { MOST_AHEAD = 8 };
    int n = 0;
    void **array = amp_allocate((size_t)l->size + MOST_AHEAD, sizeof *array);
    for (const node *e = l->front; e; e = e->next)
        array[n++] = e->val;
    for (int i = 0; n && i < MOST_AHEAD; i++)
        array[n + i] = array[n - 1];
    return array;
}

/* ---- boxes: of networks that follow the other Darknets' rules ---- */

AMP_INTERPOSE(image, letterbox_image, (image picture, int w, int h))
{
    return amp_boxes_letterbox(picture, w, h);
}

AMP_INTERPOSE(void, letterbox_image_into, (image picture, int w, int h, image boxed))
{
    amp_boxes_letterbox_into(picture, w, h, boxed);
}

AMP_INTERPOSE(int, get_yolo_detections,
              (layer l, int w, int h, int netw, int neth, float thresh, int *map, int relative,
               detection *found))
{
    return amp_boxes_of_yolo(l, w, h, netw, neth, thresh, map, relative, found);
}

AMP_INTERPOSE(void, do_nms_sort, (detection * found, int n, int classes, float thresh))
{
    if (!amp_boxes_suppress(found, n, classes, thresh))
        AMP_REAL(do_nms_sort)(found, n, classes, thresh);
}

/* detector demo and recall call this one. */
AMP_INTERPOSE(void, do_nms_obj, (detection * found, int n, int classes, float thresh))
{
    if (!amp_boxes_suppress(found, n, classes, thresh))
        AMP_REAL(do_nms_obj)(found, n, classes, thresh);
}

/* Trainers end while the next batch is being loaded, and free the names that its threads draw
 * from. */
AMP_INTERPOSE(void, free_ptrs, (void **names, int n))
{
    amp_batches_wait();
    AMP_REAL(free_ptrs)(names, n);
}

/* ---- windows and video ---- */

void *open_video_stream(const char *file, int camera, int w, int h, int fps); /* for OPENCV only */
AMP_INTERPOSE(void *, open_video_stream, (const char *file, int camera, int w, int h, int fps))
{
    return amp_window_open_video(file, camera, w, h, fps);
}

void make_window(char *name, int w, int h, int fullscreen); /* declared for OPENCV only */
AMP_INTERPOSE(void, make_window, (char *name, int w, int h, int fullscreen))
{
    amp_window_make(name, w, h, fullscreen);
}

AMP_INTERPOSE(void, save_image, (image p, const char *name))
{
    amp_window_save(p, name, JPG, 80); /* as Darknet's own */
}

AMP_INTERPOSE(void, save_image_options, (image p, const char *name, IMTYPE type, int quality))
{
    amp_window_save(p, name, type, quality);
}

AMP_INTERPOSE(int, show_image, (image p, const char *name, int ms))
{
    return amp_window_show(p, name, ms);
}

/* ---- random numbers ---- */

AMP_INTERPOSE(int, rand, (void))
{
    return amp_seed_rand();
}

/* Darknet's trainers call srand(time(0)), which must not undo the seed. */
AMP_INTERPOSE(void, srand, (unsigned seed))
{
    if (!amp_seed_rules()) AMP_REAL(srand)(seed);
}

AMP_INTERPOSE(float, rand_normal, (void))
{
    return amp_seed_rand_normal();
}

/* ---- a GPU build of Darknet ----
 * It must run on a machine without a GPU too. Darknet's own -nogpu only sets gpu_index to -1; its
 * layers go on asking for device memory, and the first failure is an assertion. Here, without a
 * device, gpu_index stays -1 whatever the command line asks for, device memory is NULL, and copies
 * to and from it do nothing. Darknet then takes its CPU path everywhere. With a device every
 * function is Darknet's own, except that large arrays may wait for their memory
 * (device_memory.h), and that images have a path of their own (staging.h). */

#ifdef GPU

/* Darknet sets the device before anything else on a GPU path, so gpu_index is put back here. */
AMP_INTERPOSE(void, cuda_set_device, (int n))
{
    if (amp_has_gpu())
        AMP_REAL(cuda_set_device)(n);
    else
        *AMP_USE(gpu_index) = -1;
}

AMP_INTERPOSE(float *, cuda_make_array, (float *x, size_t n))
{
    if (!amp_has_gpu()) return NULL;
    float *deferred = amp_deferred_make(x, n);
    return deferred ? deferred : AMP_REAL(cuda_make_array)(x, n);
}

AMP_INTERPOSE(int *, cuda_make_int_array, (int *x, size_t n))
{
    if (!amp_has_gpu()) return NULL;
    void *deferred = amp_deferred_make((const float *)x, n);
    return deferred ? deferred : AMP_REAL(cuda_make_int_array)(x, n);
}

AMP_INTERPOSE(void, cuda_free, (float *x_gpu))
{
    if (amp_has_gpu() && !amp_deferred_free(x_gpu)) AMP_REAL(cuda_free)(x_gpu);
}

/* Every write of Darknet to a device comes through here: images, labels and weights. sessions.c
 * wants to know of the weights. */
AMP_INTERPOSE(void, cuda_push_array, (float *x_gpu, float *x, size_t n))
{
    if (!amp_has_gpu()) return;
    if (!amp_upload_start(x_gpu, x, n)) AMP_REAL(cuda_push_array)(x_gpu, x, n);
    amp_session_see_write(x_gpu);
}

AMP_INTERPOSE(void, cuda_pull_array, (float *x_gpu, float *x, size_t n))
{
    if (amp_has_gpu() && !amp_hook_pull_is_unwanted(x_gpu)) AMP_REAL(cuda_pull_array)(x_gpu, x, n);
}

static void fill_from_seed(float *x_gpu, size_t n)
{
    float *x = malloc(n * sizeof *x);
    if (!x) amp_fail("out of memory while drawing random numbers");
    amp_seed_uniform(x, n);
    AMP_REAL(cuda_push_array)(x_gpu, x, n);
    free(x);
}

/* cuRAND's generator is seeded with the time of day, so a seeded run draws on the host instead. */
AMP_INTERPOSE(void, cuda_random, (float *x_gpu, size_t n))
{
    if (!amp_has_gpu()) return;
    if (amp_seed_rules())
        fill_from_seed(x_gpu, n);
    else
        AMP_REAL(cuda_random)(x_gpu, n);
}

AMP_INTERPOSE(cublasHandle_t, blas_handle, ())
{
    return amp_has_gpu() ? AMP_REAL(blas_handle)() : NULL;
}

/* Without a device the layers' cuDNN descriptors do not exist either; what is done with them on a
 * change of size or batch answers with an error status that Darknet does not look at. */
AMP_INTERPOSE(cudnnHandle_t, cudnn_handle, ())
{
    return amp_has_gpu() ? AMP_REAL(cudnn_handle)() : NULL;
}

/* As on the host, above. */
AMP_INTERPOSE(void, forward_connected_layer_gpu, (layer l, network net))
{
    if (!amp_products_forward(l, net)) AMP_REAL(forward_connected_layer_gpu)(l, net);
}

AMP_INTERPOSE(void, backward_connected_layer_gpu, (layer l, network net))
{
    if (!amp_products_backward(l, net)) AMP_REAL(backward_connected_layer_gpu)(l, net);
}

AMP_INTERPOSE(void, forward_convolutional_layer_gpu, (convolutional_layer l, network net))
{
    if (!amp_products_forward(l, net)) AMP_REAL(forward_convolutional_layer_gpu)(l, net);
}

AMP_INTERPOSE(void, backward_convolutional_layer_gpu, (convolutional_layer l, network net))
{
    if (!amp_products_backward(l, net)) AMP_REAL(backward_convolutional_layer_gpu)(l, net);
}

/* The GPU backward of connected layers, also those inside recurrent ones, cuts deltas off at 1.
 * Ours are times the loss scale, so the limit must be too. */
AMP_INTERPOSE(void, constrain_gpu, (int n, float limit, float *x, int step))
{
    AMP_REAL(constrain_gpu)(n, amp_native_limit(limit), x, step);
}

/* Darknet's own way to use several GPUs: a thread for each, weights averaged every 4 iterations.
 * Nothing of the plugin's works there: one process for each GPU takes its place. */
AMP_INTERPOSE(float, train_networks, (network * *nets, int n, data d, int interval))
{
    char message[300];
    if (!amp_has_gpu()) {
        fprintf(stderr, "darknet-amp: -gpus asks for %d GPUs, this machine has none\n", n);
        exit(1);
    }
    if (amp_session_of(nets[0]->layers) || amp_seed_rules()) {
        snprintf(message, sizeof message,
                 "-gpus with %d GPUs: mixed_precision=1 and seed=N want a process for each GPU. "
                 "Start `mpirun -np %d --bind-to none` with this command, mixed_precision=1 and "
                 "without -gpus, each process with a GPU of its own (CUDA_VISIBLE_DEVICES)",
                 n, n);
        amp_fail(message);
    }
    amp_stock_give_up();
    return AMP_REAL(train_networks)(nets, n, d, interval);
}

#endif
