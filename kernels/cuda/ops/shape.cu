/* Upsample, shortcut, reorg, flatten, unfold: operations that move or add values between tensors of
 * other shapes. The rules of sampling and permutation are Darknet's. */
#include "activation.h"
#include "rows.h"

/* ---- upsample ---- */

/* y (+)= scale * x, each pixel of x stride x stride times. A thread has an output pixel, so that
 * nothing is written twice. */
template <typename A>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    enlarge(ampk_cover cover, ampk_view x, ampk_sides sides, int stride, float scale, ampk_view y,
            bool accumulate, uint32_t *amax)
{
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            ampk_pixel at(row, {sides.h * stride, sides.w * stride});
            float v[A::width];
            A::load(x, ampk_row_of(at.image, at.h / stride, at.w / stride, sides), channel, v);
#pragma unroll
            for (int i = 0; i < A::width; i++)
                v[i] *= scale;
            largest = ampk_put<A>(y, row, channel, v, accumulate, largest);
        }
    ampk_raise_amax(amax, largest);
}

/* y (+)= scale * the sum of stride x stride pixels of x. */
template <typename A>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS, 4)
    reduce(ampk_cover cover, ampk_view x, ampk_view y, ampk_sides sides, int stride, float scale,
           bool accumulate, uint32_t *amax)
{
    const int N = A::width;
    const ampk_sides wide = {sides.h * stride, sides.w * stride};
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            ampk_pixel at(row, sides);
            float sum[N] = {0};
            for (int h = at.h * stride; h < (at.h + 1) * stride; h++)
                for (int w = at.w * stride; w < (at.w + 1) * stride; w++) {
                    float v[N];
                    A::load(x, ampk_row_of(at.image, h, w, wide), channel, v);
#pragma unroll
                    for (int i = 0; i < N; i++)
                        sum[i] += v[i];
                }
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] *= scale;
            largest = ampk_put<A>(y, row, channel, sum, accumulate, largest);
        }
    ampk_raise_amax(amax, largest);
}

/* ---- shortcut, equal shapes: memory order is the same, so tensors are taken as flat ---- */

template <int N> struct two_inputs {
    float a[N], b[N];
};

/* out = activation(alpha*x + beta*add) */
template <typename A, typename Activation>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    add_same(ampk_cover cover, ampk_view x, ampk_view add, float alpha, float beta,
             Activation activation, ampk_view out, uint32_t *amax)
{
    const int N = A::width;
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        ampk_for_rows<2, two_inputs<N>>(
            cover,
            [&](unsigned row, two_inputs<N> &in) {
                A::load(x, row, channel, in.a);
                A::load(add, row, channel, in.b);
            },
            [&](unsigned row, two_inputs<N> &in) {
#pragma unroll
                for (int i = 0; i < N; i++)
                    in.a[i] = activation.forward(alpha * in.a[i] + beta * in.b[i]);
                largest = ampk_put<A>(out, row, channel, in.a, false, largest);
            });
    ampk_raise_amax(amax, largest);
}

/* to (+)= factor * d * activation'(out) */
template <typename A, typename Activation>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS, 4)
    pass_same(ampk_cover cover, ampk_view out, ampk_view d, float factor, Activation activation,
              ampk_view to, bool accumulate, uint32_t *amax)
{
    const int N = A::width;
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        ampk_for_rows<2, two_inputs<N>>(
            cover,
            [&](unsigned row, two_inputs<N> &in) {
                A::load(d, row, channel, in.a);
                if (activation.needs_output()) A::load(out, row, channel, in.b);
            },
            [&](unsigned row, two_inputs<N> &in) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (activation.needs_output()) in.a[i] = activation.backward(in.a[i], in.b[i]);
                    in.a[i] *= factor;
                }
                largest = ampk_put<A>(to, row, channel, in.a, accumulate, largest);
            });
    ampk_raise_amax(amax, largest);
}

/* ---- shortcut, other shapes: Darknet's sampling ---- */

/* Every step-th pixel of `to` has a partner in `from`, where every from_step-th pixel is read. Of
 * a pair of pixels, the first `channels` channels are paired. */
struct sampling {
    int step, from_step, h, w;
    unsigned channels;
    ampk_sides to, from;
};

static int at_least_one(int v)
{
    return v > 1 ? v : 1;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* The ratio of the widths decides the steps for both axes, as in Darknet. */
static struct sampling find_sampling(const struct ampk_tensor *to, const struct ampk_tensor *from)
{
    return {at_least_one(to->w / from->w),
            at_least_one(from->w / to->w),
            smaller(to->h, from->h),
            smaller(to->w, from->w),
            (unsigned)smaller(to->c, from->c),
            {to->h, to->w},
            {from->h, from->w}};
}

/* Whether element (row, channel) of `to` has a partner, and the partner's row. */
static __device__ __forceinline__ bool find_partner(const sampling &s, unsigned row,
                                                    unsigned channel, unsigned *partner)
{
    ampk_pixel at(row, s.to);
    int h = at.h / s.step, w = at.w / s.step;
    *partner = ampk_row_of(at.image, h * s.from_step, w * s.from_step, s.from);
    return at.h % s.step == 0 && at.w % s.step == 0 && h < s.h && w < s.w && channel < s.channels;
}

/* out = activation(alpha*x + beta*add) where there is a partner, else activation(x) */
template <typename Activation>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    add_sampled(ampk_cover cover, sampling s, ampk_view x, ampk_view add, float alpha, float beta,
                Activation activation, ampk_view out, uint32_t *amax)
{
    unsigned channel = ampk_channel<ampk_any>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            float v[1], b[1];
            unsigned partner;
            ampk_any::load(x, row, channel, v);
            if (find_partner(s, row, channel, &partner)) {
                ampk_any::load(add, partner, channel, b);
                v[0] = alpha * v[0] + beta * b[0];
            }
            v[0] = activation.forward(v[0]);
            largest = ampk_put<ampk_any>(out, row, channel, v, false, largest);
        }
    ampk_raise_amax(amax, largest);
}

/* to (+)= beta * d * activation'(out) where there is a partner, else 0 */
template <typename Activation>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    pass_sampled(ampk_cover cover, sampling s, ampk_view out, ampk_view d, float beta,
                 Activation activation, ampk_view to, bool accumulate, uint32_t *amax)
{
    unsigned channel = ampk_channel<ampk_any>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            float v[1] = {0}, y[1];
            unsigned partner;
            if (find_partner(s, row, channel, &partner)) {
                ampk_any::load(d, partner, channel, v);
                ampk_any::load(out, partner, channel, y);
                v[0] = activation.backward(v[0], y[0]) * beta;
            }
            largest = ampk_put<ampk_any>(to, row, channel, v, accumulate, largest);
        }
    ampk_raise_amax(amax, largest);
}

/* ---- permutations of an image's elements, by place in NCHW order ---- */

/* dst[to] (+)= src[from], where map.find(i, &from, &to) gives the two places for the i-th element
 * of an image. Images are along grid x, because there may be more of them than a grid has room for
 * in y. */
template <typename Map>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    permute(unsigned count, Map map, ampk_view src, ampk_view dst, bool accumulate, uint32_t *amax)
{
    uint32_t largest = 0;
    for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < count;
         i += gridDim.y * blockDim.x) {
        unsigned from, to;
        map.find(i, &from, &to);
        unsigned channel = from / src.area, pixel = from % src.area;
        float v[1];
        ampk_any::load(src, blockIdx.x * src.area + pixel, channel, v);
        channel = to / dst.area, pixel = to % dst.area;
        largest =
            ampk_put<ampk_any>(dst, blockIdx.x * dst.area + pixel, channel, v, accumulate, largest);
    }
    ampk_raise_amax(amax, largest);
}

/* Darknet's reorg_cpu: maps element (i, j, k) of a deep w x h x c tensor to its place in the wide
 * one, which has stride times the sides and 1/stride^2 of the channels. */
struct reorg_map {
    unsigned w, h, c, stride;
    bool to_wide;

    __device__ __forceinline__ void find(unsigned deep, unsigned *from, unsigned *to) const
    {
        unsigned i = deep % w, j = deep / w % h, k = deep / w / h;
        unsigned wide_c = c / (stride * stride),
                 cell = k / wide_c; /* which of the stride x stride */
        unsigned row = k % wide_c * h * stride + j * stride + cell / stride;
        unsigned wide = row * w * stride + i * stride + cell % stride;
        *from = to_wide ? deep : wide;
        *to = to_wide ? wide : deep;
    }
};

/* Darknet's flatten: maps between planes of `size` pixels and pixels of `layers` channels. */
struct flatten_map {
    unsigned size, layers;
    bool to_pixels;

    __device__ __forceinline__ void find(unsigned planes, unsigned *from, unsigned *to) const
    {
        unsigned pixels = planes % size * layers + planes / size;
        *from = to_pixels ? planes : pixels;
        *to = to_pixels ? pixels : planes;
    }
};

/* ---- unfold ---- */

/* Windows of x, one for each pixel of y. */
struct unfolding {
    int size, stride, pad;
    ampk_sides x, y;
};

/* A thread has a channel of a window: the pixel of x that it shows, or 0. */
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    unfold_windows(ampk_cover cover, unfolding u, ampk_view x, ampk_view y)
{
    unsigned channel = ampk_channel<ampk_any>(cover);
    if (channel >= cover.channels) return;
    int tap = (int)channel % (u.size * u.size);
    for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
        ampk_pixel at(row, u.y);
        int h = at.h * u.stride - u.pad + tap / u.size, w = at.w * u.stride - u.pad + tap % u.size;
        float v[1] = {0};
        if (h >= 0 && h < u.x.h && w >= 0 && w < u.x.w)
            ampk_any::load(x, ampk_row_of(at.image, h, w, u.x), channel / (u.size * u.size), v);
        ampk_any::store(y, row, channel, v);
    }
}

/* The first window that sees a row or column, counted from the padding's first. */
static __device__ __forceinline__ int first_window(int at, const unfolding &u)
{
    return at < u.size ? 0 : (at - u.size) / u.stride + 1;
}

/* A thread has a pixel of dx, and adds up what the windows that see it got. */
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    fold_windows(ampk_cover cover, unfolding u, ampk_view dy, ampk_view dx, bool accumulate,
                 uint32_t *amax)
{
    unsigned channel = ampk_channel<ampk_any>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            ampk_pixel at(row, u.x);
            int h = at.h + u.pad, w = at.w + u.pad;
            float sum[1] = {0};
            for (int i = first_window(h, u); i < u.y.h && i * u.stride <= h; i++)
                for (int j = first_window(w, u); j < u.y.w && j * u.stride <= w; j++) {
                    int tap = (h - i * u.stride) * u.size + w - j * u.stride;
                    float v[1];
                    ampk_any::load(dy, ampk_row_of(at.image, i, j, u.y),
                                   channel * (unsigned)(u.size * u.size) + (unsigned)tap, v);
                    sum[0] += v[0];
                }
            largest = ampk_put<ampk_any>(dx, row, channel, sum, accumulate, largest);
        }
    ampk_raise_amax(amax, largest);
}

/* ---- operations ---- */

static struct ampk_sides sides_of(const struct ampk_tensor *t)
{
    return {t->h, t->w};
}

/* Upsampling and its backward are both this call: reverse sums what forward copied. */
extern "C" void ampk_cuda_upsample(struct ampk_context *ctx, const struct ampk_tensor *x,
                                   int stride, float scale, bool reverse,
                                   const struct ampk_tensor *y, bool accumulate, uint32_t *amax)
{
    struct ampk_view from = ampk_pixels(x), to = ampk_pixels(y);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(ampk_pixel_count(y), to.c);
        if (reverse)
            AMPK_LAUNCH(reduce<A>, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, from, to,
                        sides_of(y), stride, scale, accumulate, amax);
        else
            AMPK_LAUNCH(enlarge<A>, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, from,
                        sides_of(x), stride, scale, to, accumulate, amax);
    };
    ampk_with_access(run, from, to);
}

/* Without n: all tensors of an operation have the same number of images. */
static bool have_same_shape(const struct ampk_tensor *a, const struct ampk_tensor *b)
{
    return a->c == b->c && a->h == b->h && a->w == b->w;
}

extern "C" void ampk_cuda_shortcut_forward(struct ampk_context *ctx, const struct ampk_tensor *x,
                                           const struct ampk_tensor *add, float alpha, float beta,
                                           enum ampk_activation activation,
                                           const struct ampk_tensor *out, uint32_t *amax)
{
    if (!have_same_shape(x, add)) {
        struct ampk_cover cover = ampk_cover_map<ampk_any>(ampk_pixel_count(x), x->c);
        ampk_with_activation(activation, [&](auto family) {
            AMPK_LAUNCH(add_sampled<decltype(family)>, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream,
                        cover, find_sampling(x, add), ampk_pixels(x), ampk_pixels(add), alpha, beta,
                        family, ampk_pixels(out), amax);
        });
        return;
    }
    struct ampk_view a = ampk_flat(x), b = ampk_flat(add), to = ampk_flat(out);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(x->n, a.c);
        ampk_with_activation(activation, [&](auto family) {
            AMPK_LAUNCH((add_same<A, decltype(family)>), cover.grid, AMPK_MAP_THREADS, 0,
                        ctx->stream, cover, a, b, alpha, beta, family, to, amax);
        });
    };
    ampk_with_access(run, a, b, to);
}

/* to (+)= factor * d * activation'(out) */
static void pass_to(struct ampk_context *ctx, const struct ampk_tensor *out,
                    const struct ampk_tensor *d, float factor, enum ampk_activation activation,
                    const struct ampk_tensor *to, bool accumulate, uint32_t *amax)
{
    if (!have_same_shape(d, to)) {
        struct ampk_cover cover = ampk_cover_map<ampk_any>(ampk_pixel_count(to), to->c);
        ampk_with_activation(activation, [&](auto family) {
            AMPK_LAUNCH(pass_sampled<decltype(family)>, cover.grid, AMPK_MAP_THREADS, 0,
                        ctx->stream, cover, find_sampling(to, d), ampk_pixels(out), ampk_pixels(d),
                        factor, family, ampk_pixels(to), accumulate, amax);
        });
        return;
    }
    struct ampk_view y = ampk_flat(out), from = ampk_flat(d), into = ampk_flat(to);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(d->n, from.c);
        ampk_with_activation(activation, [&](auto family) {
            AMPK_LAUNCH((pass_same<A, decltype(family)>), cover.grid, AMPK_MAP_THREADS, 0,
                        ctx->stream, cover, y, from, factor, family, into, accumulate, amax);
        });
    };
    ampk_with_access(run, y, from, into);
}

/* The two gradients go to two tensors that accumulate independently, so each has a launch. */
extern "C" void ampk_cuda_shortcut_backward(struct ampk_context *ctx, const struct ampk_tensor *out,
                                            const struct ampk_tensor *d, float alpha, float beta,
                                            enum ampk_activation activation,
                                            const struct ampk_tensor *dx, bool dx_accumulate,
                                            const struct ampk_tensor *dadd, bool dadd_accumulate,
                                            uint32_t *dx_amax, uint32_t *dadd_amax)
{
    if (dx) pass_to(ctx, out, d, alpha, activation, dx, dx_accumulate, dx_amax);
    if (dadd) pass_to(ctx, out, d, beta, activation, dadd, dadd_accumulate, dadd_amax);
}

/* Single elements through ampk_any: a permutation has no runs to rely on. */
template <typename Map>
static void run_permute(struct ampk_context *ctx, const Map &map, const struct ampk_tensor *src,
                        const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    struct ampk_view from = ampk_pixels(src), to = ampk_pixels(dst);
    unsigned count = from.c * from.area;
    dim3 grid((unsigned)src->n, ampk_cuda_blocks(ctx, count, AMPK_MAP_THREADS, AMPK_MAP_THREADS));
    AMPK_LAUNCH(permute<Map>, grid, AMPK_MAP_THREADS, 0, ctx->stream, count, map, from, to,
                accumulate, amax);
}

extern "C" void ampk_cuda_reorg(struct ampk_context *ctx, const struct ampk_tensor *src, int w,
                                int h, int c, int stride, int forward,
                                const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    struct reorg_map map = {(unsigned)w, (unsigned)h, (unsigned)c, (unsigned)stride, forward != 0};
    run_permute(ctx, map, src, dst, accumulate, amax);
}

extern "C" void ampk_cuda_flatten(struct ampk_context *ctx, const struct ampk_tensor *src, int size,
                                  int layers, int forward, const struct ampk_tensor *dst,
                                  bool accumulate, uint32_t *amax)
{
    struct flatten_map map = {(unsigned)size, (unsigned)layers, forward != 0};
    run_permute(ctx, map, src, dst, accumulate, amax);
}

extern "C" void ampk_cuda_unfold(struct ampk_context *ctx, const struct ampk_tensor *x, int size,
                                 int stride, int pad, const struct ampk_tensor *y)
{
    struct unfolding u = {size, stride, pad, sides_of(x), sides_of(y)};
    struct ampk_cover cover = ampk_cover_map<ampk_any>(ampk_pixel_count(y), y->c);
    AMPK_LAUNCH(unfold_windows, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, u,
                ampk_pixels(x), ampk_pixels(y));
}

extern "C" void ampk_cuda_fold(struct ampk_context *ctx, const struct ampk_tensor *dy, int size,
                               int stride, int pad, const struct ampk_tensor *dx, bool accumulate,
                               uint32_t *amax)
{
    struct unfolding u = {size, stride, pad, sides_of(dx), sides_of(dy)};
    struct ampk_cover cover = ampk_cover_map<ampk_any>(ampk_pixel_count(dx), dx->c);
    AMPK_LAUNCH(fold_windows, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, u,
                ampk_pixels(dy), ampk_pixels(dx), accumulate, amax);
}
