/* A weights file against a small net; the first byte chooses which. */
#include "fuzz.h"
#include "plugin/core/net/weights_file.h"

#define IMAGE "[net]\nwidth=4\nheight=4\nchannels=3\n"

static const char *const nets[] = {
    IMAGE "[conv]\nfilters=2\nsize=3\npad=1\nbatch_normalize=1\n[conv]\nfilters=1\n",
    IMAGE "[conv]\nfilters=4\nnumload=2\n[conn]\noutput=2\nbatch_normalize=1\n",
    IMAGE "[deconv]\nfilters=2\nsize=2\n",
    IMAGE "[deconv]\nfilters=2\nsize=2\ndontload=1\n[local]\nfilters=1\n[batchnorm]\n",
    IMAGE "[crnn]\nhidden_filters=2\n[conv]\nfilters=2\nsize=7\npad=1\ndontloadscales=1\nbatch_"
          "normalize=1\n",
    "[net]\ninputs=3\n[rnn]\noutput=2\n[gru]\noutput=2\nbatch_normalize=1\n[lstm]\noutput=2\n",
    IMAGE "[maxpool]\nsize=2\n",
    IMAGE "[conv]\nnumload=-1\n",
};
#define NETS (sizeof nets / sizeof *nets)

static const struct amp_net_desc *net_of(size_t i)
{
    static struct amp_net_desc *made[NETS]; /* keep their cfgs, which must outlive them */
    static struct amp_cfg_file *cfgs[NETS];
    char err[1024] = "";
    if (made[i]) return made[i];
    cfgs[i] = amp_cfg_parse("x.cfg", nets[i], strlen(nets[i]), err, sizeof err);
    FUZZ_REQUIRE(cfgs[i]);
    made[i] = amp_net_describe(cfgs[i], 0, 0, true, err, sizeof err);
    FUZZ_REQUIRE(made[i]);
    return made[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    char err[1024] = "";
    struct amp_weights_info info;
    const struct amp_net_desc *net = net_of(data[0] % NETS);
    const char *path = fuzz_file(data + 1, size - 1);
    if (amp_weights_check(path, net, &info, err, sizeof err)) {
        fuzz_require_reason(err, path);
        return 0;
    }
    FUZZ_REQUIRE(info.layers_found >= 0 && info.layers_found <= info.layers);
    FUZZ_REQUIRE((info.layers_found == info.layers) == (info.first_absent < 0));
    FUZZ_REQUIRE(info.first_absent < net->n);
    return 0;
}
