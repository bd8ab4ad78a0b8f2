/* Memory that Darknet asks for and does not get. It never looks: without this it would go on with
 * NULL. Our build of libdarknet.so reports it (darknet/compat/memory.c); the program then ends with
 * the size and what to lower. */
#ifndef AMP_NO_MEMORY_H
#define AMP_NO_MEMORY_H

#include "plugin/core/read/cfg.h"

/* On this thread. What Darknet asks for meanwhile, for the message: */
enum amp_memory_use {
    AMP_MEMORY_OTHER,
    AMP_MEMORY_PARSE,   /* to make a network */
    AMP_MEMORY_LOAD,    /* to load the images of a batch */
    AMP_MEMORY_CHECKED, /* what its caller in the plugin looks at itself: Darknet goes on */
};

/* Returns the use before, to set again afterwards. */
enum amp_memory_use amp_memory_set_use(enum amp_memory_use);

/* For AMP_MEMORY_PARSE: which layer is being made. A parse begins; cfg: where to find its line, or
 * NULL. And one more layer is there. */
void amp_memory_parse(const struct amp_cfg_file *cfg);
void amp_memory_count_layer(void);

#endif
