/* kernels/cuda/runtime/reserve_cuda.c with a driver of our own in place of the real one, which
 * knows what is reserved, mapped and accessible, and ends the program where the real one would
 * refuse. */
#include "kernels/cuda/runtime/reserve.h"
#include "tests/rig/harness.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/wait.h>

enum { PAGE = 2 << 20, RANGES = 8 };

static struct range {
    CUdeviceptr address;
    size_t bytes;
    int mapped, accessible;
} ranges[RANGES];

static int memory, most_memory = 100; /* pieces that there are, and may be */
static const char *missing = "";      /* a function that the driver lacks */
static bool closed;                   /* what is mapped cannot be made accessible */

static void refuse(const char *why)
{
    fprintf(stderr, "the driver would refuse: %s\n", why);
    abort();
}

static struct range *find_range(CUdeviceptr address, size_t bytes)
{
    for (int i = 0; i < RANGES; i++)
        if (address && ranges[i].address == address && ranges[i].bytes == bytes) return &ranges[i];
    refuse("no such range");
    return NULL;
}

/* ---- the driver ---- */

static CUresult granularity(size_t *bytes, const CUmemAllocationProp *p,
                            CUmemAllocationGranularity_flags flags)
{
    (void)flags;
    if (p->type != CU_MEM_ALLOCATION_TYPE_PINNED) refuse("type of memory");
    *bytes = PAGE;
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                        unsigned long long flags)
{
    static CUdeviceptr next = (CUdeviceptr)1 << 40;
    struct range *r = ranges;
    if (bytes % PAGE || alignment || wanted || flags) refuse("cuMemAddressReserve");
    while (r < ranges + RANGES && r->address)
        r++;
    if (r == ranges + RANGES) return CUDA_ERROR_OUT_OF_MEMORY;
    *r = (struct range){.address = next, .bytes = bytes};
    next += bytes;
    *address = r->address;
    return CUDA_SUCCESS;
}

static CUresult free_range(CUdeviceptr address, size_t bytes)
{
    struct range *r = find_range(address, bytes);
    if (r->mapped) refuse("a range that is mapped is freed");
    r->address = 0;
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *p, unsigned long long flags)
{
    (void)p;
    if (bytes % PAGE || flags) refuse("cuMemCreate");
    if (memory == most_memory) return CUDA_ERROR_OUT_OF_MEMORY;
    memory++;
    *handle = bytes;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    for (int i = 0; i < RANGES; i++) /* what is mapped stays */
        if (ranges[i].mapped == 1 && ranges[i].bytes == handle) {
            ranges[i].mapped = 2;
            return CUDA_SUCCESS;
        }
    memory--;
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct range *r = find_range(address, bytes);
    if (r->mapped || offset || flags || handle != bytes) refuse("cuMemMap");
    r->mapped = 1;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
    struct range *r = find_range(address, bytes);
    if (!r->mapped) refuse("what is not mapped is unmapped");
    r->mapped = r->accessible = 0;
    memory--;
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *all, size_t n)
{
    struct range *r = find_range(address, bytes);
    if (!r->mapped || n != 1 || all->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        refuse("cuMemSetAccess");
    if (closed) return CUDA_ERROR_OUT_OF_MEMORY;
    r->accessible = 1;
    return CUDA_SUCCESS;
}

/* ---- in place of the runtime ---- */

static const struct {
    const char *name;
    void *function;
} functions[] = {{"cuMemGetAllocationGranularity", granularity},
                 {"cuMemAddressReserve", reserve},
                 {"cuMemAddressFree", free_range},
                 {"cuMemCreate", create},
                 {"cuMemRelease", release},
                 {"cuMemMap", map},
                 {"cuMemUnmap", unmap},
                 {"cuMemSetAccess", set_access}};

static cudaError_t look_up(const char *name, void **function,
                           enum cudaDriverEntryPointQueryResult *result)
{
    *result = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(name, functions[i].name) && strcmp(name, missing)) {
            *function = functions[i].function;
            *result = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    (void)version, (void)flags;
    return look_up(name, function, result);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result)
{
    (void)flags;
    return look_up(name, function, result);
}
#endif

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    (void)p;
    return cudaSuccess;
}

static cudaError_t touch(void *to)
{
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].address == (CUdeviceptr)to && ranges[i].accessible) return cudaSuccess;
    refuse("memory that is not there is touched");
    return cudaErrorInvalidValue;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    (void)value, (void)bytes;
    return touch(to);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)from, (void)bytes, (void)kind;
    return touch(to);
}

/* ---- tests, each in a process of its own: the driver is asked once ---- */

static void check_life(void)
{
    const float initial[3] = {1, 2, 3};
    void *zeros = ampk_reserve(PAGE + 1), *copy = ampk_reserve(sizeof initial);
    void *unused = ampk_reserve(1);
    REQUIRE(zeros && copy && unused);
    CHECK_INT(memory, 0);
    CHECK(ampk_commit(zeros, PAGE + 1, NULL) && ampk_commit(copy, sizeof initial, initial));
    CHECK_INT(memory, 2);
    closed = true;
    CHECK(!ampk_commit(unused, 1, NULL));
    CHECK_INT(memory, 2);
    closed = false;
    most_memory = 2;
    CHECK(!ampk_commit(unused, 1, NULL));
    ampk_unreserve(unused, 1, false);
    ampk_unreserve(zeros, PAGE + 1, true);
    ampk_unreserve(copy, sizeof initial, true);
    CHECK_INT(memory, 0);
}

static void check_refused(void)
{
    CHECK(ampk_reserve(PAGE) == NULL);
    for (int i = 0; i < RANGES; i++)
        CHECK(!ranges[i].address);
    CHECK_INT(memory, 0);
}

static void apart(void (*run)(void))
{
    int status;
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        run();
        _exit(test_failures != 0);
    }
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
}

AMP_TEST(addresses_get_memory_later)
{
    apart(check_life);
}

AMP_TEST(where_there_is_no_memory_behind_addresses_none_are_given)
{
    most_memory = 0;
    apart(check_refused);
    most_memory = 100;
}

AMP_TEST(a_driver_without_a_function_gives_none)
{
    missing = "cuMemSetAccess";
    apart(check_refused);
    missing = "";
}

AMP_TEST_MAIN
