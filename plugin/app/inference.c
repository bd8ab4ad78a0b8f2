/* Decides what of a cfg is changed for a network that only looks at images, and how many of them it
 * takes at a time. It must not know which command looks.
 *
 * Only the plugin's code gains by several images: Darknet's own runs them one after the other. So a
 * cfg without mixed_precision=1 stays as it is. */
#include "inference.h"

#include <limits.h>
#include <stdio.h>

#include "darknet.h"
#include "measuring.h"
#include "plugin/core/engine/layers.h"
#include "plugin/core/plan/need.h"
#include "plugin/core/read/half.h"
#include "plugin/core/read/options.h"
#include "plugin/core/read/text.h"

/* 8 and 16 took as long per image on two cores, or longer. */
enum { MOST_IMAGES = 4 };

/* What these layers keep goes from one image to the next. */
static bool remembers(const struct amp_cfg_file *cfg)
{
    for (int i = 1; i < cfg->n_sections; i++) {
        enum amp_layer_type t = amp_cfg_section_type(cfg, &cfg->sections[i]);
        if (t == AMP_RNN || t == AMP_GRU || t == AMP_LSTM || t == AMP_CRNN) return true;
    }
    return false;
}

/* As evenly as the images can be shared out. A training of so many at a time would fit into what is
 * free, and takes more. */
static int choose_batch(const struct amp_cfg_file *cfg, struct amp_options *options, int images)
{
    char err[2 * PATH_MAX];
    struct amp_fit fit;
    if (remembers(cfg)) return 1;
    amp_machine_settle_dtype(options, gpu_index);
    const struct ampk_backend *backend = amp_machine_backend(options, gpu_index);
    size_t left = amp_need_free(backend, err, sizeof err);
    const struct amp_fitter f = {
        cfg, options, backend, amp_layers_ours(backend), amp_device_bytes(backend, left), 1};
    int n = images < MOST_IMAGES ? images : MOST_IMAGES;
    while (n > 1 && (amp_fit_predict(&f, n, 1, &fit, err, sizeof err) || fit.bytes > left / 10 * 9))
        n--;
    int passes = (images + n - 1) / n;
    return (images + passes - 1) / passes;
}

static int open_copy(struct amp_inference *f, const struct amp_cfg_file *cfg,
                     struct amp_options *options, int images, char *err, size_t err_size)
{
    char batch[12];
    /* As of the network that -map measures while another one trains (twin.c). */
    const struct amp_cfg_key keys[] = {{"batch", batch, 0},        {"subdivisions", "1", 0},
                                       {"time_steps", "1", 0},     {"seed", NULL, 0},
                                       {"amp_log", NULL, 0},       {"amp_log_layers", NULL, 0},
                                       {"amp_log_noise", NULL, 0}, {"amp_sync_bn", NULL, 0}};
    f->batched = images;
    if (images) snprintf(batch, sizeof batch, "%d", choose_batch(cfg, options, images));
    if (amp_cfg_variant_open(&f->variant, cfg, keys, images ? sizeof keys / sizeof *keys : 0, err,
                             err_size))
        return -1;
    f->cfg = f->variant.path;
    return 0;
}

int amp_inference_open(struct amp_inference *f, const char *path, bool half, int images)
{
    char err[2 * PATH_MAX], note[2 * PATH_MAX] = "", notes[4096] = "";
    struct amp_options options = {0};
    *f = (struct amp_inference){.cfg = (char *)path, .variant.fd = -1};
    struct amp_cfg_file *cfg = amp_cfg_read_asked(path, half, err, sizeof err);
    int failed = !cfg || (half && amp_half_ask(cfg, note, sizeof note, err, sizeof err));
    if (*note) fprintf(stderr, "darknet-amp: %s\n", note);
    failed = failed || amp_options_read(cfg, &options, notes, sizeof notes, err, sizeof err);
    f->mixed = options.mixed_precision;
    if (!failed && f->mixed && (half || images)) {
        amp_notes_print(notes, stderr); /* of a copy the plugin prints none */
        failed = open_copy(f, cfg, &options, images, err, sizeof err);
    }
    amp_cfg_free(cfg);
    return failed ? amp_complain(err) : 0;
}

network *amp_inference_load(const struct amp_inference *f, const char *weights)
{
    network *net = load_network(f->cfg, (char *)weights, 0);
    if (!f->batched) set_batch_network(net, 1);
    return net;
}

void amp_inference_close(struct amp_inference *f)
{
    amp_cfg_variant_close(&f->variant);
}
