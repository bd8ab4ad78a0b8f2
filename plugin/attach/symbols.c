/* Decides which of several definitions of a name is Darknet's, at run time, for libdarknet_amp.so.
 * It must not know what the functions do.
 *
 * If Darknet is linked or preloaded, its definition is the next one after ours. If Darknet was
 * loaded with RTLD_LOCAL (Python's ctypes), no search order contains it, so the loaded objects are
 * asked one by one. */
#ifndef AMP_WRAP

#define _GNU_SOURCE
#include "symbols.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SYMBOL_NAME(name) #name,
static const char *const names[] = {AMP_INTERPOSED(SYMBOL_NAME) AMP_USED(SYMBOL_NAME)};
#define ONE(name)  +1
#define FIRST_USED (AMP_SYMBOL_COUNT - (0 AMP_USED(ONE)))

#define MAX_OBJECTS 1024
struct object_list {
    char *path[MAX_OBJECTS];
    int count;
};

static int collect_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct object_list *list = data;
    if (info->dlpi_name[0] && list->count < MAX_OBJECTS) {
        list->path[list->count++] = strdup(info->dlpi_name);
    }
    return 0;
}

/* The symbol as defined by the object itself (not by one of its dependencies), or NULL. */
static void *find_in_object(const char *path, const char *name)
{
    void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return NULL;
    void *address = dlsym(handle, name);
    Dl_info home;
    if (address && (!dladdr(address, &home) || strcmp(home.dli_fname, path))) address = NULL;
    dlclose(handle);
    return address;
}

/* Our own library is left out: it defines the same names. */
static void *find_in_loaded_objects(const char *name)
{
    Dl_info self = {0};
    dladdr((void *)amp_find_symbol, &self);
    struct object_list list = {.count = 0};
    dl_iterate_phdr(collect_object, &list);
    void *address = NULL;
    for (int i = 0; i < list.count; i++) {
        int is_self = self.dli_fname && strcmp(list.path[i], self.dli_fname) == 0;
        if (!address && !is_self) address = find_in_object(list.path[i], name);
        free(list.path[i]);
    }
    return address;
}

void *amp_look_up(const char *name)
{
    void *address = dlsym(RTLD_NEXT, name);
    return address ? address : find_in_loaded_objects(name);
}

void *amp_find_symbol(enum amp_symbol symbol)
{
    /* Two threads may look a symbol up at once and store the same address. */
    static void *found[AMP_SYMBOL_COUNT];
    void *address = __atomic_load_n(&found[symbol], __ATOMIC_ACQUIRE);
    if (address) return address;
    /* A variable may have been moved into the program (copy relocation), which comes first. What we
     * define ourselves must not be found. */
    if ((int)symbol >= FIRST_USED) address = dlsym(RTLD_DEFAULT, names[symbol]);
    if (!address) address = amp_look_up(names[symbol]);
    if (!address) {
        fprintf(stderr, "darknet-amp: no loaded Darknet defines \"%s\"\n", names[symbol]);
        exit(1);
    }
    __atomic_store_n(&found[symbol], address, __ATOMIC_RELEASE);
    return address;
}

#endif
