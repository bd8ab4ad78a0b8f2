/* The functions and variables of Darknet that the plugin replaces or uses. To add one, add a line.
 *
 * This is the only list. The run-time lookup (symbols.c) and the tests read it; the linker options
 * of scripts/amp-ldflags follow from it through the symbols of the plugin's archive. */
#ifndef AMP_INTERPOSED_H
#define AMP_INTERPOSED_H

/* clang-format off */

/* Replaced: AMP_INTERPOSE defines ours; AMP_REAL(name) is Darknet's own. The comment of each
 * definition says why it is replaced. */
#define AMP_INTERPOSED(X)                                                                          \
    AMP_INTERPOSED_GPU(X)                                                                          \
    AMP_INTERPOSED_LIBC(X)                                                                         \
    X(file_error)                                                                                  \
    X(free_data)                                                                                   \
    X(free_network)                                                                                \
    X(get_next_batch)                                                                              \
    X(load_alphabet)                                                                               \
    X(load_data)                                                                                   \
    X(load_data_in_thread)                                                                         \
    X(load_image)                                                                                  \
    X(load_image_color)                                                                            \
    X(load_image_cv)                                                                               \
    X(load_weights)                                                                                \
    X(make_image)                                                                                  \
    X(make_window)                                                                                 \
    X(option_find_str)                                                                             \
    X(option_unused)                                                                               \
    X(parse_network_cfg)                                                                           \
    X(rand_normal)                                                                                 \
    X(resize_network)                                                                              \
    X(save_weights)                                                                                \
    X(show_image)                                                                                  \
    X(train_network)

/* Replaced too: functions of the C library that Darknet calls. rand and srand: seed.c; system:
 * image_file.c. */
#define AMP_INTERPOSED_LIBC(X)                                                                     \
    X(rand)                                                                                        \
    X(srand)                                                                                       \
    X(system)

/* Replaced too: functions that only a GPU build of Darknet has. */
#ifdef GPU
#define AMP_INTERPOSED_GPU(X)                                                                      \
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
    X(train_networks)
#else
#define AMP_INTERPOSED_GPU(X)
#endif

/* Used but not replaced: AMP_USE(name) is Darknet's function or the address of its variable. */
#define AMP_USED(X)                                                                                \
    AMP_USED_GPU(X)                                                                                \
    X(backward_lstm_layer)                                                                         \
    X(basecfg)                                                                                     \
    X(backward_network)                                                                            \
    X(forward_network)                                                                             \
    X(gpu_index)                                                                                   \
    X(gradient_array)                                                                              \
    X(load_data_blocking)                                                                          \
    X(rand_uniform)

#ifdef GPU
#define AMP_USED_GPU(X)                                                                            \
    X(activate_array)                                                                              \
    X(softmax_cpu)                                                                                 \
    X(sync_nets)
#else
#define AMP_USED_GPU(X)
#endif

/* clang-format on */

#endif
