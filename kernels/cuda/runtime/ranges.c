/* Names the host's work for NVIDIA's profilers, by NVTX. The library is loaded at run time; without
 * it nothing happens. Must not know what a range stands for. */
#include "backend.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

/* nvtxRangePushA and nvtxRangePop of nvToolsExt.h, which return how deep the thread is. NULL: there
 * is no library. */
static int (*push)(const char *name);
static int (*pop)(void);

/* CUDA 13 has the first, versions up to 12.8 the second. */
static void load(void)
{
    void *library = dlopen("libnvtx3interop.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library) library = dlopen("libnvToolsExt.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library) return;
    pop = (int (*)(void))dlsym(library, "nvtxRangePop");
    if (pop) push = (int (*)(const char *))dlsym(library, "nvtxRangePushA");
}

void ampk_cuda_range_begin(struct ampk_context *ctx, const char *pass, int layer, const char *type)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char name[80];
    (void)ctx;
    pthread_once(&once, load);
    if (!push) return;
    if (layer >= 0) snprintf(name, sizeof name, "%s %d %s", pass, layer, type);
    push(layer >= 0 ? name : pass);
}

void ampk_cuda_range_end(struct ampk_context *ctx)
{
    (void)ctx;
    if (push) pop();
}
