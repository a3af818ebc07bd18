# SPDX-License-Identifier: Apache-2.0
# The MPIs that tandem is compared with, as far as they are here: for each one small program beside bench_collectives,
# which takes those it finds there. Sets bench_mpis. scripts/setup --bench installs them; nothing else needs one.

set(bench_mpis "")

# bench_mpi(peer NAME name LAUNCHER file INCLUDES folder ... LIBRARIES file ... [ROOT folder])
function(bench_mpi peer)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME;LAUNCHER;ROOT" "INCLUDES;LIBRARIES")
  set(found TRUE)
  foreach(file IN LISTS arg_LAUNCHER arg_INCLUDES arg_LIBRARIES)
    if(NOT EXISTS "${file}")
      set(found FALSE)
    endif()
  endforeach()
  if(NOT found OR NOT arg_LAUNCHER OR NOT arg_INCLUDES OR NOT arg_LIBRARIES)
    message(STATUS "tandem: no ${arg_NAME} to compare with")
    file(REMOVE "${PROJECT_BINARY_DIR}/benchmarks/bench_mpi_${peer}")  # of a time when there was one
    return()
  endif()
  tandem_program(bench_mpi_${peer} SOURCES peers/mpi.cpp LINK ${arg_LIBRARIES})
  target_include_directories(bench_mpi_${peer} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_include_directories(bench_mpi_${peer} SYSTEM PRIVATE ${arg_INCLUDES})
  target_compile_definitions(bench_mpi_${peer} PRIVATE
    OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX BENCH_MPI_LAUNCHER="${arg_LAUNCHER}" BENCH_MPI_ROOT="${arg_ROOT}")
  add_dependencies(bench_collectives bench_mpi_${peer})
  set(bench_mpis ${bench_mpis} bench_mpi_${peer} PARENT_SCOPE)
endfunction()

# Debian has both side by side, under names that end alike. What to compile and link with their compiler tells.
foreach(entry IN ITEMS "openmpi|Open MPI" "mpich|MPICH")
  string(REPLACE "|" ";" entry "${entry}")
  list(GET entry 0 peer)
  list(GET entry 1 name)
  find_program(bench_${peer}_compiler mpicc.${peer})
  find_program(bench_${peer}_launcher mpirun.${peer})
  mark_as_advanced(bench_${peer}_compiler bench_${peer}_launcher)
  set(includes "")
  set(libraries "")
  if(bench_${peer}_compiler)
    execute_process(COMMAND "${bench_${peer}_compiler}" -show OUTPUT_VARIABLE line ERROR_QUIET)
    separate_arguments(words UNIX_COMMAND "${line}")
    set(folders "")
    foreach(word IN LISTS words)
      if(word MATCHES "^-I(.+)")
        list(APPEND includes "${CMAKE_MATCH_1}")
      elseif(word MATCHES "^-L(.+)")
        list(APPEND folders "${CMAKE_MATCH_1}")
      elseif(word MATCHES "^-l(.+)")
        unset(library)
        find_library(library "${CMAKE_MATCH_1}" PATHS ${folders} NO_DEFAULT_PATH NO_CACHE)
        list(APPEND libraries "${library}")
      endif()
    endforeach()
  endif()
  bench_mpi(${peer} NAME "${name}" LAUNCHER "${bench_${peer}_launcher}" INCLUDES ${includes} LIBRARIES ${libraries})
endforeach()

# Intel's from PyPI, where scripts/setup --bench puts it, or an installation whose environment was sourced. Its mpirun
# is a shell script that a signal would end alone; mpiexec.hydra is what it calls.
set(bench_intelmpi_root "")
foreach(folder IN ITEMS "${PROJECT_SOURCE_DIR}/.venv/impi" "$ENV{I_MPI_ROOT}")
  if(NOT bench_intelmpi_root AND folder AND EXISTS "${folder}/include/mpi.h")
    set(bench_intelmpi_root "${folder}")
  endif()
endforeach()
bench_mpi(intelmpi NAME "Intel MPI" ROOT "${bench_intelmpi_root}"
  LAUNCHER "${bench_intelmpi_root}/bin/mpiexec.hydra" INCLUDES "${bench_intelmpi_root}/include"
  LIBRARIES "${bench_intelmpi_root}/lib/libmpi.so.12")
