/* Decides which of several definitions of a name is Darknet's, and whether this plugin fits the
 * Darknet in the process. It must not know what the functions do. */

#define _GNU_SOURCE
#include "interposed.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- at run time, for libdarknet_amp.so ----
 * If Darknet is linked or preloaded, its definition is the next one after ours. If Darknet was
 * loaded with RTLD_LOCAL (Python's ctypes), no search order contains it, so the loaded objects are
 * asked one by one. */

#ifndef AMP_WRAP

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

/* ---- the kind of Darknet ----
 * Darknet passes `layer` and `network` by value, and their sizes depend on the defines GPU and
 * CUDNN (layer: 1184, 1672 or 1752 bytes). A plugin compiled with other defines would read the
 * wrong memory. Darknet has no version to ask for, so its kind is told from functions that only
 * that kind has. Nothing here calls Darknet: a call with the wrong layout is the very thing to
 * prevent. */

#ifdef GPU
#define BUILT_WITH_GPU 1
#else
#define BUILT_WITH_GPU 0
#endif

/* If the linker wraps (AMP_WRAP): a plugin with GPU that needs a function Darknet lacks is an error
 * of the linker already. The opposite case shows in weak references, which are NULL if nothing
 * defines them. */
#ifdef AMP_WRAP
extern const char weak_fork __asm__("parse_network_cfg_custom") __attribute__((weak));
#if BUILT_WITH_GPU
static int darknet_has_gpu(void)
{
    return 1;
}
static int darknet_has_cudnn(void)
{
    return 1;
}
#else
extern const char weak_gpu __asm__("cuda_make_array") __attribute__((weak));
extern const char weak_cudnn __asm__("cudnn_handle") __attribute__((weak));
static int darknet_has_gpu(void)
{
    return &weak_gpu != NULL;
}
static int darknet_has_cudnn(void)
{
    return &weak_cudnn != NULL;
}
#endif
static int darknet_is_fork(void)
{
    return &weak_fork != NULL;
}
#else
static int darknet_has_gpu(void)
{
    return amp_look_up("cuda_make_array") != NULL;
}
static int darknet_has_cudnn(void)
{
    return amp_look_up("cudnn_handle") != NULL;
}
static int darknet_is_fork(void)
{
    return amp_look_up("parse_network_cfg_custom") != NULL;
}
#endif

int amp_check_abi(char *err, size_t err_size)
{
    int gpu = darknet_has_gpu(), cudnn = darknet_has_cudnn();
    if (darknet_is_fork()) {
        snprintf(err, err_size,
                 "this Darknet is a fork with structures of its own (it has "
                 "parse_network_cfg_custom); the plugin is for the original");
        return -1;
    }
    if (gpu == BUILT_WITH_GPU && cudnn == BUILT_WITH_GPU) return 0;
    snprintf(err, err_size,
             "this Darknet was built with GPU=%d CUDNN=%d, the plugin for GPU=%d CUDNN=%d: %s", gpu,
             cudnn, BUILT_WITH_GPU, BUILT_WITH_GPU,
             gpu != cudnn ? "build Darknet with both or neither"
             : gpu        ? "use the plugin of the preset cuda"
                          : "use the plugin of the preset cpu");
    return -1;
}
