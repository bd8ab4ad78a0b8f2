/* Decides by which code and on how many threads a batch is loaded. It must not know which rows make
 * a batch (batches.c). */
#include "loader.h"

#include "classification.h"
#include "detection.h"
#include "images.h"
#include "rows.h"
#include "seed.h"

#include <pthread.h>

#include "plugin/attach/fail.h"
#include "plugin/attach/interposed.h"
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

/* Whether amp_loader=fast has code for it. */
static bool has_fast(data_type type)
{
    return type == DETECTION_DATA || type == CLASSIFICATION_DATA;
}

/* What would help if training waits for images. */
static const char *advice(const struct amp_session *s, const load_args *args, bool is_fast)
{
    int threads = amp_loader_threads(s, args);
    if (!is_fast && has_fast(args->type))
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
void amp_loader_choose(struct amp_session *s, const load_args *args, struct amp_row_loader *l)
{
    *l = (struct amp_row_loader){0};
    if (!s) return;
    l->by_crops = amp_crops_of(s->desc, args, &l->crops);
    bool asked = s->options.loader == AMP_LOADER_FAST && has_fast(args->type);
    if (asked || l->by_crops) l->fast = fast_loader(&s->options);
    s->log.feeding = advice(s, args, l->fast);
    s->log.replaced = amp_images_replaced;
}

/* ---- one row ---- */

/* Darknet goes on with a black image of 10x10 where one cannot be decoded, and lays masks over it
 * by the size of the image, far beyond its end. So these are decoded once more, before. */
static bool has_masks(data_type type)
{
    return type == SEGMENTATION_DATA || type == INSTANCE_DATA || type == ISEG_DATA;
}

static bool can_be_decoded(char *path)
{
    AMP_USE(free_image)(amp_image_load_color(path, 0, 0));
    return !amp_images_is_bad();
}

/* False: nothing is drawn or loaded. */
static bool load_fast(const struct amp_image_loader *l, const load_args *a)
{
    if (!l) return false;
    return a->type == DETECTION_DATA ? amp_detection_load(l, a) : amp_classification_load(l, a);
}

/* If amp_images_is_bad says so then, the row is of no use, and may be empty. */
static void load(const struct amp_row_loader *l, const load_args *a, char **name)
{
    load_args one = *a;
    if (l->by_crops) {
        amp_crops_load(l->fast, &l->crops, a, name);
        return;
    }
    *name = a->paths[amp_seed_rand() % a->m];
    /* A list of one path, of which one image is drawn. */
    one.paths = name;
    one.m = one.n = 1;
    if (has_masks(one.type) && !can_be_decoded(*name)) return;
    if (load_fast(l->fast, &one)) return;
    AMP_USE(load_data_blocking)(one);
    if (l->fast) amp_picture_tell(l->fast, AMP_LOAD_DARKNET);
}

/* Its memory goes back to where a row has it from. */
static void drop_row(data *d)
{
    if (d->X.rows) {
        amp_row_give(d->X.vals[0], (size_t)d->X.cols);
        d->X.vals[0] = NULL; /* Darknet frees that */
    }
    AMP_REAL(free_data)(*d);
    *d = (data){0};
}

bool amp_loader_load(const struct amp_row_loader *l, const load_args *a, char **name)
{
    *a->d = (data){0};
    amp_images_loading(true);
    load(l, a, name);
    amp_images_loading(false);
    if (amp_images_is_bad()) drop_row(a->d);
    return !amp_images_is_bad();
}

int amp_load_image(const network *net, int fast, const load_args *args, amp_load_function *done,
                   void *user)
{
    char *name;
    const struct amp_session *s = amp_session_of(net->layers);
    if (!s) amp_fail("amp_load_image: the network is not attached");
    const struct amp_image_loader images = {
        .reduces = s->options.jpeg_scale, .done = done, .user = user};
    struct amp_row_loader l = {0};
    l.by_crops = amp_crops_of(s->desc, args, &l.crops);
    if (fast || l.by_crops) l.fast = &images;
    bool loaded = amp_loader_load(&l, args, &name);
    if (!l.fast) amp_picture_tell(&images, AMP_LOAD_DARKNET);
    return loaded;
}
