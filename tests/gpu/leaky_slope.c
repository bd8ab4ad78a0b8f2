/* Do cuDNN's fused batch-norm engines honour the slope of a leaky ReLU?
 *
 *   leaky_slope [--properties FILE]
 *
 * Two patterns whose engines accept a slope when a plan is made, and could ignore it when it runs:
 *   forward    y = conv(leaky(x * scale + bias)), with the statistics of y
 *   backward   d = leaky'(batch-norm of x) * convolution's gradient of its input, with the sums
 * that batch-norm's backward pass needs Every plan that cuDNN offers is run on random data and
 * compared with a slope of 0.1 and of 0, computed here. Only reports, one JSON object; exit status
 * 77 without a GPU. --properties: makes the plans for the device whose properties FILE has
 * (device_properties.c), runs none.
 */
#include "graph.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#if CUDNN_VERSION < 91002 /* refused there, when --properties asks for them */
#define CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR       ((cudnnBackendDescriptorType_t)38)
#define CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION ((cudnnBackendAttributeName_t)2702)
#define CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP      ((cudnnBackendAttributeName_t)407)
#define CUDNN_ATTR_ENGINEHEUR_DEVICEPROP          ((cudnnBackendAttributeName_t)204)
#endif

enum { N = 2, C = 64, K = 64, H = 16, SIZE = 3, MOST_PLANS = 12 };
enum {
    X = 1,
    W,
    Y,
    SUM,
    SQUARES,
    SCALE,
    BIAS,
    MEAN,
    DEVIATION,
    D,
    DSCALE,
    DBIAS,
    EQ1,
    EQ2,
    EQ3,
    UIDS
};
enum { IMAGE = H * H * C, IMAGES = N * IMAGE, WEIGHTS = K * SIZE * SIZE * C };

static const float slope = .1f;

struct probe {
    struct graph g;
    cudnnBackendDescriptor_t properties; /* of a device that is not here */
    void *dev[UIDS];
    bool half[UIDS];
    size_t elements[UIDS];
    float *host[UIDS];
    bool first_plan;
};

/* ---- the graph ---- */

static cudnnBackendDescriptor_t tensor(struct graph *g, int64_t uid, bool half, int n, int c, int h)
{
    cudnnDataType_t type = half ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
    int64_t dims[4] = {n, c, h, h}, strides[4] = {(int64_t)h * h * c, 1, (int64_t)h * c, c};
    int64_t alignment = 16;
    bool is_virtual = uid >= UIDS;
    cudnnBackendDescriptor_t d = graph_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    graph_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    graph_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    graph_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    graph_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    graph_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (is_virtual)
        graph_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    graph_finalize(g, d, "tensor");
    return d;
}

static cudnnBackendDescriptor_t images(struct graph *g, int64_t uid, bool half)
{
    return tensor(g, uid, half, N, C, H);
}

static cudnnBackendDescriptor_t channels(struct graph *g, int64_t uid, bool half)
{
    return tensor(g, uid, half, 1, C, 1);
}

static cudnnBackendDescriptor_t operation(struct graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = graph_make(g, type);
    if (d) g->operations[g->operation_count++] = d;
    return d;
}

/* y = f(x, b), or for a backward mode y = f'(x) * b */
static void pointwise(struct graph *g, cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t x,
                      cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y)
{
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    double clip = slope;
    bool backward = mode == CUDNN_POINTWISE_RELU_BWD;
    cudnnBackendDescriptor_t p = graph_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    graph_set(g, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    graph_set(g, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
    if (backward || mode == CUDNN_POINTWISE_RELU_FWD)
        graph_set(g, p, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_DOUBLE, 1, &clip);
    graph_finalize(g, p, "pointwise");
    cudnnBackendDescriptor_t d = operation(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (backward) {
        graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, b);
        graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, y);
    } else {
        if (b) graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
        graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    }
    graph_finalize(g, d, "pointwise operation");
}

static cudnnBackendDescriptor_t convolution(struct graph *g)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t dims = 2, pads[2] = {SIZE / 2, SIZE / 2}, ones[2] = {1, 1};
    cudnnBackendDescriptor_t d = graph_make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    graph_set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    graph_set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    graph_set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    graph_set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    graph_set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    graph_set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, ones);
    graph_set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones);
    graph_finalize(g, d, "convolution");
    return d;
}

static void forward_graph(struct graph *g)
{
    const float one = 1, zero = 0;
    cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t scaled = images(g, 100, true), biased = images(g, 101, true),
                             active = images(g, 102, true), y = images(g, Y, true);
    pointwise(g, CUDNN_POINTWISE_MUL, images(g, X, true), channels(g, SCALE, true), scaled);
    pointwise(g, CUDNN_POINTWISE_ADD, scaled, channels(g, BIAS, true), biased);
    pointwise(g, CUDNN_POINTWISE_RELU_FWD, biased, NULL, active);
    cudnnBackendDescriptor_t c =
        operation(g, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    graph_link(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, convolution(g));
    graph_link(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, active);
    graph_link(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, tensor(g, W, true, K, C, SIZE));
    graph_link(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y);
    graph_set(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
    graph_set(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
    graph_finalize(g, c, "convolution forward");
    cudnnBackendDescriptor_t s = operation(g, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    graph_set(g, s, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode);
    graph_set(g, s, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
    graph_link(g, s, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
    graph_link(g, s, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, channels(g, SUM, false));
    graph_link(g, s, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, channels(g, SQUARES, false));
    graph_finalize(g, s, "statistics");
}

static void batchnorm_sums(struct graph *g, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t d,
                           cudnnBackendDescriptor_t mean, cudnnBackendDescriptor_t deviation,
                           cudnnBackendDescriptor_t scale)
{
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t b = operation(g, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
    graph_set(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, mean);
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, deviation);
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, scale);
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, x);
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, d);
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
               channels(g, DSCALE, false));
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, channels(g, DBIAS, false));
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, channels(g, EQ1, false));
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, channels(g, EQ2, false));
    graph_link(g, b, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, channels(g, EQ3, false));
    graph_finalize(g, b, "batch-norm sums");
}

static void backward_graph(struct graph *g)
{
    const float one = 1, zero = 0;
    cudnnBackendDescriptor_t gradient = images(g, 100, true), centred = images(g, 101, false),
                             normal = images(g, 102, false), scaled = images(g, 103, false),
                             biased = images(g, 104, false), d = images(g, D, true),
                             x = images(g, X, true), mean = channels(g, MEAN, false),
                             deviation = channels(g, DEVIATION, false),
                             scale = channels(g, SCALE, false);
    cudnnBackendDescriptor_t c =
        operation(g, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
    graph_link(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, convolution(g));
    graph_link(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, images(g, Y, true));
    graph_link(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, tensor(g, W, true, K, C, SIZE));
    graph_link(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, gradient);
    graph_set(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
    graph_set(g, c, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
    graph_finalize(g, c, "convolution backward");
    pointwise(g, CUDNN_POINTWISE_SUB, x, mean, centred);
    pointwise(g, CUDNN_POINTWISE_MUL, centred, deviation, normal);
    pointwise(g, CUDNN_POINTWISE_MUL, normal, scale, scaled);
    pointwise(g, CUDNN_POINTWISE_ADD, scaled, channels(g, BIAS, false), biased);
    pointwise(g, CUDNN_POINTWISE_RELU_BWD, biased, gradient, d);
    batchnorm_sums(g, x, d, mean, deviation, scale);
}

/* ---- data ---- */

static float noise(void)
{
    return (float)(2. * rand() / RAND_MAX - 1);
}

static void cuda_check(cudaError_t status)
{
    if (status == cudaSuccess) return;
    fprintf(stderr, "leaky_slope: %s\n", cudaGetErrorString(status));
    exit(1);
}

/* Copies the values to the device; a half's value is what the device has. */
static void upload(struct probe *p, int uid)
{
    size_t n = p->elements[uid];
    _Float16 *halves = malloc(n * sizeof *halves);
    for (size_t i = 0; p->half[uid] && i < n; i++) {
        halves[i] = (_Float16)(p->host[uid][i]);
        p->host[uid][i] = (float)halves[i];
    }
    const void *from = p->half[uid] ? (const void *)halves : p->host[uid];
    cuda_check(cudaMemcpy(p->dev[uid], from, n * (p->half[uid] ? 2 : 4), cudaMemcpyHostToDevice));
    free(halves);
}

static void make_data(struct probe *p, bool backward)
{
    for (int uid = X; uid < UIDS; uid++) {
        bool image = uid == X || uid == Y || uid == D, vector = !image && uid != W;
        p->elements[uid] = image ? IMAGES : vector ? C : WEIGHTS;
        p->half[uid] = !vector || (!backward && (uid == SCALE || uid == BIAS));
        p->host[uid] = realloc(p->host[uid], p->elements[uid] * sizeof(float));
        if (!p->dev[uid]) cuda_check(cudaMalloc(&p->dev[uid], p->elements[uid] * sizeof(float)));
        for (size_t i = 0; i < p->elements[uid]; i++)
            p->host[uid][i] = uid == W ? noise() / 16 : noise();
        for (int c = 0; uid == DEVIATION && c < C; c++)
            p->host[uid][c] = 1 + .5f * noise();
        upload(p, uid);
    }
}

static double leaky(double v, double s)
{
    return v > 0 ? v : s * v;
}

/* y = conv(leaky(x * scale + bias)); weights are K, row, column, C. */
static double exact_forward(const struct probe *p, double s, int n, int row, int column, int k)
{
    double sum = 0;
    for (int i = 0; i < SIZE * SIZE; i++) {
        int y = row + i / SIZE - SIZE / 2, x = column + i % SIZE - SIZE / 2;
        if (y < 0 || y >= H || x < 0 || x >= H) continue;
        for (int c = 0; c < C; c++)
            sum += p->host[W][(k * SIZE * SIZE + i) * C + c] *
                   leaky(p->host[X][((n * H + y) * H + x) * C + c] * p->host[SCALE][c] +
                             p->host[BIAS][c],
                         s);
    }
    return sum;
}

/* d = leaky'((x - mean) * deviation * scale + bias) * convolution's gradient. */
static double exact_backward(const struct probe *p, double s, int n, int row, int column, int c)
{
    double sum = 0, v = p->host[X][((n * H + row) * H + column) * C + c] - p->host[MEAN][c];
    v = v * p->host[DEVIATION][c] * p->host[SCALE][c] + p->host[BIAS][c];
    for (int i = 0; i < SIZE * SIZE; i++) {
        int y = row - i / SIZE + SIZE / 2, x = column - i % SIZE + SIZE / 2;
        if (y < 0 || y >= H || x < 0 || x >= H) continue;
        for (int k = 0; k < K; k++)
            sum += p->host[W][(k * SIZE * SIZE + i) * C + c] *
                   p->host[Y][((n * H + y) * H + x) * K + k];
    }
    return v > 0 ? sum : s * sum;
}

static double *exact(const struct probe *p, bool backward, double s)
{
    double *values = malloc(IMAGES * sizeof *values);
    for (int i = 0; i < IMAGES; i++) {
        int c = i % C, x = i / C % H, y = i / C / H % H, n = i / IMAGE;
        values[i] = (backward ? exact_backward : exact_forward)(p, s, n, y, x, c);
    }
    return values;
}

/* ---- plans ---- */

static int64_t engine_of(cudnnBackendDescriptor_t config)
{
    cudnnBackendDescriptor_t engine = NULL;
    int64_t count, index = -1;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)) return -1;
    if (!cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine))
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                 &count, &index);
    cudnnBackendDestroyDescriptor(engine);
    return index;
}

static cudnnStatus_t run(struct probe *p, cudnnBackendDescriptor_t plan, bool backward)
{
    static const int64_t forward_uids[] = {X, W, Y, SUM, SQUARES, SCALE, BIAS},
                         backward_uids[] = {X, W,      Y,     MEAN, DEVIATION, SCALE, BIAS,
                                            D, DSCALE, DBIAS, EQ1,  EQ2,       EQ3};
    const int64_t *uids = backward ? backward_uids : forward_uids;
    int64_t count = backward ? 13 : 7, got, bytes = 0;
    void *addresses[UIDS], *work = NULL;
    struct graph *g = &p->g;
    for (int i = 0; i < count; i++)
        addresses[i] = p->dev[uids[i]];
    cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                             &got, &bytes);
    if (bytes > 0) cuda_check(cudaMalloc(&work, (size_t)bytes));
    cudnnBackendDescriptor_t v = graph_make(g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    graph_set(g, v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
    graph_set(g, v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses);
    graph_set(g, v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work);
    graph_finalize(g, v, "variant pack");
    cudnnStatus_t status =
        g->failed ? CUDNN_STATUS_BAD_PARAM : cudnnBackendExecute(g->handle, plan, v);
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaFree(work));
    return status;
}

/* |device - values| / |values| */
static double error_of(struct probe *p, int uid, const double *values)
{
    double difference = 0, norm = 0;
    _Float16 *halves = malloc(IMAGES * sizeof *halves);
    cuda_check(cudaMemcpy(halves, p->dev[uid], IMAGES * sizeof *halves, cudaMemcpyDeviceToHost));
    for (int i = 0; i < IMAGES; i++) {
        double e = (float)halves[i] - values[i];
        difference += e * e;
        norm += values[i] * values[i];
    }
    free(halves);
    return isfinite(difference) ? sqrt(difference / norm) : 1e9;
}

static void report_plan(struct probe *p, cudnnBackendDescriptor_t plan, int64_t engine,
                        bool backward, const double *with_slope, const double *without)
{
    int result = backward ? D : Y;
    if (!backward) cuda_check(cudaMemset(p->dev[Y], 0xff, IMAGES * sizeof(float))); /* NaN */
    if (backward) cuda_check(cudaMemset(p->dev[D], 0xff, IMAGES * sizeof(float)));
    cudnnStatus_t status = run(p, plan, backward);
    printf("%s{\"engine\": %lld, ", p->first_plan ? "" : ", ", (long long)engine);
    p->first_plan = false;
    if (status) {
        printf("\"status\": \"%s\"}", cudnnGetErrorString(status));
        return;
    }
    double leaky_error = error_of(p, result, with_slope), relu_error = error_of(p, result, without);
    const char *verdict = leaky_error < .01 ? "honoured" : relu_error < .01 ? "ignored" : "neither";
    printf("\"slope\": \"%s\", \"error_leaky\": %.2g, \"error_relu\": %.2g}", verdict, leaky_error,
           relu_error);
}

static cudnnBackendDescriptor_t make_plan(struct probe *p, cudnnBackendDescriptor_t config)
{
    struct graph *g = &p->g;
    cudnnBackendDescriptor_t plan = graph_make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    graph_link(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (p->properties)
        graph_link(g, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, p->properties);
    else
        graph_set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    graph_finalize(g, plan, "plan");
    bool made = !g->failed;
    g->failed = 0; /* the next one may do */
    return made ? plan : NULL;
}

static int offered(struct probe *p, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                   cudnnBackendDescriptor_t *configs)
{
    struct graph *g = &p->g;
    int64_t count = 0;
    cudnnBackendDescriptor_t h = graph_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    graph_link(g, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    graph_set(g, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (p->properties) graph_link(g, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, p->properties);
    graph_finalize(g, h, "heuristics");
    for (int i = 0; i < MOST_PLANS; i++)
        configs[i] = graph_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!g->failed)
        graph_note(g,
                   cudnnBackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_PLANS, &count,
                                            configs),
                   "results of the heuristics");
    if (!g->failed) return (int)(count < MOST_PLANS ? count : MOST_PLANS);
    g->failed = 0;
    return 0;
}

static void run_plans(struct probe *p, cudnnBackendDescriptor_t graph, bool backward)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    double *with_slope = p->properties ? NULL : exact(p, backward, slope),
           *without = p->properties ? NULL : exact(p, backward, 0);
    p->first_plan = true;
    printf("[");
    for (int m = 0; m < 2; m++) {
        cudnnBackendDescriptor_t configs[MOST_PLANS];
        int count = offered(p, graph, modes[m], configs);
        for (int i = 0; i < count; i++) {
            cudnnBackendDescriptor_t plan = make_plan(p, configs[i]);
            if (plan && p->properties) {
                printf("%s{\"engine\": %lld}", p->first_plan ? "" : ", ",
                       (long long)engine_of(configs[i]));
                p->first_plan = false;
            } else if (plan)
                report_plan(p, plan, engine_of(configs[i]), backward, with_slope, without);
        }
    }
    printf("]");
    free(with_slope);
    free(without);
}

static void probe(struct probe *p, bool backward)
{
    struct graph *g = &p->g;
    if (!p->properties) make_data(p, backward);
    (backward ? backward_graph : forward_graph)(g);
    cudnnBackendDescriptor_t graph = graph_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              g->operation_count, g->operations);
    if (g->handle)
        graph_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
    graph_finalize(g, graph, "graph");
    printf("%s\"%s\": ", backward ? ", " : "{", backward ? "backward" : "forward");
    if (g->failed) {
        printf("{\"refused\": \"graph\"}");
        fprintf(stderr, "leaky_slope: %s\n", g->error);
    } else
        run_plans(p, graph, backward);
}

static void read_properties(struct probe *p, struct graph *g, const char *path)
{
    static char json[1 << 16];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(json, 1, sizeof json, f) : 0;
    if (f) fclose(f);
    p->properties = graph_make(g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    graph_set(g, p->properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
              (int64_t)n, json);
    graph_finalize(g, p->properties, "device properties");
}

int main(int argc, char **argv)
{
    static struct probe p;
    static struct graph properties;
    if (argc > 2 && !strcmp(argv[1], "--properties")) {
        read_properties(&p, &properties, argv[2]);
    } else {
        graph_need_device();
        graph_note(&p.g, cudnnCreate(&p.g.handle), "cudnnCreate");
    }
    if (p.g.failed || properties.failed) {
        fprintf(stderr, "leaky_slope: %s%s\n", p.g.error, properties.error);
        return 1;
    }
    srand(1);
    probe(&p, false);
    graph_clear(&p.g);
    probe(&p, true);
    printf("}\n");
    return 0;
}
