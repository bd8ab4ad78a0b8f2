/* kernels/cuda/runtime/reserve.h in the host's memory. */
#include "kernels/cuda/runtime/reserve.h"
#include "kernels/cuda/runtime/runtime.h"
#include "emulation.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

static atomic_size_t waiting; /* bytes of ranges without memory */
static atomic_bool cannot;    /* as a driver that cannot map */

size_t emulation_bytes_without_memory(void)
{
    return waiting;
}

void emulation_reserve_nothing(bool nothing)
{
    cannot = nothing;
}

void *ampk_reserve(size_t bytes)
{
    if (cannot) return NULL;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    emulation_memory_made(p, bytes);
    waiting += bytes;
    return p;
}

bool ampk_commit(void *range, size_t bytes, const void *initial)
{
    size_t left, total;
    emulation_check_memory(range, "memory for a range");
    if (!ampk_rt_memory(&left, &total) || bytes > left) return false; /* not counted itself */
    if (mprotect(range, bytes, PROT_READ | PROT_WRITE)) return false;
    if (initial) memcpy(range, initial, bytes);
    waiting -= bytes;
    return true;
}

void ampk_unreserve(void *range, size_t bytes, bool committed)
{
    if (committed) emulation_check_memory(range, "an end of a range"); /* it waits for its device */
    if (!committed) waiting -= bytes;
    emulation_memory_gone(range);
    munmap(range, bytes);
}
