# SPDX-License-Identifier: Apache-2.0
#
# Installs libraries, headers, programs, and the files by which other projects find them. Components:
#
#   runtime       libtessera.so.0
#   development   headers, TesseraConfig.cmake, tessera.pc
#   static        libtessera.a
#   tools         programs and their manual pages
include(CMakePackageConfigHelpers)

set(TESSERA_CONFIG_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/Tessera")

install(TARGETS tessera_static EXPORT TesseraStatic ARCHIVE COMPONENT static)
install(EXPORT TesseraStatic NAMESPACE tessera:: DESTINATION "${TESSERA_CONFIG_DIR}"
        COMPONENT static)
if(BUILD_SHARED_LIBS)
  install(TARGETS tessera_shared EXPORT TesseraShared
          LIBRARY COMPONENT runtime NAMELINK_COMPONENT development)
  install(EXPORT TesseraShared NAMESPACE tessera:: DESTINATION "${TESSERA_CONFIG_DIR}"
          COMPONENT development)
endif()
install(DIRECTORY "${TESSERA_INCLUDE_DIR}/tessera" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT development)

# ---- find_package(Tessera)

set(TESSERA_BUILT_COMPONENTS core)
foreach(part CUDA NCCL UCX GLOO)
  if(TESSERA_HAVE_${part})
    string(TOLOWER ${part} component)
    list(APPEND TESSERA_BUILT_COMPONENTS ${component})
  endif()
endforeach()
configure_package_config_file(
  cmake/TesseraConfig.cmake.in TesseraConfig.cmake INSTALL_DESTINATION "${TESSERA_CONFIG_DIR}"
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO
)
# Before 1.0.0 each minor version may change the API.
write_basic_package_version_file(TesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/TesseraConfig.cmake"
              "${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake"
        DESTINATION "${TESSERA_CONFIG_DIR}" COMPONENT development)

# ---- pkg-config

# Abseil's modules are named as its targets.
list(TRANSFORM TESSERA_PUBLIC_LIBRARIES REPLACE "::" "_" OUTPUT_VARIABLE TESSERA_PC_REQUIRES)
list(JOIN TESSERA_PC_REQUIRES " " TESSERA_PC_REQUIRES)
# What the archive needs. These are no modules, because pkg-config wants those of Requires.private
# also where a program links the shared library.
set(TESSERA_PC_PRIVATE "-lgrpc++ -lgrpc -lgpr -lprotobuf -lhwy -labsl_cord -labsl_hash")
string(APPEND TESSERA_PC_PRIVATE " -labsl_str_format_internal -labsl_synchronization -pthread -ldl")
foreach(target gRPC::grpc++ protobuf::libprotobuf hwy::hwy)
  string(PREPEND TESSERA_PC_PRIVATE "-L$<TARGET_FILE_DIR:${target}> ")
endforeach()
if(TESSERA_HAVE_CUDA)
  string(APPEND TESSERA_PC_PRIVATE " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
# tessera.pc names its folders relative to itself, so that the installed files can be moved.
set(TESSERA_PC_DIR "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH TESSERA_PC_TO_PREFIX "/${TESSERA_PC_DIR}" "/")
string(REGEX REPLACE "/$" "" TESSERA_PC_TO_PREFIX "${TESSERA_PC_TO_PREFIX}")
configure_file(cmake/tessera.pc.in tessera.pc.in @ONLY)
file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/pkgconfig/tessera.pc"
     INPUT "${PROJECT_BINARY_DIR}/tessera.pc.in")
install(FILES "${PROJECT_BINARY_DIR}/pkgconfig/tessera.pc" DESTINATION "${TESSERA_PC_DIR}"
        COMPONENT development)

# ---- The programs and their manual pages

if(NOT TESSERA_BUILD_PROGRAMS)
  return()
endif()
install(TARGETS ${TESSERA_PROGRAMS} RUNTIME COMPONENT tools)
install(DIRECTORY tools/topologies DESTINATION "${CMAKE_INSTALL_DATADIR}/tessera" COMPONENT tools
        FILES_MATCHING PATTERN "*.json")

find_program(TESSERA_HELP2MAN help2man)
find_program(TESSERA_GZIP gzip)
mark_as_advanced(TESSERA_HELP2MAN TESSERA_GZIP)
if(NOT TESSERA_HELP2MAN OR NOT TESSERA_GZIP)
  message(STATUS "Tessera without manual pages: help2man and gzip make them")
  return()
endif()
set(TESSERA_ABOUT_tessera_run "start the clients of a job")
set(TESSERA_ABOUT_tessera_coordinator "host the coordinator of a job that another launcher starts")
set(TESSERA_ABOUT_tessera_plan "show how a relayout or an operation would run")
set(TESSERA_ABOUT_tessera_ckpt "list, show, verify, convert and clean checkpoints")
set(pages "")
foreach(program IN LISTS TESSERA_PROGRAMS)
  set(page "${PROJECT_BINARY_DIR}/man/${program}.1")
  add_custom_command(
    OUTPUT "${page}.gz"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/man"
    COMMAND
      "${TESSERA_HELP2MAN}" --no-info --no-discard-stderr "--name=${TESSERA_ABOUT_${program}}"
      --source=Tessera "--output=${page}" "$<TARGET_FILE:${program}>"
    COMMAND "${TESSERA_GZIP}" -9nf "${page}"
    DEPENDS ${program}
    VERBATIM
  )
  list(APPEND pages "${page}.gz")
endforeach()
add_custom_target(tessera_manual ALL DEPENDS ${pages})
install(FILES ${pages} DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT tools)
