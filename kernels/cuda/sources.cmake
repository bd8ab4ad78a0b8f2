# The files of the CUDA backend, for the two that compile them: CMakeLists.txt beside this with nvcc,
# tests/emulation with the host's compiler.
set(amp_cuda_kernels batchnorm.cu copy.cu flat.cu lists.cu pointwise.cu pool.cu shape.cu)
set(amp_cuda_sources backend.c context.c)
list(TRANSFORM amp_cuda_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM amp_cuda_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
