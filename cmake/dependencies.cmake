# SPDX-License-Identifier: Apache-2.0
#
# Finds the libraries that Tessera is built with. After it:
#
#   TESSERA_PUBLIC_LIBRARIES    of the public headers
#   TESSERA_PRIVATE_LIBRARIES   also linked by the library
#   TESSERA_HEADER_LIBRARIES    headers alone, to compile the library
#   TESSERA_PROGRAM_LIBRARIES   of the programs
#   TESSERA_HAVE_CUDA, _CUBLASLT, _NCCL, _UCX, _GLOO
#   TESSERA_LOADED_DIRS         folders outside the system's of libraries that are loaded at run time

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# Finds a package, unless the project that includes this one has its targets already.
macro(tessera_find_package target)
  if(NOT TARGET ${target})
    find_package(${ARGN} REQUIRED)
  endif()
endmacro()

tessera_find_package(absl::strings absl CONFIG)
# What a program is compiled with must be the same release: absl's version file knows EXACT.
set(TESSERA_ABSL_VERSION "")
if(absl_VERSION)
  set(TESSERA_ABSL_VERSION "${absl_VERSION} EXACT")
endif()
tessera_find_package(gRPC::grpc++ gRPC CONFIG)
tessera_find_package(protobuf::protoc Protobuf) # Debian's has no configuration of its own
tessera_find_package(hwy::hwy hwy CONFIG)
tessera_find_package(Eigen3::Eigen Eigen3 3.4 CONFIG)
tessera_find_package(nlohmann_json::nlohmann_json nlohmann_json CONFIG)
find_path(TESSERA_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
mark_as_advanced(TESSERA_XXHASH_INCLUDE_DIR)

set(TESSERA_PUBLIC_LIBRARIES
    absl::flat_hash_set
    absl::function_ref
    absl::inlined_vector
    absl::int128
    absl::node_hash_map
    absl::span
    absl::status
    absl::statusor
    absl::strings
    absl::time
)
set(TESSERA_PRIVATE_LIBRARIES
    absl::any_invocable
    absl::cleanup
    absl::cord
    absl::flat_hash_map
    absl::hash
    absl::str_format
    gRPC::grpc++
    protobuf::libprotobuf
    hwy::hwy
    Threads::Threads
    ${CMAKE_DL_LIBS}
)
set(TESSERA_HEADER_LIBRARIES Eigen3::Eigen nlohmann_json::nlohmann_json)
set(TESSERA_PROGRAM_LIBRARIES absl::flags absl::flags_config absl::flags_parse absl::flags_reflection absl::flags_usage)

# ---- Parts that are built if they are found

# tessera_find_part(NAME PACKAGE found) sets TESSERA_HAVE_<NAME>, and fails if the part is ON and is
# not `found`. PACKAGE is for the message.
function(tessera_find_part name package found)
  set(option "${TESSERA_${name}}")
  set(have OFF)
  if(option STREQUAL "AUTO" OR option)
    if(found)
      set(have ON)
    elseif(NOT option STREQUAL "AUTO")
      message(FATAL_ERROR "TESSERA_${name} is ${option}, and ${package} is not found; install it, "
                          "name its folder in CMAKE_PREFIX_PATH, or set TESSERA_${name}=OFF")
    endif()
  endif()
  set(TESSERA_HAVE_${name} ${have} PARENT_SCOPE)
  message(STATUS "Tessera with ${name}: ${have}")
endfunction()

# The folders beside an include folder where its libraries are; empty for folders of the system.
function(tessera_library_dirs result include_dir)
  set(dirs "")
  if(include_dir IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    return()
  endif()
  get_filename_component(prefix "${include_dir}" DIRECTORY)
  foreach(name lib lib64)
    if(IS_DIRECTORY "${prefix}/${name}")
      list(APPEND dirs "${prefix}/${name}")
    endif()
  endforeach()
  set(${result} ${${result}} ${dirs} PARENT_SCOPE)
endfunction()

find_path(TESSERA_UCX_INCLUDE_DIR ucp/api/ucp.h)
find_path(TESSERA_GLOO_INCLUDE_DIR gloo/config.h HINTS ENV GLOO_HOME PATH_SUFFIXES include)
mark_as_advanced(TESSERA_UCX_INCLUDE_DIR TESSERA_GLOO_INCLUDE_DIR)
tessera_find_part(UCX "UCX (ucp/api/ucp.h)" "${TESSERA_UCX_INCLUDE_DIR}")
tessera_find_part(GLOO "Gloo (gloo/config.h)" "${TESSERA_GLOO_INCLUDE_DIR}")

# 12.0 allows a kernel 4096 bytes of parameters, and ours take more.
if(TESSERA_CUDA)
  find_package(CUDAToolkit 12.1 QUIET)
endif()
set(TESSERA_FOUND_CUDA OFF)
if(TARGET CUDA::cudart_static AND CUDAToolkit_NVCC_EXECUTABLE)
  set(TESSERA_FOUND_CUDA ON)
endif()
tessera_find_part(CUDA "CUDA 12.1 or later (nvcc and libcudart_static.a)" ${TESSERA_FOUND_CUDA})
if(TESSERA_HAVE_CUDA)
  find_path(TESSERA_CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
  find_path(TESSERA_NCCL_INCLUDE_DIR nccl.h HINTS ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS}
            PATH_SUFFIXES include)
  mark_as_advanced(TESSERA_CUBLASLT_INCLUDE_DIR TESSERA_NCCL_INCLUDE_DIR)
  list(APPEND TESSERA_PRIVATE_LIBRARIES CUDA::cudart_static)
  set(TESSERA_HAVE_CUBLASLT OFF)
  if(TESSERA_CUBLASLT_INCLUDE_DIR)
    set(TESSERA_HAVE_CUBLASLT ON)
  endif()
endif()

# 2.28.7 is the first with ncclCommRevoke.
set(TESSERA_FOUND_NCCL OFF)
if(TESSERA_HAVE_CUDA AND TESSERA_NCCL_INCLUDE_DIR)
  set(version "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${TESSERA_NCCL_INCLUDE_DIR}/nccl.h" line REGEX "^#define NCCL_${part} +[0-9]+")
    string(REGEX MATCH "[0-9]+" number "${line}")
    list(APPEND version "${number}")
  endforeach()
  list(JOIN version "." version)
  if(version VERSION_GREATER_EQUAL 2.28.7)
    set(TESSERA_FOUND_NCCL ON)
  endif()
endif()
tessera_find_part(NCCL "NCCL 2.28.7 or later, beside CUDA," ${TESSERA_FOUND_NCCL})

set(TESSERA_LOADED_DIRS "")
foreach(part UCX GLOO NCCL CUBLASLT)
  if(TESSERA_HAVE_${part})
    tessera_library_dirs(TESSERA_LOADED_DIRS "${TESSERA_${part}_INCLUDE_DIR}")
  endif()
endforeach()
list(REMOVE_DUPLICATES TESSERA_LOADED_DIRS)
