/* Decides how a list of images is loaded for a network that only looks at them: as many threads as
 * there are cores load ahead, since decoding takes longer than a small network. JPEGs go from bytes
 * to input in one pass (plugin/images/), what that cannot read or fit through Darknet. It must not
 * know what becomes of an image. */
#define _GNU_SOURCE
#include "images_ahead.h"

#include <pthread.h>

#include "amp_observe.h"
#include "plugin/core/host.h"
#include "plugin/core/read/text.h"
#include "plugin/images/place.h"
#include "plugin/input/image_files.h"

/* From Darknet's stb_image: true if this file has an image header that can be read; sets its
 * size. */
int stbi_info(const char *path, int *width, int *height, int *channels);

/* ---- images, loaded ahead ---- */

enum { MOST_LOADERS = 64 };

struct loader {
    pthread_t thread;
    bool started;
    const network *net;
    enum amp_fit fit;
    char *path;
    struct amp_jpeg_memory memory;
    struct amp_loaded_image image;
};

static int count_loaders(void)
{
    int n = amp_cores();
    return n < MOST_LOADERS ? n : MOST_LOADERS;
}

/* In the middle of the input as letterbox_image has it, or all over it. */
static struct amp_placement place_in(const network *net, enum amp_fit fit, int w, int h)
{
    struct amp_placement p = {.canvas_w = net->w,
                              .canvas_h = net->h,
                              .w = net->w,
                              .h = net->h,
                              .sampling = amp_maps_as_fork(net) ? AMP_SAMPLE_AS_RESIZE_IMAGE_ENDS
                                                                : AMP_SAMPLE_AS_RESIZE_IMAGE};
    if (fit == AMP_FIT_STRETCH) return p;
    if ((float)net->w / (float)w < (float)net->h / (float)h)
        p.h = h * net->w / w;
    else
        p.w = w * net->h / h;
    p.left = (net->w - p.w) / 2;
    p.top = (net->h - p.h) / 2;
    return p;
}

static bool load_jpeg(struct loader *l)
{
    if (l->fit == AMP_FIT_CENTER) return false;
    const struct amp_pixels *pixels = amp_jpeg_read(l->path, 0, &l->memory);
    if (!pixels) return false;
    struct amp_placement p = place_in(l->net, l->fit, pixels->w, pixels->h);
    l->image.original = (image){.w = pixels->w, .h = pixels->h, .c = 3};
    l->image.resized = make_image(l->net->w, l->net->h, 3);
    amp_image_tell_damage(l->path, l->memory.damage);
    if (amp_place(pixels, &p, l->image.resized.data)) return true;
    free_image(l->image.resized);
    return false;
}

static void *load(void *argument)
{
    struct loader *l = argument;
    int w = l->net->w, h = l->net->h;
    if (load_jpeg(l)) return NULL;
    image im = load_image_color(l->path, 0, 0);
    l->image.original = im;
    l->image.resized = l->fit == AMP_FIT_STRETCH  ? resize_image(im, w, h)
                       : l->fit == AMP_FIT_CENTER ? center_crop_image(im, w, h)
                                                  : letterbox_image(im, w, h);
    return NULL;
}

/* If no thread can be started, this one loads. */
static void start_loading(struct loader *l, const network *net, enum amp_fit fit, char *path)
{
    l->net = net;
    l->fit = fit;
    l->path = path;
    l->started = !pthread_create(&l->thread, NULL, load, l);
    if (!l->started) load(l);
}

static void finish_loading(const struct loader *l)
{
    if (l->started) pthread_join(l->thread, NULL);
}

/* Darknet gives a black image of 10 x 10 for a file that it cannot decode. A real image of 10 x 10
 * may be black too, so the file's header decides. */
static bool is_decoded(image im, const char *path)
{
    if (im.w != 10 || im.h != 10 || !im.data) return true;
    for (int i = 0; i < im.w * im.h * im.c; i++) {
        if (im.data[i] != 0) return true;
    }
    int w = 0, h = 0, c = 0;
    return stbi_info(path, &w, &h, &c) && w == 10 && h == 10;
}

static void tell_undecoded(const char *path)
{
    const char *why = amp_image_file_fault(path);
    fprintf(stderr, "error: %s: %s\n", path, why ? why : "cannot be decoded as an image");
}

static void free_images(struct loader *loader)
{
    free_image(loader->image.original);
    free_image(loader->image.resized);
}

/* ---- all of them ---- */

struct walk {
    struct loader loaders[MOST_LOADERS];
    int ahead, undecoded;
    amp_each_image *each;
    void *user;
};

static int take_image(struct walk *w, int i, struct loader *l)
{
    finish_loading(l);
    if (!is_decoded(l->image.original, l->path)) {
        tell_undecoded(l->path);
        w->undecoded++;
    }
    int failed = w->undecoded ? 0 : w->each(w->user, i, &l->image);
    free_images(l);
    return failed;
}

int amp_images_run(const network *net, enum amp_fit fit, char **list, struct amp_image_range range,
                   bool progress, amp_each_image *each, void *user)
{
    struct walk w = {.ahead = count_loaders(), .each = each, .user = user};
    struct amp_progress shown;
    int started = range.first, done = range.first, failed = 0;
    if (progress)
        amp_progress_start(&shown, stderr, "evaluating", (size_t)(range.end - range.first));
    while (done < range.end && !failed) {
        for (; started < range.end && started < done + w.ahead; started++)
            start_loading(&w.loaders[started % w.ahead], net, fit, list[started]);
        failed = take_image(&w, done, &w.loaders[done % w.ahead]);
        done++;
        if (progress) amp_progress_update(&shown, (size_t)(done - range.first));
    }
    /* After a failure: threads still write into the walk, which is on this stack. */
    for (; done < started; done++) {
        finish_loading(&w.loaders[done % w.ahead]);
        free_images(&w.loaders[done % w.ahead]);
    }
    for (int i = 0; i < w.ahead; i++)
        amp_jpeg_free(&w.loaders[i].memory);
    return failed || w.undecoded ? -1 : 0;
}

int amp_images_check(char **list, int n)
{
    int bad = 0;
    struct amp_progress progress;
    amp_progress_start(&progress, stderr, "decoding the valid images", (size_t)n);
    for (int i = 0; i < n; i++) {
        image im = load_image_color(list[i], 0, 0);
        if (!is_decoded(im, list[i])) {
            tell_undecoded(list[i]);
            bad++;
        }
        free_image(im);
        amp_progress_update(&progress, (size_t)i + 1);
    }
    return bad ? -1 : 0;
}
