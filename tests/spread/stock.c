/* Darknet's own program, linked with its library and without the plugin, which LD_PRELOAD adds. */
int darknet_main(int argc, char **argv);

int main(int argc, char **argv)
{
    return darknet_main(argc, argv);
}
