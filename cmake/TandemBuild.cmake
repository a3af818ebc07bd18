# SPDX-License-Identifier: Apache-2.0
# How this project's own programs (tests, examples, benchmarks) are built; nothing here reaches a user of the library.

# Everything that a program of this project is compiled with beyond the library's own requirements.
add_library(tandem_own_flags INTERFACE)
target_compile_options(tandem_own_flags INTERFACE -Wall -Wextra -Wpedantic)
# Off where somebody only wants to run a program (scripts/train): a newer compiler may warn of something new.
option(TANDEM_WERROR "Warnings in this project's own programs are errors" ON)
if(TANDEM_WERROR)
  target_compile_options(tandem_own_flags INTERFACE -Werror)
endif()
# g++ looks for garbage every 130 MB, which takes it 10 to 20 % of its time here: no look below 1.5 GB, 8 % more memory
# for a file with torch.h.
set(tandem_less_garbage_collection "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(tandem_less_garbage_collection --param=ggc-min-heapsize=1500000)
endif()
target_compile_options(tandem_own_flags INTERFACE ${tandem_less_garbage_collection})
set(TANDEM_SANITIZE "" CACHE STRING "What -fsanitize= is given for tests: address,undefined or thread")
if(TANDEM_SANITIZE)
  target_compile_options(tandem_own_flags INTERFACE
    -fsanitize=${TANDEM_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(tandem_own_flags INTERFACE -fsanitize=${TANDEM_SANITIZE})
endif()

# Off where the presets asan and tsan are run too (scripts/test).
option(TANDEM_REPEAT_SANITIZED "Also build, without a sanitizer, the tests that run under one in any case" ON)

# tandem_add_folders(a b c): add_subdirectory for those that have a CMakeLists.txt.
macro(tandem_add_folders)
  foreach(folder IN ITEMS ${ARGN})
    if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt")
      add_subdirectory(${folder})
    endif()
  endforeach()
endmacro()

# tandem_add_every_folder(): the same for every folder here that has one, in alphabetical order.
macro(tandem_add_every_folder)
  file(GLOB lists CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/*/CMakeLists.txt")
  foreach(list IN LISTS lists)
    get_filename_component(folder "${list}" DIRECTORY)
    add_subdirectory("${folder}")
  endforeach()
endmacro()

# tandem_torch_pch(target): use the one precompiled torch/torch.h, which takes 45 s to make and is made once.
# For programs that include torch/torch.h themselves; they must not set own compile options.
function(tandem_torch_pch target)
  if(NOT TARGET tandem_torch_pch_holder)
    file(WRITE "${PROJECT_BINARY_DIR}/torch_pch/holder.cpp.in" "// Only carries the precompiled torch/torch.h.\n")
    configure_file("${PROJECT_BINARY_DIR}/torch_pch/holder.cpp.in" "${PROJECT_BINARY_DIR}/torch_pch/holder.cpp" COPYONLY)
    add_library(tandem_torch_pch_holder OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/torch_pch/holder.cpp")
    target_link_libraries(tandem_torch_pch_holder PRIVATE tandem tandem_own_flags)
    target_precompile_headers(tandem_torch_pch_holder PRIVATE <torch/torch.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM tandem_torch_pch_holder)
endfunction()

# tandem_test_pch(target): use the one precompiled header of tests without libtorch, which saves each 3 s. Definitions of a
# test's own must mean nothing to what is in it (both compilers look).
function(tandem_test_pch target)
  if(NOT TARGET tandem_test_pch_holder)
    file(WRITE "${PROJECT_BINARY_DIR}/test_pch/holder.cpp.in" "// Only carries the precompiled header of tests.\n")
    configure_file("${PROJECT_BINARY_DIR}/test_pch/holder.cpp.in" "${PROJECT_BINARY_DIR}/test_pch/holder.cpp" COPYONLY)
    add_library(tandem_test_pch_holder OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/test_pch/holder.cpp")
    target_link_libraries(tandem_test_pch_holder PRIVATE tandem_test_support)
    target_precompile_headers(tandem_test_pch_holder PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/precompiled.hpp")
  endif()
  target_precompile_headers(${target} REUSE_FROM tandem_test_pch_holder)
endfunction()

# tandem_program(name SOURCES a.cpp ... [TORCH] [PCH] [LINK library ...])
# An executable with the project's warnings; TORCH links tandem::tandem instead of tandem::bare, PCH (implies TORCH)
# also takes the precompiled torch/torch.h.
function(tandem_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;PCH" "" "SOURCES;LINK")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tandem_program(${name}): unknown ${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE tandem_own_flags ${arg_LINK})
  if(arg_TORCH OR arg_PCH)
    target_link_libraries(${name} PRIVATE tandem::tandem)
  else()
    target_link_libraries(${name} PRIVATE tandem::bare)
  endif()
  if(arg_PCH)
    tandem_torch_pch(${name})
  endif()
endfunction()

# tandem_test(name SOURCES a.cpp ... [RANKS 1 2 3 ...] [SLOW_RANKS 5 8 ...] [FULL case ...] [THREADS] [SANITIZED] [TRAFFIC] [TORCH] [PCH] [LABELS l ...]
#             [TIMEOUT seconds] [LINK library ...] [COMPILE_OPTIONS o ...])
# A doctest binary, registered with ctest as <name>, or as <name>.n2, <name>.n3, ... with TANDEM_TEST_RANKS set.
# SLOW_RANKS are registered too, under the label slow: only scripts/test --full runs these.
# FULL: test cases whose names contain one of these are registered once more as <name>.full, with the last of RANKS, under
# the label slow and with TANDEM_TEST_FULL set: there they do all that they should (see tests/support/full.hpp).
# With TRANSPORTS, it is built and registered once more for each transport but ShmRing, as <name>_tcp, with
# TANDEM_TEST_TRANSPORT_TCP defined (see tests/support/worlds.hpp).
# THREADS: its ranks are threads, so it takes its turn with the tests that have several processes. SANITIZED: it runs
# under a sanitizer in any case; see TANDEM_REPEAT_SANITIZED. TRAFFIC: it uses tests/support/traffic.hpp. What needs no
# libtorch gets the label release (see tests/CMakeLists.txt).
# The sources contain TEST_CASEs only: main() and the support in tests/support come with it. Every test has a time
# limit: 60 s unless given, four times as much under a sanitizer. Silently left out when it needs libtorch and there is none.
function(tandem_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;PCH;TRANSPORTS;THREADS;SANITIZED;TRAFFIC" "TIMEOUT" "SOURCES;RANKS;SLOW_RANKS;FULL;LABELS;LINK;COMPILE_OPTIONS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tandem_test(${name}): unknown ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(arg_SANITIZED AND NOT TANDEM_REPEAT_SANITIZED AND NOT TANDEM_SANITIZE)
    return()
  endif()
  if(arg_TRANSPORTS AND TARGET tandem::tcp)
    set(again ${ARGN})
    list(REMOVE_ITEM again TRANSPORTS)
    # Lists at the end are taken up again where they are named a second time.
    tandem_test(${name}_tcp ${again} LINK ${arg_LINK} tandem::tcp
                COMPILE_OPTIONS ${arg_COMPILE_OPTIONS} -DTANDEM_TEST_TRANSPORT_TCP)
  endif()
  set(kind "")
  set(speed fast)
  if(arg_TORCH OR arg_PCH)
    if(NOT TARGET tandem::tandem)
      return()
    endif()
    set(kind TORCH)
    set(speed torch)
    if(arg_PCH)
      set(kind PCH)
    endif()
  endif()
  tandem_program(${name} ${kind} SOURCES ${arg_SOURCES} LINK tandem_test_support ${arg_LINK})
  target_compile_options(${name} PRIVATE ${arg_COMPILE_OPTIONS})
  if(arg_TRAFFIC)
    string(REGEX MATCH "_tcp$" transport "${name}")
    target_link_libraries(${name} PRIVATE tandem_test_traffic${transport})
  endif()
  if(NOT kind)
    tandem_test_pch(${name})
    list(APPEND arg_LABELS release)
    add_dependencies(tandem_release_tests ${name})
  endif()
  # What is slow and has no libtorch, scripts/test --full leaves to the release build.
  set(slow slow)
  if(NOT kind)
    list(APPEND slow optimised)
  endif()
  if("slow" IN_LIST arg_LABELS)
    list(APPEND arg_LABELS ${slow})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(TANDEM_SANITIZE)
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")
    # Memory errors between processes show at 3 ranks; other numbers, which the plain build has, would only take time.
    list(FILTER arg_RANKS INCLUDE REGEX "^3$")
    set(arg_SLOW_RANKS "")
  endif()
  if(arg_RANKS)
    foreach(ranks IN LISTS arg_RANKS arg_SLOW_RANKS)
      add_test(NAME ${name}.n${ranks} COMMAND ${name})
      # Ranks that share cores are timed and killed on purpose, and spin while they wait: two such tests side by side
      # would disturb each other. Those that train only compute; one of them may run beside one of the others, which
      # mostly wait, and so may tests that only compile.
      set(lock "")
      if(ranks GREATER 1)
        set(lock RESOURCE_LOCK ranks)
        if(kind)
          set(lock RESOURCE_LOCK training)
        endif()
      endif()
      set_tests_properties(${name}.n${ranks} PROPERTIES
        ENVIRONMENT "TANDEM_TEST_RANKS=${ranks}" ${lock}
        TIMEOUT ${arg_TIMEOUT} LABELS "${speed};ranks;${arg_LABELS}")
      if(ranks IN_LIST arg_SLOW_RANKS)
        set_property(TEST ${name}.n${ranks} APPEND PROPERTY LABELS ${slow})
      endif()
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${speed};${arg_LABELS}")
    if(arg_THREADS AND NOT TANDEM_SANITIZE) # under which there are few tests of processes
      set_tests_properties(${name} PROPERTIES RESOURCE_LOCK ranks)
    endif()
  endif()
  if(arg_FULL)
    list(TRANSFORM arg_FULL PREPEND "*")
    list(TRANSFORM arg_FULL APPEND "*")
    list(JOIN arg_FULL "," cases)
    set(settings TANDEM_TEST_FULL=1)
    if(arg_RANKS)
      list(GET arg_RANKS -1 ranks)
      list(APPEND settings TANDEM_TEST_RANKS=${ranks})
    endif()
    math(EXPR limit "10 * ${arg_TIMEOUT}")
    add_test(NAME ${name}.full COMMAND ${name} "--test-case=${cases}")
    set_tests_properties(${name}.full PROPERTIES
      ENVIRONMENT "${settings}" RESOURCE_LOCK ranks TIMEOUT ${limit} LABELS "${speed};${arg_LABELS};${slow}")
  endif()
endfunction()
