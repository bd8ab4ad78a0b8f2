/* How the plugin names Darknet's functions, in both of its forms (see plugin/CMakeLists.txt).
 *
 *   AMP_INTERPOSE(network *, parse_network_cfg, (char *file)) { ... }   defines ours
 *   AMP_REAL(parse_network_cfg)(file)                                  calls Darknet's
 *   AMP_USE(get_current_rate)(net), *AMP_USE(gpu_index)                a name that we do not
 * replace
 *
 * Every name is listed in interposed.h and declared by one of Darknet's headers. The plugin never
 * refers to Darknet in another way: libdarknet may be loaded where the linker does not look (a
 * ctypes library is RTLD_LOCAL), and libdarknet_amp.so is linked with --no-undefined to make
 * sure. */
#ifndef AMP_SYMBOLS_H
#define AMP_SYMBOLS_H

#include "interposed.h"

#ifdef AMP_WRAP

#define AMP_INTERPOSE(type, name, args)                                                            \
    type __wrap_##name args;                                                                       \
    type __wrap_##name args
#define AMP_REAL(name)                                                                             \
    (__extension__({                                                                               \
        extern __typeof__(name) __real_##name;                                                     \
        &__real_##name;                                                                            \
    }))
#define AMP_USE(name) (&(name))

#else

#define AMP_SYMBOL_ENUM(name) AMP_SYMBOL_##name,
enum amp_symbol { AMP_INTERPOSED(AMP_SYMBOL_ENUM) AMP_USED(AMP_SYMBOL_ENUM) AMP_SYMBOL_COUNT };

/* The function itself is amp_on_NAME, so that a backtrace tells ours from Darknet's. */
#define AMP_INTERPOSE(type, name, args)                                                            \
    static type amp_on_##name args;                                                                \
    __attribute__((visibility("default"), alias("amp_on_" #name))) type name args;                 \
    static type amp_on_##name args
#define AMP_REAL(name) ((__typeof__(&(name)))amp_find_symbol(AMP_SYMBOL_##name))
#define AMP_USE(name)  AMP_REAL(name)

/* Address of Darknet's own symbol. Looked up once; a Darknet that lacks it ends the program with a
 * message, since there is nothing left to call. */
void *amp_find_symbol(enum amp_symbol symbol);

/* Address of any symbol of the process other than our own, or NULL. For asking what is there. */
void *amp_look_up(const char *name);

#endif
#endif
