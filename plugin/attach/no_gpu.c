/* Decides what a GPU build of Darknet does on a machine without a GPU: it runs on the CPU. It must
 * not know sessions or plans.
 *
 * Darknet's own -nogpu only sets gpu_index to -1; its layers go on asking for device memory, and
 * the first failure is an assertion. Here, without a device, gpu_index stays -1 whatever the
 * command line asks for, device memory is NULL, and copies to and from it do nothing. Darknet then
 * takes its CPU path everywhere. With a device every function is Darknet's own, except that large
 * arrays may wait for their memory (deferred.h), and that images have a path of their own
 * (upload.h). */
#include "no_gpu.h"
#include "deferred.h"
#include "ending.h"
#include "hooks.h"
#include "seed.h"
#include "sessions.h"
#include "symbols.h"
#include "upload.h"

#include "activations.h"
#include "blas.h"
#include "cuda.h"
#include "darknet.h"

#include <pthread.h>

static int has_gpu;

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

int amp_has_gpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_for_gpu);
    return has_gpu;
}

/* Darknet sets the device before anything else on a GPU path, so gpu_index is put back here. */
AMP_INTERPOSE(void, cuda_set_device, (int n))
{
    if (amp_has_gpu()) {
        AMP_REAL(cuda_set_device)(n);
    } else {
        *AMP_USE(gpu_index) = -1;
    }
}

AMP_INTERPOSE(float *, cuda_make_array, (float *x, size_t n))
{
    if (!amp_has_gpu()) return NULL;
    float *deferred = amp_deferred_make(x, n);
    return deferred ? deferred : AMP_REAL(cuda_make_array)(x, n);
}

AMP_INTERPOSE(int *, cuda_make_int_array, (int *x, size_t n))
{
    if (!amp_has_gpu()) return NULL;
    void *deferred = amp_deferred_make((const float *)x, n);
    return deferred ? deferred : AMP_REAL(cuda_make_int_array)(x, n);
}

AMP_INTERPOSE(void, cuda_free, (float *x_gpu))
{
    if (amp_has_gpu() && !amp_deferred_free(x_gpu)) AMP_REAL(cuda_free)(x_gpu);
}

/* Every write of Darknet to a device comes through here: images, labels and weights. sessions.c
 * wants to know of the weights. */
AMP_INTERPOSE(void, cuda_push_array, (float *x_gpu, float *x, size_t n))
{
    if (!amp_has_gpu()) return;
    if (!amp_upload_start(x_gpu, x, n)) AMP_REAL(cuda_push_array)(x_gpu, x, n);
    amp_session_see_write(x_gpu);
}

AMP_INTERPOSE(void, cuda_pull_array, (float *x_gpu, float *x, size_t n))
{
    if (amp_has_gpu() && !amp_hook_pull_is_unwanted(x_gpu)) AMP_REAL(cuda_pull_array)(x_gpu, x, n);
}

/* cuRAND's generator is seeded with the time of day, so a seeded run draws on the host instead. */
static void fill_from_seed(float *x_gpu, size_t n)
{
    float *x = malloc(n * sizeof *x);
    if (!x) amp_fail("out of memory while drawing random numbers");
    amp_seed_uniform(x, n);
    AMP_REAL(cuda_push_array)(x_gpu, x, n);
    free(x);
}

AMP_INTERPOSE(void, cuda_random, (float *x_gpu, size_t n))
{
    if (!amp_has_gpu()) return;
    if (amp_seed_uniform(NULL, 0))
        fill_from_seed(x_gpu, n);
    else
        AMP_REAL(cuda_random)(x_gpu, n);
}

AMP_INTERPOSE(cublasHandle_t, blas_handle, ())
{
    return amp_has_gpu() ? AMP_REAL(blas_handle)() : NULL;
}

/* Without a device the layers' cuDNN descriptors do not exist either; what is done with them on a
 * change of size or batch answers with an error status that Darknet does not look at. */
AMP_INTERPOSE(cudnnHandle_t, cudnn_handle, ())
{
    return amp_has_gpu() ? AMP_REAL(cudnn_handle)() : NULL;
}

/* Heads. A GPU build leaves the activations of its heads to CUDA code, even on the CPU path, where
 * nobody applies them. Here they are applied to a copy of the input: Darknet's forward reads
 * nothing else. */
static void (*_Atomic upstream_forward[BLANK + 1])(layer, network); /* the same for every network */

/* Logistic on entries [first, first + n) of anchor box k of image b. */
static void logistic_entries(const layer *l, float *x, int b, int k, int first, int n)
{
    int cells = l->w * l->h, per_box = l->coords + l->classes + 1;
    float *entries =
        x + (size_t)b * (size_t)l->outputs + (size_t)(k * per_box + first) * (size_t)cells;
    AMP_USE(activate_array)(entries, n * cells, LOGISTIC);
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
        AMP_USE(activate_array)(x + (size_t)b * (size_t)l.outputs, l.classes * l.w * l.h, LOGISTIC);
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
