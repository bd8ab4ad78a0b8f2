/* Prints the device's properties as cuDNN reads them: the JSON from which plans can be made on a
 * machine without that device. Exit status 77 without a GPU. An argument is a file of such JSON to
 * read instead of the device. */
#include "graph.h"

#if CUDNN_VERSION >= 91002
static void set_from_file(struct graph *g, cudnnBackendDescriptor_t d, const char *path)
{
    static char json[1 << 16];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(json, 1, sizeof json, f) : 0;
    if (f) fclose(f);
    if (!n) exit(1);
    graph_set(g, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)n, json);
}

int main(int argc, char **argv)
{
    struct graph g = {0};
    int32_t device = 0;
    int64_t bytes = 0;
    static char json[1 << 16];
    if (argc < 2) graph_need_device();
    cudnnBackendDescriptor_t d = graph_make(&g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    if (argc > 1)
        set_from_file(&g, d, argv[1]);
    else
        graph_set(&g, d, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &device);
    graph_finalize(&g, d, "device properties");
    if (!g.failed)
        graph_note(&g,
                   cudnnBackendGetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                            CUDNN_TYPE_CHAR, sizeof json - 1, &bytes, json),
                   "JSON representation");
    if (g.failed) {
        fprintf(stderr, "device_properties: %s\n", g.error);
        return 1;
    }
    puts(json);
    return 0;
}
#else
int main(void)
{
    puts("SKIPPED: cuDNN before 9.10.2 has no device properties");
    return 77;
}
#endif
