/* Decides which images are copied to the device, when, and into which of two lanes. It must not
 * know how a batch was converted (staging.c) or what the first layer does with it.
 *
 * Calls come in the order of Darknet's training pass: get_next_batch (take), the copy at the start
 * of forward (start), the first layer's hook (begin). */

#include "staging.h"

#include "plugin/attach/interposed.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Room on the device for the images of one pass, and which images are there or on their way. */
struct lane {
    void *memory;
    size_t room;
    struct amp_staged images; /* batch 0: none */
    cudaEvent_t copied;
};

enum { MOST_NETWORKS = 16 };

static struct upload {
    const float *input; /* NULL: free */
    int device;
    cudaStream_t stream;
    struct lane lanes[2];
    int now;                 /* the lane of the newest pass */
    bool taken;              /* that pass has not begun yet */
    int left;                /* passes of its batch after it */
    struct amp_staged start; /* the batch's first pass */
} uploads[MOST_NETWORKS];    /* that train at the same time */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The upload whose input is x; x NULL: the first free one. NULL: none. Call it under the lock. */
static struct upload *upload_of(const float *x)
{
    for (int i = 0; i < MOST_NETWORKS; i++)
        if (uploads[i].input == x) return &uploads[i];
    return NULL;
}

static void report_once(atomic_flag *told, const char *what, cudaError_t status)
{
    cudaGetLastError(); /* Darknet takes a pending error for one of its own */
    if (atomic_flag_test_and_set(told)) return;
    fprintf(stderr, "darknet-amp: %s (%s)\n", what, cudaGetErrorString(status));
}

/* ---- from pinning to unpinning ---- */

static void open_lanes(struct upload *u)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    cudaError_t status = cudaGetDevice(&u->device);
    if (status == cudaSuccess)
        status = cudaStreamCreateWithFlags(&u->stream, cudaStreamNonBlocking);
    for (int k = 0; k < 2 && status == cudaSuccess; k++)
        status = cudaEventCreateWithFlags(&u->lanes[k].copied, cudaEventDisableTiming);
    if (status != cudaSuccess)
        report_once(&told, "images go to the GPU when their pass begins, which takes longer",
                    status);
}

static void close_lanes(struct upload *u)
{
    for (int k = 0; k < 2; k++) {
        if (u->lanes[k].copied) cudaEventDestroy(u->lanes[k].copied);
        cudaFree(u->lanes[k].memory);
    }
    if (u->stream) cudaStreamDestroy(u->stream);
}

void amp_upload_pin(const network *net)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    size_t bytes = (size_t)net->inputs * (size_t)net->batch * sizeof(float);
    pthread_mutex_lock(&lock);
    struct upload *u = upload_of(NULL);
    cudaError_t status = u ? cudaHostRegister(net->input, bytes, 0) : cudaErrorNotSupported;
    if (u && status == cudaSuccess) {
        u->input = net->input;
        open_lanes(u);
    }
    pthread_mutex_unlock(&lock);
    if (status != cudaSuccess)
        report_once(&told, "the images cannot be page-locked, copying them to the GPU takes longer",
                    status);
}

void amp_upload_unpin(const network *net)
{
    pthread_mutex_lock(&lock);
    struct upload *u = net->input ? upload_of(net->input) : NULL;
    if (u) {
        cudaSetDevice(u->device);
        /* Copies under way. A wait for the device would spoil what another thread records there. */
        cudaStreamSynchronize(u->stream);
        cudaStreamSynchronize(0);
        cudaHostUnregister(net->input);
        close_lanes(u);
        cudaGetLastError(); /* Darknet takes a pending error for one of its own */
        *u = (struct upload){0};
    }
    pthread_mutex_unlock(&lock);
}

/* ---- copies of staged images ---- */

/* Starts the copy of these images into a lane. Returns the lane, or -1: no room on the device, or
 * no stream. */
static int bring(struct upload *u, const struct amp_staged *images, int into)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    struct lane *lane = &u->lanes[into];
    lane->images.batch = 0;
    if (!lane->copied) return -1;
    cudaError_t status = cudaSuccess;
    if (lane->room < images->bytes) {
        cudaFree(lane->memory);
        status = cudaMalloc(&lane->memory, images->bytes);
        lane->room = status == cudaSuccess ? images->bytes : 0;
        if (status != cudaSuccess) lane->memory = NULL;
    }
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(lane->memory, images->memory, images->bytes,
                                 cudaMemcpyHostToDevice, u->stream);
    if (status == cudaSuccess) status = cudaEventRecord(lane->copied, u->stream);
    if (status != cudaSuccess) {
        report_once(&told, "images go to the GPU when their pass begins, which takes longer",
                    status);
        return -1;
    }
    lane->images = *images;
    return into;
}

static bool holds(const struct lane *lane, const struct amp_staged *images)
{
    return lane->images.batch == images->batch && lane->images.rows == images->rows &&
           lane->images.images == images->images;
}

/* Starts to copy the images that come after the newest pass, into the lane of the pass before it,
 * which is over. The images may change yet: whoever takes them compares. */
static void bring_next(struct upload *u)
{
    struct amp_staged next;
    const struct amp_staged *now = &u->lanes[u->now].images, *start = &u->start;
    if (!now->batch) return;
    bool loaded =
        u->left > 0
            ? amp_staging_foresee(now->batch - 1, now->first + now->images, now->images, &next)
            : amp_staging_foresee(start->batch, start->first, start->images, &next);
    if (loaded && !holds(&u->lanes[!u->now], &next)) bring(u, &next, !u->now);
}

bool amp_upload_take(const float *input, data d, int n, int offset)
{
    struct amp_staged images;
    pthread_mutex_lock(&lock);
    struct upload *u = upload_of(input);
    bool taken = u && cudaSetDevice(u->device) == cudaSuccess && /* as forward_network will */
                 amp_staging_find(d.X.vals + offset, n, &images);
    if (taken) {
        int lane = holds(&u->lanes[!u->now], &images) ? !u->now : bring(u, &images, !u->now);
        taken = lane >= 0;
    }
    if (u) u->taken = taken;
    if (taken) {
        u->now = !u->now;
        u->left = (d.X.rows - offset) / n - 1;
        if (offset == 0) u->start = images;
        bring_next(u);
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

void amp_upload_continue(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_NETWORKS; i++) {
        struct upload *u = &uploads[i];
        if (!u->input || u->left > 0) continue;
        if (cudaSetDevice(u->device) == cudaSuccess) bring_next(u);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- a pass ---- */

bool amp_upload_start(float *x_gpu, const float *x, size_t n)
{
    pthread_mutex_lock(&lock);
    const struct upload *u = x ? upload_of(x) : NULL;
    bool ours = u != NULL, staged = u && u->taken;
    pthread_mutex_unlock(&lock);
    if (!ours || staged) return ours;
    bool copied =
        cudaMemcpyAsync(x_gpu, x, n * sizeof *x, cudaMemcpyHostToDevice, 0) == cudaSuccess;
    if (!copied) cudaGetLastError(); /* Darknet takes a pending error for one of its own */
    return copied;
}

/* As Darknet does it: into net->input, and from there to the device. */
static void go_without_staging(const network *net, const struct amp_staged *images)
{
    size_t inputs = (size_t)net->inputs;
    for (int k = 0; k < images->images; k++)
        memcpy(net->input + (size_t)k * inputs, images->rows[k], inputs * sizeof *net->input);
    AMP_REAL(cuda_push_array)(net->input_gpu, net->input, (size_t)images->images * inputs);
}

void *amp_upload_begin(const network *net, enum amp_format format, int *lane_number)
{
    pthread_mutex_lock(&lock);
    struct upload *u = upload_of(net->input);
    bool staged = u && u->taken;
    if (staged) u->taken = false;
    pthread_mutex_unlock(&lock);
    if (!staged) return NULL;
    /* No lock from here on: only this thread's next pass swaps the lanes. */
    const struct lane *lane = &u->lanes[u->now];
    *lane_number = u->now;
    bool fits = format != AMP_FORMATS && amp_format_dtype(format) == lane->images.dtype;
    if (fits && cudaStreamWaitEvent(0, lane->copied, 0) == cudaSuccess) return lane->memory;
    cudaGetLastError(); /* Darknet takes a pending error for one of its own */
    go_without_staging(net, &lane->images);
    return NULL;
}
