/* The functions and variables of Darknet that the plugin replaces or uses, and how it names them,
 * in both of its forms (see plugin/CMakeLists.txt):
 *
 *   AMP_INTERPOSE(network *, parse_network_cfg, (char *file)) { ... }   defines ours
 *   AMP_REAL(parse_network_cfg)(file)                                  calls Darknet's
 *   AMP_USE(rand_uniform)(0, 1), *AMP_USE(gpu_index)                   a name that stays Darknet's
 *
 * To add one, add a line here, and to interposed.c what happens in its place. The plugin never
 * refers to Darknet in another way: libdarknet may be loaded where the linker does not look (a
 * ctypes library is RTLD_LOCAL), and libdarknet_amp.so is linked with --no-undefined to make sure.
 *
 * This is the only list. The run-time lookup (symbols.c) and the tests read it; the linker options
 * of scripts/amp-ldflags follow from it through the symbols of the plugin's archive. */
#ifndef AMP_INTERPOSED_H
#define AMP_INTERPOSED_H

#include <stddef.h>

/* clang-format off */

/* ---- the list ---- */

/* Replaced: AMP_INTERPOSE defines ours; AMP_REAL(name) is Darknet's own. The comment of each
 * definition says why it is replaced. */
#define AMP_INTERPOSED(X)                                                                          \
    AMP_INTERPOSED_GPU(X)                                                                          \
    AMP_INTERPOSED_LIBC(X)                                                                         \
    X(activate_array)                                                                              \
    X(backward_connected_layer)                                                                    \
    X(backward_convolutional_layer)                                                                \
    X(backward_network)                                                                            \
    X(do_nms_obj)                                                                                  \
    X(do_nms_sort)                                                                                 \
    X(fgetl)                                                                                       \
    X(file_error)                                                                                  \
    X(forward_connected_layer)                                                                     \
    X(forward_convolutional_layer)                                                                 \
    X(free_data)                                                                                   \
    X(free_network)                                                                                \
    X(free_ptrs)                                                                                   \
    X(get_next_batch)                                                                              \
    X(get_yolo_detections)                                                                         \
    X(gradient_array)                                                                              \
    X(letterbox_image)                                                                             \
    X(letterbox_image_into)                                                                        \
    X(list_to_array)                                                                               \
    X(load_alphabet)                                                                               \
    X(load_data)                                                                                   \
    X(load_data_in_thread)                                                                         \
    X(load_image)                                                                                  \
    X(load_image_color)                                                                            \
    X(load_image_cv)                                                                               \
    X(load_weights)                                                                                \
    X(make_image)                                                                                  \
    X(make_window)                                                                                 \
    X(network_predict)                                                                             \
    X(open_video_stream)                                                                           \
    X(option_find_str)                                                                             \
    X(option_unused)                                                                               \
    X(parse_network_cfg)                                                                           \
    X(rand_normal)                                                                                 \
    X(resize_network)                                                                              \
    X(save_image)                                                                                  \
    X(save_image_options)                                                                          \
    X(save_weights)                                                                                \
    X(save_weights_upto)                                                                           \
    X(show_image)                                                                                  \
    X(train_network)                                                                               \
    X(train_network_datum)

/* Replaced too: functions of the C library that Darknet calls. */
#define AMP_INTERPOSED_LIBC(X)                                                                     \
    X(rand)                                                                                        \
    X(srand)                                                                                       \
    X(system)

/* Replaced too: functions that only a GPU build of Darknet has. */
#ifdef GPU
#define AMP_INTERPOSED_GPU(X)                                                                      \
    X(backward_connected_layer_gpu)                                                                \
    X(backward_convolutional_layer_gpu)                                                            \
    X(blas_handle)                                                                                 \
    X(constrain_gpu)                                                                               \
    X(cuda_free)                                                                                   \
    X(cuda_make_array)                                                                             \
    X(cuda_make_int_array)                                                                         \
    X(cuda_pull_array)                                                                             \
    X(cuda_push_array)                                                                             \
    X(cuda_random)                                                                                 \
    X(cuda_set_device)                                                                             \
    X(cudnn_handle)                                                                                \
    X(forward_connected_layer_gpu)                                                                 \
    X(forward_convolutional_layer_gpu)                                                                                \
    X(train_networks)
#else
#define AMP_INTERPOSED_GPU(X)
#endif

/* Used but not replaced: AMP_USE(name) is Darknet's function or the address of its variable. */
#define AMP_USED(X)                                                                                \
    AMP_USED_GPU(X)                                                                                \
    X(backward_batchnorm_layer)                                                                    \
    X(backward_bias)                                                                               \
    X(backward_lstm_layer)                                                                         \
    X(basecfg)                                                                                     \
    X(fill_truth_detection)                                                                        \
    X(forward_batchnorm_layer)                                                                        \
    X(forward_network)                                                                             \
    X(free_image)                                                                                  \
    X(gpu_index)                                                                                   \
    X(load_data_blocking)                                                                          \
    X(load_labels_paths)                                                                           \
    X(random_augment_args)                                                                         \
    X(read_boxes)                                                                                  \
    X(rand_scale)                                                                                  \
    X(rand_uniform)                                                                                \
    X(resize_image)                                                                                \
    X(update_network)

#ifdef GPU
#define AMP_USED_GPU(X)                                                                            \
    X(activate_array_gpu)                                                                          \
    X(backward_batchnorm_layer_gpu)                                                                \
    X(backward_bias_gpu)                                                                           \
    X(forward_batchnorm_layer_gpu)                                                                 \
    X(gradient_array_gpu)                                                                          \
    X(softmax_cpu)
#else
#define AMP_USED_GPU(X)
#endif

/* clang-format on */

/* ---- how they are named ---- */

#ifdef AMP_WRAP

#define AMP_INTERPOSE(type, name, args)                                                            \
    type __wrap_##name args;                                                                       \
    type __wrap_##name args
#define AMP_REAL(name)                                                                             \
    (__extension__({                                                                               \
        extern __typeof__(name) __real_##name;                                                     \
        &__real_##name;                                                                            \
    }))
#define AMP_USE(name) (&(name))

#else

#define AMP_SYMBOL_ENUM(name) AMP_SYMBOL_##name,
enum amp_symbol { AMP_INTERPOSED(AMP_SYMBOL_ENUM) AMP_USED(AMP_SYMBOL_ENUM) AMP_SYMBOL_COUNT };

/* The function itself is amp_on_NAME, so that a backtrace tells ours from Darknet's. */
#define AMP_INTERPOSE(type, name, args)                                                            \
    static type amp_on_##name args;                                                                \
    __attribute__((visibility("default"), alias("amp_on_" #name))) type name args;                 \
    static type amp_on_##name args
#define AMP_REAL(name) ((__typeof__(&(name)))amp_find_symbol(AMP_SYMBOL_##name))
#define AMP_USE(name)  AMP_REAL(name)

/* Address of Darknet's own symbol. Looked up once; a Darknet that lacks it ends the program with a
 * message, since there is nothing left to call. */
void *amp_find_symbol(enum amp_symbol symbol);

/* Address of any symbol of the process other than our own, or NULL. For asking what is there. */
void *amp_look_up(const char *name);

#endif

/* The Darknet in this process must be the kind that the plugin was compiled for. 0 if it is. Else
 * -1, and err says what was found and what to use instead. */
int amp_check_abi(char *err, size_t err_size);

#endif
