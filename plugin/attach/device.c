/* Decides which backend computes, from amp_backend and from where this Darknet computes; and how a
 * GPU build of Darknet computes on a machine without a GPU. It must not know what a backend can do:
 * plans ask it later.
 *
 * Backend and Darknet must be on the same side, because Darknet's own layers run in between and
 * share the tensors. So a key that asks for the other side is an error, never a copy. */

#include "device.h"

#include "fail.h"
#include "interposed.h"
#include "session.h"
#include "amp_observe.h"

#ifdef GPU
#include "activations.h"
#include "blas.h"
#include "cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#endif

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

const struct ampk_backend *amp_backend_on(int device)
{
    return device ? cuda : &ampk_cpu;
}

int amp_multiplies_bf16(void)
{
    return ampk_cpu.multiplies_bf16();
}

#ifdef GPU

/* ---- whether there is a GPU ---- */

static bool has_gpu;

static void look_for_gpu(void)
{
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    has_gpu = status == cudaSuccess && count > 0;
    if (has_gpu) return;
    cudaGetLastError(); /* Darknet takes a pending error for one of its own */
    fprintf(stderr, "darknet-amp: no usable GPU (%s), running on the CPU\n",
            status == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(status));
}

bool amp_has_gpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_for_gpu);
    return has_gpu;
}

/* ---- the GPU of a thread ---- */

void amp_gpu_use(const struct amp_session *s)
{
    if (s->device && s->net->gpu_index >= 0) AMP_REAL(cuda_set_device)(s->net->gpu_index);
}

int amp_gpu_enter(const struct amp_session *s)
{
    int before = 0;
    if (!s->device || s->net->gpu_index < 0) return -1;
    cudaGetDevice(&before);
    cudaSetDevice(s->net->gpu_index);
    return before;
}

void amp_gpu_leave(int before)
{
    if (before >= 0) cudaSetDevice(before);
}

/* ---- heads on a machine without a GPU ---- */

/* A GPU build leaves the activations of its heads to CUDA code, even on the CPU path, where
 * nobody applies them. Here they are applied to a copy of the input: Darknet's forward reads
 * nothing else. */
static void (*_Atomic upstream_forward[BLANK + 1])(layer, network); /* the same for every network */

/* Logistic on entries [first, first + n) of anchor box k of image b. */
static void logistic_entries(const layer *l, float *x, int b, int k, int first, int n)
{
    int cells = l->w * l->h, per_box = l->coords + l->classes + 1;
    float *entries =
        x + (size_t)b * (size_t)l->outputs + (size_t)(k * per_box + first) * (size_t)cells;
    AMP_REAL(activate_array)(entries, n * cells, LOGISTIC);
}

static void activate_yolo(layer l, float *x)
{
    l.coords = 4;
    for (int b = 0; b < l.batch; b++)
        for (int k = 0; k < l.n; k++) {
            logistic_entries(&l, x, b, k, 0, 2);
            logistic_entries(&l, x, b, k, 4, 1 + l.classes);
        }
}

static void activate_region(layer l, float *x, float *input)
{
    int cells = l.w * l.h;
    for (int b = 0; b < l.batch; b++)
        for (int k = 0; k < l.n; k++) {
            logistic_entries(&l, x, b, k, 0, 2);
            if (!l.background) logistic_entries(&l, x, b, k, l.coords, 1);
            if (!l.softmax && !l.softmax_tree)
                logistic_entries(&l, x, b, k, l.coords + 1, l.classes);
        }
    if (l.softmax_tree) {
        int first = l.coords + 1;
        for (int g = 0; g < l.softmax_tree->groups; first += l.softmax_tree->group_size[g++])
            AMP_USE(softmax_cpu)
        (input + first, l.softmax_tree->group_size[g], l.batch, l.inputs, l.n * cells, 1,
         l.n * cells, l.temperature, x + first);
    } else if (l.softmax) {
        int first = (l.coords + !l.background) * cells;
        AMP_USE(softmax_cpu)
        (input + first, l.classes + l.background, l.batch * l.n, l.inputs / l.n, cells, 1, cells, 1,
         x + first);
    }
}

static void activate_iseg(layer l, float *x)
{
    for (int b = 0; b < l.batch; b++)
        AMP_REAL(activate_array)
    (x + (size_t)b * (size_t)l.outputs, l.classes * l.w * l.h, LOGISTIC);
}

static void forward_head(layer l, network net)
{
    size_t bytes = (size_t)l.batch * (size_t)l.outputs * sizeof(float);
    float *x = malloc(bytes);
    if (!x) amp_fail("out of memory");
    memcpy(x, net.input, bytes);
    if (l.type == YOLO) activate_yolo(l, x);
    if (l.type == REGION) activate_region(l, x, net.input);
    if (l.type == ISEG) activate_iseg(l, x);
    net.input = x;
    upstream_forward[l.type](l, net);
    free(x);
}

void amp_no_gpu_heads(network *net)
{
    for (int i = 0; i < net->n; i++) {
        layer *l = &net->layers[i];
        if (l->type != YOLO && l->type != REGION && l->type != ISEG) continue;
        upstream_forward[l->type] = l->forward;
        l->forward = forward_head;
    }
}

#endif
