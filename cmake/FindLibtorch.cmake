# SPDX-License-Identifier: Apache-2.0
# Finds libtorch from its own folder and makes imported targets: Libtorch::cpu, and Libtorch::cuda where the folder has
# what a GPU program needs. Not find_package(Torch): on the CUDA wheel that demands a CUDA toolkit, even for CPU programs.
#
# Where it looks, first hit wins; a place that is named and wrong is an error, never passed over:
#   TANDEM_LIBTORCH   (CMake variable or environment) the folder with include/ and lib/
#   Torch_DIR         <folder>/share/cmake/Torch, as find_package(Torch) users know it
#   CMAKE_PREFIX_PATH each entry that holds lib/libtorch_cpu.so
#   python3           the torch it would import (found without importing it)
#
# Result: Libtorch_FOUND, Libtorch_ROOT, Libtorch_VERSION, Libtorch_LAYOUT (wheel or zip).

set(_libtorch_oldest 2.11)
set(_libtorch_why "libtorch was not found: set TANDEM_LIBTORCH to its folder (the one with include/ and lib/)")
set(Libtorch_ROOT "")

function(_libtorch_is_root folder result)
  if(EXISTS "${folder}/lib/libtorch_cpu.so" AND EXISTS "${folder}/include/ATen/core/Tensor.h")
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# 1. TANDEM_LIBTORCH always wins.
set(_libtorch_given "")
if(TANDEM_LIBTORCH)
  set(_libtorch_given "${TANDEM_LIBTORCH}")
elseif(DEFINED ENV{TANDEM_LIBTORCH} AND NOT "$ENV{TANDEM_LIBTORCH}" STREQUAL "")
  set(_libtorch_given "$ENV{TANDEM_LIBTORCH}")
endif()
if(_libtorch_given)
  get_filename_component(_libtorch_given "${_libtorch_given}" ABSOLUTE)
  foreach(_libtorch_folder IN ITEMS "${_libtorch_given}" "${_libtorch_given}/torch" "${_libtorch_given}/libtorch")
    _libtorch_is_root("${_libtorch_folder}" _libtorch_hit)
    if(_libtorch_hit)
      set(Libtorch_ROOT "${_libtorch_folder}")
      break()
    endif()
  endforeach()
  if(NOT Libtorch_ROOT)
    set(_libtorch_why "TANDEM_LIBTORCH is ${_libtorch_given}, which has no lib/libtorch_cpu.so: point it at the libtorch folder (the one with include/ and lib/) or unset it")
  endif()
endif()

# 2. Torch_DIR and CMAKE_PREFIX_PATH, as users of find_package(Torch) set them.
if(NOT Libtorch_ROOT AND NOT _libtorch_given)
  set(_libtorch_places "")
  if(Torch_DIR)
    get_filename_component(_libtorch_folder "${Torch_DIR}/../../.." ABSOLUTE)
    list(APPEND _libtorch_places "${_libtorch_folder}")
  endif()
  set(_libtorch_environment "$ENV{CMAKE_PREFIX_PATH}")
  string(REPLACE ":" ";" _libtorch_environment "${_libtorch_environment}")
  foreach(_libtorch_folder IN LISTS CMAKE_PREFIX_PATH _libtorch_environment)
    list(APPEND _libtorch_places "${_libtorch_folder}")
    # torch.utils.cmake_prefix_path is <folder>/share/cmake
    get_filename_component(_libtorch_folder "${_libtorch_folder}/../.." ABSOLUTE)
    list(APPEND _libtorch_places "${_libtorch_folder}")
  endforeach()
  foreach(_libtorch_folder IN LISTS _libtorch_places)
    _libtorch_is_root("${_libtorch_folder}" _libtorch_hit)
    if(_libtorch_hit)
      set(Libtorch_ROOT "${_libtorch_folder}")
      break()
    endif()
  endforeach()
endif()

# 3. Asked of python3; find_spec reads no library, so this takes milliseconds.
if(NOT Libtorch_ROOT AND NOT _libtorch_given)
  foreach(_libtorch_python IN ITEMS ${TANDEM_PYTHON} python3)
    execute_process(
      COMMAND "${_libtorch_python}" -c
              "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE _libtorch_folder
      OUTPUT_STRIP_TRAILING_WHITESPACE
      ERROR_QUIET
      RESULT_VARIABLE _libtorch_status)
    if(_libtorch_status EQUAL 0 AND _libtorch_folder)
      _libtorch_is_root("${_libtorch_folder}" _libtorch_hit)
      if(_libtorch_hit)
        set(Libtorch_ROOT "${_libtorch_folder}")
        break()
      endif()
    endif()
  endforeach()
endif()

# Version, from the header that carries it (its place moved in 2.9).
set(Libtorch_VERSION "")
if(Libtorch_ROOT)
  foreach(_libtorch_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${Libtorch_ROOT}/include/${_libtorch_header}")
      file(STRINGS "${Libtorch_ROOT}/include/${_libtorch_header}" _libtorch_lines
           REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      string(REGEX REPLACE "[^0-9;]" "" _libtorch_numbers "${_libtorch_lines}")
      string(REPLACE ";" "." _libtorch_numbers "${_libtorch_numbers}")
      if(_libtorch_numbers MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+$")
        set(Libtorch_VERSION "${_libtorch_numbers}")
        break()
      endif()
    endif()
  endforeach()
  if(NOT Libtorch_VERSION)
    set(_libtorch_why "the libtorch in ${Libtorch_ROOT} does not tell its version: tandem needs ${_libtorch_oldest} or newer")
    set(Libtorch_ROOT "")
  elseif(Libtorch_VERSION VERSION_LESS _libtorch_oldest)
    set(_libtorch_why "the libtorch in ${Libtorch_ROOT} is ${Libtorch_VERSION}, but tandem needs ${_libtorch_oldest} or newer: install a newer one or point TANDEM_LIBTORCH at one")
    set(Libtorch_ROOT "")
  endif()
endif()

# The standard library's two string layouts do not link with each other, and the linker's message names neither.
if(Libtorch_ROOT)
  set(_libtorch_abi 1)
  if(EXISTS "${Libtorch_ROOT}/share/cmake/Torch/TorchConfig.cmake")
    file(STRINGS "${Libtorch_ROOT}/share/cmake/Torch/TorchConfig.cmake" _libtorch_lines
         REGEX "^ *set\\(TORCH_CXX_FLAGS .*_GLIBCXX_USE_CXX11_ABI=[01]")
    if(_libtorch_lines MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
      set(_libtorch_abi "${CMAKE_MATCH_1}")
    endif()
  endif()
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_QUIET TRUE)
  # The cached answer belongs to these flags: another ABI flag must be asked again.
  if(NOT "${CMAKE_CXX_FLAGS} ${_libtorch_abi}" STREQUAL "${_libtorch_abi_asked}")
    unset(_libtorch_abi_agrees CACHE)
    set(_libtorch_abi_asked "${CMAKE_CXX_FLAGS} ${_libtorch_abi}" CACHE INTERNAL "")
  endif()
  check_cxx_source_compiles("#include <string>
#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI != ${_libtorch_abi}
#error other layout
#endif
int main() { return 0; }" _libtorch_abi_agrees)
  unset(CMAKE_REQUIRED_QUIET)
  if(NOT _libtorch_abi_agrees)
    set(_libtorch_why "the libtorch in ${Libtorch_ROOT} was built with _GLIBCXX_USE_CXX11_ABI=${_libtorch_abi}, this project is not: add -D_GLIBCXX_USE_CXX11_ABI=${_libtorch_abi} to CMAKE_CXX_FLAGS, or remove the other one")
    set(Libtorch_ROOT "")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_ROOT
  VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE "${_libtorch_why}")

if(Libtorch_FOUND AND NOT TARGET Libtorch::cpu)
  set(_libtorch_lib "${Libtorch_ROOT}/lib")
  set(_libtorch_nvidia "")
  set(Libtorch_LAYOUT zip)
  get_filename_component(_libtorch_folder "${Libtorch_ROOT}/../nvidia/cu13" ABSOLUTE)
  if(EXISTS "${_libtorch_folder}/lib")
    set(_libtorch_nvidia "${_libtorch_folder}")
    set(Libtorch_LAYOUT wheel)
  endif()
  # The wheel's libraries need others that lie beside it; they find them by their own RPATH when a program runs, but
  # the linker has to be told.
  set(_libtorch_link "-Wl,-rpath-link,${_libtorch_lib}")
  if(_libtorch_nvidia)
    list(APPEND _libtorch_link "-Wl,-rpath-link,${_libtorch_nvidia}/lib")
  endif()

  add_library(Libtorch::c10 SHARED IMPORTED)
  set_target_properties(Libtorch::c10 PROPERTIES
    IMPORTED_LOCATION "${_libtorch_lib}/libc10.so")

  # IMPORTED makes the include folders SYSTEM ones: libtorch's headers are not clean under -Wall -Wextra -Wpedantic.
  add_library(Libtorch::cpu SHARED IMPORTED)
  set_target_properties(Libtorch::cpu PROPERTIES
    IMPORTED_LOCATION "${_libtorch_lib}/libtorch_cpu.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${Libtorch_ROOT}/include;${Libtorch_ROOT}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES Libtorch::c10
    INTERFACE_LINK_OPTIONS "${_libtorch_link}")

  # A CPU set-up may still hold libtorch_cuda.so (the wheel does) without the libraries that it needs: then it cannot
  # be linked, and offering the target would only move the error.
  set(_libtorch_cuda FALSE)
  if(EXISTS "${_libtorch_lib}/libtorch_cuda.so" AND EXISTS "${_libtorch_lib}/libc10_cuda.so")
    if(_libtorch_nvidia)
      file(GLOB _libtorch_blas "${_libtorch_nvidia}/lib/libcublas.so.*")
    else()
      file(GLOB _libtorch_blas "${_libtorch_lib}/libcudart*.so*")
    endif()
    if(_libtorch_blas)
      set(_libtorch_cuda TRUE)
    endif()
  endif()
  if(_libtorch_cuda)
    add_library(Libtorch::c10_cuda SHARED IMPORTED)
    set_target_properties(Libtorch::c10_cuda PROPERTIES IMPORTED_LOCATION "${_libtorch_lib}/libc10_cuda.so")
    add_library(Libtorch::cuda SHARED IMPORTED)
    set_target_properties(Libtorch::cuda PROPERTIES
      IMPORTED_LOCATION "${_libtorch_lib}/libtorch_cuda.so"
      INTERFACE_LINK_LIBRARIES "Libtorch::cpu;Libtorch::c10_cuda")
    if(_libtorch_nvidia)
      set_property(TARGET Libtorch::cuda APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${_libtorch_nvidia}/include")
      file(GLOB _libtorch_folders "${_libtorch_nvidia}/../*/lib")
      foreach(_libtorch_folder IN LISTS _libtorch_folders)
        set_property(TARGET Libtorch::cuda APPEND PROPERTY INTERFACE_LINK_OPTIONS
                     "-Wl,-rpath-link,${_libtorch_folder}")
      endforeach()
    endif()
  endif()
endif()
