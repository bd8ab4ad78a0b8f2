/* Decides what of a cfg is changed for a network that only looks at images. It must not know which
 * command looks. */
#include "inference.h"

#include <limits.h>
#include <stdio.h>

#include "measuring.h"
#include "plugin/core/read/half.h"
#include "plugin/core/read/options.h"
#include "plugin/core/read/text.h"

/* What the plugin would print of the user's file: of a copy it prints nothing. */
static int print_notes(const struct amp_cfg_file *cfg, const char *of_half, char *err,
                       size_t err_size)
{
    char notes[4096] = "";
    struct amp_options options;
    if (*of_half) fprintf(stderr, "darknet-amp: %s\n", of_half);
    if (amp_options_read(cfg, &options, notes, sizeof notes, err, err_size)) return -1;
    amp_notes_print(notes, stderr);
    return 0;
}

int amp_inference_open(struct amp_inference *f, const char *path, bool half)
{
    char err[2 * PATH_MAX], note[2 * PATH_MAX];
    *f = (struct amp_inference){.cfg = (char *)path, .variant.fd = -1};
    if (!half) return 0;
    struct amp_cfg_file *cfg = amp_cfg_read(path, err, sizeof err);
    int failed = !cfg || amp_half_ask(cfg, note, sizeof note, err, sizeof err) ||
                 print_notes(cfg, note, err, sizeof err) ||
                 amp_cfg_variant_open(&f->variant, cfg, NULL, 0, err, sizeof err);
    amp_cfg_free(cfg);
    if (failed) return amp_complain(err);
    f->cfg = f->variant.path;
    return 0;
}

void amp_inference_close(struct amp_inference *f)
{
    amp_cfg_variant_close(&f->variant);
}
