/* A session's beginning: what the cfg asks for. */
#include "session.h"

#include "plugin/core/named_files.h"

#include <stdio.h>
#include <string.h>

/* A cfg that only Darknet's more tolerant reader accepts is none of our business, unless it asks
 * for something of ours. */
static bool mentions_our_keys(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f) return false;
    char line[4096];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        char *key = line + strspn(line, " \t");
        key[strcspn(key, "= \t\r\n")] = 0;
        found =
            amp_option_is_key(key) || !strncmp(key, "amp_", 4) || !strncmp(key, "loss_scale", 10);
    }
    fclose(f);
    return found;
}

struct amp_session *amp_session_read(const char *cfg_path)
{
    char err[1024], notes[1024] = "";
    struct amp_session *s = amp_allocate(1, sizeof *s);
    s->cfg = amp_cfg_read(cfg_path, err, sizeof err);
    if (!s->cfg) {
        if (mentions_our_keys(cfg_path)) amp_fail(err);
        amp_session_free(s);
        return NULL;
    }
    if (amp_options_read(s->cfg, &s->options, notes, sizeof notes, err, sizeof err)) amp_fail(err);
    if (notes[0]) fprintf(stderr, "darknet-amp: %s\n", notes);
    if (!s->options.mixed_precision && !s->options.seeded) {
        amp_session_free(s);
        return NULL;
    }
    if (s->options.mixed_precision) {
        if (amp_named_files_check_here(s->cfg, err, sizeof err)) amp_fail(err);
        s->desc = amp_net_describe(s->cfg, 0, 0, true, err, sizeof err);
        if (!s->desc) amp_fail(err);
    }
    return s;
}
