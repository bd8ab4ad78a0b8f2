/* Decides whether this plugin fits the Darknet in the process. It must not call Darknet: a call
 * with the wrong layout is the very thing to prevent.
 *
 * Darknet passes `layer` and `network` by value, and their sizes depend on the defines GPU and
 * CUDNN (layer: 1184, 1672 or 1752 bytes). A plugin compiled with other defines would read the
 * wrong memory. Darknet has no version to ask for, so its kind is told from functions that only
 * that kind has. */

#include "abi.h"
#include "symbols.h"

#include "darknet.h"

#include <stdio.h>

#ifdef GPU
#define BUILT_WITH_GPU 1
#else
#define BUILT_WITH_GPU 0
#endif

/* If the linker wraps (AMP_WRAP): a plugin with GPU that needs a function Darknet lacks is an error
 * of the linker already. The opposite case shows in weak references, which are NULL if nothing
 * defines them. */
#ifdef AMP_WRAP
extern const char weak_fork __asm__("parse_network_cfg_custom") __attribute__((weak));
#if BUILT_WITH_GPU
static int darknet_has_gpu(void)
{
    return 1;
}
static int darknet_has_cudnn(void)
{
    return 1;
}
#else
extern const char weak_gpu __asm__("cuda_make_array") __attribute__((weak));
extern const char weak_cudnn __asm__("cudnn_handle") __attribute__((weak));
static int darknet_has_gpu(void)
{
    return &weak_gpu != NULL;
}
static int darknet_has_cudnn(void)
{
    return &weak_cudnn != NULL;
}
#endif
static int darknet_is_fork(void)
{
    return &weak_fork != NULL;
}
#else
static int darknet_has_gpu(void)
{
    return amp_look_up("cuda_make_array") != NULL;
}
static int darknet_has_cudnn(void)
{
    return amp_look_up("cudnn_handle") != NULL;
}
static int darknet_is_fork(void)
{
    return amp_look_up("parse_network_cfg_custom") != NULL;
}
#endif

int amp_check_abi(char *err, size_t err_size)
{
    int gpu = darknet_has_gpu(), cudnn = darknet_has_cudnn();
    if (darknet_is_fork()) {
        snprintf(err, err_size,
                 "this Darknet is a fork with structures of its own (it has "
                 "parse_network_cfg_custom); the plugin is for the original");
        return -1;
    }
    if (gpu == BUILT_WITH_GPU && cudnn == BUILT_WITH_GPU) return 0;
    snprintf(err, err_size,
             "this Darknet was built with GPU=%d CUDNN=%d, the plugin for GPU=%d CUDNN=%d: %s", gpu,
             cudnn, BUILT_WITH_GPU, BUILT_WITH_GPU,
             gpu != cudnn ? "build Darknet with both or neither"
             : gpu        ? "use the plugin of the preset cuda"
                          : "use the plugin of the preset cpu");
    return -1;
}
