/* Copies between dtypes, layouts and slices (kernels.h, convert). Three ways: row by row if both
 * sides have the same order, tile by tile between the orders, element by element between two NHWC
 * shapes. */
#include "device.h"

/* 256 threads give full occupancy on every architecture, and 16 elements of a transposed tile to
 * each thread. */
static const int THREADS = 256;

/* ---- rows: both sides in the same order ---- */

/* One side of a copy: rows of images. Strides count elements. */
template <typename T> struct side {
    T *data;
    size_t image_stride, row_stride;
};

/* The extent of a copy: vectors in a row, rows in an image, vectors in all. */
struct extent {
    struct ampk_divisor row, image;
    uint32_t count;
};

/* dst (+)= src, N elements at once. Indices are split by multiplication (ampk_divisor). */
template <int N, typename D, typename S>
static __global__ void __launch_bounds__(THREADS)
    ampk_copy_rows(const side<D> dst, const side<const S> src, const struct extent e,
                   bool accumulate, uint32_t *amax)
{
    uint32_t largest = 0;
    for (uint32_t i = ampk_first(); i < e.count; i += ampk_stride()) {
        uint32_t column, row, image = ampk_split(ampk_split(i, e.row, &column), e.image, &row);
        D *to = dst.data + image * dst.image_stride + row * dst.row_stride + (size_t)column * N;
        float v[N];
        ampk_load(src.data + image * src.image_stride + row * src.row_stride + (size_t)column * N,
                  v);
        if (accumulate) {
            float old[N];
            ampk_load(to, old);
#pragma unroll
            for (int k = 0; k < N; k++)
                v[k] += old[k];
        }
        largest = ampk_magnitude(v, largest);
        ampk_store(to, v);
    }
    ampk_raise_amax(amax, largest);
}

/* ---- transposition: a matrix [rows][columns] becomes [columns][rows] ---- */

static const int TILE = 4096; /* elements of a tile: 64 x 64, or longer if the matrix is narrow, so
                                 that a block has full work */

/* A tile's sides as powers of two, so that indices split by shifts. */
struct tile_shape {
    int row_places, column_places;
};

struct matrix {
    uint32_t rows, columns;    /* of the source */
    size_t src_step, dst_step; /* from row to row */
    uint32_t down, across;     /* tiles */
    struct tile_shape tile;
};

/* Each block has one tile. In shared memory its rows lie an odd number of words apart, so that
 * neither the threads of a column nor those of a row meet in one bank. */
template <typename D, typename S>
static __global__ void __launch_bounds__(THREADS)
    ampk_transpose(D *__restrict__ dst, size_t dst_stride, const S *__restrict__ src,
                   size_t src_stride, const struct matrix m, bool accumulate, uint32_t *amax)
{
    AMPK_SHARED_MEMORY(float, tile);
    const uint32_t height = 1u << m.tile.row_places, width = 1u << m.tile.column_places;
    const uint32_t across = blockIdx.x % m.across, rest = blockIdx.x / m.across;
    const size_t image = rest / m.down;
    const uint32_t row = rest % m.down * height, column = across * width;
    src += image * src_stride;
    dst += image * dst_stride;
    float loaded[TILE / THREADS] = {}; /* load all first: a store would wait for its load */
#pragma unroll
    for (int k = 0; k < TILE / THREADS; k++) {
        uint32_t i = k * THREADS + threadIdx.x;
        uint32_t r = i >> m.tile.column_places, c = i & (width - 1);
        if (row + r < m.rows && column + c < m.columns)
            loaded[k] = ampk_to_float(src[(row + r) * m.src_step + column + c]);
    }
#pragma unroll
    for (int k = 0; k < TILE / THREADS; k++) {
        uint32_t i = k * THREADS + threadIdx.x;
        uint32_t r = i >> m.tile.column_places, c = i & (width - 1);
        tile[r * (width + 1) + c] = loaded[k];
    }
    __syncthreads();
    uint32_t largest = 0;
#pragma unroll
    for (int k = 0; k < TILE / THREADS; k++) {
        uint32_t i = k * THREADS + threadIdx.x;
        uint32_t c = i >> m.tile.row_places, r = i & (height - 1);
        if (row + r < m.rows && column + c < m.columns) {
            D *to = dst + (column + c) * m.dst_step + row + r;
            float v = tile[r * (width + 1) + c];
            if (accumulate) v += ampk_to_float(*to);
            largest = ampk_larger(largest, ampk_magnitude(v));
            ampk_from_float(v, to);
        }
    }
    ampk_raise_amax(amax, largest);
}

/* ---- NHWC to NHWC of another shape: element by element, in the order of dst ---- */

struct regroup_shape {
    struct ampk_divisor dst_c, src_area, image;
    uint32_t dst_area, count;
    size_t dst_pitch, src_pitch;
};

template <typename D, typename S>
static __global__ void __launch_bounds__(THREADS)
    ampk_regroup(D *__restrict__ dst, size_t dst_stride, const S *__restrict__ src,
                 size_t src_stride, const struct regroup_shape s, bool accumulate, uint32_t *amax)
{
    uint32_t largest = 0;
    for (uint32_t i = ampk_first(); i < s.count; i += ampk_stride()) {
        uint32_t place, channel, pixel;
        size_t image = ampk_split(i, s.image, &place);
        uint32_t dst_pixel = ampk_split(place, s.dst_c, &channel);
        uint32_t src_channel = ampk_split(channel * s.dst_area + dst_pixel, s.src_area, &pixel);
        D *to = dst + image * dst_stride + dst_pixel * s.dst_pitch + channel;
        float v = ampk_to_float(src[image * src_stride + pixel * s.src_pitch + src_channel]);
        if (accumulate) v += ampk_to_float(*to);
        largest = ampk_larger(largest, ampk_magnitude(v));
        ampk_from_float(v, to);
    }
    ampk_raise_amax(amax, largest);
}

/* ---- launches ---- */

/* The number of images in one launch: its indices are 32-bit. More images go in several launches.
 */
static int images_at_once(size_t image_size)
{
    size_t images = ((size_t)1 << 31) / image_size;
    return images < 1 ? 1 : images > INT32_MAX ? INT32_MAX : (int)images;
}

template <typename T> static T *image_of(const struct ampk_tensor *t, int image)
{
    return static_cast<T *>(t->data) + image * t->image_stride;
}

template <int N, typename D, typename S>
static void launch_rows(struct ampk_context *ctx, const side<D> &dst, const side<const S> &src,
                        int images, size_t rows, size_t length, bool accumulate, uint32_t *amax)
{
    const struct extent e = {ampk_divide_by((uint32_t)(length / N)), ampk_divide_by((uint32_t)rows),
                             (uint32_t)(images * rows * (length / N))};
    AMPK_LAUNCH((ampk_copy_rows<N, D, S>), ampk_cuda_blocks(ctx, e.count, THREADS, THREADS),
                THREADS, 0, ctx->stream, dst, src, e, accumulate, amax);
}

template <typename T>
static side<T> side_of(const struct ampk_tensor *t, int image, size_t row_stride)
{
    return {image_of<T>(t, image), t->image_stride, row_stride};
}

template <typename T, int N> static bool fits(const side<T> &s)
{
    return ampk_fits<T, N>(s.data, s.image_stride) && s.row_stride % N == 0;
}

template <typename D, typename S>
static void copy_as(struct ampk_context *ctx, const struct ampk_tensor *src, size_t src_step,
                    const struct ampk_tensor *dst, size_t dst_step, size_t rows, size_t length,
                    bool accumulate, uint32_t *amax)
{
    static const int WIDE = 8;
    const int group = images_at_once(rows * length);
    for (int first = 0; first < src->n; first += group) {
        const int count = src->n - first < group ? src->n - first : group;
        const side<D> to = side_of<D>(dst, first, dst_step);
        const side<S> from = side_of<S>(src, first, src_step);
        const side<const S> constant = {from.data, from.image_stride, from.row_stride};
        if (length % WIDE == 0 && fits<D, WIDE>(to) && fits<S, WIDE>(from))
            launch_rows<WIDE>(ctx, to, constant, count, rows, length, accumulate, amax);
        else
            launch_rows<1>(ctx, to, constant, count, rows, length, accumulate, amax);
    }
}

/* Copies images of so many rows, each of `length` elements; step: elements from row to row. */
static void copy_images(struct ampk_context *ctx, const struct ampk_tensor *src, size_t src_step,
                        const struct ampk_tensor *dst, size_t dst_step, size_t rows, size_t length,
                        bool accumulate, uint32_t *amax)
{
    AMPK_WITH_TYPE(dst->dtype, D,
                   AMPK_WITH_TYPE(src->dtype, S,
                                  (copy_as<D, S>(ctx, src, src_step, dst, dst_step, rows, length,
                                                 accumulate, amax))));
}

/* Whether the order in memory is that of NCHW. */
static bool is_planar(const struct ampk_tensor *t)
{
    return t->layout == AMPK_NCHW || ampk_pitch(t) == 1 || (size_t)t->h * t->w == 1;
}

/* Elements from row to row of t, taken as a matrix whose rows have `length` elements. */
static size_t row_step(const struct ampk_tensor *t, size_t length)
{
    return is_planar(t) ? length : (size_t)ampk_pitch(t);
}

/* The power of two of a tile's side: at least 4, at most 64, else the first that covers `length`.
 */
static int places_for(size_t length)
{
    int places = 2;
    while (places < 6 && (size_t)1 << places < length)
        places++;
    return places;
}

/* A tile always has TILE elements: if one side is short, the other is long. */
static struct matrix make_matrix(size_t rows, size_t columns, size_t src_step, size_t dst_step)
{
    static const int TILE_PLACES = 12; /* 2^12 = TILE */
    struct tile_shape tile = {places_for(rows), places_for(columns)};
    if (tile.row_places < 6)
        tile.column_places = TILE_PLACES - tile.row_places;
    else
        tile.row_places = TILE_PLACES - tile.column_places;
    const size_t height = (size_t)1 << tile.row_places, width = (size_t)1 << tile.column_places;
    return {(uint32_t)rows,
            (uint32_t)columns,
            src_step,
            dst_step,
            (uint32_t)((rows + height - 1) / height),
            (uint32_t)((columns + width - 1) / width),
            tile};
}

template <typename D, typename S>
static void transpose_as(struct ampk_context *ctx, const struct ampk_tensor *src,
                         const struct ampk_tensor *dst, size_t rows, size_t columns,
                         bool accumulate, uint32_t *amax)
{
    const struct matrix m = make_matrix(rows, columns, row_step(src, columns), row_step(dst, rows));
    const size_t shared = (TILE + ((size_t)1 << m.tile.row_places)) * sizeof(float);
    const int group = images_at_once((size_t)m.down * m.across);
    for (int first = 0; first < src->n; first += group) {
        const int count = src->n - first < group ? src->n - first : group;
        AMPK_LAUNCH((ampk_transpose<D, S>), count * m.down * m.across, THREADS, shared, ctx->stream,
                    image_of<D>(dst, first), dst->image_stride, image_of<const S>(src, first),
                    src->image_stride, m, accumulate, amax);
    }
}

/* src is [rows][columns] in memory, dst [columns][rows]. */
static void transpose_images(struct ampk_context *ctx, const struct ampk_tensor *src,
                             const struct ampk_tensor *dst, size_t rows, size_t columns,
                             bool accumulate, uint32_t *amax)
{
    AMPK_WITH_TYPE(
        dst->dtype, D,
        AMPK_WITH_TYPE(src->dtype, S,
                       (transpose_as<D, S>(ctx, src, dst, rows, columns, accumulate, amax))));
}

template <typename D, typename S>
static void regroup_as(struct ampk_context *ctx, const struct ampk_tensor *src,
                       const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    const uint32_t size = (uint32_t)ampk_image_size(src), src_area = (uint32_t)(src->h * src->w);
    struct regroup_shape s = {ampk_divide_by(dst->c),
                              ampk_divide_by(src_area),
                              ampk_divide_by(size),
                              (uint32_t)(dst->h * dst->w),
                              0,
                              (size_t)ampk_pitch(dst),
                              (size_t)ampk_pitch(src)};
    const int group = images_at_once(size);
    for (int first = 0; first < src->n; first += group) {
        s.count = size * (src->n - first < group ? src->n - first : group);
        AMPK_LAUNCH((ampk_regroup<D, S>), ampk_cuda_blocks(ctx, s.count, THREADS, THREADS), THREADS,
                    0, ctx->stream, image_of<D>(dst, first), dst->image_stride,
                    image_of<const S>(src, first), src->image_stride, s, accumulate, amax);
    }
}

static void regroup_images(struct ampk_context *ctx, const struct ampk_tensor *src,
                           const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    AMPK_WITH_TYPE(
        dst->dtype, D,
        AMPK_WITH_TYPE(src->dtype, S, (regroup_as<D, S>(ctx, src, dst, accumulate, amax))));
}

/* ---- operations ---- */

/* An NHWC tensor without gaps between pixels. */
static bool is_dense(const struct ampk_tensor *t)
{
    return !is_planar(t) && ampk_pitch(t) == t->c;
}

/* From the cheapest case to the dearest: one run per image, rows of channels, transposition,
 * single elements. */
extern "C" void ampk_cuda_convert(struct ampk_context *ctx, const struct ampk_tensor *src,
                                  const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    const struct ampk_tensor *pixels = is_planar(src) ? dst : src; /* the one in NHWC order */
    const size_t area = (size_t)pixels->h * pixels->w, c = pixels->c, size = ampk_image_size(src);
    if (is_planar(src) ? is_planar(dst) : is_dense(src) && is_dense(dst) && src->c == dst->c)
        copy_images(ctx, src, size, dst, size, 1, size, accumulate, amax);
    else if (!is_planar(src) && !is_planar(dst) && src->c == dst->c)
        copy_images(ctx, src, ampk_pitch(src), dst, ampk_pitch(dst), area, c, accumulate, amax);
    else if (is_planar(src))
        transpose_images(ctx, src, dst, c, area, accumulate, amax);
    else if (is_planar(dst))
        transpose_images(ctx, src, dst, area, c, accumulate, amax);
    else
        regroup_images(ctx, src, dst, accumulate, amax);
}
