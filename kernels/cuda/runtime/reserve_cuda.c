/* reserve.h on the driver's virtual memory management: addresses that get memory when somebody
 * needs it. Must not know which arrays of Darknet are reserved: attach decides. */
#include "reserve.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

/* The driver's functions, found by name at run time: programs must start where there is no driver.
 */
static struct {
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*free)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    bool found;
} driver;

static bool find(const char *name, void *function)
{
    enum cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaError_t status =
        cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, &result);
#else
    cudaError_t status = cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &result);
#endif
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess;
}

static CUmemAllocationProp on_this_device(void)
{
    int device = 0;
    cudaGetDevice(&device);
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    return p;
}

/* Bytes that the device maps at once; 0 if it cannot map. */
static size_t page_bytes(void)
{
    CUmemAllocationProp p = on_this_device();
    size_t page = 0;
    CUresult status = driver.granularity(&page, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return status == CUDA_SUCCESS ? page : 0;
}

/* Gives whole pages memory that kernels and copies can use. */
static bool map(CUdeviceptr address, size_t size)
{
    CUmemGenericAllocationHandle memory;
    CUmemAllocationProp p = on_this_device();
    CUmemAccessDesc all = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (driver.create(&memory, size, &p, 0) != CUDA_SUCCESS) return false;
    bool mapped = driver.map(address, size, 0, memory, 0) == CUDA_SUCCESS;
    driver.release(memory); /* the mapping keeps it */
    if (!mapped) return false;
    if (driver.access(address, size, &all, 1) == CUDA_SUCCESS) return true;
    driver.unmap(address, size);
    return false;
}

/* Whether mapping works at all. Some devices and virtual machines hand out addresses and then no
 * memory for them, so this tries it with one page. */
static bool can_map(void)
{
    CUdeviceptr address = 0;
    size_t page = page_bytes();
    if (!page || driver.reserve(&address, page, 0, 0, 0) != CUDA_SUCCESS) return false;
    bool can = map(address, page);
    if (can) driver.unmap(address, page);
    driver.free(address, page);
    return can;
}

static void find_driver(void)
{
    cudaFree(NULL); /* makes the device's context, if there is none yet */
    driver.found = find("cuMemGetAllocationGranularity", &driver.granularity) &&
                   find("cuMemAddressReserve", &driver.reserve) &&
                   find("cuMemAddressFree", &driver.free) && find("cuMemCreate", &driver.create) &&
                   find("cuMemRelease", &driver.release) && find("cuMemMap", &driver.map) &&
                   find("cuMemUnmap", &driver.unmap) && find("cuMemSetAccess", &driver.access) &&
                   can_map();
    cudaGetLastError(); /* Darknet takes a pending error for one of its own */
}

/* bytes, rounded up to whole pages; 0 where the device cannot map. */
static size_t whole_pages(size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_driver);
    size_t page = driver.found ? page_bytes() : 0;
    return page ? (bytes + page - 1) / page * page : 0;
}

void *ampk_reserve(size_t bytes)
{
    CUdeviceptr address = 0;
    size_t size = whole_pages(bytes);
    if (!size || driver.reserve(&address, size, 0, 0, 0) != CUDA_SUCCESS) return NULL;
    return (void *)address;
}

static bool fill(void *range, size_t bytes, const void *initial)
{
    return (initial ? cudaMemcpy(range, initial, bytes, cudaMemcpyHostToDevice)
                    : cudaMemset(range, 0, bytes)) == cudaSuccess;
}

bool ampk_commit(void *range, size_t bytes, const void *initial)
{
    CUdeviceptr address = (CUdeviceptr)range;
    size_t size = whole_pages(bytes);
    if (!map(address, size)) return false;
    if (fill(range, bytes, initial)) return true;
    driver.unmap(address, size);
    return false;
}

void ampk_unreserve(void *range, size_t bytes, bool committed)
{
    CUdeviceptr address = (CUdeviceptr)range;
    size_t size = whole_pages(bytes);
    if (committed) {
        /* Waits for what Darknet runs on the range, and for our streams up to where they hand over
         * to Darknet (release in kernels.h). Waiting for the whole device would spoil what another
         * thread records there. */
        cudaStreamSynchronize(0);
        cudaGetLastError(); /* Darknet takes a pending error for one of its own */
        driver.unmap(address, size);
    }
    driver.free(address, size);
}
