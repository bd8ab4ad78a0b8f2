/* Decides by which code and on how many threads a batch is loaded. It must not know how a batch is
 * put together (batches.c). */
#include "loader.h"

#include "classification.h"
#include "detection.h"
#include "images.h"

#include <pthread.h>

#include "plugin/attach/fail.h"
#include "plugin/core/host.h"
#include "plugin/spread/group.h"

/* For this process. */
static int cores(void)
{
    return amp_group_is_on() ? amp_group_cores() : amp_cores();
}

/* Darknet's trainers ask for 64. More threads than cores load no faster, and each has an image in
 * memory. Fewer leave training waiting even where it uses all cores: with images of 2 Mpixel one
 * thread in place of two made an iteration on two cores 1.25 times as long; small images load
 * beside the step either way. */
int amp_loader_threads(const struct amp_session *s, const load_args *args)
{
    int threads = args->threads;
    if (s && threads > 1) {
        int most = s->options.loader_threads ? s->options.loader_threads : cores();
        threads = s->options.loader_threads || threads > most ? most : threads;
    }
    if (threads > args->n) threads = args->n;
    return threads > 1 ? threads : 1;
}

/* What would help if training waits for images. */
static const char *advice(const struct amp_session *s, const load_args *args)
{
    int threads = amp_loader_threads(s, args);
    bool has_fast = args->type == DETECTION_DATA || args->type == CLASSIFICATION_DATA;
    if (s->options.loader == AMP_LOADER_DARKNET && has_fast)
        return "amp_loader=fast loads JPEGs several times as fast";
    if (threads < cores() && threads < args->n)
        return "raise amp_loader_threads: it is less than the number of cores";
    return "scripts/shrink makes images that load faster, more cores load more";
}

/* Networks that train at the same time draw from the same files, so the program has one; the first
 * network's keys count. */
static const struct amp_image_loader *fast_loader(const struct amp_options *o)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct amp_image_loader loader;
    static bool made;
    pthread_mutex_lock(&lock);
    if (!made) {
        loader.reduces = o->jpeg_scale;
        if (o->image_cache) loader.cache = amp_image_cache_new((size_t)o->image_cache << 20);
        if (o->image_cache && !loader.cache) amp_fail("out of memory for amp_image_cache");
        made = true;
    }
    pthread_mutex_unlock(&lock);
    return &loader;
}

/* With seed=N alone images stay Darknet's to the bit. */
const struct amp_image_loader *amp_loader_choose(struct amp_session *s, const load_args *args)
{
    if (!s) return NULL;
    s->log.feeding = advice(s, args);
    s->log.replaced = amp_images_replaced;
    bool fast = s->options.loader == AMP_LOADER_FAST;
    bool ours = args->type == CLASSIFICATION_DATA ? fast
                : args->type == DETECTION_DATA    ? fast || s->desc->dialect != AMP_DIALECT_STOCK
                                                  : false;
    return ours ? fast_loader(&s->options) : NULL;
}

bool amp_loader_load(const struct amp_image_loader *l, const load_args *args)
{
    return args->type == DETECTION_DATA ? amp_detection_load(l, args)
                                        : amp_classification_load(l, args);
}

int amp_load_image(const load_args *args, int reduces, amp_load_function *done, void *user)
{
    const struct amp_image_loader l = {.reduces = reduces, .done = done, .user = user};
    return amp_loader_load(&l, args);
}
