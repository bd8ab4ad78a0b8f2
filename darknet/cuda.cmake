# Finds the CUDA toolkit and cuDNN for a build with AMP_CUDA, and enables the language.
#
# AMP_CUDA_ARCHITECTURES: compute capabilities to compile for, e.g. "75;90". Default: every one the
# toolkit offers from 75 (Turing) up; 70 (Volta) where it offers that. The highest is also embedded
# as PTX for later GPUs, the lowest for those in between that a shorter list leaves out.
# libcuda is never linked: it comes with the driver, and the programs must start without one.

# Where scripts/get-cuda.sh puts them.
set(fetched ${PROJECT_SOURCE_DIR}/build/toolkit/nvidia)
find_program(CMAKE_CUDA_COMPILER nvcc
  HINTS ENV CUDA_PATH ENV CUDA_HOME ${fetched}/cu13 PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "AMP_CUDA needs the CUDA toolkit (12 or 13), but nvcc was not found. "
    "Put it on PATH, set CMAKE_CUDA_COMPILER, or let scripts/get-cuda.sh get it.")
endif()

execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch
  OUTPUT_VARIABLE offered RESULT_VARIABLE status)
string(REGEX MATCHALL "[0-9]+[a-z]?" offered "${offered}")
list(FILTER offered INCLUDE REGEX "^([789][0-9]|[1-9][0-9][0-9])$")
list(SORT offered COMPARE NATURAL)
set(usual ${offered})
list(FILTER usual EXCLUDE REGEX "^7[0-4]$")
if(status OR NOT usual)
  message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} --list-gpu-arch names no architecture from 75 up")
endif()
set(AMP_CUDA_ARCHITECTURES "${usual}" CACHE STRING "Compute capabilities to compile for")
foreach(arch ${AMP_CUDA_ARCHITECTURES})
  if(NOT arch IN_LIST offered)
    message(FATAL_ERROR "AMP_CUDA_ARCHITECTURES: ${arch} is not one of ${offered}")
  endif()
endforeach()
set(CMAKE_CUDA_ARCHITECTURES ${AMP_CUDA_ARCHITECTURES})
list(SORT CMAKE_CUDA_ARCHITECTURES COMPARE NATURAL)
list(GET CMAKE_CUDA_ARCHITECTURES 0 AMP_CUDA_OLDEST)
list(JOIN CMAKE_CUDA_ARCHITECTURES "," AMP_CUDA_COMPILED)
list(POP_BACK CMAKE_CUDA_ARCHITECTURES newest)
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES APPEND -real)
list(APPEND CMAKE_CUDA_ARCHITECTURES ${newest})
if(NOT AMP_CUDA_OLDEST STREQUAL newest)
  list(APPEND CMAKE_CUDA_ARCHITECTURES ${AMP_CUDA_OLDEST}-virtual)
endif()

enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-g")
set(CMAKE_CUDA_FLAGS_RELEASE "")
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
find_package(CUDAToolkit 12 REQUIRED)

# NVIDIA's Python packages have it beside the toolkit.
set(beside ${CUDAToolkit_LIBRARY_ROOT}/../cudnn)
find_path(CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${beside}/include)
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} ${beside}/lib)
if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_LIBRARY)
  message(FATAL_ERROR "AMP_CUDA needs cuDNN 8 or 9, but cudnn_version.h and libcudnn were not "
    "found. Set CUDNN_INCLUDE_DIR and CUDNN_LIBRARY.")
endif()
file(STRINGS ${CUDNN_INCLUDE_DIR}/cudnn_version.h version REGEX "define CUDNN_M[A-Z]+ +[0-9]+")
string(REGEX REPLACE "[^0-9;]" "" version "${version}")
string(REPLACE ";" "." AMP_CUDNN_VERSION "${version}")
if(AMP_CUDNN_VERSION VERSION_LESS 8)
  message(FATAL_ERROR "cuDNN ${AMP_CUDNN_VERSION} in ${CUDNN_INCLUDE_DIR} is too old: 8 or 9 is needed")
endif()
if(AMP_CUDA_OLDEST LESS 75 AND AMP_CUDNN_VERSION VERSION_GREATER_EQUAL 9.11)
  message(FATAL_ERROR "cuDNN ${AMP_CUDNN_VERSION} in ${CUDNN_INCLUDE_DIR} is too new for compute "
    "capability ${AMP_CUDA_OLDEST}: 9.10 or older is needed")
endif()
message(STATUS "CUDA ${CUDAToolkit_VERSION}, cuDNN ${AMP_CUDNN_VERSION}, architectures ${AMP_CUDA_ARCHITECTURES}")

# Where the libraries of the toolkit are found at run time.
get_filename_component(cudnn_folder ${CUDNN_LIBRARY} DIRECTORY)
set(AMP_CUDA_RPATH ${CUDAToolkit_LIBRARY_DIR} ${cudnn_folder})
list(REMOVE_DUPLICATES AMP_CUDA_RPATH)
