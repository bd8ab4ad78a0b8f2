/* Linked into libdarknet.so with --wrap: Darknet does not look whether it got the memory that it
 * asks for. Where the plugin is in the process it is told (plugin/attach/no_memory.c); without it
 * nothing changes. */
#include <stddef.h>

extern void amp_darknet_lacks_memory(size_t bytes) __attribute__((weak));

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size)
{
    void *p = __real_malloc(size);
    if (!p && size && amp_darknet_lacks_memory) amp_darknet_lacks_memory(size);
    return p;
}

void *__wrap_calloc(size_t n, size_t size)
{
    void *p = __real_calloc(n, size);
    size_t bytes;
    if (p || !n || !size || !amp_darknet_lacks_memory) return p;
    amp_darknet_lacks_memory(__builtin_mul_overflow(n, size, &bytes) ? (size_t)-1 : bytes);
    return p;
}

void *__wrap_realloc(void *old, size_t size)
{
    void *p = __real_realloc(old, size);
    if (!p && size && amp_darknet_lacks_memory) amp_darknet_lacks_memory(size);
    return p;
}
