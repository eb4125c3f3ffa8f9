# SPDX-License-Identifier: Apache-2.0
#
# Writes the public headers to TESSERA_INCLUDE_DIR, as programs include them and as they are
# installed: "mesh/mesh.h" of the tree is "tessera/mesh/mesh.h" there, and headers of tessera/ stay.

set(TESSERA_INCLUDE_DIR "${PROJECT_BINARY_DIR}/include")

set(TESSERA_HEADER_LIST "${PROJECT_SOURCE_DIR}/tools/checks/public_headers.txt")
file(STRINGS "${TESSERA_HEADER_LIST}" TESSERA_PUBLIC_HEADERS REGEX "^[a-z].*\\.h$")
# Programs of this tree include it without a folder; elsewhere it is tessera/tessera.h.
list(REMOVE_ITEM TESSERA_PUBLIC_HEADERS tessera.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${TESSERA_HEADER_LIST}")

# The first folders of the paths in #include lines that are ours.
list(TRANSFORM TESSERA_PUBLIC_HEADERS REPLACE "/.*" "" OUTPUT_VARIABLE TESSERA_HEADER_FOLDERS)
list(REMOVE_DUPLICATES TESSERA_HEADER_FOLDERS)
list(REMOVE_ITEM TESSERA_HEADER_FOLDERS tessera)
list(JOIN TESSERA_HEADER_FOLDERS "|" TESSERA_HEADER_FOLDERS)

foreach(header IN LISTS TESSERA_PUBLIC_HEADERS)
  set(source "${PROJECT_SOURCE_DIR}/${header}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
  if(header MATCHES "^tessera/")
    set(copy "${TESSERA_INCLUDE_DIR}/${header}")
  else()
    set(copy "${TESSERA_INCLUDE_DIR}/tessera/${header}")
  endif()
  file(READ "${source}" text)
  string(REGEX REPLACE "#include \"((${TESSERA_HEADER_FOLDERS})/[^\"]+)\""
                       "#include \"tessera/\\1\"" text "${text}")
  # An unchanged file keeps its time, so that nothing is compiled again.
  set(old "")
  if(EXISTS "${copy}")
    file(READ "${copy}" old)
  endif()
  if(NOT text STREQUAL old)
    file(WRITE "${copy}" "${text}")
  endif()
endforeach()
