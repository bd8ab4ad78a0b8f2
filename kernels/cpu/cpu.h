/* Inside of the CPU backend: its context, and how operations are compiled for and chosen by
 * instruction set.
 *
 * Element-wise files are compiled once per instruction set with AMPK_ISA = avx512, avx2 or base
 * (CMakeLists.txt). In them an operation of the contract is written as
 *
 *     void AMPK_CPU(bn_statistics)(struct ampk_context *ctx, ...) { ... }
 *
 * It is named in AMPK_CPU_OPERATIONS below, and backend.c forwards to the set that
 * context_create chose. All other functions of such a file are static.
 */
#ifndef AMPK_CPU_H
#define AMPK_CPU_H

#include "kernels/kernels.h"

/* Every element-wise operation of the contract. */
/* clang-format off */
#define AMPK_CPU_OPERATIONS(X)                                                                     \
    X(convert)                                                                                     \
    X(bn_statistics) X(bn_act_forward) X(bn_act_backward) X(bias_act_backward)                     \
    X(bn_act_pool_forward) X(bn_act_pool_backward)                                                 \
    X(maxpool_forward) X(maxpool_backward) X(avgpool_forward) X(avgpool_backward)                  \
    X(upsample) X(shortcut_forward) X(shortcut_backward) X(reorg) X(flatten) X(unfold) X(fold)     \
    X(dropout) X(dropout_draw) X(activation_forward) X(activation_backward)                        \
    X(amax) X(scale) X(accumulate) X(copy_many) X(inspect) X(sum_squares)                          \
    X(update) X(trust_ratios) X(average_many)                                                      \
    X(yolo_forward) X(yolo_loss) X(loss_backward)
/* Those of conv.c and conv_weights.c, which are compiled once. */
#define AMPK_CPU_CONV(X)                                                                           \
    X(conv_create) X(conv_destroy) X(conv_set_weights) X(conv_forward)               \
    X(conv_bias_forward) X(conv_backward) X(conv_keep_gradient) X(conv_weight_gradients)
/* The members of struct ampk_rows. */
#define AMPK_CPU_ROWS(X)                                                                           \
    X(load) X(load_bf16) X(round) X(store) X(add_parts) X(add_scaled) X(amax)                      \
    X(store_sums) X(store_bias) X(finish_statistics)
/* clang-format on */

/* A run of pixels of one image, and of their channels. */
struct ampk_region {
    const struct ampk_tensor *tensor;
    size_t image, pixel, pixels, channel, channels;
    size_t source_stride; /* floats from pixel to pixel in what is stored there */
};

/* Arrays of rows, of which some are to be added up. */
struct ampk_parts {
    const float *first;
    size_t count, step, stride; /* floats from part to part, and from row to row */
};

/* Loops over elements for conv.c, which is compiled once. FP32 sides are dense. Magnitudes are
 * returned as amax bits. */
struct ampk_rows {
    /* dst = src rounded to the compute type: rows of some length, stride elements apart in src. */
    void (*load)(float *dst, const void *src, enum ampk_dtype, size_t rows, size_t length,
                 size_t stride, enum ampk_compute);
    /* The same rounded to BF16, into rows of dst_length: the rest of each is 0. */
    void (*load_bf16)(uint16_t *dst, size_t dst_length, const void *src, enum ampk_dtype,
                      size_t rows, size_t length, size_t stride);
    /* dst = src rounded to the compute type, one row; returns the largest magnitude in src. */
    uint32_t (*round)(float *dst, const float *src, size_t n, enum ampk_compute);
    /* dst (+)= src rounded to storage; returns the largest magnitude stored. Here src too has a
     * stride. */
    uint32_t (*store)(void *dst, enum ampk_dtype, size_t stride, const float *src,
                      size_t src_stride, size_t rows, size_t length, bool accumulate);
    /* dst = the sums of the parts, in order, of rows of some length; returns the largest magnitude
     * of them. */
    uint32_t (*add_parts)(float *dst, size_t stride, const struct ampk_parts *, size_t rows,
                          size_t length);
    /* dst (+)= factor * src, rounded one by one */
    void (*add_scaled)(float *dst, const float *src, size_t n, float factor, bool accumulate);
    uint32_t (*amax)(const float *src, size_t n);

    /* y = source, and the sums over the pixels of y - shift and (y - shift)^2. shift, sums and
     * squares start at channel 0 of the tensor. */
    uint32_t (*store_sums)(const float *source, const struct ampk_region *y, const float *shift,
                           float *sums, float *squares);
    /* y = activation(source + bias), y of any dtype and layout. */
    uint32_t (*store_bias)(const float *source, const struct ampk_region *y, const float *bias,
                           enum ampk_activation);
    /* From `count` parts of 2*c sums, as store_sums leaves them, which are overwritten; `values`
     * went into each channel's. */
    void (*finish_statistics)(float *partial, size_t count, size_t values, size_t c,
                              const struct ampk_bn_statistics *);
};

/* Some filters and channels of a convolution's weights, in BF16. */
struct ampk_weight_block {
    int filter, filters, channel, channels, taps;
    const uint16_t *values; /* [filters][channels][taps] */
};

/* Rows of tiles of 4 x 4 pixels in images of some width. */
struct ampk_winograd_band {
    int w, rows, columns; /* columns: w / 4, rounded up */
};

enum {
    AMPK_WINOGRAD_POINTS = 36,
    AMPK_WINOGRAD_PANEL = 32,   /* filters or channels that are written divide into so many */
    AMPK_WINOGRAD_ROWS = 8,     /* of a block of a product, at most */
    AMPK_WINOGRAD_COLUMNS = 32, /* of a block, at most */
    AMPK_WINOGRAD_GAP = 32,     /* floats from the end of a point's values to the next point's */
};

/* A weight gradient, or a part of its sums, from the points that take_tiles took of x and dy. */
struct ampk_winograd_gradient {
    size_t tiles, most; /* that there are, and that there is room for */
    size_t channels, filters;
    const float *points;
    float *sums; /* of points: 36 * ((channels + ROWS) * COLUMNS + GAP) floats if this is all, else
                    so many for every COLUMNS filters */
    bool add;    /* to the sums of the calls before */
    float *gradient; /* [filters][channels][9]; NULL: there is more to be added first */
    size_t filter;   /* floats from one filter to the next */
};

/* winograd.c, for conv_winograd_run.c. All is FP32; channels and `written` are multiples of a
 * panel. */
struct ampk_winograd {
    /* For the caches of CPUs that have this set: floats of the points of a slice's weights, of all
     * channels that are read, and channels of a slice of the weight gradient. */
    size_t slice_points, gradient_slice;
    /* Whether slices share the points of what they read, as conv_winograd.c has it: where that was
     * measured to be faster. */
    bool shares;
    /* panel[channels][9][PANEL] from weights of 9 taps: of one lane and of one channel to the
     * next there are steps, one of which is 9. */
    void (*pack)(const float *weights, size_t lane_step, size_t channel_step, size_t channels,
                 float *panel);
    /* points[36][channels][PANEL]; one point begins count + GAP floats behind the one before.
     * flipped: of the taps in the opposite order, as from y to x. */
    void (*to_points)(const float *panel, size_t channels, bool flipped, float *points,
                      size_t count);
    /* The points of in[4*rows + 2][w][channels], whose first row is the one above the band, tile
     * after tile, from one to the next `stride` floats. Of `most` tiles there is room for:
     * 36 * (most * stride + GAP) floats. */
    void (*take_input)(const struct ampk_winograd_band *, const float *in, size_t channels,
                       float *points, size_t stride, size_t most);
    /* y[36][tiles][written] (+)= x[36][tiles][channels] * weights, whose points are
     * [36][written / PANEL][channels][PANEL]; room as above, for so many tiles. */
    void (*multiply)(size_t tiles, size_t channels, const float *x, size_t x_most,
                     const float *weights, size_t written, float *y, size_t y_most, bool add);
    /* out[4*rows][w][written] from the points of a band */
    void (*give_output)(const struct ampk_winograd_band *, const float *points, size_t written,
                        size_t most, float *out);
    /* points: those of a band of x and of dy, shaped as in and out are, from tile `first` on of
     * `most` that there is room for. 36 * (most * (channels + filters) + 2 * GAP) floats. */
    void (*take_tiles)(const struct ampk_winograd_band *, const float *x, size_t channels,
                       const float *dy, size_t filters, size_t first, size_t most, float *points);
    /* The weight gradient of so many tiles. Returns its largest magnitude if it is complete. */
    uint32_t (*add_gradient)(const struct ampk_winograd_gradient *);
};

enum {
    AMPK_PAIR_CHANNELS = 32,     /* of a panel: x[pixels][32], pairs of BF16 */
    AMPK_PAIR_FILTERS = 8,       /* dy[pixels][8] */
    AMPK_GRADIENT_CHANNELS = 16, /* of FP32: those of x are a multiple */
};

/* Some rows of dy and x, all of one length: of pairs, or of FP32 values. */
struct ampk_gradient_rows {
    size_t rows, pixels;
    size_t dy_row, x_row, x_step; /* words from row to row, and of x from pixel to pixel */
};

/* Rows of BF16 side by side. One that is NULL counts as zeros. */
struct ampk_pair_source {
    const uint16_t *low, *high;
    size_t pixels, values, stride; /* values of a pixel; from pixel to pixel */
};

/* gradient_avx512.c, for conv_pairs.c. */
struct ampk_pairs {
    /* Into panels, which are panel_step words apart. */
    void (*of_channels)(const struct ampk_pair_source *, size_t panel_step, uint32_t *panels);
    void (*of_filters)(const struct ampk_pair_source *, size_t panel_step, uint32_t *panels);
    /* out[8][channels] (+)= the sums over pixels of dy * x; channels: 16, or 32 and more. */
    void (*multiply)(const struct ampk_gradient_rows *, const uint32_t *dy, const uint32_t *x,
                     size_t channels, float *out, size_t out_row, bool add);
};

/* Some pixels of a 1x1 convolution of BF16, in pairs: a word is two channels that are read. */
struct ampk_product {
    const void *x;          /* [pixels][pairs] */
    const uint32_t *panels; /* [written / 16][pairs][16] */
    size_t pixels, pairs, written;
    float *out; /* [pixels][written]. NULL: rounded to BF16 instead, into */
    uint16_t *y;
    size_t stride;         /* of y, from pixel to pixel */
    bool accumulate;       /* add to y's values */
    const float *shift;    /* NULL, or the same sums are raised as by store_sums; */
    float *sums, *squares; /* all three start at y's first channel */
};

struct ampk_dnnl_lines;

struct ampk_isa;

/* conv_bytes of kernels.h; bf16: this CPU multiplies BF16. */
size_t ampk_conv_bytes(const struct ampk_conv_shape *, const struct ampk_isa *, bool bf16);
/* conv_work_bytes, the same. */
size_t ampk_conv_work_bytes(const struct ampk_conv_shape *, const struct ampk_isa *, bool bf16);

/* What one instruction set offers. */
struct ampk_isa {
    const char *name;
    const struct ampk_backend *operations; /* the element-wise ones; the others are NULL */
    struct ampk_rows rows;
    const struct ampk_winograd *winograd; /* NULL in portable C: it would not be faster */
    /* Puts a block, which begins at filter and channel of the layout, into its lines. NULL where
     * nothing multiplies BF16. */
    void (*put_lines)(const struct ampk_weight_block *, const struct ampk_dnnl_lines *, int filter,
                      int channel, uint16_t *values);
    const struct ampk_pairs *pairs; /* the same */
    /* product_avx512.c, the same. Returns the largest magnitude stored as BF16, as amax bits. */
    uint32_t (*product)(const struct ampk_product *);
    /* gradient_fp32.c: out[filters][channels] (+)= the sums over pixels of dy[pixels][filters] *
     * x[pixels][channels], of channels that are a multiple of AMPK_GRADIENT_CHANNELS. NULL where it
     * was not measured to be faster than oneDNN. */
    void (*gradient)(const struct ampk_gradient_rows *, const float *dy, size_t filters,
                     const float *x, size_t channels, float *out, size_t out_row, bool add);
};

extern const struct ampk_isa ampk_isa_base;
#ifdef __x86_64__
extern const struct ampk_isa ampk_isa_avx2, ampk_isa_avx512;
extern __typeof__(*ampk_isa_base.put_lines) ampk_avx512_put_lines;
extern const struct ampk_pairs ampk_avx512_pairs;
extern __typeof__(*ampk_isa_base.product) ampk_avx512_product;
extern const struct ampk_winograd ampk_cpu_winograd_avx2, ampk_cpu_winograd_avx512;
extern __typeof__(*ampk_isa_base.gradient) ampk_cpu_gradient_avx2;
#endif

struct ampk_context {
    int threads; /* num_threads of every parallel region */
    const struct ampk_isa *isa;
    bool multiplies_bf16; /* faster than FP32, with FP32 sums: AVX512-BF16, AMX-BF16 */
    struct ampk_dnnl *dnnl;
    void *memory; /* see ampk_memory */
    size_t memory_bytes;
};

/* Bytes of one slot of max-pooling's argmax: see pool.c. */
enum { AMPK_LARGEST_BYTE_WINDOW = 15 };

static inline size_t ampk_pool_index_bytes(int size)
{
    return size <= AMPK_LARGEST_BYTE_WINDOW ? 1 : sizeof(float);
}

/* Memory at a multiple of 64 bytes, in huge pages where it is large; NULL when there is none left.
 * To be given back by free(). */
void *ampk_aligned_memory(size_t bytes);
/* Work memory of one operation, 64-byte aligned, valid until the next call. Aborts the program with
 * a message when there is none left: conv_create reserves what is large. */
void *ampk_memory(struct ampk_context *, size_t bytes);
/* Makes sure that ampk_memory() can give this much; false when there is not. */
bool ampk_memory_reserve(struct ampk_context *, size_t bytes);

#define AMPK_CPU_DECLARE_ONCE(name) extern __typeof__(*ampk_cpu.name) ampk_cpu_##name;
AMPK_CPU_CONV(AMPK_CPU_DECLARE_ONCE)

#ifdef AMPK_ISA
#define AMPK_JOIN_(a, b, c) a##b##_##c
#define AMPK_JOIN(a, b, c)  AMPK_JOIN_(a, b, c)
#define AMPK_CPU(name)      AMPK_JOIN(ampk_cpu_, name, AMPK_ISA)

#define AMPK_CPU_DECLARE(name) extern __typeof__(*ampk_cpu.name) AMPK_CPU(name);
AMPK_CPU_OPERATIONS(AMPK_CPU_DECLARE)
#define AMPK_CPU_DECLARE_ROWS(name)                                                                \
    extern __typeof__(*ampk_isa_base.rows.name) AMPK_CPU(rows_##name);
AMPK_CPU_ROWS(AMPK_CPU_DECLARE_ROWS)
/* Raises amax to the magnitudes in x; inf in FP16 counts as the smallest that becomes it. */
void AMPK_CPU(watch_stored)(struct ampk_context *, const struct ampk_tensor *x, uint32_t *amax);
/* sum[i] = partial[0][i] + ... + partial[count-1][i], in this order; sum may be partial[0]. */
void AMPK_CPU(add_partial)(const float *partial, size_t count, size_t n, float *sum);
#endif

/* ---- tensors ---- */

/* Elements of one image. */
static inline size_t ampk_image_size(const struct ampk_tensor *t)
{
    return (size_t)t->c * t->h * t->w;
}

/* Address of element i of an image, counted in memory order. */
static inline void *ampk_at(const struct ampk_tensor *t, size_t image, size_t i)
{
    return (char *)t->data + (image * t->image_stride + i) * ampk_dtype_bytes(t->dtype);
}

/* Address of a pixel of an NHWC image. */
static inline void *ampk_pixel_at(const struct ampk_tensor *t, size_t image, size_t pixel)
{
    return ampk_at(t, image, pixel * (size_t)ampk_pitch(t));
}

/* ---- work for threads ----
 * A loop over elements is cut into pieces of a fixed size, never by the number of threads:
 *
 *     size_t size = ampk_image_size(x), pieces = ampk_pieces(size);
 *     uint32_t largest = 0;
 *     #pragma omp parallel for num_threads(ctx->threads) reduction(max : largest)
 *     for (size_t i = 0; i < x->n * pieces; i++) {
 *         size_t image = i / pieces, first = i % pieces * AMPK_PIECE;
 *         size_t count = ampk_piece(size, first);
 *         ...
 *     }
 *     ampk_amax_raise(amax, largest);
 */
enum { AMPK_PIECE = 16384 };

static inline size_t ampk_pieces(size_t elements)
{
    return (elements + AMPK_PIECE - 1) / AMPK_PIECE;
}

static inline size_t ampk_piece(size_t elements, size_t first)
{
    return elements - first < AMPK_PIECE ? elements - first : AMPK_PIECE;
}

/* ---- batch-norm's work memory ----
 * Two partial sums for each channel and piece of an image, and some arrays of the layer's channels.
 * conv.c reserves it with the convolution, because later it is too late to fail. */

enum {
    AMPK_BN_COMPUTED =
        4, /* parameters that are computed: the normalizer's factor, the gradient's */
    AMPK_BN_ARRAYS = 2 + AMPK_BN_COMPUTED, /* with the sums of all pieces */
};

/* Pixels in a piece: about AMPK_PIECE values, but enough that the sums are small beside them. */
static inline size_t ampk_bn_piece_pixels(int c)
{
    size_t pixels = AMPK_PIECE / (size_t)c;
    return pixels > 128 ? pixels : 128;
}

/* Before a maxpool of 2 x 2: pairs of rows in a piece. */
static inline size_t ampk_bn_piece_pairs(int c, int w)
{
    size_t pairs = ampk_bn_piece_pixels(c) / (2 * (size_t)w);
    return pairs ? pairs : 1;
}

/* For one thread: raises *amax, unless it is NULL. */
static inline void ampk_amax_raise(uint32_t *amax, uint32_t bits)
{
    if (amax && bits > *amax) *amax = bits;
}

#endif
