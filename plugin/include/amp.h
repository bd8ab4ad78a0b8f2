// Public C interface of the plugin (libdarknet_amp.so).
#ifndef AMP_H
#define AMP_H

#ifdef __cplusplus
extern "C" {
#endif

#define AMP_API __attribute__((visibility("default")))

// How many networks the plugin has been attached to in this process, detached ones included.
AMP_API int amp_attach_count(void);

#ifdef __cplusplus
}
#endif
#endif
