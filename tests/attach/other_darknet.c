/* Stands for another kind of Darknet: defines the functions by which the plugin tells them apart.
 * Compiled once for each kind (tests/CMakeLists.txt). */
#ifdef OTHER_GPU
void cuda_make_array(void) {}
#endif
#ifdef OTHER_CUDNN
void cudnn_handle(void) {}
#endif
#ifdef OTHER_FORK
void parse_network_cfg_custom(void) {}
#endif
