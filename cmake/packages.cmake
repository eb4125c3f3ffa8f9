# SPDX-License-Identifier: Apache-2.0
#
# `cpack` in the folder of a build makes three packages of Debian:
#
#   libtessera0     the shared library
#   libtessera-dev  headers and the files that find them
#   tessera-tools   the programs
#
# Configure with -DCMAKE_INSTALL_PREFIX=/usr, which gives libraries Debian's folder.
if(NOT BUILD_SHARED_LIBS OR NOT TESSERA_BUILD_PROGRAMS)
  return()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_CONTACT "Tessera maintainers <maintainers@tessera.invalid>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development tools)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(about "A C++ framework for programs whose tensors are sharded over the devices of many
processes: meshes, layouts, relayouts, collectives, operations and training.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME "libtessera${PROJECT_VERSION_MAJOR}")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "${about}

This package has the shared library.")
# Loaded at run time, where they are installed.
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "libucx0, libgloo0, libopenblas0")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtessera-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "${about}

This package has the headers, and the files of CMake and pkg-config.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "${CPACK_DEBIAN_RUNTIME_PACKAGE_NAME} (= ${PROJECT_VERSION}), libabsl-dev")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "libeigen3-dev, mpi-default-dev, tessera-tools")
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME tessera-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "${about}

This package has the programs that start jobs, show plans and read checkpoints.")

# dpkg runs ldconfig once for all packages that it installs.
set(folder "${PROJECT_BINARY_DIR}/debian")
file(WRITE "${folder}/triggers" "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA "${folder}/triggers")

# Each package has copyright and changelog.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # SOURCE_DATE_EPOCH, if that is set
string(TIMESTAMP year "%Y" UTC)
file(WRITE "${folder}/changelog"
     "tessera (${PROJECT_VERSION}) unstable; urgency=medium

  * Release ${PROJECT_VERSION}; CHANGELOG.md of the sources says what changed.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
"
)
file(ARCHIVE_CREATE OUTPUT "${folder}/changelog.gz" PATHS "${folder}/changelog" FORMAT raw
     COMPRESSION GZip COMPRESSION_LEVEL 9)
file(WRITE "${folder}/copyright"
     "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Tessera

Files: *
Copyright: ${year} the authors of Tessera
License: Apache-2.0
 On Debian systems the text of this license is in
 /usr/share/common-licenses/Apache-2.0.
"
)
foreach(component runtime development tools)
  string(TOUPPER ${component} upper)
  install(FILES "${folder}/changelog.gz" "${folder}/copyright"
          DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME}"
          COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()

include(CPack)
