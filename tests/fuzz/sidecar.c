/* A sidecar: opened, compared and restored into a run of three parameters. With the first byte odd,
 * the file gets the checksum that its bytes need: else nothing behind it would ever be reached. */
#include <limits.h>

#include "fuzz.h"
#include "plugin/core/files/sidecar.h"

#define LAYERS 4
#define PARAMS 3
#define FLOATS 24

static const struct amp_file_id weights = {12345, 0x0123456789abcdef};

struct state {
    float values[FLOATS];
    enum amp_format demoted[LAYERS];
    struct amp_param params[PARAMS];
    struct amp_run run;
};

static void set_up(struct state *s)
{
    *s = (struct state){
        .params = {{.kind = AMP_PARAM_WEIGHTS, .layer = 1, .n = 7, .update = s->values},
                   {.kind = AMP_PARAM_BIASES, .layer = 1, .n = 2, .update = s->values + 7},
                   {.kind = AMP_PARAM_WEIGHTS,
                    .layer = 3,
                    .n = 5,
                    .update = s->values + 9,
                    .m = s->values + 14,
                    .v = s->values + 19}}};
    for (int i = 0; i < LAYERS; i++)
        s->demoted[i] = AMP_FORMATS;
    s->run = (struct amp_run){
        .n_layers = LAYERS, .demoted = s->demoted, .n_params = PARAMS, .params = s->params};
    s->run.scaler = (struct amp_scaler){.dynamic = true, .scale = 1, .min = 1, .max = 1 << 24};
}

static void check_restored(const struct state *s)
{
    const struct amp_scaler *a = &s->run.scaler;
    FUZZ_REQUIRE(amp_all_finite(s->values, FLOATS));
    FUZZ_REQUIRE(a->scale >= a->min && a->scale <= a->max && s->run.t >= 0);
    for (int i = 0; i < LAYERS; i++)
        FUZZ_REQUIRE(s->demoted[i] == AMP_FORMATS || s->demoted[i] == AMP_FORMAT_FP32);
}

static void take_up(struct amp_sidecar *file, const char *path)
{
    char err[PATH_MAX + 400] = "";
    struct state s;
    set_up(&s);
    if (amp_sidecar_check_weights(file, &weights, "x.weights", err, sizeof err))
        fuzz_require_reason(err, path);
    if (amp_sidecar_check_net(file, &s.run, err, sizeof err)) {
        fuzz_require_reason(err, path);
        return;
    }
    FUZZ_REQUIRE(amp_sidecar_restore(file, &s.run, err, sizeof err) == 0);
    FUZZ_REQUIRE(s.run.seen == amp_sidecar_seen(file));
    check_restored(&s);
}

static void set_checksum(uint8_t *bytes, size_t size)
{
    struct amp_hash hash;
    amp_hash_begin(&hash);
    amp_hash_add(&hash, bytes, size - 8);
    uint64_t sum = amp_hash_value(&hash);
    memcpy(bytes + size - 8, &sum, 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char err[PATH_MAX + 400] = "";
    if (!size) return 0;
    uint8_t *bytes = malloc(size);
    FUZZ_REQUIRE(bytes);
    memcpy(bytes, data + 1, --size);
    if (data[0] & 1 && size >= 8) set_checksum(bytes, size);
    const char *path = fuzz_file(bytes, size);
    struct amp_sidecar *file = amp_sidecar_open(path, err, sizeof err);
    if (file)
        take_up(file, path);
    else
        fuzz_require_reason(err, path);
    amp_sidecar_close(file);
    free(bytes);
    return 0;
}
