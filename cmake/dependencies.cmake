# Everything comes from the distribution's packages (tools/deps.sh); nothing is downloaded here.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(absl REQUIRED)

# MPI's C interface only: the C++ bindings of OpenMPI 4 are not linked.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI REQUIRED COMPONENTS CXX)

# The serial HDF5: every rank writes its own file.
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)
if(HDF5_IS_PARALLEL)
  message(FATAL_ERROR "lt2 needs the serial HDF5 library (Debian: libhdf5-dev); CMake found the "
                      "parallel one at ${HDF5_C_INCLUDE_DIRS}. Install libhdf5-dev or set HDF5_ROOT.")
endif()
add_library(lt2_hdf5 INTERFACE)
target_include_directories(lt2_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(lt2_hdf5 INTERFACE ${HDF5_C_LIBRARIES})

find_path(LT2_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas x86_64-linux-gnu openblas-openmp REQUIRED)
find_library(LT2_OPENBLAS NAMES openblas PATH_SUFFIXES openblas-openmp REQUIRED)
add_library(lt2_blas INTERFACE)
target_include_directories(lt2_blas SYSTEM INTERFACE ${LT2_CBLAS_INCLUDE})
target_link_libraries(lt2_blas INTERFACE ${LT2_OPENBLAS})

find_package(nlohmann_json REQUIRED)
find_path(LT2_TOMLPP_INCLUDE toml++/toml.h REQUIRED)
find_path(LT2_XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(LT2_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)

set(LT2_HAS_CUDA OFF)
if(NOT LT2_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    set(LT2_HAS_CUDA ON)
  elseif(LT2_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LT2_CUDA=ON, but the CUDA toolkit was not found: put nvcc on the PATH")
  endif()
endif()

# Several GPUs need NCCL; one does without.
set(LT2_HAS_NCCL OFF)
if(LT2_HAS_CUDA)
  find_path(LT2_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} $ENV{NCCL_HOME}/include)
  find_library(LT2_NCCL_LIBRARY NAMES libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR}
               ${LT2_NCCL_INCLUDE}/../lib $ENV{NCCL_HOME}/lib)
  if(LT2_NCCL_INCLUDE)
    set(LT2_HAS_NCCL ON)
    if(NOT LT2_NCCL_LIBRARY)
      set(LT2_NCCL_LIBRARY libnccl.so.2)
    endif()
  endif()
endif()
message(STATUS "lt2: CUDA ${LT2_HAS_CUDA}, NCCL ${LT2_HAS_NCCL}")
