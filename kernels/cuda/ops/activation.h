/* Activations in kernels. The family is a template argument. The activations that nets use most
 * have two slopes and cost an instruction; all others share one instantiation, because each
 * further one would multiply the number of kernels. Mish and swish have a third
 * behind batch-norm, where they compute their input again; elsewhere they are among the others. */
#ifndef AMPK_CUDA_ACTIVATION_H
#define AMPK_CUDA_ACTIVATION_H

#include "kernels/activation.h"
#include "device.h"

/* x > 0 ? x : slope*x */
struct ampk_slope {
    static const bool by_sign = true;    /* backward needs to know only whether out > 0 */
    static const bool recomputes = true; /* ampk_recomputes_input */
    float slope;

    __device__ __forceinline__ float forward(float x) const
    {
        return x > 0 ? x : slope * x;
    }
    /* d * activation'(out) */
    __device__ __forceinline__ float backward(float d, float out) const
    {
        return out > 0 ? d : slope * d;
    }
    /* Whether backward looks at out. */
    __device__ __forceinline__ bool needs_output() const
    {
        return slope != 1;
    }
};

/* Mish and swish; `out` is the input. */
struct ampk_share {
    static const bool by_sign = false;
    static const bool recomputes = true;
    bool mish;

    __device__ __forceinline__ float forward(float x) const
    {
        return mish ? ampk_mish(x) : ampk_swish(x);
    }
    __device__ __forceinline__ float backward(float d, float out) const
    {
        return d * (mish ? ampk_mish_gradient(out) : ampk_swish_gradient(out));
    }
};

struct ampk_curve {
    static const bool by_sign = false;
    static const bool recomputes = false;
    enum ampk_activation activation;

    __device__ __forceinline__ float forward(float x) const
    {
        return ampk_activate(x, activation);
    }
    __device__ __forceinline__ float backward(float d, float out) const
    {
        return d * ampk_activation_gradient(out, activation);
    }
    __device__ __forceinline__ bool needs_output() const
    {
        return true;
    }
};

static inline struct ampk_slope ampk_slope_of(enum ampk_activation two_slopes)
{
    return {ampk_slope_below(two_slopes)};
}

/* Calls run with the activation as an object of its family. */
template <typename Run>
static inline void ampk_with_activation(enum ampk_activation activation, Run run)
{
    if (ampk_is_two_slopes(activation))
        run(ampk_slope_of(activation));
    else
        run(ampk_curve{activation});
}

/* The same behind batch-norm. */
template <typename Run>
static inline void ampk_with_normalized_activation(enum ampk_activation activation, Run run)
{
    if (ampk_is_gradient_of_input(activation))
        run(ampk_share{activation == AMPK_MISH});
    else
        ampk_with_activation(activation, run);
}

#endif
