# The files of the CUDA backend, for the two that compile them: CMakeLists.txt beside this with nvcc,
# tests/emulation with the host's compiler.
set(amp_cuda_kernels copy.cu cost.cu flat.cu lists.cu region.cu softmax.cu yolo.cu)
set(amp_cuda_sources backend.c context.c)
list(TRANSFORM amp_cuda_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM amp_cuda_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
