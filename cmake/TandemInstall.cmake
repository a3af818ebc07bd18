# SPDX-License-Identifier: Apache-2.0
# install(), and the package files behind find_package(tandem).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(tandem_package "${CMAKE_INSTALL_DATADIR}/cmake/tandem")

# An export set each: tandem::bare must be usable where there is no libtorch, and no OpenSSL.
install(TARGETS tandem_bare EXPORT tandem_bare
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILE_SET repeated DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS tandem_tcp EXPORT tandem_tcp FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(tandem_torch_headers)
  install(TARGETS tandem EXPORT tandem FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
else()
  install(TARGETS tandem EXPORT tandem)
endif()
install(EXPORT tandem_bare NAMESPACE tandem:: FILE tandem-bare-targets.cmake DESTINATION "${tandem_package}")
install(EXPORT tandem_tcp NAMESPACE tandem:: FILE tandem-tcp-targets.cmake DESTINATION "${tandem_package}")
install(EXPORT tandem NAMESPACE tandem:: FILE tandem-targets.cmake DESTINATION "${tandem_package}")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/tandem-config.cmake.in" "${PROJECT_BINARY_DIR}/tandem-config.cmake"
  INSTALL_DESTINATION "${tandem_package}")
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/tandem-config-version.cmake" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
  "${PROJECT_BINARY_DIR}/tandem-config.cmake"
  "${PROJECT_BINARY_DIR}/tandem-config-version.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindLibtorch.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindIsaL.cmake"
  DESTINATION "${tandem_package}")
