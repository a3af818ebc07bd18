# SPDX-License-Identifier: Apache-2.0
# Intel's storage acceleration library, whose CRC32C tandem::tcp uses: the target IsaL::isal. Debian: libisal-dev.
find_path(IsaL_INCLUDE_DIR isa-l/crc.h)
find_library(IsaL_LIBRARY isal)
mark_as_advanced(IsaL_INCLUDE_DIR IsaL_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(IsaL REQUIRED_VARS IsaL_LIBRARY IsaL_INCLUDE_DIR)
if(IsaL_FOUND AND NOT TARGET IsaL::isal)
  add_library(IsaL::isal UNKNOWN IMPORTED)
  set_target_properties(IsaL::isal PROPERTIES
    IMPORTED_LOCATION "${IsaL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${IsaL_INCLUDE_DIR}")
endif()
