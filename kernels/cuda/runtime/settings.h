/* All switches of the CUDA backend in the environment. The code asks for each where it matters,
 * mostly when a convolution is made; the answer then holds for that convolution. */
#ifndef AMPK_CUDA_SETTINGS_H
#define AMPK_CUDA_SETTINGS_H

enum ampk_switch {
    /* Ways to compute (docs/cuda.md). 0: never. 1: wherever possible, unchecked. Unset: where it is
     * right and pays. */
    AMPK_CUDA_SIDE_STREAM,    /* weight gradients beside data gradients */
    AMPK_CUDA_EPILOGUE_SUMS,  /* batch-norm's sums in a convolution's epilogue */
    AMPK_CUDA_GRADIENT_SUMS,  /* its backward sums in a data gradient's */
    AMPK_CUDA_IMAGE_FORWARD,  /* images by our kernel */
    AMPK_CUDA_IMAGE_GRADIENT, /* a first layer's weight gradient together with dy */
    /* Only if 1: */
    AMPK_CUDA_SEARCH,     /* plans are searched beyond what cuDNN's heuristics name */
    AMPK_CUDA_UNTIMED,    /* plans that are not known yet are guessed, not timed */
    AMPK_CUDA_UNRECORDED, /* nothing is recorded: to tell what goes wrong in recordings alone */
};

/* 0, 1, or left to us. Any other value is named, once for each. */
enum ampk_setting { AMPK_UNSET, AMPK_NEVER, AMPK_ALWAYS };
enum ampk_setting ampk_cuda_setting(enum ampk_switch);

#endif
