/* Decides which backend computes, from amp_backend and from where this Darknet computes. It must
 * not know what a backend can do: plans ask it later.
 *
 * Backend and Darknet must be on the same side, because Darknet's own layers run in between and
 * share the tensors. So a key that asks for the other side is an error, never a copy. */

#include "backend.h"

#include "ending.h"
#include "symbols.h"

#include "amp_observe.h"
#include "darknet.h"

#include <stddef.h>

/* AMP_CUDA_BACKEND: kernels/cuda is linked in. */
#ifdef AMP_CUDA_BACKEND
static const struct ampk_backend *const cuda = &ampk_cuda;
#else
static const struct ampk_backend *const cuda = NULL;
#endif

bool amp_darknet_on_device(void)
{
#ifdef GPU
    return *AMP_USE(gpu_index) >= 0;
#else
    return false;
#endif
}

static const struct ampk_backend *on_device(const struct amp_cfg_file *cfg,
                                            const struct amp_options *options)
{
    if (options->backend == AMP_BACKEND_CPU)
        amp_fail_key(cfg, "amp_backend",
                     "this Darknet is about to use a GPU; add -nogpu to the "
                     "command line, or remove the key");
    return cuda;
}

static const struct ampk_backend *on_host(const struct amp_cfg_file *cfg,
                                          const struct amp_options *options)
{
    if (options->backend != AMP_BACKEND_CUDA) return &ampk_cpu;
#ifdef GPU
    amp_fail_key(cfg, "amp_backend",
                 "there is no usable GPU, or -nogpu was given; allowed here: "
                 "auto, cpu");
#else
    if (!cuda)
        amp_fail_key(cfg, "amp_backend",
                     "this Darknet was built without GPU; build the preset "
                     "cuda; allowed here: auto, cpu");
#endif
    return cuda;
}

const struct ampk_backend *amp_backend_choose(const struct amp_cfg_file *cfg,
                                              const struct amp_options *options)
{
    return amp_darknet_on_device() ? on_device(cfg, options) : on_host(cfg, options);
}

int amp_multiplies_bf16(void)
{
    return ampk_cpu.multiplies_bf16();
}
