# SPDX-License-Identifier: Apache-2.0
#
# Compiles the sources of the library: one target of object files for each set of flags.

# What all sources of Tessera are compiled with.
add_library(tessera_build INTERFACE)
target_compile_features(tessera_build INTERFACE cxx_std_20)
target_link_libraries(
  tessera_build INTERFACE ${TESSERA_PUBLIC_LIBRARIES} ${TESSERA_PRIVATE_LIBRARIES}
                          ${TESSERA_HEADER_LIBRARIES}
)
target_include_directories(tessera_build SYSTEM INTERFACE ${TESSERA_XXHASH_INCLUDE_DIR})
target_compile_options(
  tessera_build
  INTERFACE # The compiler's quoted includes alone, as in Bazel: the root has a folder `files`, ...
            "SHELL:-iquote \"${PROJECT_SOURCE_DIR}\""
            "SHELL:-iquote \"${PROJECT_BINARY_DIR}/protos\""
            # The names of sources in messages are those of the tree.
            "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/="
            -ffunction-sections
            -fdata-sections
            # gcc inlines no function that a shared library exports without it.
            $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-semantic-interposition>
            # gcc takes the sources of a unit for headers.
            $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>
            # As in Bazel: clang does not build these kernels.
            $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-DTESSERA_WITHOUT_AVX512>
)

# The names that public headers mark with TESSERA_PUBLIC are visible.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
add_compile_definitions(TESSERA_HIDE_INTERNALS)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_EXTENSIONS OFF)

# Adds the sources of the units TESSERA_<name>_UNIT_... to the target.
function(tessera_add_units target name)
  foreach(number RANGE 1 ${TESSERA_${name}_UNITS})
    set(sources ${TESSERA_${name}_UNIT_${number}})
    list(TRANSFORM sources PREPEND "${PROJECT_SOURCE_DIR}/")
    target_sources(${target} PRIVATE ${sources})
    set_source_files_properties(${sources} PROPERTIES UNITY_GROUP ${number})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TESSERA_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()

# Adds a target of objects, and appends it to TESSERA_OBJECTS.
macro(tessera_add_object_library name)
  add_library(tessera_${name} OBJECT)
  target_link_libraries(tessera_${name} PRIVATE tessera_build)
  list(APPEND TESSERA_OBJECTS $<TARGET_OBJECTS:tessera_${name}>)
endmacro()

# protoc and its gRPC plugin write the messages and services of a .proto file. They see it below
# tessera/, as in Bazel, so that a program may have a file of the same path.
function(tessera_add_proto target proto)
  set(folder "${PROJECT_BINARY_DIR}/protos")
  string(REGEX REPLACE "\\.proto$" "" stem "${folder}/tessera/${proto}")
  add_custom_command(
    OUTPUT ${stem}.pb.cc ${stem}.pb.h ${stem}.grpc.pb.cc ${stem}.grpc.pb.h
    COMMAND ${CMAKE_COMMAND} -E make_directory "${folder}"
    COMMAND
      protobuf::protoc "--proto_path=tessera=${PROJECT_SOURCE_DIR}" "--cpp_out=${folder}"
      "--grpc_out=${folder}" "--plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>"
      "tessera/${proto}"
    DEPENDS "${PROJECT_SOURCE_DIR}/${proto}"
    VERBATIM
  )
  target_sources(${target} PRIVATE ${stem}.pb.cc ${stem}.pb.h ${stem}.grpc.pb.cc ${stem}.grpc.pb.h)
endfunction()

macro(tessera_add_objects)
  set(TESSERA_OBJECTS "")

  tessera_add_object_library(protos)
  target_compile_options(tessera_protos PRIVATE -w)
  foreach(proto IN LISTS TESSERA_PROTOS)
    tessera_add_proto(tessera_protos ${proto})
  endforeach()

  tessera_add_object_library(plain)
  tessera_add_units(tessera_plain tessera)
  add_dependencies(tessera_plain tessera_protos) # its headers

  foreach(set IN LISTS TESSERA_FLAG_SETS)
    tessera_add_object_library(${set})
    target_sources(tessera_${set} PRIVATE ${TESSERA_${set}_SOURCES})
    target_compile_options(tessera_${set} PRIVATE ${TESSERA_${set}_FLAGS})
  endforeach()

  tessera_add_object_library(parts)
  foreach(part CUDA CUBLASLT NCCL UCX GLOO)
    if(part STREQUAL "CUBLASLT" AND NOT TESSERA_HAVE_CUDA)
      continue()
    endif()
    if(TESSERA_HAVE_${part})
      set(sources ${TESSERA_WITH_${part}})
      target_include_directories(tessera_parts SYSTEM PRIVATE ${TESSERA_${part}_INCLUDE_DIR})
    else()
      set(sources ${TESSERA_WITHOUT_${part}})
    endif()
    set(kernels ${sources})
    list(FILTER kernels INCLUDE REGEX "\\.cu$")
    list(FILTER sources EXCLUDE REGEX "\\.cu$")
    target_sources(tessera_parts PRIVATE ${sources})
    if(kernels)
      tessera_add_kernels(${kernels})
    endif()
  endforeach()
  add_dependencies(tessera_parts tessera_protos)
endmacro()

# The kernels of GPUs: machine code of two architectures, and PTX for later ones.
macro(tessera_add_kernels)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
  endif()
  if(NOT DEFINED CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20) # CMake 3.25 does not know it of nvcc 13
  endif()
  add_library(tessera_gpu OBJECT ${ARGN})
  target_compile_options(tessera_gpu PRIVATE -O3)
  target_include_directories(tessera_gpu PRIVATE "${PROJECT_SOURCE_DIR}")
  set_target_properties(
    tessera_gpu PROPERTIES CUDA_STANDARD 20 CUDA_EXTENSIONS OFF CUDA_VISIBILITY_PRESET hidden
  )
  list(APPEND TESSERA_OBJECTS $<TARGET_OBJECTS:tessera_gpu>)
endmacro()
