# SPDX-License-Identifier: Apache-2.0
# The library's targets. All are INTERFACE: there is nothing to compile, only headers to find and things to link.

set(tandem_include "${PROJECT_SOURCE_DIR}/include")
file(GLOB_RECURSE tandem_headers CONFIGURE_DEPENDS "${tandem_include}/tandem/*.hpp")
file(GLOB_RECURSE tandem_repeated CONFIGURE_DEPENDS "${tandem_include}/tandem/*.inc")

# Below the waterline stand the layers that need libtorch, and the umbrella that includes them.
set(tandem_torch_headers ${tandem_headers})
list(FILTER tandem_torch_headers INCLUDE REGEX "/tandem/(tandem\\.hpp|(tensor|optim|strategy|plan|trainer)/.*)$")
# Ranks on several hosts need what proves who a peer is, and checksums.
set(tandem_tcp_headers ${tandem_headers})
list(FILTER tandem_tcp_headers INCLUDE REGEX "/tandem/transport/(detail/)?tcp[_a-z0-9]*\\.hpp$")
set(tandem_bare_headers ${tandem_headers})
list(REMOVE_ITEM tandem_bare_headers ${tandem_torch_headers} ${tandem_tcp_headers})

# tandem::bare: collectives, transports, schedules; the standard library and Linux only.
add_library(tandem_bare INTERFACE)
add_library(tandem::bare ALIAS tandem_bare)
set_target_properties(tandem_bare PROPERTIES EXPORT_NAME bare)
target_compile_features(tandem_bare INTERFACE cxx_std_20)
target_link_libraries(tandem_bare INTERFACE Threads::Threads)
target_sources(tandem_bare INTERFACE
  FILE_SET HEADERS BASE_DIRS "${tandem_include}" FILES ${tandem_bare_headers}
  # Parts of headers that are included more than once: installed like them, but no header of their own.
  FILE_SET repeated TYPE HEADERS BASE_DIRS "${tandem_include}" FILES ${tandem_repeated})

# tandem::tcp: tandem::bare and the transport Tcp. As with tandem::tandem, the alias needs what the target needs.
find_package(OpenSSL QUIET)
find_package(IsaL QUIET)
add_library(tandem_tcp INTERFACE)
if(TARGET OpenSSL::Crypto AND TARGET IsaL::isal)
  add_library(tandem::tcp ALIAS tandem_tcp)
endif()
set_target_properties(tandem_tcp PROPERTIES EXPORT_NAME tcp)
target_link_libraries(tandem_tcp INTERFACE tandem_bare OpenSSL::Crypto IsaL::isal)
target_sources(tandem_tcp INTERFACE
  FILE_SET HEADERS BASE_DIRS "${tandem_include}" FILES ${tandem_tcp_headers})

# tandem::tandem: everything but Tcp. The target is there without libtorch too, so that it can be installed; its alias is not,
# so that linking it where there is no libtorch fails at configure time.
add_library(tandem INTERFACE)
if(TARGET Libtorch::cpu)
  add_library(tandem::tandem ALIAS tandem)
endif()
target_link_libraries(tandem INTERFACE tandem_bare Libtorch::cpu)
if(tandem_torch_headers)
  target_sources(tandem INTERFACE
    FILE_SET HEADERS BASE_DIRS "${tandem_include}" FILES ${tandem_torch_headers})
endif()

# Every header is compiled alone by the target all_verify_interface_header_sets.
if(PROJECT_IS_TOP_LEVEL)
  set_target_properties(tandem_bare PROPERTIES
    VERIFY_INTERFACE_HEADER_SETS ON INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)
  if(TARGET tandem::tcp)
    set_target_properties(tandem_tcp PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  endif()
  if(TARGET Libtorch::cpu AND tandem_torch_headers)
    set_target_properties(tandem PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  endif()
endif()
