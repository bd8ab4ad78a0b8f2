/* Operations with parameters or sums per channel: batch-norm with activation, bias with
 * activation. They decide nothing about which way is taken; conv.c and the executor do.
 *
 * Passes over memory: the statistics read y; forward reads y and writes out; backward's first
 * kernel reads y and d for the sums, its second reads both again and writes dy. */
#include "batchnorm.h"

/* ---- forward ---- */

template <int N> struct one_input {
    float y[N];
};

template <int N> struct forward_input {
    float y[N], add[N];
};

/* The rolling mean serves as shift and is updated by the same launch. That is safe: only the one
 * block that has received all other blocks' sums writes it. */
template <typename A>
static __global__ void __launch_bounds__(AMPK_SUM_THREADS, 2)
    take_statistics(ampk_cover cover, ampk_view y, ampk_bn_statistics s, float *partial,
                    unsigned *counters)
{
    const int N = A::width;
    __shared__ float shared[ampk_sum_shared<A, 2>()];
    unsigned channel = ampk_channel<A>(cover);
    float x[2 * N] = {0};
    if (channel < cover.channels) {
        float shift[N];
        ampk_read_parameters(s.rolling_mean, channel, shift);
        ampk_for_rows<4, one_input<N>>(
            cover, [&](unsigned row, one_input<N> &in) { A::load(y, row, channel, in.y); },
            [&](unsigned, const one_input<N> &in) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float v = in.y[i] - shift[i];
                    x[i] += v;
                    x[N + i] = fmaf(v, v, x[N + i]);
                }
            });
    }
    if (!ampk_grid_sums(cover, x, shared, partial, counters)) return;
    uint32_t largest = 0;
    ampk_for_channels<A>(cover, [&](unsigned c, unsigned first, unsigned second) {
        const ampk_channel_statistics of(s.rule, cover.rows, s.rolling_mean[c], shared[first],
                                         shared[second]);
        largest = of.store(s, c, largest);
    });
    ampk_raise_amax(s.amax, largest);
}

/* out = activation(normalized y), plus add if there is a residual. */
template <typename A, typename Activation, bool Residual>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS, Activation::by_sign ? 4 : 1)
    normalize(ampk_cover cover, ampk_view y, ampk_batchnorm bn, Activation activation,
              ampk_view add, ampk_view out, uint32_t *y_amax, uint32_t *amax)
{
    const int N = A::width;
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0, largest_y = 0;
    if (channel < cover.channels) {
        const ampk_normalizer<N> layer(bn, channel);
        ampk_for_rows<2, forward_input<N>, AMPK_LAST_ROW_FIRST>(
            cover,
            [&](unsigned row, forward_input<N> &in) {
                A::load(y, row, channel, in.y);
                if (Residual) A::load(add, row, channel, in.add);
            },
            [&](unsigned row, forward_input<N> &in) {
                largest_y = ampk_magnitude(in.y, largest_y);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    in.y[i] = activation.forward(layer.apply(i, in.y[i]));
                    if (Residual) in.y[i] += in.add[i];
                }
                largest = ampk_put<A>(out, row, channel, in.y, false, largest);
            });
    }
    ampk_raise_stored_amax(y_amax, largest_y, y);
    ampk_raise_amax(amax, largest);
}

/* ---- backward ---- */

/* Inputs of backward for one row. */
template <int N> struct backward_input {
    float y[N], d[N], out[N];
};

/* The inputs of both backward kernels. Where the activation's input, computed again from y, tells
 * the gradient, they do not read out, which saves a third of the reads. */
template <typename Activation> struct layer_gradient {
    ampk_view y, out, d;
    ampk_batchnorm bn;
    Activation activation;

    template <typename A>
    __device__ __forceinline__ void load(unsigned row, unsigned channel,
                                         backward_input<A::width> &in) const
    {
        A::load(y, row, channel, in.y);
        A::load(d, row, channel, in.d);
        if (!Activation::recomputes) A::load(out, row, channel, in.out);
    }
    /* The gradient g at batch-norm's output. */
    template <int N>
    __device__ __forceinline__ float before_activation(const ampk_normalizer<N> &layer, int i,
                                                       const backward_input<N> &in) const
    {
        float at = Activation::recomputes ? layer.apply(i, in.y[i]) : in.out[i];
        return activation.backward(in.d[i], at);
    }
};

/* Sums g and g * (y - mean) of every channel; the last block of a column finishes the channels.
 * Curves call exp and tanh, which need registers: they get one block per multiprocessor. */
template <typename A, typename Activation>
static __global__ void __launch_bounds__(AMPK_SUM_THREADS, Activation::by_sign ? 2 : 1)
    sum_gradients(ampk_cover cover, layer_gradient<Activation> gradient, float *partial,
                  unsigned *counters, float *dscale, float *dbias, ampk_coefficients to,
                  uint32_t *db_amax)
{
    const int N = A::width;
    __shared__ float shared[ampk_sum_shared<A, 2>()];
    unsigned channel = ampk_channel<A>(cover);
    float x[2 * N] = {0};
    if (channel < cover.channels) {
        const ampk_normalizer<N> layer(gradient.bn, channel);
        ampk_for_rows<1, backward_input<N>>(
            cover,
            [&](unsigned row, backward_input<N> &in) {
                gradient.template load<A>(row, channel, in);
            },
            [&](unsigned, const backward_input<N> &in) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float g = gradient.before_activation(layer, i, in);
                    x[i] += g;
                    x[N + i] = fmaf(g, layer.distance(i, in.y[i]), x[N + i]);
                }
            });
    }
    if (!ampk_grid_sums(cover, x, shared, partial, counters)) return;
    ampk_finish_channels<A>(cover, gradient.bn, (float)cover.rows, shared, dscale, dbias, to,
                            db_amax);
}

/* dy. It may alias d: a thread reads each element before it stores it. */
template <typename A, typename Activation>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    pass_back(ampk_cover cover, layer_gradient<Activation> gradient, ampk_coefficients by,
              ampk_view dy, uint32_t *amax)
{
    const int N = A::width;
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels) {
        const ampk_normalizer<N> layer(gradient.bn, channel);
        const ampk_gradient_factors<N> factors(by, channel);
        ampk_for_rows<2, backward_input<N>, AMPK_LAST_ROW_FIRST>(
            cover,
            [&](unsigned row, backward_input<N> &in) {
                gradient.template load<A>(row, channel, in);
            },
            [&](unsigned row, const backward_input<N> &in) {
                float v[N];
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float g = gradient.before_activation(layer, i, in);
                    v[i] = factors.apply(i, layer.distance(i, in.y[i]), g);
                }
                largest = ampk_put<A>(dy, row, channel, v, false, largest);
            });
    }
    ampk_raise_amax(amax, largest);
}

/* dy = g = factor * d * activation'(out) and dbias = sum(g), in one pass. The sum is of g before
 * rounding. */
template <typename A, typename Activation>
static __global__ void __launch_bounds__(AMPK_SUM_THREADS, Activation::by_sign ? 2 : 1)
    pass_back_bias(ampk_cover cover, ampk_view out, Activation activation, ampk_view d,
                   float factor, ampk_view dy, float *partial, unsigned *counters, float *dbias,
                   uint32_t *dy_amax, uint32_t *db_amax)
{
    const int N = A::width;
    __shared__ float shared[ampk_sum_shared<A, 1>()];
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    float x[N] = {0};
    if (channel < cover.channels)
        ampk_for_rows<2, backward_input<N>, AMPK_LAST_ROW_FIRST>(
            cover,
            [&](unsigned row, backward_input<N> &in) {
                A::load(d, row, channel, in.d);
                if (activation.needs_output()) A::load(out, row, channel, in.out);
            },
            [&](unsigned row, backward_input<N> &in) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    in.d[i] = __fmul_rn(in.d[i], factor);
                    if (activation.needs_output())
                        in.d[i] = activation.backward(in.d[i], in.out[i]);
                    x[i] += in.d[i];
                }
                largest = ampk_put<A>(dy, row, channel, in.d, false, largest);
            });
    ampk_raise_amax(dy_amax, largest);
    if (!ampk_grid_sums(cover, x, shared, partial, counters)) return;
    largest = 0;
    ampk_for_channels<A>(cover, [&](unsigned c, unsigned first, unsigned) {
        dbias[c] = shared[first];
        largest = ampk_larger(largest, ampk_magnitude(dbias[c]));
    });
    ampk_raise_amax(db_amax, largest);
}

/* ---- operations ---- */

/* The cover of sums: few blocks, many rows for each thread (rows.h). */
extern "C" void ampk_cuda_bn_statistics(struct ampk_context *ctx, const struct ampk_tensor *y,
                                        const struct ampk_bn_statistics *statistics)
{
    struct ampk_view from = ampk_pixels(y);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_sum<A>(ampk_pixel_count(y), from.c);
        float *partial = (float *)ampk_cuda_work(ctx, ampk_sum_bytes<A>(cover, 2));
        AMPK_LAUNCH(take_statistics<A>, cover.grid, AMPK_SUM_THREADS, 0, ctx->stream, cover, from,
                    *statistics, partial, ctx->counters);
    };
    ampk_with_access(run, from);
}

/* Without a residual, y stands in for it, so that it does not change which access fits. */
extern "C" void ampk_cuda_bn_act_forward(struct ampk_context *ctx, const struct ampk_tensor *y,
                                         const struct ampk_batchnorm *bn,
                                         enum ampk_activation activation,
                                         const struct ampk_tensor *add,
                                         const struct ampk_tensor *out, uint32_t *y_amax,
                                         uint32_t *amax)
{
    struct ampk_view from = ampk_pixels(y), to = ampk_pixels(out);
    struct ampk_view residual = add ? ampk_pixels(add) : from;
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(ampk_pixel_count(y), from.c);
        ampk_with_normalized_activation(activation, [&](auto family) {
            typedef decltype(family) F;
            auto normalization = add ? normalize<A, F, true> : normalize<A, F, false>;
            AMPK_LAUNCH(normalization, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, from,
                        *bn, family, residual, to, y_amax, amax);
        });
    };
    ampk_with_access(run, from, to, residual);
}

/* Work memory: the coefficients first, the partial sums behind them. The second kernel finds the
 * coefficients there. */
template <typename A, typename Activation>
static struct ampk_coefficients
run_sums(struct ampk_context *ctx, const struct layer_gradient<Activation> &gradient, unsigned rows,
         float *dscale, float *dbias, uint32_t *db_amax)
{
    size_t c = gradient.y.c;
    struct ampk_cover cover = ampk_cover_sum<A>(rows, gradient.y.c);
    size_t vectors = AMPK_COEFFICIENTS * c;
    float *work =
        (float *)ampk_cuda_work(ctx, ampk_sum_bytes<A>(cover, 2) + vectors * sizeof(float));
    struct ampk_coefficients by = ampk_coefficients_at(work, c);
    AMPK_LAUNCH((sum_gradients<A, Activation>), cover.grid, AMPK_SUM_THREADS, 0, ctx->stream, cover,
                gradient, work + vectors, ctx->counters, dscale, dbias, by, db_amax);
    if (gradient.bn.peers)
        ampk_cuda_share_sums(ctx, &gradient.bn, gradient.y.c, rows, &by, dscale, dbias, db_amax);
    return by;
}

/* For conv_bn_backward, whose own kernel replaces the second one. */
struct ampk_coefficients ampk_cuda_sum_gradient(struct ampk_context *ctx,
                                                const struct ampk_layer_gradient *g, float *dscale,
                                                float *dbias, uint32_t *db_amax)
{
    if (g->argmax) return ampk_cuda_sum_pooled_gradient(ctx, g, dscale, dbias, db_amax);
    struct ampk_view y = ampk_pixels(g->y), d = ampk_pixels(g->d);
    struct layer_gradient<ampk_slope> gradient = {
        y, y, d, *g->bn, ampk_slope_of(g->activation)
    };
    struct ampk_coefficients by = {};
    auto run = [&](auto access) {
        by = run_sums<decltype(access)>(ctx, gradient, ampk_pixel_count(g->y), dscale, dbias,
                                        db_amax);
    };
    ampk_with_access(run, y, d);
    return by;
}

template <typename A, typename Activation>
static void run_pass_back(struct ampk_context *ctx,
                          const struct layer_gradient<Activation> &gradient, unsigned rows,
                          const struct ampk_coefficients &by, const struct ampk_view &dy,
                          uint32_t *dy_amax)
{
    struct ampk_cover cover = ampk_cover_map<A>(rows, dy.c);
    AMPK_LAUNCH((pass_back<A, Activation>), cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover,
                gradient, by, dy, dy_amax);
}

/* Both kernels of bn_act_backward. */
template <typename A, typename Activation>
static void run_backward(struct ampk_context *ctx,
                         const struct layer_gradient<Activation> &gradient, unsigned rows,
                         const struct ampk_view &dy, float *dscale, float *dbias, uint32_t *dy_amax,
                         uint32_t *db_amax)
{
    struct ampk_coefficients by = run_sums<A>(ctx, gradient, rows, dscale, dbias, db_amax);
    run_pass_back<A, Activation>(ctx, gradient, rows, by, dy, dy_amax);
}

extern "C" void ampk_cuda_bn_act_backward(
    struct ampk_context *ctx, const struct ampk_tensor *y, const struct ampk_tensor *out,
    const struct ampk_batchnorm *bn, enum ampk_activation activation, const struct ampk_tensor *d,
    const struct ampk_tensor *dy, float *dscale, float *dbias, uint32_t *dy_amax, uint32_t *db_amax)
{
    struct ampk_view from = ampk_pixels(y), to = ampk_pixels(dy), at = ampk_pixels(d);
    ampk_with_normalized_activation(activation, [&](auto family) {
        typedef decltype(family) F;
        struct ampk_view read = F::recomputes ? from : ampk_pixels(out);
        struct layer_gradient<F> gradient = {
            from, read, at, *bn, family
        };
        auto run = [&](auto access) {
            run_backward<decltype(access)>(ctx, gradient, ampk_pixel_count(y), to, dscale, dbias,
                                           dy_amax, db_amax);
        };
        ampk_with_access(run, from, to, at, read);
    });
}

/* LINEAR does not read out; d stands in for it. */
extern "C" void ampk_cuda_bias_backward(struct ampk_context *ctx,
                                        const struct ampk_bias_gradient *g,
                                        const struct ampk_tensor *dy)
{
    struct ampk_view from = ampk_pixels(g->d), to = ampk_pixels(dy);
    struct ampk_view read = g->activation == AMPK_LINEAR ? from : ampk_pixels(g->out);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_sum<A>(ampk_pixel_count(g->d), from.c);
        float *partial = (float *)ampk_cuda_work(ctx, ampk_sum_bytes<A>(cover, 1));
        ampk_with_activation(g->activation, [&](auto family) {
            AMPK_LAUNCH((pass_back_bias<A, decltype(family)>), cover.grid, AMPK_SUM_THREADS, 0,
                        ctx->stream, cover, read, family, from, g->factor, to, partial,
                        ctx->counters, g->dbias, g->dy_amax, g->db_amax);
        });
    };
    ampk_with_access(run, from, to, read);
}

extern "C" void ampk_cuda_bias_act_backward(struct ampk_context *ctx, const struct ampk_tensor *out,
                                            enum ampk_activation activation,
                                            const struct ampk_tensor *d,
                                            const struct ampk_tensor *dy, float *dbias,
                                            uint32_t *dy_amax, uint32_t *db_amax)
{
    const struct ampk_bias_gradient g = {out, d, activation, 1, dbias, dy_amax, db_amax};
    ampk_cuda_bias_backward(ctx, &g, dy);
}
