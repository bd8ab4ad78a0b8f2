/* A cfg from text to plan: reader, options, net description with losses, plan, both reports. */
#include "fuzz.h"
#include "plugin/core/engine/layers.h"
#include "plugin/core/read/named_files.h"
#include "plugin/core/plan/plan.h"

static void check_shapes(const struct amp_net_desc *net)
{
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        FUZZ_REQUIRE(l->inputs > 0 && l->outputs > 0 && l->n_sources > 0);
        if (l->out_w && l->out_h && l->out_c)
            FUZZ_REQUIRE((int64_t)l->out_w * l->out_h * l->out_c == l->outputs);
        for (int k = 0; k < l->n_sources; k++)
            FUZZ_REQUIRE(l->sources[k] >= -1 && l->sources[k] < i);
    }
}

static void make_plan(const struct amp_net_desc *net, const struct amp_options *options, bool train)
{
    char err[1024] = "";
    struct amp_plan *plan =
        amp_plan_make(net, options, amp_layers_ours(NULL), NULL, train, err, sizeof err);
    if (plan) {
        amp_plan_print(plan, net, fuzz_nowhere());
        amp_plan_write_json(plan, net, &(struct amp_json){.out = fuzz_nowhere()});
    } else {
        fuzz_require_reason(err, NULL);
    }
    amp_plan_free(plan);
}

static void describe(const struct amp_cfg_file *cfg, const struct amp_options *options, bool strict)
{
    char err[1024] = "";
    struct amp_options settled = *options;
    amp_options_settle_dtype(&settled, false, strict);
    struct amp_net_desc *net = amp_net_describe(cfg, 0, 0, strict, err, sizeof err);
    if (net) {
        check_shapes(net);
        make_plan(net, &settled, true);
        make_plan(net, &settled, false);
    } else {
        fuzz_require_reason(err, "x.cfg");
    }
    amp_net_desc_free(net);
    net = amp_net_describe(cfg, 96, 64, strict, err, sizeof err);
    amp_net_desc_free(net);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char err[1024] = "", notes[256];
    struct amp_options options;
    struct amp_cfg_file *cfg = amp_cfg_parse("x.cfg", (const char *)data, size, err, sizeof err);
    if (!cfg || amp_options_read(cfg, &options, notes, sizeof notes, err, sizeof err)) {
        fuzz_require_reason(err, "x.cfg");
    } else {
        describe(cfg, &options, true);
        describe(cfg, &options, false);
        amp_named_files_check(cfg, err, sizeof err);
        amp_named_files_check_here(cfg, err, sizeof err);
    }
    amp_cfg_free(cfg);
    return 0;
}
